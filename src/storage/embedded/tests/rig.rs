//! Embedded storage over simulated media, with checkpoints only when a test asks for them.

use std::sync::Arc;
use std::time::Duration;

use crate::storage::contract::{Inbox, batch_of, client, text};
use crate::storage::embedded::projection::{Projection, Space};
use crate::storage::embedded::wal::SimDisk;
use crate::storage::embedded::{Embedded, EmbeddedSettings, MemoryProjection, Stores};
use crate::storage::{
    AppendOutcome, Durability, LogBatch, LogConsumer, LogItem, MessageRef, Position, QueueAppend,
    QueueEntry, QueueKey, SourceId,
};

pub(super) struct Rig {
    pub(super) disk: SimDisk,
    pub(super) projection: Arc<MemoryProjection>,
    pub(super) settings: EmbeddedSettings,
    pub(super) embedded: Embedded,
    pub(super) stores: Stores,
    pub(super) consumer: Box<dyn LogConsumer>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) tickets: u64,
    pub(super) queue: QueueKey,
}

pub(super) fn settings() -> EmbeddedSettings {
    let mut settings = EmbeddedSettings {
        checkpoint_every: Duration::from_secs(3600),
        sync_every: Duration::ZERO,
        ..EmbeddedSettings::default()
    };
    settings.wal.segment_bytes = 16 << 10;
    settings
}

impl Rig {
    pub(super) fn new(settings: EmbeddedSettings) -> Self {
        Self::on(SimDisk::new(5), Arc::default(), settings)
    }

    pub(super) fn on(
        disk: SimDisk,
        projection: Arc<MemoryProjection>,
        settings: EmbeddedSettings,
    ) -> Self {
        let opened = Embedded::simulated(disk.disk(), Arc::clone(&projection), settings.clone());
        let (embedded, stores) = opened.expect("opens");
        let (_, consumer) = stores.log.consumer(0);
        let (inbox, queue, tickets) = (Arc::default(), client("c"), 0);
        Self { disk, projection, settings, embedded, stores, consumer, inbox, tickets, queue }
    }

    /// A loss of power, and a new start on what it left.
    pub(super) fn crash(self) -> Self {
        let Self { disk, projection, settings, embedded, .. } = self;
        let (disk, projection) = (disk.crash(), Arc::new(projection.crash(0)));
        drop(embedded);
        Self::on(disk, projection, settings)
    }

    pub(super) async fn append(&mut self, texts: &[&str]) -> AppendOutcome {
        self.tickets += 1;
        let (sink, batch) = (Arc::<Inbox>::clone(&self.inbox), batch_of("p", texts, None));
        self.stores.log.append(batch, Durability::Durable, sink, self.tickets);
        self.inbox.outcome(self.tickets).await
    }

    pub(super) async fn publish(&mut self, texts: &[&str]) -> Position {
        match self.append(texts).await {
            AppendOutcome::Stored(position) => position,
            other => panic!("an append ended as {other:?}"),
        }
    }

    pub(super) async fn next(&mut self) -> LogBatch {
        self.consumer.next().await.expect("reads")
    }

    /// Routes everything up to the log's end into the queue, and commits.
    pub(super) async fn route(&mut self) {
        let mut end = Position::default();
        while end < self.stores.log.end(0) {
            let batch = self.next().await;
            self.enqueue(&batch).await;
            end = batch.end;
            self.consumer.commit(end, &mut Vec::new);
        }
    }

    pub(super) async fn enqueue(&self, batch: &LogBatch) {
        let append =
            QueueAppend { queue: self.queue.clone(), incarnation: 1, entries: entries(batch) };
        self.stores.queues.append(vec![append]).await.expect("appends");
    }

    pub(super) async fn open(&self) {
        self.stores.queues.open(&self.queue, 1).await.expect("opens");
    }

    /// The queue as texts.
    pub(super) async fn read(&self) -> Vec<(u64, String)> {
        let (mut after, mut all) = (0, Vec::new());
        loop {
            let read = self.stores.queues.read(&self.queue, 1, after, 100, 1 << 20);
            let page = read.await.expect("reads");
            let Some(last) = page.messages.last() else { return all };
            after = last.seq;
            all.extend(page.messages.iter().map(|one| (one.seq, text(&one.message))));
        }
    }

    pub(super) fn stored_entries(&self) -> usize {
        let mut count = 0;
        let mut visit = |_: &[u8], _: &[u8]| {
            count += 1;
            Ok(true)
        };
        self.projection.scan(Space::Entries, &[], &[], &mut visit).expect("scans");
        count
    }

    pub(super) fn checkpoint(&self) {
        self.embedded.checkpoint().expect("checkpoints");
    }
}

pub(super) fn entries(batch: &LogBatch) -> Vec<QueueEntry> {
    let mut entries = Vec::new();
    for (position, item) in &batch.items {
        let LogItem::Publishes(publishes) = item else { continue };
        for index in 0..publishes.len() {
            let (incarnation, position) = (batch.incarnation, *position);
            entries.push(QueueEntry {
                source: SourceId { incarnation, position, index: index as u32 },
                message: MessageRef::new(Arc::clone(publishes), index),
                delivery: crate::mqtt::Delivery {
                    qos: crate::mqtt::QoS::AtLeastOnce,
                    retain: false,
                },
                subscription_ids: Arc::from([]),
                expires_at_ms: None,
                group: None,
            });
        }
    }
    entries
}

pub(super) fn numbers(seqs: std::ops::Range<u64>) -> Vec<(u64, String)> {
    seqs.map(|seq| (seq, seq.to_string())).collect()
}
