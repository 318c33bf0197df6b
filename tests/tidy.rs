//! The house rules as tests: what a reviewer would otherwise have to look for.
//!
//! Each rule is a function from a file to its faults, so that it can be shown here that it fails
//! on a bad snippet. A fault reads `path:line: what is wrong and what is allowed`.

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/lengths.rs"]
mod lengths;
#[path = "tidy/mutations.rs"]
mod mutations;
#[path = "tidy/reach.rs"]
mod reach;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use source::{Source, rust_files, tracked_files};

/// Panics with every fault at once, so that a developer mends all of them in one go.
#[track_caller]
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn over(files: &[Source], rule: fn(&Source) -> Vec<String>) -> Vec<String> {
    files.iter().flat_map(rule).collect()
}

#[test]
fn imports_go_only_to_a_lower_room() {
    none(over(&rust_files(&["src"]), layers::imports));
}

#[test]
fn other_rooms_use_the_door() {
    let files = rust_files(&["src"]);
    none(layers::doors(&files));
}

#[test]
fn an_outside_library_lives_in_one_room() {
    none(over(&rust_files(&["src", "tests", "benches"]), layers::libraries));
}

#[test]
fn pure_files_know_neither_tokio_nor_time() {
    none(over(&rust_files(&["src"]), layers::purity));
}

#[test]
fn files_functions_and_lines_keep_their_lengths() {
    none(over(&rust_files(&["src", "tests", "benches"]), lengths::check));
}

#[test]
fn doors_open_with_what_they_are() {
    none(over(&rust_files(&["src", "tests", "benches"]), reach::door_docs));
}

#[test]
fn every_file_is_part_of_the_program() {
    none(reach::unreachable(&rust_files(&["src", "tests", "benches"])));
}

#[test]
fn nothing_unfinished_ignored_or_unbounded() {
    none(over(&rust_files(&["src", "tests", "benches"]), words::forbidden));
}

#[test]
fn no_commented_out_code() {
    none(over(&rust_files(&["src", "tests", "benches"]), words::commented_out_code));
}

#[test]
fn tracked_files_name_no_machine_and_no_registry() {
    none(tracked_files().iter().flat_map(|(path, text)| words::places(path, text)).collect());
}

#[test]
fn the_life_of_a_publish_names_real_functions() {
    let files = rust_files(&["src"]);
    let Some(text) = source::read("ARCHITECTURE.md") else { return };
    none(documents::life_of_a_publish(&text, &files));
}

#[test]
fn every_requirement_has_its_test() {
    let Some(text) = source::read("docs/requirements.md") else { return };
    none(documents::requirements(&text, &rust_files(&["src", "tests"])));
}

#[test]
fn flow_control_is_shown_on_both_profiles() {
    let Some(text) = source::read("docs/requirements.md") else { return };
    let Some(cluster) = source::read("tests/cluster/main.rs") else { return };
    none(documents::both_profiles(&text, &cluster));
}

#[test]
fn every_mutation_fits() {
    let Some(list) = source::read("docs/mutations.md") else { return };
    let named = |(path, text): (String, String)| {
        let name = path.strip_prefix("tests/mutations/")?.strip_suffix(".patch")?.to_owned();
        Some((name, text))
    };
    let patches: Vec<_> = tracked_files().into_iter().filter_map(named).collect();
    none(mutations::fit(&list, &patches, &rust_files(&["src", "tests"])));
}
