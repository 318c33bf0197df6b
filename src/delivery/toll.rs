//! What a copy pays on its way out: the subscriber's own limit of QoS 0 messages (OUT-5), and the
//! throughput quota (QUO-4). Asked when the channel would take the copy, so that one which is
//! skipped costs nothing.

use super::Outgoing;
use crate::limits::{RateKey, RateTable};
use crate::mqtt::QoS;
use crate::storage::Purse;
use crate::telemetry::metrics;

/// For the copies of one recipient in one pass.
#[derive(Debug)]
pub struct Toll<'a> {
    /// The subscriber's limit, if there is one.
    pub outgoing: Option<(&'a RateTable, RateKey)>,
    /// What the pass may cost in all.
    pub purse: &'a mut Purse,
}

impl Toll<'_> {
    /// `false`: the copy is beyond a limit.
    pub(super) fn pays(&mut self, copy: &Outgoing<'_>) -> bool {
        if let Some((table, key)) = self.outgoing {
            let view = copy.batch.view(copy.index);
            let bytes = view.topic.len() + view.properties.len() + view.payload.len();
            if view.qos == QoS::AtMostOnce && !table.take(key, bytes) {
                metrics::LIMITED_OUTGOING.inc();
                return false;
            }
        }
        if copy.paid || self.purse.pay() {
            return true;
        }
        metrics::LIMITED_TOTAL.inc();
        false
    }
}
