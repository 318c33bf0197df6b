//! The cluster profile on real services: `tests/services` starts Apache Kafka and Redis for this
//! binary, once, and they end with it. Where they can't be started the tests say so and pass, or
//! fail when `SLUICE_TESTS_REQUIRE_ALL=1`. Tests of Redis alone start a redis-server each.
//!
//! Modules of `tests/broker` run here once more, on the cluster profile: one node of it must behave
//! as the embedded one does. `tests/run on-cluster` runs all of them.

#![allow(clippy::unwrap_used, reason = "in a test, unwrap is an assertion")]
#![allow(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(clippy::disallowed_types, reason = "these tests run in real time")]

mod administration;
mod application_nodes;
mod cable;
mod contract;
#[path = "../crash/crew.rs"]
mod crew;
mod crossing;
mod fail_points;
mod faults;
mod flow;
mod health;
mod kafka_faults;
mod keeper;
#[path = "../crash/link.rs"]
mod link;
mod nodes;
mod partition;
mod places;
#[path = "../crash/publisher.rs"]
mod publisher;
mod quota_outage;
mod redis_contract;
mod redis_failover;
mod redis_faults;
mod redis_kit;
mod redis_memory;
mod redis_projection;
mod redis_server;
mod services;
mod shared_nodes;
#[path = "../crash/subscriber.rs"]
mod subscriber;
mod topics;
#[path = "../crash/world.rs"]
mod world;

#[path = "../broker/applications.rs"]
mod applications;
#[path = "../broker/backpressure.rs"]
mod backpressure;
#[path = "../broker/caps.rs"]
mod caps;
#[path = "../broker/flow_control.rs"]
mod flow_control;
#[path = "../broker/flow_settings.rs"]
mod flow_settings;
#[path = "../broker/ledger.rs"]
mod ledger;
#[path = "../broker/limits.rs"]
mod limits;
#[path = "../broker/memory.rs"]
mod memory;
#[path = "../broker/metrics.rs"]
mod metrics;
#[allow(dead_code, reason = "the black-box tests use the rest of it")]
#[path = "../broker/operator.rs"]
mod operator;
#[path = "../broker/ordering.rs"]
mod ordering;
#[path = "../broker/properties.rs"]
mod properties;
#[path = "../broker/qos.rs"]
mod qos;
#[path = "../broker/quota.rs"]
mod quota;
#[path = "../broker/restart.rs"]
mod restart;
#[path = "../broker/retained.rs"]
mod retained;
#[path = "../broker/session.rs"]
mod session;
#[path = "../broker/shared_members.rs"]
mod shared_members;
#[path = "../broker/shared_rooms.rs"]
mod shared_rooms;
#[path = "../broker/shares.rs"]
mod shares;
#[path = "../broker/slow_reader.rs"]
mod slow_reader;
#[path = "../broker/soak.rs"]
mod soak;
#[path = "../broker/subscribe.rs"]
mod subscribe;
#[allow(dead_code, unused_imports, reason = "the black-box tests use the rest of it")]
#[path = "../broker/support/mod.rs"]
mod support;
#[path = "../broker/takeover.rs"]
mod takeover;
#[path = "../broker/will.rs"]
mod will;

/// Every broker of this binary runs on the services, where there are some.
pub(crate) fn services() -> Vec<(String, String)> {
    services::services().map(services::Services::settings).unwrap_or_default()
}
