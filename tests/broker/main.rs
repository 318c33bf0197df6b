//! Black-box tests: each starts the real `sluice` binary on its own folder and ports, and speaks
//! bytes to it. The doc comment of a test names the row of the field reports that it makes
//! impossible. Every byte that the broker sends goes through a strict parser (CON-14).

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]
#![allow(clippy::print_stderr, reason = "the log of a failed broker goes to the test's output")]
#![allow(clippy::disallowed_types, reason = "these tests run beside the broker, in real time")]

mod support;

mod acl;
mod administration;
mod backpressure;
mod caps;
mod compat;
mod connect;
mod credentials;
mod doors;
mod flow_control;
mod foreign;
mod keepalive;
mod ledger;
mod limits;
mod malformed;
mod memory;
mod metrics;
mod operator;
mod ordering;
mod properties;
mod qos;
mod quota;
mod restart;
mod retained;
mod session;
mod settings;
mod shared;
mod slow_reader;
mod stateful;
mod storage;
mod strict;
mod subscribe;
mod takeover;
mod topics;
mod trace;
mod watch;
mod websocket;
mod will;
