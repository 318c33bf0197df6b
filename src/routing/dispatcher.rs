//! One task per log partition: batch → match → hand over → commit.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Turn;
use super::backlog::Backlog;
use super::decisions::Decisions;
use super::here::Here;
use super::judge::Judge;
use super::limits::Limits;
use super::retained_table::RetainedTable;
use super::rooms::Rooms;
use super::runs::{Copy, Runs};
use super::subscriptions::Subscriptions;
use crate::delivery::{GroupCopy, Outgoing, Slot, Slots};
use crate::mqtt::QoS;
use crate::storage::{
    Batch, DeviceQueues, Kind, LogBatch, LogConsumer, LogItem, Origin, Position, PublishLog,
};
use crate::telemetry::{self, Direction, DropReason, fail_point, metrics};

/// How long to wait before a failed batch is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// How far the dispatcher of a partition has come: what a retained cursor waits for; and how far
/// the queues have: what a session that comes back waits for.
#[derive(Debug, Default)]
pub struct Progress {
    offset: AtomicU64,
    /// At most `offset`: queues may be away.
    queued: AtomicU64,
    moved: Notify,
}

impl Progress {
    /// Everything below the last commit was dispatched by an earlier run.
    pub fn behind(committed: Position) -> Self {
        let offset = || AtomicU64::new(committed.offset);
        Self { offset: offset(), queued: offset(), moved: Notify::new() }
    }

    /// Waits until everything below `offset` was dispatched. Cancel safe: yes.
    pub async fn reached(&self, offset: u64) {
        self.passes(&self.offset, offset).await;
    }

    /// Waits until everything below `offset` was dispatched, and is in the queues that it is for.
    /// Cancel safe: yes.
    pub async fn queued(&self, offset: u64) {
        self.passes(&self.queued, offset).await;
    }

    async fn passes(&self, which: &AtomicU64, offset: u64) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if which.load(Ordering::Acquire) >= offset {
                return;
            }
            moved.await;
        }
    }

    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    pub(super) fn advance(&self, to: Position, queued: bool) {
        self.offset.store(to.offset, Ordering::Release);
        if queued {
            self.queued.store(to.offset, Ordering::Release);
        }
        self.moved.notify_waiters();
    }

    /// What was dispatched is in the queues.
    pub(super) fn caught_up(&self) {
        self.queued.store(self.offset(), Ordering::Release);
        self.moved.notify_waiters();
    }
}

