//! Redis as a projection of a partition, against a source in memory: nothing is lost and nothing is
//! there twice, whatever a master's end takes along.

use std::sync::Arc;
use std::time::Duration;

use sluice::storage::contract::Inbox;
use sluice::storage::{Committed, Position, Redis, RedisSettings, StorageError};

use crate::redis_kit::{
    Source, all, at, client, copy, id_run, owed, patiently, projector, records, texts, until,
};
use crate::redis_server::RedisServer;

fn settings(server: &RedisServer) -> RedisSettings {
    RedisSettings { read_timeout: Duration::from_secs(5), ..server.settings() }
}

/// DEV-8, STO: a partition that is read again from anywhere adds nothing twice.
#[tokio::test]
async fn what_is_read_again_is_taken_once() {
    let server = RedisServer::start();
    let redis = Redis::connect(settings(&server)).await.unwrap();
    let (one, two) = (client("one"), client("two"));
    let queues = redis.queues();
    for queue in [&one, &two] {
        queues.open(queue, 1).await.unwrap();
    }
    let (mut projector, begin) = projector(&redis, &Committed::default()).await;
    assert_eq!(begin, Position::default());
    let mut source = Source::new(records(&[one.clone(), two.clone()], 0, 40));
    for from in [0, 0, 13, 39, 2] {
        source.next = from;
        assert_eq!(source.drain(&mut projector).await.unwrap(), 0);
    }
    assert_eq!(texts(&*queues, &one).await, owed(0, 2, 40));
    assert_eq!(texts(&*queues, &two).await, owed(1, 2, 40));
}

/// Design decision 6: a Redis that was killed and came back may lack what it had; the partition is
/// read again from the horizon, and goes on.
#[tokio::test]
async fn a_killed_redis_is_filled_again() {
    let mut server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let redis = Redis::connect(settings(&server)).await.unwrap();
    let queue = client("c");
    let queues = redis.queues();
    queues.open(&queue, 1).await.unwrap();
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut source = Source::new(records(std::slice::from_ref(&queue), 0, 30));
    source.drain(&mut projector).await.unwrap();
    queues.ack(&queue, 1, &[1, 2], 3);
    assert_eq!(texts(&*queues, &queue).await.len(), 28);
    server.kill();
    source.records.extend(records(std::slice::from_ref(&queue), 30, 40));
    assert!(source.drain(&mut projector).await.is_err(), "nobody answers");
    server.run();
    assert_eq!(source.drain_patiently(&mut projector).await, 1, "the master is another one");
    let mut expected = owed(0, 1, 40);
    expected.drain(..2);
    let found = patiently("the queue", async || Ok(texts(&*queues, &queue).await)).await;
    assert_eq!(found, expected, "what was acknowledged stays so, the others are there once");
}

/// The same when the change happens while no consumer runs: the commit's state tells.
#[tokio::test]
async fn a_consumer_that_starts_behind_a_change_begins_at_the_horizon() {
    let mut server = RedisServer::start();
    let queue = client("c");
    let committed = {
        let redis = Redis::connect(settings(&server)).await.unwrap();
        redis.queues().open(&queue, 1).await.unwrap();
        let (mut projector, _) = projector(&redis, &Committed::default()).await;
        let mut source = Source::new(records(std::slice::from_ref(&queue), 0, 20));
        source.drain(&mut projector).await.unwrap();
        Committed { position: at(20), state: projector.state(), ..Committed::default() }
    };
    let redis = Redis::connect(settings(&server)).await.unwrap();
    let (_, begin) = projector(&redis, &committed).await;
    assert_eq!(begin, at(20), "the same master: nothing is read again");
    drop(redis);
    server.kill();
    server.run();
    let redis = Redis::connect(settings(&server)).await.unwrap();
    let (projector, begin) = projector(&redis, &committed).await;
    assert_eq!(begin.offset, 0, "20 records are younger than a replica can be behind");
    assert_eq!(projector.horizon().offset, 0);
}

