//! How long an APPLICATION client takes to answer: one exchange of a connection at a time is timed,
//! and stands for the others.

use tokio::time::Instant;

use crate::codec::AckKind;
use crate::mqtt::PacketId;
use crate::telemetry::metrics;

/// What is being timed.
#[derive(Debug)]
struct Timed {
    id: PacketId,
    /// What answers it.
    awaited: AckKind,
    since: Instant,
}

/// Where nothing is timed, or somebody else is, both calls cost a comparison.
#[derive(Debug)]
pub(super) struct Probe {
    is_on: bool,
    timed: Option<Timed>,
}

impl Probe {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, timed: None }
    }

    /// A packet went out that `awaited` answers.
    pub(super) fn sent(&mut self, id: PacketId, awaited: AckKind) {
        if self.is_on && self.timed.is_none() {
            self.timed = Some(Timed { id, awaited, since: Instant::now() });
        }
    }

    /// The client has answered.
    pub(super) fn answered(&mut self, id: PacketId, kind: AckKind) {
        let Some(Timed { awaited, since, .. }) = self.timed.take_if(|timed| timed.id == id) else {
            return;
        };
        // Under its id another exchange may have begun, if this one was given up.
        if awaited != kind {
            return;
        }
        match kind {
            AckKind::Puback => metrics::APP_PUBACK.observe(since.elapsed()),
            AckKind::Pubrec => metrics::APP_PUBREC.observe(since.elapsed()),
            AckKind::Pubcomp => metrics::APP_PUBCOMP.observe(since.elapsed()),
            AckKind::Pubrel => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> PacketId {
        PacketId::new(number).expect("is not 0")
    }

    #[test]
    fn one_exchange_at_a_time_is_timed() {
        let mut probe = Probe::new(true);
        probe.sent(id(1), AckKind::Puback);
        probe.sent(id(2), AckKind::Pubrec);
        probe.answered(id(2), AckKind::Pubrec);
        assert!(probe.timed.is_some(), "it is the first that is timed");
        probe.answered(id(1), AckKind::Puback);
        assert!(probe.timed.is_none());
        probe.sent(id(1), AckKind::Pubcomp);
        probe.answered(id(1), AckKind::Puback);
        assert!(probe.timed.is_none(), "another answer ends it, too");
        let mut off = Probe::new(false);
        off.sent(id(1), AckKind::Puback);
        assert!(off.timed.is_none());
    }
}
