//! Masters that are replaced while records flow: by Sentinel, in a Redis Cluster, and by an
//! operator who moves slots. One rule for all: what was applied is there, once.

use std::sync::Arc;
use std::time::Duration;

use sluice::storage::contract::Inbox;
use sluice::storage::{Committed, QueueKey, Redis, RedisSettings};

use crate::redis_kit::{
    Source, all, client, copy, id_run, owed, patiently, projector, records, texts, until,
};
use crate::redis_server::{RedisCluster, RedisServer, Sentinel};

fn impatient(settings: RedisSettings) -> RedisSettings {
    RedisSettings { read_timeout: Duration::from_secs(1), ..settings }
}

/// Design decision 6: a replica that was far behind when its master was killed is promoted by
/// Sentinel, and lacks nothing when the records came again.
#[tokio::test]
async fn sentinel_promotes_a_replica_that_was_behind() {
    let mut master = RedisServer::start();
    let replica = RedisServer::replica_of(&master);
    let sentinel = Sentinel::of(&master);
    let redis = Redis::connect(impatient(sentinel.settings())).await.unwrap();
    let queues = redis.queues();
    let queue = client("c");
    queues.open(&queue, 1).await.unwrap();
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut source = Source::new(records(std::slice::from_ref(&queue), 0, 20));
    source.drain(&mut projector).await.unwrap();
    replica.in_step_with(&master);
    replica.signal("STOP");
    // More than sockets hold: what the master could not send is lost with it.
    let large = "x".repeat(64 * 1024);
    let late = (20..420).map(|offset| copy(&queue, offset, &format!("{offset} {large}")));
    source.records.extend(late);
    source.drain(&mut projector).await.unwrap();
    master.kill();
    replica.signal("CONT");
    source.records.extend(records(std::slice::from_ref(&queue), 420, 440));
    assert!(source.drain_patiently(&mut projector).await >= 1, "the master is another one");
    let found = patiently("the queue", async || Ok(all(&*queues, &queue).await)).await;
    let numbers: Vec<u64> =
        found.iter().map(|(_, text, _)| text.split(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (0..440).collect::<Vec<u64>>());
    until("health that is well", async || redis.trouble().is_none()).await;
}

/// The same in a Redis Cluster, with queues in every master; sessions' calls find the new one.
#[tokio::test]
async fn a_cluster_loses_a_master_and_nothing_else() {
    let mut cluster = RedisCluster::start();
    let redis = Redis::connect(impatient(cluster.settings())).await.unwrap();
    let (queues, inbox) = (redis.queues(), Arc::new(Inbox::default()));
    let keys: Vec<QueueKey> = (0..30).map(|n| client(&format!("c{n}"))).collect();
    for queue in &keys {
        queues.open(queue, 1).await.unwrap();
    }
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut source = Source::new(records(&keys, 0, 300));
    source.drain(&mut projector).await.unwrap();
    let held: Vec<String> = cluster.nodes[..3].iter().map(|node| node.ask(&["DBSIZE"])).collect();
    assert!(held.iter().all(|count| count != "0"), "every master has queues: {held:?}");
    cluster.nodes[0].kill();
    for (ticket, queue) in (0_u64..).zip(&keys) {
        queues.ack(queue, 1, &[1], 2);
        queues.reserve_ids(queue, 1, id_run(2, 1, 16), Arc::clone(&inbox) as _, ticket);
    }
    source.records.extend(records(&keys, 300, 600));
    assert!(source.drain_patiently(&mut projector).await >= 1);
    for ticket in 0..30 {
        inbox.stored(ticket).await;
    }
    for (number, queue) in (0_u64..).zip(&keys) {
        let expected = owed(number, 30, 600)[1..].to_vec();
        let what = format!("queue {number}");
        until(&what, async || texts(&*queues, queue).await == expected).await;
    }
    until("health that is well", async || redis.trouble().is_none()).await;
}

/// Slots that move, with their keys, cost a look at the table and a replay that changes nothing.
#[tokio::test]
async fn slots_that_move_take_their_queues_along() {
    let cluster = RedisCluster::start();
    let redis = Redis::connect(impatient(cluster.settings())).await.unwrap();
    let queues = redis.queues();
    let keys: Vec<QueueKey> = (0..30).map(|n| client(&format!("c{n}"))).collect();
    for queue in &keys {
        queues.open(queue, 1).await.unwrap();
    }
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut source = Source::new(records(&keys, 0, 150));
    source.drain(&mut projector).await.unwrap();
    let moved = tokio::task::spawn_blocking(move || {
        cluster.reshard(0, 1, 2000);
        cluster
    });
    source.records.extend(records(&keys, 150, 450));
    source.drain_patiently(&mut projector).await;
    let _cluster = moved.await.unwrap();
    source.records.extend(records(&keys, 450, 600));
    source.drain_patiently(&mut projector).await;
    for (number, queue) in (0_u64..).zip(&keys) {
        let found = patiently("a queue", async || Ok(texts(&*queues, queue).await)).await;
        assert_eq!(found, owed(number, 30, 600), "queue {number}");
    }
}
