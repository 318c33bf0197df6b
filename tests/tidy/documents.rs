//! Names in documents must exist: the life of a PUBLISH, and the table of requirements.

use std::collections::BTreeSet;

use crate::source::{Source, words};

/// How many stops one PUBLISH makes, and so how many rows the table has at least.
const STOPS: usize = 12;

/// Checks the table under the heading "Life of a PUBLISH". In a row, every `file.rs` (from the
/// top or from `src`) must exist, and a plain name after it must be a function in that file.
pub(crate) fn life_of_a_publish(text: &str, files: &[Source]) -> Vec<String> {
    let Some(section) = section(text, "life of a publish") else {
        return vec!["ARCHITECTURE.md: no heading \"Life of a PUBLISH\"".to_owned()];
    };
    let mut faults = Vec::new();
    let mut rows = 0;
    for row in section.iter().filter(|line| is_row(line)) {
        let stop = row.split('|').nth(2).unwrap_or("");
        let mut file = None;
        for name in ticked(stop) {
            if name.ends_with(".rs") {
                let found =
                    files.iter().find(|f| f.path == name || f.path == format!("src/{name}"));
                if found.is_none() {
                    faults.push(format!("ARCHITECTURE.md: `{name}` doesn't exist"));
                }
                rows += usize::from(file.is_none());
                file = found;
            } else if let Some(file) = file
                && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
                && !has_function(file, name)
            {
                faults.push(format!("ARCHITECTURE.md: `{}` has no function `{name}`", file.path));
            }
        }
    }
    if rows < STOPS && faults.is_empty() {
        faults.push(format!("ARCHITECTURE.md: {rows} stops with a file; there are {STOPS}"));
    }
    faults
}

fn section<'a>(text: &'a str, heading: &str) -> Option<Vec<&'a str>> {
    let mut lines = text
        .lines()
        .skip_while(|line| !(line.starts_with('#') && line.to_lowercase().contains(heading)));
    lines.next()?;
    Some(lines.take_while(|line| !line.starts_with('#') || line.starts_with("###")).collect())
}

/// A row of a table's body: not the line of dashes, not (as it names no number or id) the head.
fn is_row(line: &str) -> bool {
    line.starts_with('|') && line.bytes().any(|b| b.is_ascii_digit()) && !line.starts_with("|--")
}

pub(crate) fn ticked(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn has_function(file: &Source, name: &str) -> bool {
    words(&file.code, name).any(|at| {
        words(file.code[..at].trim_end(), "fn")
            .last()
            .is_some_and(|function| function + 2 == file.code[..at].trim_end().len())
    })
}

/// Checks `docs/requirements.md`: rows `| id, id | ... | `tests/file.rs` `function`, ... |`. Each
/// row names at least one test, each test exists, and each id that is due has a row.
pub(crate) fn requirements(text: &str, files: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, row) in text.lines().enumerate().filter(|(_, line)| is_row(line)) {
        let at = format!("docs/requirements.md:{}", index + 1);
        let ids = row.split('|').nth(1).unwrap_or("");
        seen.extend(ids.split([',', ' ', '`', '*']).filter(|id| !id.is_empty()));
        let mut file: Option<&Source> = None;
        let mut tests = 0;
        for name in ticked(row) {
            let (path, function) = name.split_once("::").unwrap_or((name, name));
            if path.ends_with(".rs") {
                file = files.iter().find(|file| file.path == path);
                if file.is_none() {
                    faults.push(format!("{at}: `{path}` doesn't exist"));
                    tests += 1;
                }
                if path == function {
                    continue;
                }
            }
            let Some(file) = file else { continue };
            tests += 1;
            if !has_test(file, function, files) {
                faults.push(format!("{at}: `{}` has no test `{function}`", file.path));
            }
        }
        if tests == 0 {
            faults.push(format!("{at}: the row names no test"));
        }
    }
    let missing = due().into_iter().filter(|id| !seen.contains(id.as_str()));
    faults.extend(missing.map(|id| format!("docs/requirements.md: {id} has no row")));
    faults
}

