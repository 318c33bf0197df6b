//! What a broker on the cluster profile tells of its services.

use crate::redis_server::RedisServer;
use crate::services::services;
use crate::support::{Broker, Client, Connect, Start};

/// STO-07: a Redis that is away shows in health under the queues' name; it is gone from there when
/// Redis is back. Clean sessions come and go meanwhile.
#[test]
fn a_redis_that_is_away_shows_in_health() {
    if services().is_none() {
        return;
    }
    let mut redis = RedisServer::start();
    let start = Start::new()
        .env("REDIS_HOST", "127.0.0.1")
        .env("REDIS_PORT", redis.port())
        .allow_log("Redis");
    let broker = start.start();
    let queues = |broker: &Broker| {
        let (status, body) = broker.get("/actuator/health");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        (status, body["components"]["queues"]["status"].as_str().unwrap_or_default().to_owned())
    };
    let well = |broker: &Broker| queues(broker) == (200, "UP".into());
    broker.eventually("health", well);
    redis.kill();
    broker.eventually("word of Redis", |broker| queues(broker) == (503, "DOWN".into()));
    Client::connect(&broker, &Connect::v5("clean")).ping();
    redis.run();
    broker.eventually("health again", well);
}
