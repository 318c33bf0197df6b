//! Which limits by rate this node has.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::config::Config;
use crate::limits::{RateTable, RateWindows};
use crate::routing::Limits;
use crate::storage::{Purpose, Quota, QuotaSettings, Stores, Window};
use crate::telemetry::task;

/// How often unused tokens for durable queues go back: as the throughput quota's built-in value.
const DEVICE_LEASE_RETURN: Duration = Duration::from_secs(1);

pub(super) fn limits(config: &Config, stores: &Stores) -> Limits {
    let total = &config.session.total_rate;
    let throughput = total.windows.as_ref().map(|windows| {
        let (block, back) = (total.block_size, total.lease_return);
        let settings = QuotaSettings::new(Purpose::Throughput, windows, block, back);
        Quota::new(settings, Arc::clone(&stores.bucket))
    });
    let device_queues = config.routing.device_persisted_rate.as_ref().map(|windows| {
        let back = Some(DEVICE_LEASE_RETURN);
        let settings = QuotaSettings::new(Purpose::DeviceQueues, windows, None, back);
        Quota::new(settings, Arc::clone(&stores.device_bucket))
    });
    Limits {
        incoming: config.session.incoming_rate.as_ref().map(RateTable::new),
        outgoing: config.delivery.outgoing_rate.as_ref().map(RateTable::new),
        throughput,
        device_queues,
        replayed_below: stores.log.end(0).offset,
    }
}

/// Starts what draws tokens.
pub(super) fn drive(limits: &Limits) -> Vec<JoinHandle<()>> {
    let drive = |quota: &Arc<Quota>| {
        let quota = Arc::clone(quota);
        task::spawn("quota", async move { quota.run().await })
    };
    limits.quotas().map(drive).collect()
}

/// The same, as a backend takes it.
pub(super) fn windows(of: Option<&RateWindows>) -> Vec<Window> {
    let windows = of.map(RateWindows::windows).unwrap_or_default();
    let window = |capacity, seconds| Window { capacity, period: Duration::from_secs(seconds) };
    windows.iter().map(|one| window(one.limit, one.seconds)).collect()
}
