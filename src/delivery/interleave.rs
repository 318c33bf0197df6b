//! Dispatchers, the session and the writer at one outbox, in thousands of orders: shuttle chooses
//! who comes next at every taking of the lock and at every byte of the socket. The code is the
//! real one; what only it could get wrong is a wake-up that is lost, a writer that is not started,
//! two writers, or bytes out of order.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config as Shuttle, FailurePersistence, MaxSteps, Runner, future, thread};
use tokio::io::AsyncWrite;

use super::tests::{batch, config, settings};
use super::{ClientAck, Outbox, Outgoing, Owner, Socket, Toll, write};
use crate::codec::{self, AckKind, Packet, Peer};
use crate::mqtt::{Delivery, PacketId, ProtocolVersion, QoS, ReasonCode};
use crate::storage::{Memory, MemoryConfig, Purse};

/// Orders that are tried, of each kind. More: `SLUICE_TESTS_ORDERS`.
const ORDERS: usize = 300;
const DISPATCHERS: usize = 2;
/// Messages of each, one at QoS 1 after one at QoS 0.
const MESSAGES: usize = 4;
/// What the socket holds: less than a message.
const KERNEL: usize = 700;

thread_local! {
    static EXPLORING: Cell<bool> = const { Cell::new(false) };
}

/// Here another thread may come first.
pub(super) fn point() {
    if EXPLORING.get() {
        thread::yield_now();
    }
}

/// A socket: what was written and not read, and who waits for room.
#[derive(Default)]
struct Pipe {
    bytes: Mutex<VecDeque<u8>>,
    room: Mutex<Option<Waker>>,
    /// Writers that are to be started.
    wanted: Mutex<VecDeque<(Arc<Outbox>, Weak<dyn Owner>)>>,
    running: AtomicUsize,
}

impl Pipe {
    fn take(&self, slices: &[IoSlice<'_>]) -> usize {
        let mut bytes = self.bytes.lock();
        let before = bytes.len();
        for slice in slices {
            let room = KERNEL - bytes.len();
            bytes.extend(slice.iter().take(room));
        }
        bytes.len() - before
    }

    fn read(&self, into: &mut Vec<u8>) {
        point();
        into.extend(self.bytes.lock().drain(..));
        if let Some(writer) = self.room.lock().take() {
            writer.wake();
        }
    }
}

impl Socket for Pipe {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.take(slices) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            written => Ok(written),
        }
    }

    /// Called under the outbox's lock: another thread starts it.
    fn start_writer(self: Arc<Self>, outbox: Arc<Outbox>, owner: Weak<dyn Owner>) {
        self.wanted.lock().push_back((outbox, owner));
    }
}

struct Writing(Arc<Pipe>);

