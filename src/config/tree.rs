//! A YAML text → its leaves, by dotted key, in the file's order.

use serde_yaml_ng::Value;

/// One leaf: its dotted key and its text; a list's items are joined with commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) key: String,
    /// `None` for a key without a value, which may be a section whose keys are all commented out.
    pub(super) text: Option<String>,
}

pub(super) fn leaves(yaml: &str) -> Result<Vec<Leaf>, String> {
    let root: Value = serde_yaml_ng::from_str(yaml).map_err(|fault| fault.to_string())?;
    let mut leaves = Vec::new();
    match &root {
        Value::Null => {}
        Value::Mapping(_) => walk("", &root, &mut leaves),
        Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Sequence(_)
        | Value::Tagged(_) => return Err("wanted keys with values, like `server: ...`".into()),
    }
    Ok(leaves)
}

fn walk(key: &str, value: &Value, out: &mut Vec<Leaf>) {
    match value {
        Value::Mapping(map) => {
            for (name, value) in map {
                let name = scalar(name).unwrap_or_default();
                let inner = if key.is_empty() { name } else { format!("{key}.{name}") };
                walk(&inner, value, out);
            }
        }
        Value::Tagged(tagged) => walk(key, &tagged.value, out),
        Value::Sequence(items) => {
            let items = items.iter().map(|item| scalar(item).unwrap_or_default());
            let text = items.collect::<Vec<String>>().join(",");
            out.push(Leaf { key: key.to_owned(), text: Some(text) });
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push(Leaf { key: key.to_owned(), text: scalar(value) });
        }
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(yaml: &str) -> Vec<(String, Option<String>)> {
        leaves(yaml).unwrap().into_iter().map(|leaf| (leaf.key, leaf.text)).collect()
    }

    #[test]
    fn leaves_get_dotted_keys_and_plain_texts() {
        let yaml = "a:\n  b: 5\n  c.d: true\n  e:\n  f: [x, 1]\n'7': \"${X:y}\"\n";
        let texts = [("a.b", "5"), ("a.c.d", "true"), ("a.f", "x,1"), ("7", "${X:y}")];
        let flat = flat(yaml);
        for (key, text) in texts {
            assert!(flat.contains(&(key.into(), Some(text.into()))), "{key}: {flat:?}");
        }
        assert!(flat.contains(&("a.e".into(), None)));
    }

    #[test]
    fn an_empty_file_has_no_leaves() {
        assert!(leaves("").unwrap().is_empty());
        assert!(leaves("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_yaml_or_has_no_keys_is_refused() {
        assert!(leaves("a: [1").is_err());
        assert!(leaves("a: 1\na: 2").is_err(), "a key twice");
        assert!(leaves("just words").is_err());
        assert!(leaves("- 1").is_err());
    }
}
