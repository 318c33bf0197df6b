//! Which filter matches which topic: section 4.7, written down a second time.

pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let (filter, topic): (Vec<&str>, Vec<&str>) =
        (filter.split('/').collect(), topic.split('/').collect());
    for (index, level) in filter.iter().enumerate() {
        match (*level, topic.get(index)) {
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (level, Some(other)) if level == *other => {}
            (_, Some(_) | None) => return false,
        }
    }
    filter.len() == topic.len()
}

#[test]
fn the_reference_matcher_knows_the_examples_of_the_specification() {
    for (filter, topic) in [("a/#", "a"), ("#", "/"), ("+/+", "/a"), ("/+", "/a"), ("$S/#", "$S/x")]
    {
        assert!(matches(filter, topic), "{filter} {topic}");
    }
    for (filter, topic) in [("+", "/a"), ("#", "$S/x"), ("+/x", "$S/x"), ("a/+", "a"), ("a", "A")] {
        assert!(!matches(filter, topic), "{filter} {topic}");
    }
}
