//! Doors say what they are, and every file is reached by `mod` lines from a root.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, is_name, words};

/// Every `mod.rs`, the map `src/lib.rs`, and every room that is one file, opens with `//!`.
pub(crate) fn door_docs(file: &Source) -> Vec<String> {
    let room_of_one_file = file.in_src().is_some_and(|path| !path.contains('/') && path != "main");
    let door = file.path.ends_with("/mod.rs") || room_of_one_file;
    if door && !file.text.starts_with("//!") {
        let what = "a door opens with `//!`: what comes in, what goes out, what it never does";
        return vec![file.fault(0, what)];
    }
    Vec::new()
}

/// Files that no chain of `mod` lines reaches: a reader would take them for the program.
pub(crate) fn unreachable(files: &[Source]) -> Vec<String> {
    let by_path: BTreeMap<&str, &Source> = files.iter().map(|f| (f.path.as_str(), f)).collect();
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> =
        files.iter().filter(|file| is_root(&file.path)).map(|file| file.path.clone()).collect();
    while let Some(path) = open.pop() {
        let Some(file) = by_path.get(path.as_str()) else { continue };
        if reached.insert(path) {
            open.extend(children(file, &by_path));
        }
    }
    let lost = |file: &&Source| !reached.contains(&file.path);
    let fault = |file: &Source| format!("{}: no `mod` line leads here", file.path);
    files.iter().filter(lost).map(fault).collect()
}

/// What Cargo compiles on its own: lib and main, and each test and bench, as file or folder.
fn is_root(path: &str) -> bool {
    let inner = path.strip_prefix("tests/").or_else(|| path.strip_prefix("benches/"));
    match (inner, path) {
        (_, "src/lib.rs" | "src/main.rs") => true,
        (Some(inner), _) => !inner.contains('/') || inner.ends_with("/main.rs"),
        (None, _) => false,
    }
}

fn children(file: &Source, by_path: &BTreeMap<&str, &Source>) -> Vec<String> {
    let mut found = Vec::new();
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let own = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ if is_root(&file.path) => folder.to_owned(),
        _ => file.path.trim_end_matches(".rs").to_owned(),
    };
    for at in words(&file.code, "mod") {
        let rest = file.code[at + 3..].trim_start();
        let module: String = rest.chars().take_while(|c| is_name(*c)).collect();
        if module.is_empty() || !rest[module.len()..].trim_start().starts_with(';') {
            continue;
        }
        let mut paths = vec![format!("{own}/{module}.rs"), format!("{own}/{module}/mod.rs")];
        if let Some(given) = path_attribute(&file.text[..at]) {
            paths = vec![format!("{folder}/{given}")];
        }
        found.extend(paths.into_iter().filter(|path| by_path.contains_key(path.as_str())));
    }
    found
}

/// The file named by a `#[path = "..."]` on the line before.
fn path_attribute(before: &str) -> Option<&str> {
    let line = before.trim_end_matches(|c| c != '\n').trim_end().lines().next_back()?;
    line.trim().strip_prefix("#[path = \"")?.strip_suffix("\"]")
}

#[test]
fn a_forgotten_file_is_found() {
    let files = [
        Source::new("src/lib.rs", "//! Map.\nmod a;\n// mod b;\n"),
        Source::new("src/a/mod.rs", "//! A.\npub(crate) mod inner;\n#[path = \"t.rs\"]\nmod x;\n"),
        Source::new("src/a/inner.rs", "mod deep;\nmod here { fn f() {} }\n"),
        Source::new("src/a/inner/deep.rs", ""),
        Source::new("src/a/t.rs", ""),
        Source::new("src/b.rs", ""),
        Source::new("tests/broker/main.rs", "mod c;"),
        Source::new("tests/broker/c.rs", ""),
        Source::new("tests/broker/lost.rs", ""),
    ];
    let lost = unreachable(&files);
    let expected =
        ["src/b.rs", "tests/broker/lost.rs"].map(|p| format!("{p}: no `mod` line leads here"));
    assert_eq!(lost, expected);
}

#[test]
fn a_door_without_a_word_is_found() {
    assert_eq!(door_docs(&Source::new("src/a/mod.rs", "mod b;\n")).len(), 1);
    assert_eq!(door_docs(&Source::new("src/limits.rs", "// no\n")).len(), 1);
    assert!(door_docs(&Source::new("src/a/b.rs", "")).is_empty());
}
