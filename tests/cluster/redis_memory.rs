//! What queues cost in Redis, measured on a real one: the target is at most 1.3 times the payload,
//! 100 bytes a message and 500 bytes a queue, however deep, and after most was acknowledged.

use sluice::storage::Redis;

use crate::redis_kit::{client, copy};
use crate::redis_server::RedisServer;

/// Without what connections hold for a moment.
fn used(server: &RedisServer) -> u64 {
    let info = server.ask(&["INFO", "memory"]);
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    field("used_memory") - field("mem_clients_normal")
}

/// Fills `queues` queues to `depth`, acknowledges what `gone` says, and compares.
async fn within(queues: u64, depth: u64, payload: usize, gone: fn(u64) -> bool) {
    let server = RedisServer::with(&["--appendonly", "no"]);
    let redis = Redis::connect(server.settings()).await.unwrap();
    let port = redis.queues();
    let text = "x".repeat(payload);
    let key = |number: u64| client(&format!("sensor-{number:06}"));
    // Scripts, buffers and tables of the server are there from the first queue on.
    for number in 0..20 {
        let queue = key(1_000_000 + number);
        port.open(&queue, 1).await.unwrap();
        port.append(vec![copy(&queue, 0, &text)]).await.unwrap();
    }
    let before = used(&server);
    for number in 0..queues {
        let queue = key(number);
        port.open(&queue, 1).await.unwrap();
        let all = (0..depth).map(|offset| copy(&queue, offset, &text));
        let entries = all.flat_map(|append| append.entries).collect();
        let append = sluice::storage::QueueAppend { queue: queue.clone(), incarnation: 1, entries };
        port.append(vec![append]).await.unwrap();
        let acked: Vec<u64> = (1..=depth).filter(|seq| gone(*seq)).collect();
        // In the order of a client that answers as it likes, some at a time.
        for some in acked.chunks(7) {
            port.ack(&queue, 1, some, depth);
        }
        port.read(&queue, 1, 0, 1, 1).await.unwrap();
    }
    let kept = (1..=depth).filter(|seq| !gone(*seq)).count() as u64;
    let cost = used(&server) - before;
    let messages = queues * kept;
    let allowed = messages * (payload as u64 * 13 / 10 + 100) + queues * 500;
    let (each, most) = (cost / messages, allowed / messages);
    println!("{queues} x {kept} of {depth}, {payload} B: {each} B a message, {most} allowed");
    assert!(cost <= allowed, "{queues} queues of {kept}: {each} B a message, {most} allowed");
}

/// The target at depth 1, 3 and 1000.
#[tokio::test]
async fn queues_cost_little_at_any_depth() {
    for payload in [16, 256, 1024] {
        within(2000, 1, payload, |_| false).await;
        within(1000, 3, payload, |_| false).await;
        within(50, 1000, payload, |_| false).await;
    }
}

/// The same behind what was acknowledged, wherever it lay.
#[tokio::test]
async fn what_was_acknowledged_costs_nothing() {
    for payload in [16, 256, 1024] {
        within(50, 1000, payload, |seq| seq % 10 != 0).await;
        within(50, 1000, payload, |seq| seq <= 900).await;
        within(50, 1000, payload, |seq| seq > 1 && seq <= 901).await;
        within(1000, 10, payload, |seq| seq != 5).await;
    }
}
