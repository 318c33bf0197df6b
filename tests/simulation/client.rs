//! A connection as a client has it: bytes out, strictly parsed packets in.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::dice::Dice;
use crate::power::Power;
use crate::run::Sim;
use crate::wire::{Connect, Level, Packet, parse};

/// How long an answer may take on simulated time before the node counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a connection came to its end, from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The node's power went.
    Power,
    /// The node closed it.
    Closed,
}

pub(crate) struct Wire {
    read: ReadHalf<DuplexStream>,
    write: WriteHalf<DuplexStream>,
    power: Arc<Power>,
    level: Level,
    unread: Vec<u8>,
    unsent: Vec<u8>,
    /// The last packet was a DISCONNECT with this code.
    pub(crate) told: Option<u8>,
}

impl Wire {
    /// Queues bytes; they leave while `recv` is waited for.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }

    pub(crate) fn is_clogged(&self) -> bool {
        self.unsent.len() > 64 << 10
    }

    /// The next packet. Cancel safe: yes.
    pub(crate) async fn recv(&mut self, sim: &Sim, name: &str) -> Result<Packet, Gone> {
        loop {
            match parse(self.level, &self.unread) {
                Ok(Some((packet, length))) => {
                    self.unread.drain(..length);
                    if let Packet::Disconnect { code, .. } = packet {
                        self.told = Some(code);
                    }
                    return Ok(packet);
                }
                Ok(None) => {}
                Err(fault) => {
                    sim.trace.violate(name, format_args!("not a server's packet: {fault}"));
                    return Err(Gone::Closed);
                }
            }
            let mut chunk = [0; 2048];
            let sending = !self.unsent.is_empty();
            tokio::select! {
                biased;
                () = self.power.went() => return Err(Gone::Power),
                read = self.read.read(&mut chunk) => match read {
                    Ok(0) | Err(_) => return Err(self.gone()),
                    Ok(read) => self.unread.extend_from_slice(&chunk[..read]),
                },
                written = self.write.write(&self.unsent), if sending => match written {
                    Ok(0) | Err(_) => return Err(self.gone()),
                    Ok(written) => drop(self.unsent.drain(..written)),
                },
            }
        }
    }

    fn gone(&self) -> Gone {
        if self.power.is_gone() { Gone::Power } else { Gone::Closed }
    }

    /// Says good-bye and waits for the end; `true` when the node surely read it.
    pub(crate) async fn disconnect(mut self, sim: &Sim, name: &str) -> bool {
        self.send(&crate::wire::wire::DISCONNECT);
        let end = async {
            loop {
                if let Err(gone) = self.recv(sim, name).await {
                    return gone == Gone::Closed && self.unsent.is_empty() && self.told.is_none();
                }
            }
        };
        match timeout(PATIENCE, end).await {
            Ok(read) => read,
            Err(_) => {
                sim.trace.violate(name, "DISCONNECT was not followed by the end");
                false
            }
        }
    }
}

/// Connects until the node takes it; gives whether a session was present, and our Receive Maximum.
pub(crate) async fn open(
    sim: &Sim,
    name: &str,
    connect: &Connect,
    dice: &mut Dice,
) -> (Wire, bool, usize) {
    let pipe = dice.between(256, 16_384) as usize;
    loop {
        let (stream, power) = sim.machine.connect(pipe).await;
        let (read, write) = tokio::io::split(stream);
        let (unread, unsent, level) = (Vec::new(), Vec::new(), connect.level);
        let mut wire = Wire { read, write, power, level, unread, unsent, told: None };
        wire.send(&connect.bytes());
        let answer = timeout(PATIENCE, wire.recv(sim, name)).await;
        match answer {
            Ok(Ok(Packet::Connack { session_present, code: 0, properties })) => {
                let maximum = properties.number(0x21).map_or(20, |maximum| maximum as usize);
                sim.trace.note(name, format_args!("connected, session present {session_present}"));
                return (wire, session_present, maximum);
            }
            Ok(Ok(Packet::Connack { code, .. })) => {
                sim.trace.note(name, format_args!("refused: {code:#x}"));
                // 0x88 and 3: its claim is in doubt; 0x8B: it stops.
                if !matches!(code, 0x88 | 3 | 0x8B) || !sim.may_fail() {
                    sim.trace.violate(name, format_args!("CONNECT was refused with {code:#x}"));
                }
            }
            Ok(Ok(packet)) => {
                sim.trace.violate(name, format_args!("CONNECT was answered by {packet:?}"));
            }
            Ok(Err(gone)) => {
                sim.trace.note(name, format_args!("gone before CONNACK: {gone:?}"));
                if gone == Gone::Closed && !sim.may_fail() {
                    sim.trace.violate(name, "closed before CONNACK");
                }
            }
            Err(_) => sim.trace.violate(name, "CONNECT was not answered"),
        }
        tokio::time::sleep(dice.ms(1, 300)).await;
    }
}
