//! What a message costs in a durable queue on Redis: CPU of this process and of Redis, and time, to
//! append it, to read it in a page, and to acknowledge it.
//!
//! Starts a redis-server of its own on a free port of 127.0.0.1. `clients` queues get `batch`
//! messages of 256 bytes each a round. Not measured: Kafka, sockets of clients, and the journal's
//! disk (it is written, and synced each second).

#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sluice::mqtt::{ClientId, Delivery, PacketId, QoS};
use sluice::storage::{
    BatchBuilder, DeviceQueues, Kind, MessageRef, MessageView, Position, Publisher, QueueAppend,
    QueueEntry, QueueKey, Redis, RedisAddress, RedisKind, RedisSettings, SourceId,
};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PAYLOAD: usize = 256;
/// Queues of one append, as a consumer of many partitions would have.
const APPEND: usize = 500;
/// Pages that are asked for at a time.
const READERS: usize = 64;

struct Server {
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Self { folder, port, child };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// Seconds of CPU that Redis has used.
    fn cpu(&self) -> f64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it runs");
        stream.write_all(b"INFO cpu\r\n").expect("it reads");
        let mut reader = BufReader::new(stream);
        let mut length = String::new();
        reader.read_line(&mut length).expect("it answers");
        let length = length.trim().trim_start_matches('$').parse().expect("a length");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("it answers");
        let body = String::from_utf8(body).expect("text");
        let seconds = |name: &str| {
            let line = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<f64>().ok()).expect("a number")
        };
        seconds("used_cpu_sys") + seconds("used_cpu_user")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        assert!(self.folder.path().exists());
    }
}

fn own_cpu() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn key(number: usize) -> QueueKey {
    QueueKey::Client(ClientId::new(&format!("device-{number:06}")))
}

fn append(number: usize, offset: u64, message: &MessageRef, batch: u32) -> QueueAppend {
    let position = Position { partition: 0, offset };
    let entry = |index| QueueEntry {
        source: SourceId { incarnation: 1, position, index },
        message: message.clone(),
        delivery: Delivery { qos: QoS::AtLeastOnce, retain: false },
        subscription_ids: Arc::from([]),
        expires_at_ms: None,
        group: None,
    };
    let entries = (0..batch).map(entry).collect();
    QueueAppend { queue: key(number), incarnation: 1, entries }
}

struct Phase {
    wall: f64,
    own: f64,
    redis: f64,
}

async fn phase(server: &Server, work: impl Future<Output = ()>) -> Phase {
    let (wall, own, redis) = (Instant::now(), own_cpu(), server.cpu());
    work.await;
    Phase { wall: wall.elapsed().as_secs_f64(), own: own_cpu() - own, redis: server.cpu() - redis }
}

async fn measure(server: &Server, clients: usize, batch: u32, rounds: u64) {
    let at = RedisAddress { host: "127.0.0.1".into(), port: server.port };
    let prefix = format!("{clients}.{batch}.").into();
    let settings =
        RedisSettings { kind: RedisKind::Standalone(at), prefix, ..RedisSettings::default() };
    let redis = Redis::connect(settings).await.expect("a running Redis");
    let queues = redis.queues();
    for number in 0..clients {
        queues.open(&key(number), 1).await.expect("opens");
    }
    let client_id = ClientId::new("publisher-1");
    let publisher = Arc::new(Publisher { client_id, incarnation: 1, epoch: 1 });
    let mut builder = BatchBuilder::new(publisher, 1_700_000_000_000);
    builder.push(&MessageView {
        kind: Kind::Publish,
        qos: QoS::AtLeastOnce,
        retain: false,
        packet_id: PacketId::new(1),
        expiry_s: None,
        topic: "plant/7/line/3/temperature",
        properties: &[],
        payload: &[7; PAYLOAD],
    });
    let message = MessageRef::new(builder.finish(), 0);
    let mut sums = [0.0_f64; 9];
    for round in 0..rounds {
        let first = round * u64::from(batch) + 1;
        let seqs: Vec<u64> = (first..first + u64::from(batch)).collect();
        let appended = phase(server, async {
            for chunk in (0..clients).collect::<Vec<_>>().chunks(APPEND) {
                let runs = chunk.iter().map(|n| append(*n, round, &message, batch)).collect();
                queues.append(runs).await.expect("appends");
            }
        });
        let appended = appended.await;
        let read = phase(server, read_all(&queues, clients, first - 1, batch)).await;
        let acked = phase(server, async {
            for number in 0..clients {
                queues.ack(&key(number), 1, &seqs, first + u64::from(batch));
                if number % 256 == 255 {
                    tokio::task::yield_now().await;
                }
            }
            // What is called after an acknowledgement is answered after it.
            queues.read(&key(0), 1, u64::MAX >> 12, 1, 1).await.expect("reads");
        });
        for (at, phase) in [appended, read, acked.await].into_iter().enumerate() {
            for (part, value) in [phase.wall, phase.own, phase.redis].into_iter().enumerate() {
                sums[at * 3 + part] += value;
            }
        }
    }
    let messages = (clients as u64 * u64::from(batch) * rounds) as f64;
    for (name, sums) in ["append", "page", "ack"].into_iter().zip(sums.chunks(3)) {
        let [wall, own, redis] = [sums[0], sums[1], sums[2]].map(|sum| sum * 1e6 / messages);
        println!(
            "{clients:>7} {batch:>6} {name:>7} {wall:>9.2} {own:>9.2} {redis:>9.2} {:>9.2}",
            own + redis
        );
    }
}

async fn read_all(queues: &Arc<dyn DeviceQueues>, clients: usize, after: u64, batch: u32) {
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..READERS.min(clients) {
        let queues = Arc::clone(queues);
        readers.spawn(async move {
            for number in (reader..clients).step_by(READERS) {
                let page = queues.read(&key(number), 1, after, batch as usize, 1 << 20).await;
                assert_eq!(page.expect("reads").messages.len(), batch as usize);
            }
        });
    }
    readers.join_all().await;
}

fn main() {
    // `cargo test --benches` only wants to know that it starts.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let server = Server::start();
        println!("microseconds a message: time, CPU of this process, CPU of Redis, CPU of both");
        println!("clients  batch   phase      time     ours     Redis      both");
        for (clients, batch, rounds) in [
            (1, 20, 2000),
            (1, 128, 400),
            (100, 20, 40),
            (100, 1, 200),
            (10_000, 20, 2),
            (10_000, 1, 4),
        ] {
            measure(&server, clients, batch, rounds).await;
        }
    });
}