/// Families of ids whose behaviour must be shown on embedded storage and on Kafka and Redis.
const BOTH: [&str; 7] = ["IN-", "OUT-", "DEV-", "RM-", "MET-", "MEM-", "FLO-"];
/// What no storage has a part in: a socket's option, the names of series.
const WITHOUT_STORAGE: [&str; 2] = ["IN-3", "MEM-05"];

/// Checks that each of those rows names tests of both profiles. `cluster`: `tests/cluster/main.rs`,
/// which takes in modules of the black-box tests.
pub(crate) fn both_profiles(text: &str, cluster: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, row) in text.lines().enumerate().filter(|(_, line)| is_row(line)) {
        let ids = row.split('|').nth(1).unwrap_or("").trim();
        let concerned = BOTH.iter().any(|family| ids.starts_with(family));
        if !concerned || WITHOUT_STORAGE.contains(&ids) {
            continue;
        }
        let paths = || ticked(row).filter(|name| name.ends_with(".rs"));
        let shared = |path: &str| {
            let name = path.strip_prefix("tests/broker/");
            name.is_some_and(|name| cluster.contains(&format!("\"../broker/{name}\"")))
        };
        let everywhere = |path: &str| path.starts_with("src/storage/contract/") || shared(path);
        let on_kafka = |path: &str| {
            everywhere(path)
                || path.starts_with("tests/cluster/")
                || path.starts_with("src/storage/kafka/")
        };
        let on_embedded = |path: &str| {
            everywhere(path)
                || ["tests/broker/", "tests/crash/", "tests/simulation/", "src/storage/embedded/"]
                    .iter()
                    .any(|start| path.starts_with(start))
        };
        let at = format!("docs/requirements.md:{}", index + 1);
        if !paths().any(on_kafka) {
            faults.push(format!("{at}: {ids} names no test on Kafka and Redis"));
        }
        if !paths().any(on_embedded) {
            faults.push(format!("{at}: {ids} names no test on embedded storage"));
        }
    }
    faults
}

/// A function under an attribute that makes it a test, or a case of the storage contract, of which
/// the suite makes a test for each backend.
pub(crate) fn has_test(file: &Source, name: &str, files: &[Source]) -> bool {
    let suite = files.iter().find(|file| file.path == CONTRACT);
    if file.path.starts_with("src/storage/contract/")
        && suite.is_some_and(|suite| words(&suite.code, name).count() > 1)
    {
        return has_function(file, name);
    }
    let lines: Vec<&str> = file.code.lines().collect();
    let is_it = |line: &str| {
        words(line, name)
            .any(|at| line[..at].trim_end().ends_with("fn") && has_function(file, name))
    };
    lines.iter().enumerate().filter(|(_, line)| is_it(line)).any(|(index, _)| {
        let above = lines[..index].iter().rev().map(|line| line.trim());
        above
            .take_while(|line| !line.ends_with(['}', ';', '{']))
            .any(|line| line.starts_with("#[") && line.contains("test"))
    })
}

/// Names each case twice: where it takes it in, and in the suite.
const CONTRACT: &str = "src/storage/contract/mod.rs";

