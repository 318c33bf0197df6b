//! Redis that is away, hangs, forgets scripts, or is told things late.

use std::sync::Arc;
use std::time::Duration;

use sluice::storage::contract::Inbox;
use sluice::storage::{Appended, QueueKey, Redis, RedisSettings, StorageError};

use crate::redis_kit::{all, client, copy, id_run, patiently, texts, until};
use crate::redis_server::RedisServer;

fn impatient(server: &RedisServer) -> RedisSettings {
    RedisSettings { read_timeout: Duration::from_millis(700), ..server.settings() }
}

async fn fill(redis: &Redis, queue: &QueueKey, count: u64) {
    let queues = redis.queues();
    queues.open(queue, 1).await.unwrap();
    for offset in 0..count {
        queues.append(vec![copy(queue, offset, &offset.to_string())]).await.unwrap();
    }
}

/// STO-07: while Redis is away what needs a queue fails in time; what sessions said meanwhile
/// arrives when it is back, which needs no help. Health names it.
#[tokio::test]
async fn calls_made_while_redis_is_away_arrive_later() {
    let mut server = RedisServer::start();
    let redis = Redis::connect(impatient(&server)).await.unwrap();
    let (queue, gone) = (client("c"), client("gone"));
    fill(&redis, &queue, 6).await;
    fill(&redis, &gone, 1).await;
    assert_eq!(redis.trouble(), None);
    server.kill();
    let (queues, inbox) = (redis.queues(), Arc::new(Inbox::default()));
    queues.ack(&queue, 1, &[1], 3);
    queues.received(&queue, 1, &[2], Arc::clone(&inbox) as _, 1);
    queues.reserve_ids(&queue, 1, id_run(1, 7, 10), Arc::clone(&inbox) as _, 2);
    queues.ack(&queue, 1, &[3], 4);
    queues.remove(&gone, 1);
    let read = queues.read(&queue, 1, 0, 9, 99).await;
    assert!(matches!(read, Err(StorageError::Unavailable(_))), "{read:?}");
    let opened = queues.open(&queue, 1).await;
    assert!(matches!(opened, Err(StorageError::Unavailable(_))));
    assert!(queues.append(vec![copy(&queue, 6, "6")]).await.is_err());
    assert!(redis.bucket().draw(1).await.is_ok(), "no window, no limit");
    until("health that says so", async || redis.trouble().is_some()).await;
    assert!(inbox.told().is_empty());
    server.run();
    inbox.stored(1).await;
    inbox.stored(2).await;
    patiently("an append", async || queues.append(vec![copy(&queue, 6, "6")]).await).await;
    let received = |one: &(u64, String, bool)| (one.0, one.2);
    let found: Vec<(u64, bool)> = all(&*queues, &queue).await.iter().map(received).collect();
    assert_eq!(found, [(2, true), (4, false), (5, false), (6, false), (7, false)]);
    assert_eq!(queues.open(&queue, 1).await.unwrap().runs, [id_run(1, 7, 10)]);
    until("the removal", async || {
        matches!(queues.read(&gone, 1, 0, 9, 99).await, Err(StorageError::Fenced))
    })
    .await;
    until("health that is well", async || redis.trouble().is_none()).await;
}

/// STO-07: a Redis that hangs is one that is away, and what it does late does no harm.
#[tokio::test]
async fn a_hung_redis_does_late_calls_once() {
    let server = RedisServer::start();
    let redis = Redis::connect(impatient(&server)).await.unwrap();
    let queue = client("c");
    fill(&redis, &queue, 3).await;
    let queues = redis.queues();
    server.signal("STOP");
    assert!(queues.read(&queue, 1, 0, 9, 99).await.is_err());
    let late = vec![copy(&queue, 3, "3"), copy(&queue, 4, "4")];
    assert!(queues.append(late.clone()).await.is_err());
    queues.ack(&queue, 1, &[1], 2);
    until("health that says so", async || redis.trouble().is_some()).await;
    server.signal("CONT");
    let taken = patiently("an append", async || queues.append(late.clone()).await).await;
    assert_eq!(taken.len(), 2);
    until("an acknowledgement", async || texts(&*queues, &queue).await == ["1", "2", "3", "4"])
        .await;
    until("health that is well", async || redis.trouble().is_none()).await;
}

#[tokio::test]
async fn scripts_that_redis_forgot_are_loaded_again() {
    let server = RedisServer::start();
    let redis = Redis::connect(server.settings()).await.unwrap();
    let queue = client("c");
    fill(&redis, &queue, 1).await;
    server.ask(&["SCRIPT", "FLUSH"]);
    let queues = redis.queues();
    let taken = queues.append(vec![copy(&queue, 1, "1")]).await.unwrap();
    assert_eq!(taken, [Appended::Taken { first_seq: 2, skipped: 0 }]);
    server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(texts(&*queues, &queue).await, ["0", "1"]);
}

