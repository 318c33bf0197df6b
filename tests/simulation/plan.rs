//! What one seed decides before anything runs.

use std::time::Duration;

use sluice::config::{self, Config};

use crate::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// The embedded storage on a simulated disk.
    Disk,
    /// The ports in memory, with late answers, refusals and doubt.
    Memory,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Temper {
    /// Clients vanish, are taken over, change subscriptions.
    pub(crate) rude: bool,
    /// The node loses its power, or is stopped and started.
    pub(crate) crashes: bool,
    /// The medium refuses, or does not know.
    pub(crate) refusals: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) medium: Medium,
    pub(crate) temper: Temper,
    pub(crate) publishers: u32,
    pub(crate) keepers: u32,
    pub(crate) passers: u32,
    pub(crate) mortals: u32,
    /// Persistent members of the shared subscription.
    pub(crate) members: u32,
    /// Members whose sessions end with their connections.
    pub(crate) passing_members: u32,
    pub(crate) messages: u32,
    pub(crate) high_bytes: usize,
    pub(crate) config: Config,
}

/// The largest packet that a simulated client sends.
pub(crate) const PACKET_MAX: usize = 8192;

impl Plan {
    pub(crate) fn new(dice: &mut Dice) -> Plan {
        let medium = *dice.pick(&[Medium::Disk, Medium::Memory]);
        let (rude, crashes, refusals) = *dice.pick(&[
            (false, false, false),
            (true, false, false),
            (true, true, false),
            (true, true, false),
            (true, false, true),
            (true, true, true),
        ]);
        let high_bytes = dice.between(4, 24) as usize * 1024;
        Plan {
            medium,
            temper: Temper { rude, crashes, refusals },
            publishers: dice.between(2, 4) as u32,
            keepers: dice.between(2, 4) as u32,
            passers: dice.between(1, 3) as u32,
            mortals: if rude { dice.between(1, 2) as u32 } else { 0 },
            members: dice.between(2, 3) as u32,
            passing_members: u32::from(dice.chance(300)),
            messages: dice.between(20, 60) as u32,
            high_bytes,
            config: settings(dice, high_bytes),
        }
    }
}

/// Bounds so small that a few clients meet all of them.
fn settings(dice: &mut Dice, high_bytes: usize) -> Config {
    let loaded = config::load(None, &|_| None).expect("the built-in settings are good");
    let mut config = loaded.config;
    config.delivery.write_buffer_high_bytes = high_bytes;
    config.delivery.write_buffer_low_bytes = high_bytes / 2;
    config.delivery.v3_receive_maximum = dice.between(2, 20) as u16;
    config.delivery.delayed_messages = dice.between(0, 12) as usize;
    config.session.receive_maximum = dice.between(4, 20) as u16;
    config.session.read_ahead_messages = dice.between(2, 20) as usize;
    config.session.read_ahead_bytes = dice.between(2, 16) as usize * 1024;
    config.session.inbound_budget_bytes = dice.between(16, 64) as usize * 1024;
    config.session.append_timeout = Duration::from_secs(30);
    config.storage.embedded.segment_bytes = dice.between(16, 256) << 10;
    config
}
