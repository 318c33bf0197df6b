//! The write side as a whole: outbox, writer task and queue, on paused time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::time::Instant;

use super::{ClientAck, Config, Outbox, Outgoing, Owner, Settings, Toll};
use crate::codec::{self, AckKind, Packet, Peer};
use crate::mqtt::{ClientId, Delivery, PacketId, ProtocolVersion, QoS, ReasonCode};
use crate::storage::{
    Batch, BatchBuilder, DeviceQueues, Faults, Kind, Memory, MemoryConfig, MessageRef, MessageView,
    Position, Publisher, Purse, QueueAppend, QueueEntry, QueueKey, SourceId,
};
use crate::telemetry::task;

const HIGH: usize = 8 * 1024;
const LOW: usize = 4 * 1024;
const PAYLOAD: usize = 1024;
const SLOW: Duration = Duration::from_secs(3600);

pub(super) fn config() -> Arc<Config> {
    Arc::new(Config {
        write_buffer_high_bytes: HIGH,
        write_buffer_low_bytes: LOW,
        v3_receive_maximum: 65_535,
        delayed_messages: 10,
        delayed_ttl: Duration::from_secs(600),
        topic_alias_max: 0,
        topic_alias_min_bytes: 50,
        outgoing_rate: None,
    })
}

pub(super) fn settings(receive_maximum: u16) -> Settings {
    Settings {
        client_id: ClientId::new("s"),
        version: ProtocolVersion::V311,
        receive_maximum,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        problem_information: true,
        gate: None,
    }
}

pub(super) fn batch(count: usize, qos: QoS, retain: bool) -> Arc<Batch> {
    let publisher = Publisher { client_id: ClientId::new("p"), incarnation: 1, epoch: 1 };
    let mut builder = BatchBuilder::new(Arc::new(publisher), crate::telemetry::clock::wall_ms());
    for number in 0..count {
        let mut payload = vec![0; PAYLOAD];
        payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
        builder.push(&MessageView {
            kind: Kind::Publish,
            qos,
            retain,
            packet_id: PacketId::new(1),
            expiry_s: None,
            topic: "t",
            properties: &[],
            payload: &payload,
        });
    }
    builder.finish()
}

struct Nobody;

impl Owner for Nobody {
    fn written_out(&self) {}
}

/// A client with a queue, its writer, and the far end of its socket.
struct Bench {
    outbox: Arc<Outbox>,
    queues: Arc<dyn DeviceQueues>,
    queue: QueueKey,
    socket: DuplexStream,
    unread: Vec<u8>,
    log: u64,
    memory: Memory,
}

impl Bench {
    async fn new(receive_maximum: u16) -> Self {
        let memory = Memory::new(MemoryConfig::default());
        let queues = memory.stores().queues;
        let queue = QueueKey::Client(ClientId::new("c"));
        let state = queues.open(&queue, 1).await.expect("memory opens");
        let outbox = Outbox::new(settings(receive_maximum), config(), Arc::clone(&queues));
        // The "kernel" takes one message, so that the outbox is what fills.
        let (near, socket) = tokio::io::duplex(PAYLOAD);
        let writing = Arc::clone(&outbox);
        task::spawn("writer", super::write(writing, near, Weak::<Nobody>::new()));
        outbox.attach_queue(queue.clone(), &state);
        Self { outbox, queues, queue, socket, unread: Vec::new(), log: 0, memory }
    }

    /// Stores `count` messages in the queue and offers them, as a dispatcher does.
    async fn publish(&mut self, count: usize) {
        self.publish_at(QoS::AtLeastOnce, count).await;
    }

    async fn publish_at(&mut self, qos: QoS, count: usize) {
        let batch = batch(count, qos, false);
        self.log += 1;
        let position = Position { partition: 0, offset: self.log };
        let entry = |index| QueueEntry {
            source: SourceId { incarnation: 1, position, index: index as u32 },
            message: MessageRef::new(Arc::clone(&batch), index),
            delivery: Delivery { qos, retain: false },
            subscription_ids: Arc::from([]),
            expires_at_ms: None,
            group: None,
        };
        let entries: Vec<_> = (0..count).map(entry).collect();
        let append =
            QueueAppend { queue: self.queue.clone(), incarnation: 1, entries: entries.clone() };
        let answers = self.queues.append(vec![append]).await.expect("memory takes them");
        let crate::storage::Appended::Taken { first_seq, .. } = answers[0] else {
            panic!("the queue is open");
        };
        self.outbox.offer_queued(1, first_seq, &entries, true);
    }

