//! What stands above the log: loading a million subscription rows, queues of persistent
//! subscribers, and handing batches to the dispatcher. On a real folder (the system's temporary
//! one), with the server's allocator. Not measured: the log itself (see `log_append`), matching.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluice::mqtt::{ClientId, Delivery, QoS};
use sluice::storage::contract::{Inbox, batch_of, client};
use sluice::storage::{BatchBuilder, Kind, MessageView};
use sluice::storage::{
    Durability, Embedded, EmbeddedSettings, MessageRef, Position, Publisher, QueueAppend,
    QueueEntry, Row, SourceId, Stores, Table,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROWS: usize = 1_000_000;
const QUEUES: usize = 1000;
const RUN: usize = 8;

fn opened(folder: &TempDir) -> (Embedded, Stores) {
    Embedded::open(folder.path(), EmbeddedSettings::default()).expect("opens")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn subscription(number: usize) -> Row {
    let key = format!("client-{:07}\0sensors/{:05}/+/state", number / 10, number % 10_000);
    let value = Some(Bytes::from_static(&[7; 24]));
    Row { table: Table::Subscriptions, key: key.into(), value }
}

/// Opens a folder with a million subscriptions and visits them all.
fn load(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = folder();
    runtime.block_on(async {
        let (embedded, stores) = opened(&folder);
        let inbox = Arc::new(Inbox::default());
        for chunk in 0..ROWS / 1000 {
            let rows = (chunk * 1000..(chunk + 1) * 1000).map(subscription).collect();
            let sink = Arc::<Inbox>::clone(&inbox);
            stores.tables.put(rows, Durability::Durable, sink, chunk as u64);
        }
        inbox.stored(ROWS as u64 / 1000 - 1).await;
        embedded.stop().expect("stops");
    });
    let mut group = criterion.benchmark_group("store_state");
    group.sample_size(10).throughput(Throughput::Elements(ROWS as u64));
    let _runtime = runtime.enter();
    group.bench_function("open_and_load_rows", |bench| {
        bench.iter(|| {
            let (embedded, stores) = opened(&folder);
            let mut rows = 0;
            stores.tables.load(Table::Subscriptions, &mut |_, _, _| rows += 1).expect("loads");
            assert_eq!(rows, ROWS);
            drop(embedded);
        });
    });
    group.finish();
}

fn message(texts: usize) -> Arc<sluice::storage::Batch> {
    let client_id = ClientId::new("publisher");
    let publisher = Arc::new(Publisher { client_id, incarnation: 1, epoch: 1 });
    let mut builder = BatchBuilder::new(publisher, 1);
    for _ in 0..texts {
        builder.push(&MessageView {
            kind: Kind::Publish,
            qos: QoS::AtLeastOnce,
            retain: false,
            packet_id: None,
            expiry_s: None,
            topic: "sensors/00001/a/state",
            properties: &[],
            payload: &[7; 256],
        });
    }
    builder.finish()
}

fn runs(batch: &Arc<sluice::storage::Batch>, round: u64, ids: &Arc<[u32]>) -> Vec<QueueAppend> {
    let delivery = Delivery { qos: QoS::AtLeastOnce, retain: false };
    let position = Position { partition: 0, offset: round };
    let run = |queue: usize| QueueAppend {
        queue: client(&format!("client-{queue}")),
        incarnation: 1,
        entries: (0..RUN)
            .map(|index| QueueEntry {
                source: SourceId { incarnation: 1, position, index: index as u32 },
                message: MessageRef::new(Arc::clone(batch), index),
                delivery,
                subscription_ids: Arc::clone(ids),
                expires_at_ms: None,
                group: None,
            })
            .collect(),
    };
    (0..QUEUES).map(run).collect()
}

/// A run of 8 entries for each of 1000 queues: appended, read, acknowledged in order.
fn queues(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = folder();
    let (embedded, stores) = runtime.block_on(async { opened(&folder) });
    let keys: Vec<_> = (0..QUEUES).map(|queue| client(&format!("client-{queue}"))).collect();
    runtime.block_on(async {
        for key in &keys {
            stores.queues.open(key, 1).await.expect("opens");
        }
    });
    let (batch, ids) = (message(RUN), Arc::from([]));
    let (mut round, mut seq) = (0_u64, 1_u64);
    let mut group = criterion.benchmark_group("store_state");
    group.throughput(Throughput::Elements((QUEUES * RUN) as u64));
    group.measurement_time(Duration::from_secs(3));
    group.bench_function("queue_append_read_ack", |bench| {
        bench.iter_custom(|iterations| {
            let mut spent = Duration::ZERO;
            for _ in 0..iterations {
                round += 1;
                let appends = runs(&batch, round, &ids);
                let begun = Instant::now();
                runtime.block_on(async {
                    stores.queues.append(appends).await.expect("appends");
                    for key in &keys {
                        let page = stores.queues.read(key, 1, seq - 1, RUN, 1 << 20).await;
                        let page = page.expect("reads");
                        assert_eq!(page.messages.len(), RUN);
                        for message in &page.messages {
                            stores.queues.ack(key, 1, &[message.seq], message.seq + 1);
                        }
                    }
                });
                spent += begun.elapsed();
                seq += RUN as u64;
            }
            spent
        });
    });
    group.finish();
    drop(stores);
    embedded.stop().expect("stops");
}

/// What the dispatcher pays to get batches of 8 messages, while the log is written.
fn consumer(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let folder = folder();
    let (embedded, stores) = runtime.block_on(async { opened(&folder) });
    let (_, mut consumer) = stores.log.consumer(0);
    let batch = message(8);
    let warm = batch_of("publisher", &["warm"], None);
    let mut ticket = 0;
    const BATCHES: u64 = 2000;
    let mut group = criterion.benchmark_group("store_state");
    group.sample_size(20).throughput(Throughput::Elements(BATCHES * 8));
    group.bench_function("append_to_consumer", |bench| {
        bench.iter(|| {
            runtime.block_on(async {
                let inbox = Arc::new(Inbox::default());
                let first = Arc::<Inbox>::clone(&inbox);
                stores.log.append(Arc::clone(&warm), Durability::Durable, first, 0);
                for _ in 0..BATCHES {
                    ticket += 1;
                    let sink = Arc::<Inbox>::clone(&inbox);
                    stores.log.append(Arc::clone(&batch), Durability::Relaxed, sink, ticket);
                }
                let mut got = 0;
                while got < BATCHES + 1 {
                    let next = consumer.next().await.expect("reads");
                    got += next.items.len() as u64;
                    consumer.commit(next.end, &mut Vec::new);
                }
            });
        });
    });
    group.finish();
    drop((stores, consumer));
    embedded.stop().expect("stops");
}

criterion_group!(benches, load, queues, consumer);
criterion_main!(benches);
