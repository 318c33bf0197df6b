//! Retained messages for new subscriptions: a cursor that waits for a writable channel, fills a
//! persistent session's queue in pages, never sends an older value after a newer one, and ends
//! with its connection (OUT-2).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::conn::Conn;
use super::context::Context;
use crate::delivery::{OpenCursor, Outgoing};
use crate::mqtt::{Delivery, SubscriptionOptions, TopicFilter};
use crate::routing::Cursor;
use crate::storage::{AppendOutcome, Batch, BatchBuilder, DirectCopy, MessageRef, QueueKey};
use crate::storage::{Settled, once};

/// Appends of one replay under way at once.
const OPEN_APPENDS: usize = 64;
/// A replay waits while more messages than this are in the session's queue.
const QUEUED_MAX: u64 = 1024;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A subscription that is owed the retained messages of its filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) filter: TopicFilter,
    pub(super) options: SubscriptionOptions,
}

/// What a replay task works with.
pub(super) struct Replay {
    pub(super) context: Arc<Context>,
    pub(super) conn: Arc<Conn>,
    pub(super) incarnation: u64,
    pub(super) persistent: bool,
    pub(super) owed: Owed,
}

/// What a SUBSCRIBE is owed. Its cursor was opened before the subscriptions came into force, so
/// that whatever they got live is known.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) filters: VecDeque<Wanted>,
    pub(super) cursor: OpenCursor,
}

impl Replay {
    /// Starts once the dispatcher has passed everything that was stored before the SUBSCRIBE: a
    /// value that the subscriptions are too late for is in the table then.
    pub(super) async fn run(mut self) {
        let from = self.context.log.end(0).offset;
        let filters = std::mem::take(&mut self.owed.filters);
        tokio::select! {
            biased;
            () = self.replay(from, filters) => {}
            _ = self.conn.ended() => {}
        }
        drop(self.owed.cursor);
    }

    async fn replay(&self, from: u64, mut all: VecDeque<Wanted>) {
        self.context.progress.reached(from).await;
        while let Some(wanted) = all.pop_front() {
            let mut cursor: Option<Cursor> = None;
            loop {
                let (page, next) =
                    self.context.retained.page(wanted.filter.plain(), cursor.as_ref());
                if !self.page(&wanted, page).await {
                    return;
                }
                let Some(next) = next else { break };
                cursor = Some(next);
                // A filter that matches little must not keep this thread for a whole scan.
                tokio::task::yield_now().await;
            }
        }
    }

    /// `false` when the replay can't go on.
    async fn page(&self, wanted: &Wanted, page: Vec<MessageRef>) -> bool {
        let ids: Vec<u32> = wanted.options.subscription_id.into_iter().collect();
        let mut queued = Vec::new();
        for message in page {
            // MQTT-3.8.3-3 speaks of forwarding: a client's own retained message is one, too.
            let own = message.batch().publisher().client_id == self.conn.client_id;
            if own && wanted.options.no_local {
                continue;
            }
            let qos = message.view().qos.min(wanted.options.qos);
            // MQTT-3.3.1-8: RETAIN is set whatever Retain As Published says (RET-02).
            let delivery = Delivery { qos, retain: true };
            if self.persistent && qos.is_acknowledged() {
                queued.push((message, delivery));
                continue;
            }
            let (batch, index) = (message.batch(), message.index());
            let copy = Outgoing {
                batch,
                index,
                delivery,
                subscription_ids: &ids,
                paid: true,
                share: None,
            };
            if !self.is_paid().await {
                return false;
            }
            while !self.conn.outbox.offer_retained(&copy) {
                self.conn.outbox.ready(qos.is_acknowledged()).await;
            }
        }
        let affordable = self.affordable(queued.len()).await;
        let cut_short = affordable < queued.len();
        queued.truncate(affordable);
        (queued.is_empty() || self.enqueue(&queued, &ids).await) && !cut_short
    }

    /// QUO-4: a retained copy is charged on SUBSCRIBE. Without budget the replay is cut short, and
    /// nothing counts as dropped (QUO-5).
    async fn is_paid(&self) -> bool {
        match &self.context.limits.throughput {
            None => true,
            Some(quota) => quota.take(1).await.is_some(),
        }
    }

    async fn affordable(&self, copies: usize) -> usize {
        match &self.context.limits.throughput {
            None => copies,
            Some(quota) => quota.take_up_to(copies as u64).await.holds() as usize,
        }
    }

    /// Copies for the session's queue go by way of the log (design decision 4).
    async fn enqueue(&self, queued: &[(MessageRef, Delivery)], ids: &[u32]) -> bool {
        let subscription_ids: Arc<[u32]> = Arc::from(ids);
        let mut open = VecDeque::new();
        let mut rest = queued;
        self.queue_has_room().await;
        while let Some((first, _)) = rest.first() {
            // One batch has one publisher and one time of receipt, on which expiry rests.
            let alike = |message: &MessageRef| {
                message.batch().publisher() == first.batch().publisher()
                    && message.batch().received_at_ms() == first.batch().received_at_ms()
            };
            let run = rest.iter().take_while(|(message, _)| alike(message)).count();
            let (now, later) = rest.split_at(run);
            rest = later;
            let live = now.iter().filter(|(m, _)| !self.conn.outbox.went_live(m.view().topic));
            let live: Vec<_> = live.collect();
            if live.is_empty() {
                continue;
            }
            let deliveries: Vec<DirectCopy> = live
                .iter()
                .map(|(_, delivery)| DirectCopy {
                    delivery: *delivery,
                    subscription_ids: Arc::clone(&subscription_ids),
                    origin: None,
                    taken: None,
                })
                .collect();
            open.push_back(self.append(batch_of(first, &live), deliveries));
            if open.len() >= OPEN_APPENDS && !settle_first(&mut open).await {
                return false;
            }
        }
        while !open.is_empty() {
            if !settle_first(&mut open).await {
                return false;
            }
        }
        true
    }

    fn append(&self, batch: Arc<Batch>, deliveries: Vec<DirectCopy>) -> Settled {
        let (sink, settled) = once();
        let to = QueueKey::of(&self.conn.client_id, self.conn.application.is_some());
        let deliveries = Arc::from(deliveries);
        // The dispatcher compares the copy with the newest value in force at that place: it must
        // not stand between a newer publish and its row.
        self.context.retained.apart(|| {
            self.context.log.append_direct(to, self.incarnation, batch, deliveries, sink, 0);
        });
        settled
    }

    /// A replay must not push live messages, or its own first pages, over the queue's limit.
    async fn queue_has_room(&self) {
        let queue = QueueKey::of(&self.conn.client_id, self.conn.application.is_some());
        while self.context.queues.depth(&queue) > QUEUED_MAX {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// Waits for the oldest open append; `false` when it was not stored.
async fn settle_first(open: &mut VecDeque<Settled>) -> bool {
    match open.pop_front() {
        Some(mut settled) => matches!(settled.outcome().await, AppendOutcome::Stored(_)),
        None => true,
    }
}

fn batch_of(first: &MessageRef, messages: &[&(MessageRef, Delivery)]) -> Arc<Batch> {
    let publisher = Arc::clone(first.batch().publisher());
    let mut builder = BatchBuilder::new(publisher, first.batch().received_at_ms());
    for (message, _) in messages {
        builder.push(&message.view());
    }
    builder.finish()
}
