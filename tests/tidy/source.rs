//! Rust files as text, with comments and literals blanked out so that rules see only code.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One file: its path from the top of the repository, its text, and the same text in which every
/// character of a comment or literal is a space (line breaks stay, so positions agree).
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Source { path: path.to_owned(), text: text.to_owned(), code: blank(text) }
    }

    /// The path inside `src`, without the suffix: `storage/embedded/mod`; none outside `src`.
    pub(crate) fn in_src(&self) -> Option<&str> {
        self.path.strip_prefix("src/")?.strip_suffix(".rs")
    }

    /// The first part of the path inside `src`: `storage` for `src/storage/record.rs`.
    pub(crate) fn room(&self) -> Option<&str> {
        self.in_src().map(|path| path.split('/').next().unwrap_or(path))
    }

    pub(crate) fn line_of(&self, offset: usize) -> usize {
        self.text[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1
    }

    pub(crate) fn fault(&self, offset: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path, self.line_of(offset))
    }
}

pub(crate) fn top() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(top().join(path)).ok()
}

pub(crate) fn rust_files(folders: &[&str]) -> Vec<Source> {
    let mut files = Vec::new();
    for folder in folders {
        walk(&top().join(folder), &mut |path| {
            if path.extension().is_some_and(|suffix| suffix == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let path = path.strip_prefix(top()).unwrap().to_str().unwrap();
                files.push(Source::new(path, &text));
            }
        });
    }
    assert!(!files.is_empty(), "no Rust file in {folders:?}: is the test run from the repository?");
    files
}

/// Every text file that git knows; without git, every one outside `target`.
pub(crate) fn tracked_files() -> Vec<(String, String)> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(top()).output();
    let mut paths: Vec<String> = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split_terminator('\0')
            .map(str::to_owned)
            .collect(),
        Ok(_) | Err(_) => Vec::new(),
    };
    if paths.is_empty() {
        walk(&top(), &mut |path| {
            paths.push(path.strip_prefix(top()).unwrap().to_string_lossy().into_owned());
        });
    }
    let read = |path: String| read(&path).map(|text| (path, text));
    paths.into_iter().filter_map(read).collect()
}

fn walk(folder: &Path, found: &mut dyn FnMut(&Path)) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "data" && !name.starts_with('.') {
                walk(&path, found);
            }
        } else {
            found(&path);
        }
    }
}

/// Where a name is used as a whole word in code.
pub(crate) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = code[..*at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

pub(crate) fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Blanks comments, strings and character literals.
pub(crate) fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
            at = end;
        } else {
            at += 1;
        }
    }
    String::from_utf8(out).expect("only whole literals are blanked, so no character is cut")
}

/// The end of the comment or literal that begins at `at`; `at` itself if none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let named = at > 0 && is_name(bytes[at - 1] as char);
    match rest {
        [b'/', b'/', ..] => at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_end(bytes, at),
        [b'"', ..] => quote_end(bytes, at + 1),
        [b'r', b'"' | b'#', ..] if !named => raw_end(bytes, at + 1).unwrap_or(at),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !named => raw_end(bytes, at + 2).unwrap_or(at),
        [b'\'', ..] => character_end(bytes, at),
        _ => at,
    }
}

fn block_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start + 2, 1);
    while at < bytes.len() && depth > 0 {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

fn quote_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn raw_end(bytes: &[u8], start: usize) -> Option<usize> {
    let hashes = bytes[start..].iter().take_while(|byte| **byte == b'#').count();
    let open = start + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    let found = bytes[open + 1..].windows(close.len()).position(|window| window == close);
    Some(found.map_or(bytes.len(), |length| open + 1 + length + close.len()))
}

/// A character literal, told from a lifetime by its closing quote.
fn character_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let from = at + 3;
        let close = bytes[from.min(bytes.len())..].iter().position(|byte| *byte == b'\'');
        return close.map_or(at, |length| from + length + 1);
    }
    let width = match bytes.get(at + 1) {
        Some(byte) if *byte >= 0xF0 => 4,
        Some(byte) if *byte >= 0xE0 => 3,
        Some(byte) if *byte >= 0xC0 => 2,
        Some(_) => 1,
        None => return at,
    };
    if bytes.get(at + 1 + width) == Some(&b'\'') { at + width + 2 } else { at }
}

#[test]
fn literals_and_comments_are_blanked_but_lifetimes_are_not() {
    let text =
        "fn a<'x>(c: &'x str) { let _ = ('{', '\\'', \"}\\\"{\", r#\"\"{\"#); /* { */ } // {";
    let code = blank(text);
    assert_eq!(code.len(), text.len());
    assert_eq!(code.matches('{').count(), 1, "{code}");
    assert_eq!(code.matches('}').count(), 1, "{code}");
    assert!(code.contains("<'x>(c: &'x str)"), "{code}");
}

#[test]
fn only_whole_words_are_found() {
    assert_eq!(words("redis redis_x xredis redis::a", "redis").collect::<Vec<_>>(), [0, 21]);
}
