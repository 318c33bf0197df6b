//! When the broker refuses to start on a folder: another process, no place, damage. (The cluster
//! profile has no folder.)

use std::fs;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::support::{Broker, Client, Connect, Start};

#[track_caller]
fn refused(result: Result<Broker, (ExitStatus, String)>, words: &[&str]) {
    let Err((status, log)) = result else { panic!("the broker started") };
    assert_eq!(status.code(), Some(1), "{log}");
    for word in words {
        assert!(log.contains(word), "no `{word}` in:\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

/// Two processes never write the same data: the second refuses, names the folder, and leaves the
/// first one alone.
#[test]
fn a_second_process_on_one_folder_is_refused() {
    let broker = Broker::start();
    let folder = broker.data();
    let second = Start::new().env("STORAGE_EMBEDDED_PATH", folder.display()).allow_log("stopped");
    refused(second.try_start(), &[&folder.display().to_string(), "in use by another process"]);
    let mut client = Client::connect(&broker, &Connect::v5("x"));
    client.subscribe("t", 1);
    client.publish("t", "unharmed", 1);
    assert_eq!(client.take().payload(), "unharmed");
}

/// A folder that can't be made, or not be written into, is named.
#[test]
fn a_folder_that_is_no_place_for_data_is_refused() {
    let outside = tempfile::TempDir::new().unwrap();
    let file = outside.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let mut folders = vec![file.clone(), file.join("below")];
    // Whoever may do anything is not kept out by a mode.
    if !rustix::process::geteuid().is_root() {
        let closed = outside.path().join("closed");
        fs::create_dir(&closed).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o555);
        fs::set_permissions(&closed, mode).unwrap();
        folders.push(closed.join("data"));
    }
    for folder in folders {
        let start = Start::new().env("STORAGE_EMBEDDED_PATH", folder.display());
        refused(start.allow_log("stopped").try_start(), &[&folder.display().to_string()]);
    }
}

fn segments(broker: &Broker) -> Vec<PathBuf> {
    let entries = fs::read_dir(broker.data().join("log")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    paths.sort_unstable();
    paths
}

/// Damage in the middle of the log is no torn tail: the broker says where, and does not start on
/// less than it acknowledged.
#[test]
fn damage_in_the_middle_of_the_log_is_refused() {
    let checkpoint_late = Start::new().env("STORAGE_EMBEDDED_CHECKPOINT_INTERVAL_MS", 600_000);
    let mut broker = checkpoint_late.allow_log("stopped").start();
    let mut client = Client::connect(&broker, &Connect::v5("x").persistent());
    client.subscribe("t", 1);
    client.disconnect();
    let mut publisher = Client::connect(&broker, &Connect::v5("publisher"));
    for number in 0..100 {
        publisher.publish("t", format!("{number} {}", "x".repeat(1000)), 1);
    }
    broker.kill();
    // A second one is prepared ahead.
    let path = segments(&broker).swap_remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let whole = bytes.clone();
    let at = bytes.windows(5).position(|window| window == b"50 xx").expect("the payload is there");
    bytes[at + 10..at + 20].iter_mut().for_each(|byte| *byte ^= 0xFF);
    fs::write(&path, &bytes).unwrap();
    let Err((status, log)) = broker.try_start_again() else { panic!("the broker started") };
    assert_eq!(status.code(), Some(1), "{log}");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(log.contains(name), "no {name} in:\n{log}");
    assert!(!log.contains("panicked"), "{log}");
    // It changed nothing: with the bytes put right, everything is there.
    fs::write(&path, whole).unwrap();
    broker.start_again();
    let mut client = Client::connect(&broker, &Connect::v5("x").persistent());
    assert!(client.session_present);
    for number in 0..100 {
        assert!(client.take().payload().starts_with(&format!("{number} ")));
    }
}

/// A log without its state folder, and the reverse, is not taken for a new beginning.
#[test]
fn half_a_data_folder_is_refused() {
    for (half, words) in [("log", "segment files are missing"), ("state", "no state folder")] {
        let mut broker = Start::new().allow_log("stopped").start();
        let mut client = Client::connect(&broker, &Connect::v5("x").persistent());
        client.subscribe("t", 1);
        client.disconnect();
        broker.stop();
        fs::remove_dir_all(broker.data().join(half)).unwrap();
        let Err((status, log)) = broker.try_start_again() else { panic!("started without {half}") };
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains(words), "{log}");
    }
}
