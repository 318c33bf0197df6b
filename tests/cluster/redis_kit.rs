//! What tests of queues on Redis are written with: entries that look like they came from a
//! partition, and questions with patience.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice::mqtt::{ClientId, Delivery, PacketId, QoS};
use sluice::storage::contract::{batch_of, text};
use sluice::storage::{
    Committed, DeviceQueues, IdRun, MessageRef, Position, Projected, Projector, QueueAppend,
    QueueEntry, QueueKey, Redis, SourceId, StorageError,
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
        group: None,
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

/// A partition that can be read again from any place.
pub(crate) struct Source {
    pub(crate) records: Vec<QueueAppend>,
    pub(crate) next: u64,
}

impl Source {
    pub(crate) fn new(records: Vec<QueueAppend>) -> Self {
        Self { records, next: 0 }
    }

    /// Applies what is there, in stretches of some records, going back when it is told to.
    pub(crate) async fn drain(&mut self, projector: &mut Projector) -> Result<usize, StorageError> {
        let mut went_back = 0;
        while self.next < self.records.len() as u64 {
            let end = (self.next + 7).min(self.records.len() as u64);
            let runs = self.records[self.next as usize..end as usize].to_vec();
            match projector.apply(runs, at(end)).await? {
                Projected::Applied(_) => self.next = end,
                Projected::SeekBack(position) => {
                    assert!(position <= at(self.next), "back is never forward");
                    self.next = position.offset;
                    went_back += 1;
                }
            }
        }
        Ok(went_back)
    }

    pub(crate) async fn drain_patiently(&mut self, projector: &mut Projector) -> usize {
        let start = Instant::now();
        loop {
            match self.drain(projector).await {
                Ok(times) => return times,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn live() -> Arc<dyn Fn(&QueueKey, u64) -> bool + Send + Sync> {
    Arc::new(|_, incarnation| incarnation == 1)
}

pub(crate) async fn projector(redis: &Redis, committed: &Committed) -> (Projector, Position) {
    patiently("a projector", async || redis.projector(committed, live()).await).await
}

pub(crate) fn records(queues: &[QueueKey], from: u64, to: u64) -> Vec<QueueAppend> {
    let of = |offset: u64| &queues[offset as usize % queues.len()];
    (from..to).map(|offset| copy(of(offset), offset, &offset.to_string())).collect()
}

/// What of `0..end` belongs to the queue with this number.
pub(crate) fn owed(number: u64, of: u64, end: u64) -> Vec<String> {
    (0..end).filter(|offset| offset % of == number).map(|offset| offset.to_string()).collect()
}