impl AsyncWrite for Writing {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        point();
        *self.0.room.lock() = Some(cx.waker().clone());
        point();
        match self.0.take(&[IoSlice::new(bytes)]) {
            0 => Poll::Pending,
            written => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Nobody;

impl Owner for Nobody {
    fn written_out(&self) {}
}

/// Each dispatcher's messages by themselves, numbers rising.
fn dispatch(outbox: &Outbox, dispatcher: usize) {
    let mut purse = Purse::UNLIMITED;
    for number in 0..MESSAGES {
        let qos = if number % 2 == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let messages = batch(MESSAGES, qos, dispatcher == 1);
        let copy = Outgoing {
            batch: &messages,
            index: number,
            // RETAIN tells the dispatchers apart.
            delivery: Delivery { qos, retain: dispatcher == 1 },
            subscription_ids: &[],
            paid: true,
            share: None,
        };
        let mut toll = Toll { outgoing: None, purse: &mut purse };
        outbox.offer(std::iter::once(copy), &mut toll);
    }
}

/// Reads and acknowledges until all that must come has come: every message at QoS 1.
fn session(outbox: &Outbox, pipe: &Pipe) {
    let (mut unread, mut acknowledged) = (Vec::new(), 0);
    let mut next: BTreeMap<(bool, bool), u32> = BTreeMap::new();
    while acknowledged < DISPATCHERS * MESSAGES / 2 {
        pipe.read(&mut unread);
        let mut acks = Vec::new();
        let version = Some(ProtocolVersion::V311);
        while let Some(frame) =
            codec::frame_length(&unread, version, Peer::Server, u32::MAX).expect("good bytes")
            && unread.len() >= frame.total
        {
            let packet = codec::decode(&unread[..frame.total], version, Peer::Server);
            if let Packet::Publish(publish) = packet.expect("good bytes") {
                let number: [u8; 4] = publish.payload[..4].try_into().expect("four bytes");
                let number = u32::from_be_bytes(number);
                let of = (publish.retain, publish.packet_id.is_some());
                let least = next.entry(of).or_default();
                assert!(number >= *least, "{number} after {least}");
                *least = number + 1;
                acks.extend(publish.packet_id.map(ack));
            }
            unread.drain(..frame.total);
        }
        acknowledged += acks.len();
        outbox.acknowledge(&acks);
        assert!(outbox.in_flight() <= 2, "its Receive Maximum");
    }
}

fn ack(id: PacketId) -> ClientAck {
    ClientAck { kind: AckKind::Puback, id, reason: ReasonCode::Success }
}

/// The writers that the outbox asks for, one at a time, until the last one has shut the socket.
fn writers(pipe: &Arc<Pipe>) {
    loop {
        point();
        let Some((outbox, owner)) = pipe.wanted.lock().pop_front() else { continue };
        assert_eq!(pipe.running.fetch_add(1, Ordering::SeqCst), 0, "one writer at a time");
        let closing = Arc::clone(&outbox);
        future::block_on(write(outbox, Writing(Arc::clone(pipe)), owner));
        pipe.running.fetch_sub(1, Ordering::SeqCst);
        if closing.is_gone() {
            return;
        }
    }
}

/// One connection's life. With a hand whoever has something writes what the socket takes, and a
/// writer comes and goes; else there always is one.
fn live(by_hand: bool) {
    EXPLORING.set(true);
    let pipe = Arc::new(Pipe::default());
    let queues = Memory::new(MemoryConfig::default()).stores().queues;
    let outbox = Outbox::new(settings(2), config(), queues);
    let owner: Arc<dyn Owner> = Arc::new(Nobody);
    if by_hand {
        outbox.write_by(Arc::clone(&pipe) as _, Arc::downgrade(&owner));
    } else {
        pipe.wanted.lock().push_back((Arc::clone(&outbox), Arc::downgrade(&owner)));
    }
    let writing = Arc::clone(&pipe);
    let writer = thread::spawn(move || writers(&writing));
    let dispatchers: Vec<_> = (0..DISPATCHERS)
        .map(|at| {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || dispatch(&outbox, at))
        })
        .collect();
    session(&outbox, &pipe);
    dispatchers.into_iter().for_each(|one| one.join().expect("no panic"));
    assert_eq!(outbox.in_flight(), 0);
    outbox.close(None);
    // What is still buffered leaves before the end.
    let mut rest = Vec::new();
    while !outbox.is_gone() {
        pipe.read(&mut rest);
    }
    writer.join().expect("no panic");
    assert_eq!(outbox.buffered(), 0);
    EXPLORING.set(false);
}

fn explore(scheduler: impl Scheduler + 'static, by_hand: bool) {
    let mut shuttle = Shuttle::new();
    // Whoever waits for nothing goes round and round: so a lost wake-up shows.
    shuttle.max_steps = MaxSteps::FailAfter(200_000);
    shuttle.failure_persistence = FailurePersistence::Print;
    // The code makes timers, which never fire here.
    let timers = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let timers = timers.expect("a runtime without threads");
    let _entered = timers.enter();
    Runner::new(scheduler, shuttle).run(move || live(by_hand));
}

fn orders() -> usize {
    let told = std::env::var("SLUICE_TESTS_ORDERS").ok();
    told.and_then(|orders| orders.parse().ok()).unwrap_or(ORDERS)
}

/// OUT-1, OUT-2, RM-2, INV-6: in every order that is tried everything that must come comes, in
/// order, within credit, and the connection ends.
#[test]
fn no_order_of_threads_loses_a_wake_up_with_a_writer_task() {
    explore(RandomScheduler::new(orders()), false);
    explore(PctScheduler::new(3, orders()), false);
}

/// The same where writer tasks come and go.
#[test]
fn no_order_of_threads_loses_a_wake_up_without_a_writer_task() {
    explore(RandomScheduler::new(orders()), true);
    explore(PctScheduler::new(3, orders()), true);
}
