//! The program as an operator starts it: arguments, configuration files, exit codes.

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A command with an environment that holds nothing of ours, in a folder of its own, on ports of
/// its own.
fn sluice(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command
        .env_clear()
        .current_dir(folder)
        .env("HTTP_BIND_ADDRESS", "127.0.0.1")
        .env("HTTP_BIND_PORT", "0")
        .env("LISTENER_TCP_BIND_ADDRESS", "127.0.0.1")
        .env("LISTENER_TCP_BIND_PORT", "0")
        .env("LISTENER_WS_BIND_ADDRESS", "127.0.0.1")
        .env("LISTENER_WS_BIND_PORT", "0");
    command
}

fn file(folder: &Path, yaml: &str) -> PathBuf {
    let path = folder.join("own.yml");
    std::fs::write(&path, yaml).unwrap();
    path
}

fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn check_config_shows_what_differs_and_from_where() {
    let folder = tempfile::tempdir().unwrap();
    let own = file(folder.path(), "mqtt:\n  max-in-flight-msgs: 77\n");
    let (code, out, _) = run(sluice(folder.path()).args(["check-config", "--config"]).arg(own));
    assert_eq!(code, 0);
    assert!(out.starts_with("OK\n"), "{out}");
    assert!(out.contains("mqtt.max-in-flight-msgs = 77 ("), "{out}");
    assert!(out.contains("server.port = 0 (environment variable HTTP_BIND_PORT)"), "{out}");
}

#[test]
fn check_config_needs_no_file_and_no_folder() {
    let (code, out, _) = run(sluice(Path::new("/")).arg("check-config"));
    assert_eq!((code, out.lines().next()), (0, Some("OK")));
}

/// All faults in one go, exit code 2, for `check-config` and for the broker alike.
#[test]
fn bad_configuration_ends_with_code_2_and_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let own = file(folder.path(), "mqtt:\n  max-in-fligt-msgs: 7\n  sessions-limit: some\n");
    for command in ["check-config", "serve"] {
        let (code, _, err) = run(sluice(folder.path()).arg(command).arg("--config").arg(&own));
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("2 faults"), "{err}");
        assert!(err.contains("nearest known key is mqtt.max-in-flight-msgs"), "{err}");
        assert!(err.contains("mqtt.sessions-limit = \"some\""), "{err}");
    }
}

#[test]
fn arguments_that_nobody_knows_end_with_code_2() {
    let (code, _, err) = run(sluice(Path::new("/")).arg("--nonsense"));
    assert_eq!(code, 2);
    assert!(err.contains("--nonsense"), "{err}");
}

#[test]
fn help_and_version_are_told() {
    let (code, out, _) = run(sluice(Path::new("/")).arg("--version"));
    assert_eq!((code, out), (0, format!("sluice {}\n", env!("CARGO_PKG_VERSION"))));
    let (code, out, _) = run(sluice(Path::new("/")).arg("--help"));
    assert_eq!(code, 0);
    assert!(out.contains("check-config") && out.contains("--config <FILE>"), "{out}");
}

#[test]
fn a_taken_port_ends_with_code_1_and_a_clear_line() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, err) = run(sluice(folder.path()).env("HTTP_BIND_PORT", &port));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains(&format!("HTTP can't listen on 127.0.0.1:{port}")), "{err}");
}

#[test]
fn a_bad_log_filter_is_a_bad_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = run(sluice(folder.path()).env("RUST_LOG", "sluice=loud"));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("RUST_LOG"), "{err}");
}

/// Ends the process with the test, however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn a_running_broker_ends_with_code_0_when_told_to() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().unwrap();
        let child = sluice(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running(child);
        let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
        lines.find(|line| line.as_ref().unwrap().contains("http listener on")).unwrap().unwrap();
        kill_process(Pid::from_child(&running.0), signal).unwrap();
        assert!(lines.any(|line| line.unwrap().contains("stopping")));
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
    }
}
