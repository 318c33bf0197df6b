//! The dispatcher over storage in memory.

use std::sync::Arc;
use std::time::Duration;

use super::{Judge, Parts, Progress, RetainedTable, SubscriptionRow, Subscriptions, Turn, run};
use crate::delivery::{SlotView, Slots};
use crate::mqtt::{ClientId, Delivery, QoS, SubscriptionOptions, TopicFilter};
use crate::storage::{
    AppendOutcome, AppendSink, Batch, BatchBuilder, DirectCopy, Durability, Follower, Kind, Memory,
    MemoryConfig, MessageRef, MessageView, Position, Publisher, QueueKey, Row, Stores, Table,
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
    let copies =
        Arc::from([DirectCopy { delivery, subscription_ids: Arc::from([]), origin: None }]);
    let (to, sink) = (queue.clone(), Arc::new(Nobody));
    stores.log.append_direct(to, 1, batch(payload), copies, sink, 0);
}

/// INV-2: a batch with copies for one queue between its messages fills the queue in the order of
/// the log; nothing is taken for a replay because something behind it came first.
#[tokio::test(start_paused = true)]
async fn retained_copies_and_messages_keep_the_order_of_the_log() {
    let memory = Memory::new(MemoryConfig { seed: 3, ..MemoryConfig::default() });
    let stores = memory.stores();
    let (slots, client_id) = (Arc::new(Slots::default()), ClientId::new("c"));
    let view = SlotView { incarnation: 1, persistent: true, outbox: None };
    slots.ensure(&client_id).set(view);
    let queue = QueueKey::Client(client_id.clone());
    stores.queues.open(&queue, 1).await.expect("a healthy backend opens");
    let subscriptions = Arc::new(Subscriptions::new(Arc::clone(&slots)));
    let filter = TopicFilter::new("t").expect("a good filter");
    let options = SubscriptionOptions::v3(QoS::AtLeastOnce);
    let row = SubscriptionRow { options, incarnation: 1, since: Some(0) };
    let key = SubscriptionRow::key(&client_id, &filter);
    let row = Row { table: Table::Subscriptions, key, value: Some(row.encode()) };
    subscriptions.apply(Position::default(), &row);
    let retained = RetainedTable::new(None, None);
    let value = RetainedTable::row(&MessageRef::new(batch("kept"), 0)).value;
    retained.load(&value.expect("a payload is kept")).expect("it was encoded just now");

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
    let parts = Parts {
        slots,
        subscriptions,
        retained: Arc::new(retained),
        judge: Arc::new(Judge::default()),
        log: Arc::clone(&stores.log),
        queues: Arc::clone(&stores.queues),
        progress: Arc::new(Progress::default()),
        turn: Turn::NextConnected,
        no_ids: Arc::from([]),
    };
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
