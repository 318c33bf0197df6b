//! The cluster profile on real services. Tests of Redis start a redis-server each, on a free port
//! of 127.0.0.1, and end it.

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]
#![allow(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(clippy::disallowed_types, reason = "these tests run in real time")]

mod redis_contract;
mod redis_failover;
mod redis_faults;
mod redis_kit;
mod redis_memory;
mod redis_projection;
mod redis_server;
