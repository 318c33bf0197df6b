//! Files of at most 500 lines, functions of at most 70, lines of at most 100 columns.

use crate::source::{Source, words};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 100;

pub(crate) fn check(file: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_LINES {
        faults.push(format!("{}: {lines} lines; a file has at most {FILE_LINES}", file.path));
    }
    for (index, line) in file.text.lines().enumerate() {
        let columns = line.chars().count();
        // A table in a doc comment can't be broken.
        let table = line.trim_start().starts_with("//") && line.trim_end().ends_with('|');
        if columns > COLUMNS && !table {
            let at = index + 1;
            faults.push(format!("{}:{at}: {columns} columns; at most {COLUMNS}", file.path));
        }
    }
    for (offset, lines) in functions(&file.code) {
        if lines > FUNCTION_LINES {
            let what = format!("a function of {lines} lines; at most {FUNCTION_LINES}");
            faults.push(file.fault(offset, &what));
        }
    }
    faults
}

/// Each function with a body: where its `fn` stands, and how many lines it has.
fn functions(code: &str) -> Vec<(usize, usize)> {
    let body = |at: usize| {
        let end = body_end(&code[at..])?;
        Some((at, code[at..at + end].lines().count()))
    };
    words(code, "fn").filter_map(body).collect()
}

/// The end of the body that follows; none for a declaration or a function pointer type.
fn body_end(code: &str) -> Option<usize> {
    let (mut round, mut curly) = (0_i32, 0_i32);
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' => round += 1,
            b')' | b']' => round -= 1,
            b'{' => curly += 1,
            b'}' => {
                curly -= 1;
                if curly == 0 {
                    return Some(at + 1);
                }
            }
            b';' | b',' | b'=' if round == 0 && curly == 0 && !arrow(code, at) => return None,
            _ => {}
        }
        if round < 0 || curly < 0 {
            return None;
        }
    }
    None
}

/// Commas and equals signs of a signature: inside `<>`, or after `where`.
fn arrow(code: &str, at: usize) -> bool {
    let before = &code[..at];
    let open = before.matches('<').count();
    let close = before.matches('>').count() - before.matches("->").count();
    open > close || words(before, "where").next().is_some()
}

#[test]
fn a_long_function_is_found_and_a_short_one_is_not() {
    let long =
        format!("fn f<T>(a: T) -> u8\nwhere\n    T: Fn(u8) -> u8,\n{{{}\n}}\n", "\n".repeat(70));
    let faults = check(&Source::new("src/a.rs", &long));
    assert_eq!(faults, ["src/a.rs:1: a function of 75 lines; at most 70"]);
    let short = format!("struct A {{ f: fn(u8) -> u8, g: u8 }}\n{}fn f() {{}}\n", "\n".repeat(90));
    assert!(check(&Source::new("src/a.rs", &short)).is_empty());
}

#[test]
fn a_body_is_not_ended_by_a_brace_in_a_string() {
    let text = format!("fn f() {{ let a = \"}}\";{}\n}}\n", "\n".repeat(80));
    assert_eq!(check(&Source::new("src/a.rs", &text)).len(), 1);
}

#[test]
fn long_files_and_wide_lines_are_found() {
    let text = format!("// {}\n{}", "ä".repeat(98), "\n".repeat(500));
    let faults = check(&Source::new("src/a.rs", &text));
    assert_eq!(faults.len(), 2, "{faults:?}");
}
