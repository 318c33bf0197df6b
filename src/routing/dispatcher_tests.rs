//! The dispatcher over storage in memory.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tikv_jemalloc_ctl::thread;

use super::decisions::Decisions;
use super::dispatcher::stretches;
use super::runs::Runs;
use super::{Parts, RetainedTable, SubscriptionRow, Subscriptions, run};
use crate::delivery::{self, Outbox, Owner, SlotView, Socket};
use crate::mqtt::{ClientId, Delivery, ProtocolVersion, QoS, SubscriptionOptions, TopicFilter};
use crate::storage::{
    AppendOutcome, AppendSink, Batch, BatchBuilder, DirectCopy, Durability, Follower, Kind,
    LogBatch, LogItem, Memory, MemoryConfig, MessageRef, MessageView, Position, Publisher,
    QueueKey, Row, Stores, Table, retained_row,
};
use crate::telemetry::task;

struct Nobody;

impl AppendSink for Nobody {
    fn settled(&self, _ticket: u64, _outcome: AppendOutcome) {}
}

fn batch(payload: &str) -> Arc<Batch> {
    let client_id = ClientId::new("publisher");
    let publisher = Publisher { client_id, incarnation: 1, epoch: 1 };
    let mut builder = BatchBuilder::new(Arc::new(publisher), 1000);
    builder.push(&MessageView {
        kind: Kind::Publish,
        qos: QoS::AtLeastOnce,
        retain: false,
        packet_id: None,
        expiry_s: None,
        topic: "t",
        properties: &[],
        payload: payload.as_bytes(),
    });
    builder.finish()
}

fn append(stores: &Stores, payload: &str) {
    stores.log.append(batch(payload), Durability::Durable, Arc::new(Nobody), 0);
}

fn append_direct(stores: &Stores, queue: &QueueKey, payload: &str) {
    let delivery = Delivery { qos: QoS::AtLeastOnce, retain: true };
    let copies = Arc::from([DirectCopy {
        delivery,
        subscription_ids: Arc::from([]),
        origin: None,
        taken: None,
    }]);
    let (to, sink) = (queue.clone(), Arc::new(Nobody));
    stores.log.append_direct(to, 1, batch(payload), copies, sink, 0);
}

fn parts(stores: &Stores, retained: RetainedTable) -> Parts {
    Parts { retained: Arc::new(retained), ..Parts::bare(stores) }
}

fn subscribe(subscriptions: &Subscriptions, client_id: &ClientId, filter: &str, qos: QoS) {
    let filter = TopicFilter::new(filter).expect("a good filter");
    let options = SubscriptionOptions::v3(qos);
    let row = SubscriptionRow { options, incarnation: 1, since: Some(0) };
    let key = SubscriptionRow::key(client_id, &filter);
    let row = Row { table: Table::Subscriptions, key, value: Some(row.encode()) };
    subscriptions.apply(Position::default(), &row);
}

fn settings(client_id: &ClientId) -> delivery::Settings {
    delivery::Settings {
        client_id: client_id.clone(),
        version: ProtocolVersion::V311,
        receive_maximum: 10,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        problem_information: true,
        gate: None,
    }
}

fn delivery_config() -> delivery::Config {
    delivery::Config {
        write_buffer_high_bytes: 64 << 10,
        write_buffer_low_bytes: 32 << 10,
        v3_receive_maximum: 10,
        delayed_messages: 0,
        delayed_ttl: Duration::ZERO,
        topic_alias_max: 0,
        topic_alias_min_bytes: 0,
        outgoing_rate: None,
    }
}

