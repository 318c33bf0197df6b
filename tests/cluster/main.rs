//! The cluster profile on real services: `tests/services` starts Apache Kafka and Redis for this
//! binary, once, and they end with it. Where they can't be started the tests say so and pass, or
//! fail when `SLUICE_TESTS_REQUIRE_ALL=1`. Tests of Redis alone start a redis-server each.

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]
#![allow(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(clippy::disallowed_types, reason = "these tests run in real time")]

mod contract;
mod redis_contract;
mod redis_failover;
mod redis_faults;
mod redis_kit;
mod redis_memory;
mod redis_projection;
mod redis_server;
mod support;
