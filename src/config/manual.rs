//! `docs/configuration.md` and the comments of `config/sluice.yml` say what the code does: the
//! manual is made from the comments, and their brackets are compared with the forms that the
//! reader asks for. Compiled for tests only.

use std::collections::BTreeMap;
use std::path::Path;

use super::load::{BUILT_IN, built_in};
use super::placeholder::{resolve, variable};
use super::reader::{Given, Reader};
use super::{Origin, rooms};

/// One setting as the built-in file describes it.
struct Entry {
    key: String,
    /// Unit and what may be written, as in the brackets.
    form: String,
    default: String,
    effect: String,
}

/// A line's comment text, and whether it goes with what stands below it.
fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in BUILT_IN.lines() {
        let text = line.trim();
        if let Some(words) = text.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        let Some((name, value)) = text.split_once(':') else {
            comment.clear();
            continue;
        };
        path.truncate((line.len() - line.trim_start().len()) / 2);
        path.push(name.to_owned());
        let comment = std::mem::take(&mut comment).join(" ");
        if !value.is_empty() {
            entries.push(entry(path.join("."), &comment));
        }
    }
    entries
}

fn entry(key: String, comment: &str) -> Entry {
    let parts = comment.strip_prefix('[').and_then(|comment| comment.split_once("] "));
    let (bracket, effect) = parts.unwrap_or_else(|| panic!("{key}: `# [form, default X] effect`"));
    let (form, default) = bracket.rsplit_once(", default ").unwrap_or_else(|| {
        panic!("{key}: no default in [{bracket}]");
    });
    let default = if default == "empty" { "" } else { default };
    assert!(effect.ends_with('.') || effect.ends_with(')'), "{key}: wanted sentences");
    Entry { key, form: form.into(), default: default.into(), effect: effect.into() }
}

fn given() -> BTreeMap<String, Given> {
    let resolved = |raw: &str| resolve(raw, &|_| None).unwrap().text;
    built_in()
        .into_iter()
        .map(|(key, raw)| {
            let text = resolved(&raw);
            (key, Given { text: text.clone(), origin: Origin::BuiltIn, built_in: text })
        })
        .collect()
}

#[test]
fn every_comment_states_the_form_and_the_default_that_the_code_has() {
    let values = given();
    let mut reader = Reader::new(&values);
    rooms::read(&mut reader);
    assert_eq!(reader.faults, [], "built-in values must be good");
    assert_eq!(reader.warnings, [""; 0]);
    let entries = entries();
    for entry in &entries {
        let form = reader.forms.get(entry.key.as_str());
        let form = form.unwrap_or_else(|| panic!("{}: nobody reads it", entry.key));
        assert_eq!(&entry.form, form, "{}", entry.key);
        assert_eq!(entry.default, values[&entry.key].text, "{}", entry.key);
    }
    assert_eq!(entries.len(), values.len());
}

#[test]
fn every_setting_has_a_variable_of_its_own() {
    let mut names: Vec<String> = built_in()
        .values()
        .map(|raw| variable(raw).unwrap_or_else(|| panic!("{raw}: no variable")).to_owned())
        .collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "a variable stands for two keys");
}

/// `UPDATE_DOCS=1 cargo test` writes the file anew.
#[test]
fn the_manual_says_what_the_file_says() {
    let raw = built_in();
    let mut text = String::from(
        "# Configuration\n\n\
         This page is made from the comments of `config/sluice.yml`; a test compares them. Keys \
         and environment\nvariables are TBMQ's wherever TBMQ has the thing, and a TBMQ file \
         starts as it is: keys that have no effect here\nare named once in a warning. A key that \
         nobody knows, and a value of another form than the one below, stop the\nstart; all \
         faults are reported at once, with exit code 2. `sluice check-config --config FILE` does \
         only that.\n\n\
         `\"${NAME:value}\"` in a file means: the environment variable `NAME` if it is set, else \
         `value`. A key that your own\nfile leaves out has the variable and the value below; one \
         that it gives as a plain value is final. KB means 1024\nbytes.\n\n\
         | Key | Environment | Default | Form | Effect |\n|---|---|---|---|---|\n",
    );
    for Entry { key, form, default, effect } in entries() {
        let variable = variable(&raw[&key]).unwrap_or_default();
        let default = if default.is_empty() { "–".into() } else { format!("`{default}`") };
        text.push_str(&format!("| `{key}` | `{variable}` | {default} | {form} | {effect} |\n"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/configuration.md is not current: UPDATE_DOCS=1 cargo test manual"
    );
}
