//! Copies of shared groups in the hands of a client without a queue: what it has not acknowledged
//! when its connection ends goes back to the groups (SHR-5). Plain copies are not remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Outgoing;
use crate::mqtt::{PacketId, QoS};
use crate::storage::{Batch, MessageRef};

/// A copy of a shared group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCopy {
    /// Which group.
    pub group: u64,
    /// It comes from the group's room: it is handed back rather than dropped for congestion.
    pub waited: bool,
}

/// A message that a client leaves, and its group.
pub type Left = (MessageRef, u64);

/// In the order in which they were sent; bounded by Receive Maximum.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "hardly any connection has one")]
pub(super) struct Lent(Option<Box<VecDeque<(PacketId, Left)>>>);

impl Lent {
    /// A copy was sent under `id`. At QoS 2 the exchange ends with the session (MQTT 4.8.2).
    pub(super) fn sent(&mut self, id: PacketId, copy: &Outgoing<'_>) {
        let Some(share) = copy.share.filter(|_| copy.delivery.qos == QoS::AtLeastOnce) else {
            return;
        };
        let message = keep(copy.batch, copy.index);
        self.0.get_or_insert_default().push_back((id, (message, share.group)));
    }

    /// The exchange of `id` has ended; mostly it is the oldest.
    pub(super) fn ended(&mut self, id: PacketId) {
        let Some(lent) = &mut self.0 else { return };
        if let Some(at) = lent.iter().position(|(sent, _)| *sent == id) {
            lent.remove(at);
        }
        if lent.is_empty() {
            self.0 = None;
        }
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = Left> + use<> {
        self.0.take().into_iter().flat_map(|lent| *lent).map(|(_, left)| left)
    }
}

/// Keeps a message; a small one out of a large batch is copied out, so that it doesn't pin the
/// whole batch.
pub(super) fn keep(batch: &Arc<Batch>, index: usize) -> MessageRef {
    let message = MessageRef::new(Arc::clone(batch), index);
    let view = message.view();
    let own = view.topic.len() + view.properties.len() + view.payload.len();
    if own * 4 < batch.body().len() { message.detached() } else { message }
}
