//! How fast connections may come: to this node, and from one source address. Asked as soon as the
//! address is known, before TLS and before a byte of MQTT is read, so that a client that loops
//! costs an accept and a close (QTA-02).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::{RateTable, RateWindows};
use crate::telemetry::{Throttle, metrics};

/// Asked once in so many connections, a table forgets sources that say nothing any more.
const SWEEP_EVERY: u32 = 64;

static REFUSED: Throttle = Throttle::per_minute();

/// `listener.connection-rate`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionRateConfig {
    /// Connections to this node; `None`: not limited.
    pub node: Option<RateWindows>,
    /// Connections from one IPv4 address or one IPv6 /64; `None`: not limited.
    pub source: Option<RateWindows>,
}

/// Bounded by the sources that came within the longest window.
#[derive(Debug)]
pub(super) struct ConnectionRate {
    node: Option<RateTable>,
    source: Option<RateTable>,
    asked: AtomicU32,
}

impl ConnectionRate {
    pub(super) fn new(config: &ConnectionRateConfig) -> Self {
        let table = |windows: &Option<RateWindows>| windows.as_ref().map(RateTable::new);
        let (node, source) = (table(&config.node), table(&config.source));
        Self { node, source, asked: AtomicU32::new(0) }
    }

    /// Whether a connection from this address may come now. What one source has too many takes
    /// nothing away from the others.
    pub(super) fn admit(&self, from: IpAddr) -> bool {
        let Self { node, source, .. } = self;
        if let Some(source) = source
            && self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(SWEEP_EVERY)
        {
            source.sweep();
        }
        let from_it = source.as_ref().is_none_or(|table| table.take(table.key_of_source(from), 0));
        let admitted = from_it && node.as_ref().is_none_or(|table| table.take(table.key(""), 0));
        if !admitted {
            metrics::LIMITED_CONNECTIONS.inc();
            if let Some(unsaid) = REFUSED.ready() {
                let limit = if from_it { "the node's" } else { "its source's" };
                tracing::info!(%from, unsaid, limit, "connection refused: they come too fast");
            }
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One source that connects too fast is refused, and takes nothing from the node's limit.
    #[tokio::test(start_paused = true)]
    async fn a_greedy_source_hurts_itself_only() {
        let windows = |text| RateWindows::parse_counts(text);
        let config = ConnectionRateConfig { node: windows("10:1"), source: windows("4:1") };
        let rate = ConnectionRate::new(&config);
        let admitted = |last: u8, times: usize| {
            let from = IpAddr::from([10, 0, 0, last]);
            (0..times).filter(|_| rate.admit(from)).count()
        };
        assert_eq!((admitted(1, 100), admitted(2, 100), admitted(3, 100)), (4, 4, 2));
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(admitted(3, 100), 4);
        let off = ConnectionRate::new(&ConnectionRateConfig::default());
        assert!((0..1000).all(|_| off.admit(IpAddr::from([10, 0, 0, 1]))));
    }
}