/// What a dispatcher works with.
#[derive(Clone)]
pub struct Parts {
    pub slots: Arc<Slots>,
    pub subscriptions: Arc<Subscriptions>,
    pub retained: Arc<RetainedTable>,
    pub judge: Arc<Judge>,
    pub log: Arc<dyn PublishLog>,
    pub queues: Arc<dyn DeviceQueues>,
    pub progress: Arc<Progress>,
    pub backlog: Arc<Backlog>,
    pub rooms: Arc<Rooms>,
    pub limits: Arc<Limits>,
    /// Among other nodes; `None`: there are none.
    pub here: Option<Arc<Here>>,
    /// `mqtt.shared-subscriptions.skip-non-writable`.
    pub turn: Turn,
    /// How many messages that wait for a group one member's queue may have at a time.
    pub window: u64,
    /// Where the log ended when this run began.
    pub replayed: u64,
    /// What copies without a Subscription Identifier share.
    pub no_ids: Arc<[u32]>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Parts {
    /// A node that knows nobody.
    pub fn bare(stores: &crate::storage::Stores) -> Self {
        let slots = Arc::new(Slots::default());
        Self {
            subscriptions: Arc::new(Subscriptions::new(Arc::clone(&slots))),
            slots,
            retained: Arc::new(RetainedTable::new(None, None)),
            judge: Arc::default(),
            log: Arc::clone(&stores.log),
            queues: Arc::clone(&stores.queues),
            progress: Arc::default(),
            backlog: Arc::default(),
            rooms: Arc::default(),
            window: 100,
            replayed: 0,
            here: None,
            limits: Arc::default(),
            turn: Turn::NextConnected,
            no_ids: Arc::from([]),
        }
    }
}

/// Routes what the consumer gives, until the task is aborted. It never waits for an outbox
/// (invariant 4): a full one answers at once.
///
/// `decided` is what the log told when the consumer was opened.
pub async fn run(
    mut consumer: Box<dyn LogConsumer>,
    parts: Parts,
    decided: Vec<(Position, Origin)>,
) {
    let mut runs = Runs::default();
    let mut decisions = Decisions::recovered(decided);
    decisions.several = parts.here.is_some();
    loop {
        let batch = match consumer.next().await {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(%error, "the publish log can't be read");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let started = Instant::now();
        let mut messages = 0;
        if let Some(here) = &parts.here {
            let due = here.take(&batch, &parts.slots);
            decisions.settled(due.settled);
            parts.enqueue_appends(due.appends).await;
            if !due.offers.is_empty() {
                let number = batch.incarnation;
                let late = parts.collect_offers(due.offers, number, &mut runs, &decisions);
                let all = 0..late.items.len();
                parts.hand_over(&late, all, &runs, &mut decisions).await;
            }
        }
        for stretch in stretches(&batch) {
            let begun = Instant::now();
            messages += parts.collect(&batch, stretch.clone(), &mut runs, &decisions);
            metrics::SUBSCRIPTION_LOOKUP.observe(begun.elapsed());
            parts.hand_over(&batch, stretch, &runs, &mut decisions).await;
        }
        fail_point::pass("batch.dispatched");
        consumer.routed();
        decisions.passed(batch.end);
        parts.subscriptions.advance(batch.end.offset);
        if parts.backlog.routed(&parts.progress, batch.end) {
            consumer.commit(batch.end, &mut || parts.rooms.encode(&parts.judge));
        } else {
            consumer.passed(batch.end);
        }
        metrics::CONSUMED_TOTAL.add(messages);
        metrics::CONSUMED_SUCCESSFUL.add(messages);
        metrics::CONSUMED_PACK_TIME.observe(started.elapsed());
    }
}

/// The items of a batch, cut where messages and copies addressed to one queue follow each other: a
/// queue takes entries in the order of their sources only, and what comes behind a later one is
/// taken for a replay.
pub(super) fn stretches(batch: &LogBatch) -> impl Iterator<Item = Range<usize>> {
    let direct = |item: &(Position, LogItem)| matches!(item.1, LogItem::Direct { .. });
    let mut from = 0;
    batch.items.chunk_by(move |a, b| direct(a) == direct(b)).map(move |stretch| {
        from += stretch.len();
        from - stretch.len()..from
    })
}

impl Parts {
    /// Matches every message of the stretch, and sorts the copies by recipient.
    pub(super) fn collect(
        &self,
        batch: &LogBatch,
        stretch: Range<usize>,
        runs: &mut Runs,
        decisions: &Decisions,
    ) -> u64 {
        runs.begin(self.slots.id_end());
        let mut messages = 0;
        let mut inner = self.subscriptions.read();
        for item in stretch {
            let (position, log_item) = &batch.items[item];
            let LogItem::Publishes(publishes) = log_item else { continue };
            if inner.is_behind(position.offset) {
                drop(inner);
                self.subscriptions.advance(position.offset);
                inner = self.subscriptions.read();
            }
            for index in 0..publishes.len() {
                messages += 1;
                if self.counts(publishes, index) {
                    let place = (item, index);
                    self.route(&inner, runs, publishes, *position, place, decisions);
                }
            }
        }
        messages
    }

    /// Whether this record is a message to deliver: not a release, not a second copy.
    fn counts(&self, batch: &Batch, index: usize) -> bool {
        let view = batch.view(index);
        match (view.kind, view.packet_id) {
            (Kind::Publish, Some(id)) if view.qos == QoS::ExactlyOnce => {
                self.judge.admit(batch.publisher(), id)
            }
            (Kind::Publish, _) => true,
            (Kind::Will, _) => self.judge.fire(batch.publisher()),
            (Kind::Release, id) => {
                if let Some(id) = id {
                    self.judge.release(batch.publisher(), id);
                }
                false
            }
        }
    }
}

pub(super) fn item<'a>(batch: &'a LogBatch, copy: &Copy) -> (Position, &'a Arc<Batch>) {
    item_at(batch, copy.item as usize)
}

pub(super) fn item_at(batch: &LogBatch, at: usize) -> (Position, &Arc<Batch>) {
    let (position, item) = &batch.items[at];
    match item {
        LogItem::Publishes(publishes) | LogItem::Direct { batch: publishes, .. } => {
            (*position, publishes)
        }
    }
}

/// One copy that its recipient will not get.
pub(super) fn lost(reason: DropReason, of: &Slot, batch: &LogBatch, copy: &Copy) {
    let (_, publishes) = item(batch, copy);
    let topic = publishes.view(copy.index as usize).topic;
    telemetry::dropped_of(reason, Direction::Outbound, of.client_id().as_str(), topic, 1);
}

pub(super) fn outgoing<'a>(batch: &'a LogBatch, copy: &'a Copy) -> Outgoing<'a> {
    let (_, publishes) = item(batch, copy);
    Outgoing {
        batch: publishes,
        index: copy.index as usize,
        delivery: copy.delivery,
        subscription_ids: copy.ids(),
        paid: copy.group.is_some(),
        share: copy.group.map(|group| GroupCopy { group, waited: false }),
    }
}
