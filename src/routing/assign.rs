//! Copies of shared subscriptions for members with durable queues go by way of the log, each with
//! the message and group it was picked for; and so do copies that nobody gets.

use std::sync::Arc;
use std::time::Duration;

use super::decisions::{Decisions, nobody};
use crate::mqtt::ClientId;
use crate::storage::{
    AppendOutcome, Batch, BatchBuilder, DirectCopy, MessageRef, MessageView, Position, PublishLog,
    QueueKey,
};
use crate::storage::{Settled, once};

/// How long to wait before a failed append is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Copies of messages of one batch for one member.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) to: QueueKey,
    pub(super) incarnation: u64,
    pub(super) batch: Arc<Batch>,
    pub(super) copies: Arc<[DirectCopy]>,
}

impl Assignment {
    /// `indices` says which messages of `source` the copies are of.
    pub(super) fn new(
        (to, incarnation): (QueueKey, u64),
        source: &Batch,
        indices: &[usize],
        copies: Vec<DirectCopy>,
    ) -> Self {
        let publisher = Arc::clone(source.publisher());
        let mut builder = BatchBuilder::new(publisher, source.received_at_ms());
        indices.iter().for_each(|index| builder.push(&source.view(*index)));
        Self { to, incarnation, batch: builder.finish(), copies: copies.into() }
    }

    /// Copies that nobody gets: of each no more is kept than whose it would have been, where the
    /// topic stands else.
    pub(super) fn to_nobody<'a>(
        source: &Batch,
        refused: impl Iterator<Item = (usize, &'a ClientId)>,
        copies: Vec<DirectCopy>,
    ) -> Self {
        let publisher = Arc::clone(source.publisher());
        let mut builder = BatchBuilder::new(publisher, source.received_at_ms());
        for (index, client_id) in refused {
            let topic = client_id.as_str();
            builder.push(&MessageView {
                topic,
                properties: &[],
                payload: &[],
                ..source.view(index)
            });
        }
        let batch = builder.finish();
        Self { to: nobody(), incarnation: 0, batch, copies: copies.into() }
    }

    /// Copies that move from other queues; all of one publisher and time of receipt.
    pub(super) fn moved(
        (to, incarnation): (QueueKey, u64),
        copies: impl Iterator<Item = (MessageRef, DirectCopy)>,
    ) -> Option<Self> {
        let (messages, copies): (Vec<MessageRef>, Vec<DirectCopy>) = copies.unzip();
        let first = messages.first()?.batch();
        let mut builder = BatchBuilder::new(Arc::clone(first.publisher()), first.received_at_ms());
        messages.iter().for_each(|message| builder.push(&message.view()));
        Some(Self { to, incarnation, batch: builder.finish(), copies: copies.into() })
    }

    fn append(&self, log: &dyn PublishLog) -> Settled {
        let (sink, settled) = once();
        let (batch, copies) = (Arc::clone(&self.batch), Arc::clone(&self.copies));
        log.append_direct(self.to.clone(), self.incarnation, batch, copies, sink, 0);
        settled
    }

    /// Stored at `place`; an earlier append of the same copies may be, too.
    fn stored(&self, place: Position, in_doubt: bool, decisions: &mut Decisions) {
        if in_doubt {
            let origins = self.copies.iter().filter_map(DirectCopy::decision);
            origins.for_each(|origin| decisions.doubt(origin, place));
        }
    }
}

/// Returns when all are durable, and where the last one stands: only then may the messages behind
/// them be committed. The log is
/// asked until it takes them; publishers are held meanwhile, as dispatch lags (IN-8).
pub(super) async fn assign(
    log: &dyn PublishLog,
    assignments: &[Assignment],
    mut decisions: Option<&mut Decisions>,
) -> Position {
    let mut last = Position::default();
    let mut open: Vec<_> = assignments.iter().map(|one| (one, one.append(log), false)).collect();
    let mut again = Vec::new();
    while !open.is_empty() {
        for (assignment, mut settled, in_doubt) in open.drain(..) {
            match settled.outcome().await {
                AppendOutcome::Stored(place) => {
                    last = last.max(place);
                    if let Some(decisions) = &mut decisions {
                        assignment.stored(place, in_doubt, decisions);
                    }
                }
                AppendOutcome::NotStored => again.push((assignment, in_doubt)),
                AppendOutcome::InDoubt => again.push((assignment, true)),
            }
        }
        if !again.is_empty() {
            tracing::warn!(copies = again.len(), "decisions about copies are not stored");
            tokio::time::sleep(RETRY).await;
        }
        open.extend(again.drain(..).map(|(one, in_doubt)| (one, one.append(log), in_doubt)));
    }
    last
}
