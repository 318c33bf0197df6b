//! Words that must not stand in the repository.

use crate::source::{Source, is_name};

const FORBIDDEN: [(&str, &str); 6] = [
    ("todo!", "finish it, or leave it out"),
    ("unimplemented!", "finish it, or leave it out"),
    ("dbg!", "use tracing"),
    ("#[ignore", "a test runs, or it goes"),
    ("unbounded_channel", "every queue has a bound and an answer to \"full\""),
    ("#[should_panic", "assert on the value that is returned"),
];

pub(crate) fn forbidden(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (word, instead) in FORBIDDEN {
        for (at, _) in file.code.match_indices(word) {
            if !file.code[..at].chars().next_back().is_some_and(is_name) {
                faults.push(file.fault(at, &format!("`{word}`: {instead}")));
            }
        }
    }
    faults
}

/// A comment that would compile. Sentences end otherwise, so prose is left alone.
pub(crate) fn commented_out_code(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        if comment.starts_with(['/', '!']) || !looks_like_code(comment.trim()) {
            continue;
        }
        faults.push(format!("{}:{}: commented-out code; git remembers it", file.path, index + 1));
    }
    faults
}

const STATEMENTS: [&str; 12] = [
    "let ", "use ", "pub ", "return", "mod ", "const ", "static ", "self.", "assert", "break",
    "type ", "*",
];
const BLOCKS: [&str; 14] = [
    "if ", "for ", "while ", "match ", "fn ", "pub ", "impl ", "loop ", "struct ", "enum ",
    "async ", "} else", "unsafe ", "trait ",
];

fn looks_like_code(comment: &str) -> bool {
    if matches!(comment, "}" | "};" | "})" | "});" | "}," | "{") || comment.starts_with("#[") {
        return true;
    }
    if comment.ends_with('{') {
        return BLOCKS.iter().any(|word| comment.starts_with(word));
    }
    if !comment.ends_with(';') {
        return false;
    }
    let call = comment.split(' ').next().is_some_and(|word| word.contains(['(', '!', '.', ':']));
    let assigns = comment.contains(" = ") || comment.contains(" += ");
    STATEMENTS.iter().any(|word| comment.starts_with(word)) || call || assigns
}

/// Paths of a machine, and where packages come from: both differ on the reader's machine.
pub(crate) fn places(path: &str, text: &str) -> Vec<String> {
    // Written in two parts, so that this file keeps the rule itself.
    let folders = [("/wo", "rk/"), ("/ro", "ot/"), ("/fa", "rm/"), ("/Us", "ers/"), ("/ho", "me/")];
    let registries = [
        ("index", "-url"),
        ("replace", "-with"),
        ("--reg", "istry"),
        ("npm_config_", "registry"),
        ("PIP_", "INDEX_URL"),
    ];
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = format!("{path}:{}", index + 1);
        for (head, tail) in folders {
            if absolute(line, &format!("{head}{tail}")) {
                faults.push(format!("{at}: a path of one machine"));
            }
        }
        for (head, tail) in registries {
            if line.contains(&format!("{head}{tail}")) {
                faults.push(format!("{at}: the user's own registry settings decide"));
            }
        }
        let source = line.trim().strip_prefix("source = \"");
        let official = "registry+https://github.com/rust-lang/crates.io-index";
        if path.ends_with("Cargo.lock") && source.is_some_and(|from| !from.starts_with(official)) {
            faults.push(format!("{at}: a crate that doesn't come from crates.io"));
        }
        faults.extend(line.split("://").skip(1).filter(|host| foreign(host)).map(|host| {
            let host: String = host.chars().take(30).collect();
            format!("{at}: an address of one network: {host}")
        }));
    }
    faults
}

fn absolute(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| is_name(c) || matches!(c, '.' | '/' | '-' | '}' | '~' | '*' | '>'))
    })
}

/// Hosts inside one network: private suffixes, and numbers other than this machine's own.
fn foreign(rest: &str) -> bool {
    let host: &str = rest.split(['/', ':', '"', '\'', '`', ' ', ')', '>']).next().unwrap_or(rest);
    let parts: Vec<&str> = host.split('.').collect();
    let number = parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok());
    let private = ["internal", "local", "lan", "corp", "intranet"];
    (number && !host.starts_with("127.") && host != "0.0.0.0")
        || (parts.len() > 1 && private.iter().any(|suffix| parts.last() == Some(suffix)))
}

#[test]
fn forbidden_words_are_found_in_code_only() {
    let bad = "fn f() { todo!() }\n#[ignore = \"slow\"]\nuse a::unbounded_channel;\n";
    assert_eq!(forbidden(&Source::new("src/a.rs", bad)).len(), 3);
    let good = "// todo!(\nfn f() { g(\"dbg!\") }\n";
    assert!(forbidden(&Source::new("src/a.rs", good)).is_empty());
}

#[test]
fn commented_out_code_is_found_and_prose_is_not() {
    for bad in ["let a = 1;", "self.run(a);", "if a {", "}", "#[test]", "a.b();", "x += 1;"] {
        let file = Source::new("src/a.rs", &format!("    // {bad}\n"));
        assert_eq!(commented_out_code(&file).len(), 1, "{bad}");
    }
    let prose = [
        "The log is first; the queue follows.",
        "a reader waits here;",
        "see `f()`.",
        "for instance (a, b)",
    ];
    for good in prose {
        let file = Source::new("src/a.rs", &format!("// {good}\n/// let a = 1;\n"));
        assert!(commented_out_code(&file).is_empty(), "{good}");
    }
}

#[test]
fn places_of_one_machine_are_found() {
    let bad = [
        ("/wo", "rk/x"),
        ("cd /ro", "ot/a"),
        ("pip --index", "-url x"),
        ("https:/", "/10.0.0.1/a"),
        ("http:/", "/crates.internal/a"),
    ];
    for (head, tail) in bad {
        assert_eq!(places("README.md", &format!("{head}{tail}")).len(), 1, "{head}{tail}");
    }
    let lock = "source = \"registry+https://example.org/index\"";
    assert_eq!(places("Cargo.lock", lock).len(), 1);
    for good in ["a/wo/rk", "http://127.0.0.1:8083/", "https://mqtt.org/", "./root/x"] {
        assert!(places("README.md", good).is_empty(), "{good}");
    }
}