/// A place that is older than a replica can be behind is not read again, and its records may go.
#[tokio::test]
async fn the_horizon_follows() {
    let server = RedisServer::start();
    let replica_lag = Duration::from_millis(50);
    let settings = RedisSettings { replica_lag, ..settings(&server) };
    let redis = Redis::connect(settings).await.unwrap();
    let queue = client("c");
    redis.queues().open(&queue, 1).await.unwrap();
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut offset = 0;
    until("a horizon above the start", async || {
        projector.apply(vec![copy(&queue, offset, "x")], at(offset + 1)).await.unwrap();
        offset += 1;
        projector.horizon().offset > 0
    })
    .await;
    assert!(projector.horizon() < at(offset), "what is fresh may have to be read again");
}

/// STO, design decision 6: a replica that was behind is promoted. Entries, queues that were made, a
/// PUBREC mark's entry and removals that it lacked are as they were.
#[tokio::test]
async fn what_a_promoted_replica_lacked_comes_back() {
    let mut master = RedisServer::start();
    let mut replica = RedisServer::replica_of(&master);
    let redis = Redis::connect(settings(&master)).await.unwrap();
    let queues = redis.queues();
    let (old, gone) = (client("old"), client("gone"));
    for queue in [&old, &gone] {
        queues.open(queue, 1).await.unwrap();
    }
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut source = Source::new(records(std::slice::from_ref(&old), 0, 10));
    source.drain(&mut projector).await.unwrap();
    replica.in_step_with(&master);
    // From here on the replica learns nothing.
    replica.signal("STOP");
    let fresh = client("fresh");
    queues.open(&fresh, 1).await.unwrap();
    queues.remove(&gone, 1);
    source.records.extend(records(&[old.clone(), fresh.clone()], 10, 30));
    source.drain(&mut projector).await.unwrap();
    let before = (all(&*queues, &old).await, all(&*queues, &fresh).await);
    assert_eq!((before.0.len(), before.1.len()), (20, 10));
    // It takes the master's place with what it has.
    master.kill();
    replica.kill();
    replica.take_place_of(&master);
    source.records.extend(records(&[old.clone(), fresh.clone()], 30, 40));
    assert!(source.drain_patiently(&mut projector).await >= 1);
    let found = all(&*queues, &old).await;
    assert_eq!(found[..20], before.0[..], "under the same sequences");
    assert_eq!(found.len(), 25);
    let found = all(&*queues, &fresh).await;
    assert_eq!(found[..10], before.1[..]);
    assert_eq!(found.len(), 15);
    until("the removal", async || {
        matches!(queues.read(&gone, 1, 0, 9, 99).await, Err(StorageError::Fenced))
    })
    .await;
}

/// MQTT-4.3.3, design decision 6: PUBREL is held until a replica knows of the PUBREC; then a
/// promoted replica owes PUBREL, not PUBLISH, with the same id.
#[tokio::test]
async fn a_pubrec_mark_and_a_run_survive_the_master() {
    let mut master = RedisServer::start();
    let mut replica = RedisServer::replica_of(&master);
    let redis = Redis::connect(settings(&master)).await.unwrap();
    let (queues, inbox) = (redis.queues(), Arc::new(Inbox::default()));
    let queue = client("c");
    queues.open(&queue, 1).await.unwrap();
    let (mut projector, _) = projector(&redis, &Committed::default()).await;
    let mut source = Source::new(records(std::slice::from_ref(&queue), 0, 4));
    source.drain(&mut projector).await.unwrap();
    queues.reserve_ids(&queue, 1, id_run(1, 40, 16), Arc::clone(&inbox) as _, 1);
    inbox.stored(1).await;
    replica.in_step_with(&master);
    replica.signal("STOP");
    let late = || sluice::telemetry::metrics::REDIS_REPLICA_LATE.get();
    let was = late();
    queues.received(&queue, 1, &[2], Arc::clone(&inbox) as _, 2);
    until("a wait without an answer", async || late() > was).await;
    assert_eq!(inbox.told().len(), 1, "no PUBREL before a replica has the mark");
    replica.signal("CONT");
    inbox.stored(2).await;
    master.kill();
    replica.kill();
    replica.take_place_of(&master);
    source.drain_patiently(&mut projector).await;
    let found = patiently("the queue", async || queues.read(&queue, 1, 0, 9, 999).await).await;
    let received: Vec<bool> = found.messages.iter().map(|one| one.received).collect();
    assert_eq!(received, [false, true, false, false]);
    let state = queues.open(&queue, 1).await.unwrap();
    assert_eq!(state.runs, [id_run(1, 40, 16)]);
    assert!(state.sent_below >= 5, "they may have been sent, and more may come back");
}