/// The rows of the field reports and the requirements of flow control that one node without TLS
/// and WebSocket can prove, the codec's vectors, and the ten invariants of ARCHITECTURE.md.
fn due() -> Vec<String> {
    const REPORTS: [(&str, &[u8]); 18] = [
        ("TKO", &[1, 2, 4, 6, 7, 8]),
        ("SES", &[1, 2, 5, 6, 7, 8, 10, 11, 12]),
        ("WIL", &[1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 14]),
        ("RET", &[1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 14, 15, 17, 18, 19]),
        ("SUB", &[2, 3, 5, 6, 7, 8, 9, 10, 11]),
        ("FLO", &[1, 2, 4, 5, 6, 7, 8, 10, 12, 13, 14, 15]),
        ("QOS", &[1, 2, 4, 5, 6, 8, 10, 11, 12, 13]),
        ("ORD", &[1, 2, 4, 5, 6]),
        ("TOP", &[1, 2, 3, 5, 6, 7, 8, 9, 11]),
        ("CON", &[1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14]),
        ("PRP", &[1, 3, 4, 5, 6, 8, 9, 10]),
        ("KAL", &[1, 2, 3, 4, 5, 6]),
        ("WSS", &[2, 3, 4]),
        ("PAR", &[1, 3, 5, 6, 7, 8, 9]),
        ("CLI", &[1, 2, 4, 5]),
        ("STO", &[1, 3, 9, 11, 12]),
        ("MEM", &[1, 2, 3, 5, 6, 7]),
        ("QTA", &[1, 2, 3, 5, 6]),
    ];
    const REQUIREMENTS: [(&str, &[u8]); 9] = [
        ("IN", &[1, 2, 3, 4, 5, 7, 8]),
        ("LIM", &[1, 2, 3]),
        ("QUO", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("OUT", &[1, 2, 3, 4, 5, 6]),
        ("DEV", &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("SHR", &[1, 2, 3]),
        ("RM", &[1, 2, 3, 4, 5]),
        ("MET", &[1, 2, 3]),
        ("INV", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ];
    let report = |(kind, numbers): (&str, &[u8])| -> Vec<String> {
        numbers.iter().map(|number| format!("{kind}-{number:02}")).collect()
    };
    let requirement = |(kind, numbers): (&str, &[u8])| -> Vec<String> {
        numbers.iter().map(|number| format!("{kind}-{number}")).collect()
    };
    let requirements = REQUIREMENTS.into_iter().flat_map(requirement);
    let vectors = std::iter::once("VECTORS".to_owned());
    REPORTS.into_iter().flat_map(report).chain(requirements).chain(vectors).collect()
}

#[cfg(test)]
mod on_purpose {
    use super::{CONTRACT, due, has_test, life_of_a_publish, requirements};
    use crate::source::Source;

    fn file() -> Source {
        let text = "#[test]\nfn proves() {}\n\nfn helper() {}\n\n/// X-1\n#[tokio::test]\n\
                    async fn waits() {}\n";
        Source::new("tests/a.rs", text)
    }

    #[test]
    fn a_requirement_without_a_real_test_is_found() {
        let rows: String =
            due().iter().map(|id| format!("| {id} | 1 | `tests/a.rs` `proves` |\n")).collect();
        assert_eq!(requirements(&rows, &[file()]), Vec::<String>::new());
        let both = format!("{rows}| X-1, X-2 | text | `tests/a.rs::waits`, `proves` |\n");
        assert_eq!(requirements(&both, &[file()]), Vec::<String>::new());
        for bad in ["`tests/a.rs` `gone`", "`tests/a.rs` `helper`", "`tests/b.rs` `proves`", "none"]
        {
            let faults = requirements(&format!("{rows}| X-1 | {bad} |\n"), &[file()]);
            assert_eq!(faults.len(), 1, "{bad}: {faults:?}");
        }
        let short = rows.replace("TKO-01", "TKO-99");
        assert_eq!(requirements(&short, &[file()]), ["docs/requirements.md: TKO-01 has no row"]);
    }

    #[test]
    fn a_case_of_the_contract_is_a_test_if_the_suite_has_it() {
        let files = [
            Source::new(CONTRACT, "pub use a_cases::{one, two};\nsuite! { one }\n"),
            Source::new("src/storage/contract/a_cases.rs", "pub fn one() {}\npub fn two() {}\n"),
        ];
        let has = |name| has_test(&files[1], name, &files);
        assert_eq!([has("one"), has("two"), has("three")], [true, false, false]);
    }

    #[test]
    fn a_stop_that_is_gone_is_found() {
        let files = [Source::new("src/a/mod.rs", "pub fn run() {}\n")];
        let table = |stop: &str| {
            let rows: String = (1..=12).map(|n| format!("| {n} | {stop} | x `y` |\n")).collect();
            format!(
                "# A\n## Life of a PUBLISH\n| # | stop |\n|---|---|\n{rows}## B\n| 1 | `b.rs` |\n"
            )
        };
        assert_eq!(life_of_a_publish(&table("`a/mod.rs` `run`"), &files), Vec::<String>::new());
        for bad in ["`a/gone.rs` `run`", "`src/a/mod.rs` `walk`", "somewhere"] {
            assert!(!life_of_a_publish(&table(bad), &files).is_empty(), "{bad}");
        }
        assert_eq!(life_of_a_publish("# Nothing\n", &files).len(), 1);
    }
}
