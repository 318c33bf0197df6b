//! Black-box tests: each starts the real `sluice` binary on its own folder and ports, and speaks
//! bytes to it. The doc comment of a test names the row of the field reports that it makes
//! impossible. Every byte that the broker sends goes through a strict parser (CON-14).

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]
#![allow(clippy::print_stderr, reason = "the log of a failed broker goes to the test's output")]
#![allow(clippy::disallowed_types, reason = "these tests run beside the broker, in real time")]

mod support;

mod acl;
mod administration;
mod applications;
mod attack;
mod authority;
mod backpressure;
mod browser;
mod caps;
mod certificates;
mod compat;
mod connect;
mod credentials;
mod deployment;
mod doors;
mod flow_control;
mod flow_settings;
mod folder;
mod foreign;
mod judges;
mod keepalive;
mod ledger;
mod limits;
mod load;
mod malformed;
mod memory;
mod metrics;
mod operator;
mod ordering;
mod origins;
mod properties;
mod qos;
mod quota;
mod restart;
mod retained;
mod secrets;
mod session;
mod settings;
mod shared;
mod shared_members;
mod shared_rooms;
mod shares;
mod slow_reader;
mod soak;
mod stateful;
mod storage;
mod strict;
mod subscribe;
mod takeover;
mod tokens;
mod topics;
mod trace;
mod watch;
mod web;
mod websocket;
mod will;

/// Where `SLUICE_TESTS_SERVICES` names a file with the lines of `tests/services`, every broker runs
/// on them (`tests/run on-cluster`); else on its own folder.
pub(crate) fn services() -> Vec<(String, String)> {
    let Some(file) = std::env::var_os("SLUICE_TESTS_SERVICES") else { return Vec::new() };
    let lines = std::fs::read_to_string(file).expect("SLUICE_TESTS_SERVICES names a file");
    let pair = |line: &str| line.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    lines.lines().filter_map(pair).collect()
}