    /// From now on, records become durable much later.
    fn slow_disk(&self) {
        self.memory.set_faults(Faults { delay: SLOW, ..Faults::default() });
    }

    /// Reads until nothing more comes at once.
    async fn receive(&mut self) {
        let mut chunk = [0; 4096];
        let quiet = Duration::from_millis(1);
        while let Ok(Ok(read)) = tokio::time::timeout(quiet, self.socket.read(&mut chunk)).await
            && read > 0
        {
            self.unread.extend_from_slice(&chunk[..read]);
        }
    }

    /// The numbers and ids of what comes at once.
    async fn read(&mut self) -> Vec<(u32, PacketId)> {
        self.receive().await;
        let mut got = Vec::new();
        let version = Some(ProtocolVersion::V311);
        while let Some(frame) =
            codec::frame_length(&self.unread, version, Peer::Server, u32::MAX).expect("good bytes")
            && self.unread.len() >= frame.total
        {
            let packet = codec::decode(&self.unread[..frame.total], version, Peer::Server);
            if let Packet::Publish(publish) = packet.expect("good bytes") {
                let number = publish.payload[..4].try_into().map(u32::from_be_bytes);
                let id = publish.packet_id.expect("QoS 1");
                got.push((number.expect("four bytes"), id));
            }
            self.unread.drain(..frame.total);
        }
        got
    }

    fn acknowledge(&self, got: &[(u32, PacketId)]) {
        let ack = |(_, id): &(u32, PacketId)| ClientAck {
            kind: AckKind::Puback,
            id: *id,
            reason: ReasonCode::Success,
        };
        self.outbox.acknowledge(&got.iter().map(ack).collect::<Vec<_>>());
    }
}

fn numbers(got: &[(u32, PacketId)]) -> Vec<u32> {
    got.iter().map(|(number, _)| *number).collect()
}

/// DEV-2, DEV-3: over the high mark nothing more is taken; once writable, delivery waits for the
/// acks of what is in flight. The last of them resumes it at once.
#[tokio::test(start_paused = true)]
async fn the_last_ack_ends_the_pause() {
    let mut bench = Bench::new(1000).await;
    bench.publish(40).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!bench.outbox.is_writable(), "over the high mark");
    assert!(bench.outbox.buffered() <= HIGH + 2 * PAYLOAD, "no more than a packet above it");
    let first = bench.read().await;
    assert!((8..12).contains(&first.len()), "what fitted: {}", first.len());
    assert!(bench.outbox.is_writable());
    assert_eq!(bench.read().await, [], "paused, although writable");
    let start = Instant::now();
    bench.acknowledge(&first[1..]);
    assert_eq!(bench.read().await, [], "one is still in flight");
    bench.acknowledge(&first[..1]);
    let second = bench.read().await;
    assert!(start.elapsed() < Duration::from_millis(100), "at once");
    assert_eq!(second[0].0, first.len() as u32, "the queue goes on where the client stands");
}

/// DEV-3: a client that never acknowledges gets the next messages after about half a minute, and
/// what is in flight is not sent again.
#[tokio::test(start_paused = true)]
async fn the_pause_ends_after_half_a_minute() {
    let mut bench = Bench::new(1000).await;
    bench.publish(40).await;
    let first = bench.read().await;
    let start = Instant::now();
    let mut second = Vec::new();
    while second.is_empty() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        second = bench.read().await;
    }
    let took = start.elapsed().as_secs_f64();
    assert!((29.0..37.0).contains(&took), "after {took} s");
    let expected: Vec<u32> = (0..).take(first.len() + second.len()).collect();
    assert_eq!([numbers(&first), numbers(&second)].concat(), expected);
}

/// DEV-1, DEV-2: whatever the client's pace, it gets all of the queue, in order, once.
#[tokio::test(start_paused = true)]
async fn a_slow_client_gets_all_of_it_in_order() {
    let mut bench = Bench::new(1000).await;
    let mut all = Vec::new();
    for round in 0..10 {
        bench.publish(30).await;
        // Every other round it does not read at all.
        if round % 2 == 1 {
            let got = bench.read().await;
            bench.acknowledge(&got);
            all.extend(numbers(&got));
        }
    }
    loop {
        let got = bench.read().await;
        bench.acknowledge(&got);
        if got.is_empty() {
            break;
        }
        all.extend(numbers(&got));
    }
    let expected: Vec<u32> = (0..10).flat_map(|_| 0..30).collect();
    assert_eq!(all, expected);
    assert_eq!(bench.outbox.in_flight(), 0);
}

