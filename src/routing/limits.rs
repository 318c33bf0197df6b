//! The limits by rate that a message meets on its way; each is there only if it is switched on,
//! and what is not there costs a look at an empty option.

use std::sync::Arc;

use crate::limits::RateTable;
use crate::storage::Quota;

#[derive(Debug, Default)]
pub struct Limits {
    /// PUBLISHes of each client (LIM-1).
    pub incoming: Option<RateTable>,
    /// QoS 0 messages to each client (OUT-5).
    pub outgoing: Option<RateTable>,
    /// PUBLISH packets of the cluster, in and out (QUO-1).
    pub throughput: Option<Arc<Quota>>,
    /// Copies into durable queues (DEV-7).
    pub device_queues: Option<Arc<Quota>>,
    /// What lies below this offset was dispatched before, at least in part: copies that entered a
    /// queue then must enter it again.
    pub replayed_below: u64,
}

impl Limits {
    /// Forgets clients that say nothing any more; some at each call.
    pub fn sweep(&self) {
        let tables = [&self.incoming, &self.outgoing];
        tables.into_iter().flatten().for_each(RateTable::sweep);
    }

    /// The quotas that need a driver.
    pub fn quotas(&self) -> impl Iterator<Item = &Arc<Quota>> {
        [&self.throughput, &self.device_queues].into_iter().flatten()
    }
}
