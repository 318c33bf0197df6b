//! Mutations must still fit: a patch that no longer applies takes no guard away.

use crate::documents::{has_test, ticked};
use crate::source::Source;

/// Checks each patch, by its name and text: the lines it changes stand in the file it names, the
/// test it names exists, and the list has a row that begins with its name.
pub(crate) fn fit(list: &str, patches: &[(String, String)], files: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    let rows = list.lines().filter(|line| line.starts_with("| `"));
    let listed: Vec<&str> = rows.filter_map(|row| ticked(row).next()).collect();
    for (name, text) in patches {
        let fault = |what: &str| format!("tests/mutations/{name}.patch: {what}");
        if !listed.contains(&name.as_str()) {
            faults.push(fault("docs/mutations.md has no row for it"));
        }
        let test = text.lines().find_map(|line| line.strip_prefix("Test: "));
        let test = test.and_then(|test| test.rsplit([':', ' ']).next()).unwrap_or("");
        if !files.iter().any(|file| has_test(file, test, files)) {
            faults.push(fault(&format!("there is no test `{test}`")));
        }
        let path = text.lines().find_map(|line| line.strip_prefix("--- ")).unwrap_or("");
        let hunks = hunks(text);
        let file = files.iter().find(|file| file.path == path);
        let stands = |hunk: &String| file.is_some_and(|file| file.text.contains(hunk.as_str()));
        if hunks.is_empty() || !hunks.iter().all(stands) {
            faults.push(fault(&format!("what it changes doesn't stand in `{path}`")));
        }
    }
    let gone = listed.iter().filter(|name| !patches.iter().any(|(patch, _)| patch == *name));
    faults.extend(gone.map(|name| format!("docs/mutations.md: there is no patch `{name}`")));
    faults
}

/// What each hunk takes for granted: its context and what it removes.
fn hunks(text: &str) -> Vec<String> {
    let mut hunks: Vec<String> = Vec::new();
    for line in text.lines().skip_while(|line| !line.starts_with("@@")) {
        if line.starts_with("@@") {
            hunks.push(String::new());
        } else if let (Some(hunk), Some(kept)) = (hunks.last_mut(), line.strip_prefix([' ', '-'])) {
            hunk.push_str(kept);
            hunk.push('\n');
        }
    }
    hunks
}

#[cfg(test)]
mod on_purpose {
    use super::fit;
    use crate::source::Source;

    #[test]
    fn a_patch_that_does_not_fit_is_found() {
        let code = "fn guard() {\n    check();\n}\n\n#[test]\nfn red() {}\n";
        let files = [Source::new("src/a.rs", code)];
        let list = "| patch | test |\n| `no-check` | `red` |\n";
        let patch = "Test: lib a::red\n\n--- src/a.rs\n+++ src/a.rs\n@@ -1,3 +1,2 @@\n fn guard() \
                     {\n-    check();\n }\n";
        let with = |list: &str, patch: &str| {
            fit(list, &[("no-check".to_owned(), patch.to_owned())], &files).len()
        };
        assert_eq!(with(list, patch), 0);
        assert_eq!(with(list, &patch.replace("check()", "look()")), 1);
        assert_eq!(with(list, &patch.replace("a::red", "a::green")), 1);
        assert_eq!(with(list, &patch.replace("--- src/a", "--- src/b")), 1);
        assert_eq!(with("", patch), 1);
        assert_eq!(with(&format!("{list}| `other` | `red` |\n"), patch), 1);
    }
}
