//! The send quota of MQTT 5 section 4.9 (RM-2): arithmetic, nothing else.

/// How many QoS 1 and 2 messages may still be sent before an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credit {
    initial: u16,
    left: u16,
}

impl Credit {
    /// Fresh from this connection's CONNECT, never from the one before (RM-4, FLO-01).
    pub(super) fn new(receive_maximum: u16) -> Self {
        Self { initial: receive_maximum, left: receive_maximum }
    }

    pub(super) fn left(self) -> u16 {
        self.left
    }

    pub(super) fn in_flight(self) -> u16 {
        self.initial - self.left
    }

    /// One PUBLISH goes out; `false` when none may.
    #[must_use]
    pub(super) fn take(&mut self) -> bool {
        let available = self.left > 0;
        self.left -= u16::from(available);
        available
    }

    /// An exchange ended. Never above the initial quota, however many acks come (RM-5, FLO-02).
    pub(super) fn give(&mut self) {
        self.left = self.left.saturating_add(1).min(self.initial);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// RM-2, RM-5: between 0 and the initial quota, whatever happens.
        #[test]
        fn credit_stays_in_its_bounds(
            initial in 1u16..50,
            steps in prop::collection::vec(any::<bool>(), 0..300),
        ) {
            let mut credit = Credit::new(initial);
            let mut open = 0u16;
            for take in steps {
                if take {
                    let taken = credit.take();
                    prop_assert_eq!(taken, open < initial);
                    open += u16::from(taken);
                } else {
                    credit.give();
                    open = open.saturating_sub(1);
                }
                prop_assert_eq!(credit.in_flight(), open);
                prop_assert_eq!(credit.left(), initial - open);
            }
        }
    }
}
