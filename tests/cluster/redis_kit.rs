//! What tests of queues on Redis are written with: entries that look like they came from a
//! partition, and questions with patience.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice::mqtt::{ClientId, Delivery, PacketId, QoS};
use sluice::storage::contract::{batch_of, text};
use sluice::storage::{
    DeviceQueues, IdRun, MessageRef, Position, QueueAppend, QueueEntry, QueueKey, SourceId,
    StorageError,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn client(id: &str) -> QueueKey {
    QueueKey::Client(ClientId::new(id))
}

pub(crate) fn at(offset: u64) -> Position {
    Position { partition: 3, offset }
}

/// One copy for one queue, as the record at `offset` has it.
pub(crate) fn copy(queue: &QueueKey, offset: u64, payload: &str) -> QueueAppend {
    let message = MessageRef::new(batch_of("publisher", &[payload], None), 0);
    let entry = QueueEntry {
        source: SourceId { incarnation: 5, position: at(offset), index: 0 },
        message,
        delivery: Delivery { qos: QoS::ExactlyOnce, retain: false },
        subscription_ids: Arc::from([]),
        expires_at_ms: None,
    };
    QueueAppend { queue: queue.clone(), incarnation: 1, entries: vec![entry] }
}

pub(crate) fn id_run(first_seq: u64, first_id: u16, count: u16) -> IdRun {
    IdRun { first_seq, first_id: PacketId::new(first_id).unwrap(), count }
}

/// Everything in a queue: sequence, payload, whether PUBREC came.
pub(crate) async fn all(queues: &dyn DeviceQueues, queue: &QueueKey) -> Vec<(u64, String, bool)> {
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let page = queues.read(queue, 1, after, 50, 1 << 20).await.unwrap();
        let Some(last) = page.messages.last() else { return found };
        after = last.seq;
        found.extend(page.messages.iter().map(|one| (one.seq, text(&one.message), one.received)));
    }
}

pub(crate) async fn texts(queues: &dyn DeviceQueues, queue: &QueueKey) -> Vec<String> {
    all(queues, queue).await.into_iter().map(|one| one.1).collect()
}

/// Asks again while Redis is away.
pub(crate) async fn patiently<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, StorageError>,
) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(found) => return found,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{what}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
