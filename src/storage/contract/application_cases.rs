//! Logs of APPLICATION clients and groups, through the port of the queues. A backend may append to
//! them what is there already, if nobody gets it twice: so what an append answers is no case.

use std::sync::Arc;

use super::kit::{client, run};
use super::{Factory, Harness, Options};
use crate::mqtt::ClientId;
use crate::storage::{Appended, QueueKey, StorageError};

/// One of each kind. The names are such as need care somewhere.
fn logs() -> [QueueKey; 2] {
    let name = "$share/g/+/{x} ü/#";
    [QueueKey::Application(ClientId::new(name)), QueueKey::Shared(Arc::from(name))]
}

fn texts(queue: &[(u64, String)]) -> Vec<&str> {
    queue.iter().map(|one| one.1.as_str()).collect()
}

/// APP-1, APP-3, SHR-4: a log takes and gives in order, is acknowledged in any order, and a number
/// of messages does not bound it. Logs of one name and different kinds are different ones.
pub async fn logs_of_applications_take_and_give_like_queues(factory: &dyn Factory) {
    let options = Options { queue_limit: 3, ..Options::default() };
    let mut harness = Harness::with(factory, options).await;
    for (at, log) in logs().into_iter().enumerate() {
        let number = 7 + at as u64;
        let state = harness.open(&log, number).await;
        assert_eq!((state.incarnation, state.next_seq, state.runs.len()), (number, 1, 0));
        harness.publish(&["a", "b", "c"]).await;
        harness.publish(&["d", "e"]).await;
        for answer in harness.route(&log, number).await {
            assert!(matches!(answer, Appended::Taken { .. }), "{log}: {answer:?}");
        }
        let found = harness.queue(&log, number).await;
        assert_eq!(texts(&found), ["a", "b", "c", "d", "e"], "{log}");
        assert_eq!(harness.stores.queues.depth(&log), 5);
        harness.stores.queues.ack(&log, number, &[found[3].0, found[0].0], found[4].0 + 1);
        assert_eq!(texts(&harness.queue(&log, number).await), ["b", "c", "e"], "{log}");
        assert_eq!(harness.stores.queues.depth(&log), 3);
        let state = harness.open(&log, number).await;
        assert_eq!((state.next_seq, state.sent_below), (found[4].0 + 1, found[4].0 + 1));
        assert_eq!(texts(&harness.queue(&log, number).await), ["b", "c", "e"], "{log}");
    }
    let other = harness.stores.queues.read(&logs()[0], 8, 0, 9, 9999).await;
    assert!(matches!(other, Err(StorageError::Fenced)), "that is the other one's number");
    assert_eq!(harness.stores.queues.depth(&client("$share/g/+/{x} ü/#")), 0);
}

/// APP-2, SHR-4: a log goes on behind what was acknowledged, with its marks and runs, over an
/// orderly restart and over a crash.
pub async fn logs_of_applications_go_on_after_a_restart(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    for log in logs() {
        harness.open(&log, 3).await;
        harness.publish(&["a", "b", "c", "d"]).await;
        harness.route(&log, 3).await;
        let seqs: Vec<u64> = harness.queue(&log, 3).await.iter().map(|one| one.0).collect();
        harness.reserve(&log, 3, run(1, 1, 4)).await;
        harness.stores.queues.ack(&log, 3, &seqs[..2], 5);
        harness.receive(&log, 3, &[seqs[2]]).await;
        harness.commit("four");
        harness.restart().await;
        let state = harness.open(&log, 3).await;
        assert_eq!((state.next_seq, &state.runs[..]), (5, &[run(1, 1, 4)][..]), "{log}");
        let page = harness.page(&log, 3, 0, 9).await;
        let marks: Vec<(u64, bool)> =
            page.messages.iter().map(|one| (one.seq, one.received)).collect();
        assert_eq!(marks, [(seqs[2], true), (seqs[3], false)], "{log}");
        harness.publish(&["e"]).await;
        harness.route(&log, 3).await;
        harness.crash().await;
        harness.open(&log, 3).await;
        harness.route(&log, 3).await;
        let found = harness.queue(&log, 3).await;
        assert_eq!(texts(&found), ["c", "d", "e"], "{log}");
    }
}

/// DEV-8 in kind: a log ends with its session or group; the next one of the name begins empty.
pub async fn logs_of_applications_end_with_their_owner(factory: &dyn Factory) {
    let mut harness = Harness::new(factory).await;
    for log in logs() {
        harness.open(&log, 5).await;
        harness.publish(&["a", "b"]).await;
        harness.route(&log, 5).await;
        harness.stores.queues.remove(&log, 5);
        let state = harness.open(&log, 6).await;
        assert_eq!((state.incarnation, state.next_seq), (6, 1), "{log}");
        assert!(harness.queue(&log, 6).await.is_empty(), "{log}");
        harness.publish(&["c"]).await;
        harness.route(&log, 6).await;
        assert_eq!(texts(&harness.queue(&log, 6).await), ["c"], "{log}");
        assert_eq!(harness.stores.queues.depth(&log), 1);
    }
}
