//! A connection whose socket takes what fits at once: its writer task comes and goes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWrite, DuplexStream};

use super::{Config, Outbox, Owner, Settings, Socket};
use crate::codec::{Disconnect, Packet};
use crate::mqtt::{ClientId, ProtocolVersion, ReasonCode};
use crate::storage::{Memory, MemoryConfig};
use crate::telemetry::task;

/// What the "kernel" takes.
const KERNEL: usize = 16;
const PINGRESP: [u8; 2] = [0xd0, 0];

/// Counts its writer tasks.
struct Pipe {
    near: Mutex<DuplexStream>,
    started: AtomicUsize,
    running: AtomicUsize,
}

struct Writing(Arc<Pipe>);

impl Socket for Pipe {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(&mut *self.near.lock()).poll_write_vectored(&mut cx, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn start_writer(self: Arc<Self>, outbox: Arc<Outbox>, owner: Weak<dyn Owner>) {
        self.started.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_add(1, Ordering::SeqCst);
        task::spawn("writer", async move {
            super::write(outbox, Writing(Arc::clone(&self)), owner).await;
            self.running.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

impl AsyncWrite for Writing {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.near.lock()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.near.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.near.lock()).poll_shutdown(cx)
    }
}

#[derive(Default)]
struct Told(AtomicUsize);

impl Owner for Told {
    fn written_out(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Bench {
    outbox: Arc<Outbox>,
    pipe: Arc<Pipe>,
    told: Arc<Told>,
    far: DuplexStream,
}

impl Bench {
    fn unopened() -> Self {
        let config = Config {
            write_buffer_high_bytes: 8192,
            write_buffer_low_bytes: 4096,
            v3_receive_maximum: 10,
            delayed_messages: 10,
            delayed_ttl: Duration::from_secs(600),
            topic_alias_max: 0,
            topic_alias_min_bytes: 50,
            outgoing_rate: None,
        };
        let settings = Settings {
            client_id: ClientId::new("c"),
            version: ProtocolVersion::V5,
            receive_maximum: 10,
            maximum_packet_size: None,
            topic_alias_maximum: 0,
            problem_information: true,
            gate: None,
        };
        let queues = Memory::new(MemoryConfig::default()).stores().queues;
        let (near, far) = tokio::io::duplex(KERNEL);
        let pipe = Pipe { near: Mutex::new(near), started: 0.into(), running: 0.into() };
        let outbox = Outbox::new(settings, Arc::new(config), queues);
        Self { outbox, pipe: Arc::new(pipe), told: Arc::default(), far }
    }

    fn open(&self) {
        let owner = Arc::downgrade(&self.told);
        self.outbox.write_by(Arc::clone(&self.pipe) as _, owner);
    }

    fn tasks(&self) -> (usize, usize) {
        (self.pipe.started.load(Ordering::SeqCst), self.pipe.running.load(Ordering::SeqCst))
    }

    fn ping(&self, times: usize) {
        (0..times).for_each(|_| self.outbox.control(&Packet::Pingresp));
    }

    async fn expect_pings(&mut self, times: usize) {
        let mut got = vec![0; times * PINGRESP.len()];
        self.far.read_exact(&mut got).await.expect("an open pipe");
        assert_eq!(got, PINGRESP.repeat(times));
    }
}

/// What was queued before the socket was there goes out with it; a full socket gets a task, which
/// is gone when everything left; the next full socket gets the next one.
#[tokio::test(start_paused = true)]
async fn a_writer_task_lives_while_something_is_left_to_it() {
    let mut bench = Bench::unopened();
    bench.ping(2);
    bench.open();
    bench.expect_pings(2).await;
    assert_eq!(bench.tasks(), (0, 0), "what fits needs no task");
    for round in 1..=3 {
        bench.ping(40);
        assert_eq!(bench.tasks(), (round, 1));
        bench.expect_pings(40).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(bench.tasks(), (round, 0), "nothing is left");
    }
    assert_eq!(bench.told.0.load(Ordering::SeqCst), 0);
}

/// The end is written by a task, whether one was there or not, and whether the socket takes it at
/// once or not; the owner is told once.
#[tokio::test(start_paused = true)]
async fn the_last_packet_leaves_and_the_owner_is_told() {
    for (before, opened) in [(0, true), (40, true), (4, false)] {
        let mut bench = Bench::unopened();
        if opened {
            bench.open();
        }
        bench.ping(before);
        bench.outbox.close(Some(&Packet::Disconnect(Disconnect::new(ReasonCode::ServerBusy))));
        bench.outbox.close(None);
        if !opened {
            bench.open();
        }
        bench.expect_pings(before).await;
        let mut rest = Vec::new();
        bench.far.read_to_end(&mut rest).await.expect("an orderly end");
        assert_eq!(rest.first(), Some(&0xe0), "{rest:02x?}");
        bench.outbox.gone().await;
        tokio::task::yield_now().await;
        assert_eq!(bench.tasks(), (1, 0), "one task, and it ends");
        assert_eq!(bench.told.0.load(Ordering::SeqCst), 1);
    }
}

/// A peer that is gone ends the write side; the owner finds out by its reader.
#[tokio::test(start_paused = true)]
async fn a_socket_that_fails_ends_the_write_side() {
    let Bench { outbox, pipe, told, far } = Bench::unopened();
    outbox.write_by(Arc::clone(&pipe) as _, Arc::downgrade(&told) as _);
    drop(far);
    outbox.control(&Packet::Pingresp);
    outbox.gone().await;
    assert!(outbox.is_closing());
    tokio::task::yield_now().await;
    assert_eq!(told.0.load(Ordering::SeqCst), 0);
    assert_eq!(Arc::strong_count(&pipe), 1, "nobody but this test holds it");
}