/// STO-06, TOP-11: odd ids have queues of their own; when their sessions have ended, no key is left.
#[tokio::test]
async fn odd_ids_are_kept_apart_and_leave_no_key() {
    let server = RedisServer::start();
    let settings = RedisSettings { queue_limit: 2, ..server.settings() };
    let redis = Redis::connect(settings).await.unwrap();
    let long = "x".repeat(65_535);
    let longer = format!("{}y", &long[1..]);
    let ids =
        ["a", "A", "a{b}", "{a}", "{", "}", "a b", "a:b", "é", "e\u{301}", " ", &long, &longer];
    let mut keys: Vec<QueueKey> = ids.iter().map(|id| client(id)).collect();
    keys.push(QueueKey::Group("a".into()));
    let queues = redis.queues();
    for (offset, queue) in (0_u64..).zip(&keys) {
        queues.open(queue, 1).await.unwrap();
        // Over the limit as well, and with holes.
        for more in 0..4 {
            let at = offset * 4 + more;
            queues.append(vec![copy(queue, at, &at.to_string())]).await.unwrap();
        }
        queues.ack(queue, 1, &[4], 1);
    }
    for (offset, queue) in (0_u64..).zip(&keys) {
        assert_eq!(texts(&*queues, queue).await, [(offset * 4 + 2).to_string()]);
    }
    assert_ne!(server.ask(&["DBSIZE"]), "0");
    keys.iter().for_each(|queue| queues.remove(queue, 1));
    redis.stop(Duration::from_secs(15)).await.unwrap();
    assert_eq!(server.ask(&["DBSIZE"]), "0");
}

/// Design decision 3: what an earlier owner says late changes nothing.
#[tokio::test]
async fn an_earlier_owner_is_fenced() {
    let server = RedisServer::start();
    let earlier = Redis::connect(server.settings()).await.unwrap();
    let later = Redis::connect(server.settings()).await.unwrap();
    let (queue, inbox) = (client("c"), Arc::new(Inbox::default()));
    earlier.open_as(&queue, 1, 700).await.unwrap();
    let stale = earlier.queues();
    stale.append((0..3).map(|n| copy(&queue, n, &n.to_string())).collect()).await.unwrap();
    later.open_as(&queue, 1, 70_000_000_000).await.unwrap();
    let opened = earlier.open_as(&queue, 1, 700).await;
    assert!(matches!(opened, Err(StorageError::Fenced)), "a late open does not take it back");
    stale.reserve_ids(&queue, 1, id_run(1, 9, 9), Arc::clone(&inbox) as _, 1);
    stale.received(&queue, 1, &[1], Arc::clone(&inbox) as _, 2);
    stale.ack(&queue, 1, &[2], 3);
    inbox.stored(1).await;
    inbox.stored(2).await;
    let read = stale.read(&queue, 1, 0, 9, 99).await;
    assert!(matches!(read, Err(StorageError::Fenced)), "it is told");
    let queues = later.queues();
    let found = all(&*queues, &queue).await;
    let none = |n: u64| (n + 1, n.to_string(), false);
    assert_eq!(found, [none(0), none(1), none(2)]);
    assert!(queues.open(&queue, 1).await.unwrap().runs.is_empty());
}

/// Nothing is written to a server that is no master.
#[tokio::test]
async fn a_replica_is_refused() {
    let master = RedisServer::start();
    let replica = RedisServer::replica_of(&master);
    let refused = Redis::connect(replica.settings()).await.map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("not a master"), "{refused}");
}

/// An ACL user with the rights that the manual names is enough.
#[tokio::test]
async fn an_acl_user_is_enough() {
    let server = RedisServer::start();
    let rights =
        "on >secret ~sluice:* +@read +@write +@scripting +@connection +info +wait +cluster";
    let mut words = vec!["ACL", "SETUSER", "broker"];
    words.extend(rights.split(' '));
    assert_eq!(server.ask(&words), "OK");
    server.ask(&["ACL", "SETUSER", "default", "off"]);
    let prefix = "sluice:".into();
    let settings = RedisSettings { prefix, ..server.settings() };
    assert!(Redis::connect(settings.clone()).await.is_err(), "without a name nobody gets in");
    let settings = RedisSettings {
        username: Some("broker".into()),
        password: Some(sluice::storage::Secret::new("secret")),
        ..settings
    };
    let redis = Redis::connect(settings).await.unwrap();
    let queue = client("c");
    fill(&redis, &queue, 2).await;
    assert_eq!(texts(&*redis.queues(), &queue).await, ["0", "1"]);
}
