//! What is counted for every message and every loss costs no allocation, and nothing that another
//! connection could hold.

use std::sync::mpsc;
use std::time::Duration;

use tikv_jemalloc_ctl::thread;

use super::credit::Credit;
use super::tests::{batch, config, settings};
use super::watermark::Watermark;
use super::{Outbox, Outgoing, Toll};
use crate::mqtt::{Delivery, QoS};
use crate::storage::{Memory, MemoryConfig, Purse};
use crate::telemetry::{
    Direction, DropReason, dropped_rows, dropped_so_far, while_ledger_is_locked,
};

const ROUNDS: usize = 10_000;

/// Bytes that this thread allocates meanwhile.
fn allocated(meanwhile: impl FnOnce()) -> u64 {
    let allocated = thread::allocatedp::read().expect("jemalloc counts for every thread");
    let before = allocated.get();
    meanwhile();
    allocated.get() - before
}

/// OUT-1, RM-2: the marks and the credit are numbers, and nothing else.
#[test]
fn watermark_and_credit_allocate_nothing() {
    let (mut marks, mut credit) = (Watermark::new(1000, 500), Credit::new(10));
    let bytes = allocated(|| {
        for round in 0..ROUNDS {
            let _crossed = marks.queued(round % 700);
            let _crossed = marks.left(round % 650);
            assert!(credit.take());
            credit.give();
        }
    });
    assert_eq!(bytes, 0);
}

/// OUT-2, MET-2, INV-4: for a channel that is full each further copy is a count: no byte is
/// allocated, and all of the ledger's locks may be somebody else's meanwhile. What was counted so
/// is in the ledger, under its name.
#[tokio::test]
async fn a_lost_copy_allocates_nothing_and_waits_for_nobody() {
    let queues = Memory::new(MemoryConfig::default()).stores().queues;
    let mut stuck = settings(10);
    stuck.client_id = crate::mqtt::ClientId::new("a lost copy allocates nothing");
    let outbox = Outbox::new(stuck, config(), queues);
    let messages = batch(1, QoS::AtMostOnce, false);
    let offer = |times| {
        let copy = Outgoing {
            batch: &messages,
            index: 0,
            delivery: Delivery { qos: QoS::AtMostOnce, retain: false },
            subscription_ids: &[],
            paid: true,
            share: None,
        };
        let mut purse = Purse::UNLIMITED;
        let mut toll = Toll { outgoing: None, purse: &mut purse };
        outbox.offer(std::iter::repeat_n(copy, times), &mut toll);
    };
    while_ledger_is_locked(|| ());
    // Over its mark, and the first loss has told its name.
    offer(100);
    assert!(!outbox.is_writable());
    let counted = || dropped_so_far(DropReason::ChannelNotWritable, Direction::Outbound);
    let before = counted();
    let (told, tells) = mpsc::sync_channel(1);
    while_ledger_is_locked(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                offer(1);
                let bytes = allocated(|| (0..ROUNDS).for_each(|_| offer(1)));
                told.send(bytes).expect("it is waited for");
            });
            let bytes = tells.recv_timeout(Duration::from_secs(15));
            assert_eq!(bytes, Ok(0), "bytes, or a wait for a lock of the ledger");
        });
    });
    assert!(counted() >= before + 1 + ROUNDS as u64);
    let mut rows = dropped_rows();
    rows.retain(|row| &*row.client == "a lost copy allocates nothing");
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(&*rows[0].topic == "t" && rows[0].count > ROUNDS as u64, "{rows:?}");
}
