//! Tests of the log over a simulated and a real disk. Here: what they share.

mod crash;
mod faults;
mod order;
mod real;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Applier, Disk, Driver, Frame, FrameKind, SimDisk, Wal, WalConfig};
use crate::storage::{AppendOutcome, AppendSink, Durability, Position, StorageError};

/// What a replay gave: offset, kind, head, body.
type Replayed = Vec<(u64, FrameKind, Bytes, Bytes)>;

/// Remembers how each ticket ended; a ticket that ends twice fails the test.
#[derive(Default)]
struct Outcomes {
    by_ticket: Mutex<BTreeMap<u64, AppendOutcome>>,
    /// Marks each settlement in the trace; settlements after its crash are not remembered.
    disk: Option<SimDisk>,
}

impl Outcomes {
    fn on(disk: &SimDisk) -> Arc<Self> {
        Arc::new(Self { by_ticket: Mutex::default(), disk: Some(disk.clone()) })
    }

    fn of(&self, ticket: u64) -> Option<AppendOutcome> {
        self.by_ticket.lock().get(&ticket).copied()
    }

    fn offset(&self, ticket: u64) -> u64 {
        match self.of(ticket) {
            Some(AppendOutcome::Stored(Position { offset, .. })) => offset,
            other => panic!("ticket {ticket} ended as {other:?}"),
        }
    }

    fn len(&self) -> usize {
        self.by_ticket.lock().len()
    }

    /// Waits until `count` tickets have ended; for the driver on a thread.
    fn wait(&self, count: usize) {
        while self.len() < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl AppendSink for Outcomes {
    fn settled(&self, ticket: u64, outcome: AppendOutcome) {
        if let Some(disk) = &self.disk {
            if disk.crashed().is_some() {
                return;
            }
            disk.mark(ticket);
        }
        let before = self.by_ticket.lock().insert(ticket, outcome);
        assert_eq!(before, None, "ticket {ticket} ended twice");
    }
}

/// Remembers what was applied; can be looked at from outside.
#[derive(Clone, Default)]
struct Applied {
    frames: Arc<Mutex<Vec<(u64, Frame)>>>,
    end: Arc<Mutex<u64>>,
}

impl Applier for Applied {
    fn apply(&mut self, offset: u64, frame: &Frame) {
        self.frames.lock().push((offset, frame.clone()));
    }

    fn group_end(&mut self, end: u64) {
        *self.end.lock() = end;
    }
}

fn small() -> WalConfig {
    WalConfig { segment_bytes: 4096, incarnation: Some(7), ..WalConfig::default() }
}

/// A frame that can be told by its head, with a body that fits it.
fn frame(ticket: u64, body_len: usize) -> Frame {
    let kinds = [
        FrameKind::Publishes,
        FrameKind::Direct,
        FrameKind::Rows,
        FrameKind::Received,
        FrameKind::IdRun,
    ];
    let kind = kinds[(ticket % 5) as usize];
    let body: Vec<u8> = (0..body_len as u64).map(|at| (ticket * 31 + at * 7) as u8).collect();
    let head = Bytes::copy_from_slice(&ticket.to_le_bytes());
    Frame { kind, head, body: body.into(), live: None }
}

fn ticket_of(head: &[u8]) -> u64 {
    u64::from_le_bytes(head.try_into().expect("a head of ours"))
}

fn open_at(
    disk: &Arc<dyn Disk>,
    config: WalConfig,
    replay_from: u64,
) -> Result<(Wal, Replayed), StorageError> {
    let mut replayed = Vec::new();
    let wal = Wal::open(Arc::clone(disk), config, replay_from, &mut |offset, kind, head, body| {
        replayed.push((offset, kind, head, body));
        Ok(())
    })?;
    Ok((wal, replayed))
}

fn open(disk: &SimDisk) -> (Wal, Replayed) {
    open_at(&disk.disk(), small(), 0).expect("opens")
}

/// Submits durable frames with these tickets and lets the task settle them.
async fn store(wal: &Wal, sink: &Arc<Outcomes>, tickets: std::ops::Range<u64>, body_len: usize) {
    for ticket in tickets {
        submit(wal, sink, ticket, body_len, Durability::Durable);
    }
    turn().await;
}

fn submit(wal: &Wal, sink: &Arc<Outcomes>, ticket: u64, body_len: usize, durability: Durability) {
    wal.submit(frame(ticket, body_len), durability, Arc::clone(sink) as _, ticket);
}

/// Lets the log's task run until it sleeps.
async fn turn() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

fn assert_same(found: &(u64, FrameKind, Bytes, Bytes), ticket: u64, offset: u64, len: usize) {
    let expected = frame(ticket, len);
    assert_eq!(found.0, offset, "ticket {ticket}");
    assert_eq!(ticket_of(&found.2), ticket);
    assert_eq!((found.1, &found.3), (expected.kind, &expected.body), "ticket {ticket}");
}