/// INV-2: a batch with copies for one queue between its messages fills the queue in the order of
/// the log; nothing is taken for a replay because something behind it came first.
#[tokio::test(start_paused = true)]
async fn retained_copies_and_messages_keep_the_order_of_the_log() {
    let memory = Memory::new(MemoryConfig { seed: 3, ..MemoryConfig::default() });
    let stores = memory.stores();
    let client_id = ClientId::new("c");
    let queue = QueueKey::Client(client_id.clone());
    stores.queues.open(&queue, 1).await.expect("a healthy backend opens");
    let retained = RetainedTable::new(None, None);
    let value = retained_row(&MessageRef::new(batch("kept"), 0)).value;
    retained.load(&value.expect("a payload is kept")).expect("it was encoded just now");
    let parts = parts(&stores, retained);
    let view = SlotView { incarnation: 1, persistent: true, outbox: None, ..SlotView::default() };
    parts.slots.ensure(&client_id).set(view);
    subscribe(&parts.subscriptions, &client_id, "t", QoS::AtLeastOnce);

    let names = ["1", "2", "kept", "3", "kept", "4"];
    for name in names {
        match name {
            "kept" => append_direct(&stores, &queue, name),
            _ => append(&stores, name),
        }
    }
    // All of it waits before the dispatcher starts, so batches hold several items.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let (_, consumer) = stores.log.consumer(0);
    let progress = Arc::clone(&parts.progress);
    let dispatcher = task::spawn("dispatcher", run(consumer, parts, Vec::new()));
    progress.reached(stores.log.end(0).offset).await;
    dispatcher.abort();

    let page = stores.queues.read(&queue, 1, 0, 99, 1 << 20).await.expect("the queue is there");
    let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
    let found: Vec<String> =
        page.messages.iter().map(|one| text(one.message.view().payload)).collect();
    assert_eq!(found, names);
}

/// A socket that takes everything.
struct Drain(AtomicU64);

impl Socket for Drain {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn start_writer(self: Arc<Self>, _: Arc<Outbox>, _: Weak<dyn Owner>) {
        unreachable!("nothing is ever left");
    }
}

impl Owner for Drain {
    fn written_out(&self) {}
}

/// Once warm, a QoS 0 message to many subscribers takes no memory per copy: it is matched, encoded
/// and written with what is there.
#[tokio::test]
async fn steady_qos0_delivery_allocates_nothing() {
    const SUBSCRIBERS: u64 = 100;
    let stores = Memory::new(MemoryConfig::default()).stores();
    let parts = parts(&stores, RetainedTable::new(None, None));
    let drain = Arc::new(Drain(AtomicU64::new(0)));
    for number in 0..SUBSCRIBERS {
        let client_id = ClientId::new(&format!("c{number}"));
        let (config, queues) = (Arc::new(delivery_config()), Arc::clone(&stores.queues));
        let outbox = Outbox::new(settings(&client_id), config, queues);
        outbox.write_by(Arc::clone(&drain) as _, Weak::<Drain>::new());
        let view = SlotView {
            incarnation: 1,
            persistent: false,
            outbox: Some(outbox),
            ..SlotView::default()
        };
        parts.slots.ensure(&client_id).set(view);
        subscribe(&parts.subscriptions, &client_id, "t", QoS::AtMostOnce);
    }
    let position = Position { partition: 0, offset: 10 };
    let items = vec![(position, LogItem::Publishes(batch("payload")))];
    let log = LogBatch {
        incarnation: 1,
        changes: Vec::new(),
        items,
        end: Position { partition: 0, offset: 11 },
    };
    let (mut runs, mut decisions) = (Runs::default(), Decisions::default());
    let allocated = thread::allocatedp::read().expect("jemalloc counts for every thread");
    let mut before = 0;
    for round in 0..110 {
        if round == 10 {
            before = allocated.get();
        }
        for stretch in stretches(&log) {
            parts.collect(&log, stretch.clone(), &mut runs, &decisions);
            parts.hand_over(&log, stretch, &runs, &mut decisions).await;
        }
    }
    assert_eq!(allocated.get() - before, 0, "bytes for {} copies", 100 * SUBSCRIBERS);
    let frame = 2 + 2 + 1 + "payload".len() as u64;
    assert_eq!(drain.0.load(Ordering::Relaxed), 110 * SUBSCRIBERS * frame);
}