/// RM-2: a stop for want of credit is no congestion: it ends with the ack.
#[tokio::test(start_paused = true)]
async fn a_stop_for_credit_resumes_on_the_ack() {
    let mut bench = Bench::new(2).await;
    bench.publish(6).await;
    let first = bench.read().await;
    assert_eq!(numbers(&first), [0, 1]);
    bench.acknowledge(&first[..1]);
    assert_eq!(numbers(&bench.read().await), [2], "one credit came back");
}

/// OUT-2: a retained copy is not taken for a live one: a second cursor sends it, too.
#[tokio::test(start_paused = true)]
async fn a_retained_copy_does_not_hide_itself_from_another_cursor() {
    let bench = Bench::new(10).await;
    let batch = batch(1, QoS::AtLeastOnce, true);
    let delivery = Delivery { qos: QoS::AtLeastOnce, retain: true };
    let copy = Outgoing {
        batch: &batch,
        index: 0,
        delivery,
        subscription_ids: &[],
        paid: false,
        share: None,
    };
    let (_one, _other) = (bench.outbox.open_cursor(), bench.outbox.open_cursor());
    assert!(bench.outbox.offer_retained(&copy));
    assert!(!bench.outbox.went_live("t"));
    let mut purse = Purse::UNLIMITED;
    bench.outbox.offer([copy].into_iter(), &mut Toll { outgoing: None, purse: &mut purse });
    assert!(bench.outbox.went_live("t"));
}

/// OUT-4: behind the last packet of a connection nothing goes out, not even the PUBREL whose
/// record was on its way.
#[tokio::test(start_paused = true)]
async fn nothing_follows_the_last_packet() {
    let mut bench = Bench::new(10).await;
    bench.publish_at(QoS::ExactlyOnce, 1).await;
    let got = bench.read().await;
    let pubrec = |(_, id): &(u32, PacketId)| ClientAck {
        kind: AckKind::Pubrec,
        id: *id,
        reason: ReasonCode::Success,
    };
    assert_eq!(got.len(), 1);
    bench.outbox.acknowledge(&got.iter().map(pubrec).collect::<Vec<_>>());
    bench.outbox.close(None);
    bench.outbox.control(&Packet::Pingresp);
    let mut rest = Vec::new();
    bench.socket.read_to_end(&mut rest).await.expect("an orderly end");
    assert!(rest.is_empty(), "{rest:02x?}");
}

/// INV-1, MQTT-4.3.3-8: PUBREL leaves only when the record of its PUBREC is durable; else a crash
/// would bring the message again under an id that the receiver has freed.
#[tokio::test(start_paused = true)]
async fn pubrel_waits_for_the_record_of_its_pubrec() {
    let mut bench = Bench::new(10).await;
    bench.publish_at(QoS::ExactlyOnce, 1).await;
    let id = bench.read().await[0].1;
    bench.slow_disk();
    let (kind, reason) = (AckKind::Pubrec, ReasonCode::Success);
    bench.outbox.acknowledge(&[ClientAck { kind, id, reason }]);
    bench.receive().await;
    assert!(bench.unread.is_empty(), "{:02x?} before the record is durable", bench.unread);
    tokio::time::sleep(SLOW).await;
    bench.receive().await;
    let [high, low] = id.get().to_be_bytes();
    assert_eq!(bench.unread, [0x62, 2, high, low]);
}

/// Design decision 4, FLO-08, MQTT-4.4.0-1: nothing is sent under an id before the run that it is
/// from is durable; else a resend after a crash would have another one.
#[tokio::test(start_paused = true)]
async fn nothing_goes_out_before_its_id_is_durable() {
    let mut bench = Bench::new(10).await;
    bench.slow_disk();
    bench.publish(2).await;
    assert_eq!(bench.read().await, [], "sent under an id that a crash would forget");
    tokio::time::sleep(SLOW).await;
    assert_eq!(numbers(&bench.read().await), [0, 1]);
}
