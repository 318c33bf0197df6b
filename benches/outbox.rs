//! What one QoS 0 copy costs between the dispatcher's decision and the socket: the outbox's lock,
//! the frame encoded, the watermark, the write and the metrics. `cargo bench --bench outbox`.
//!
//! The socket is one that takes everything at once: the kernel's part is not in here. "one copy a
//! message" is fan-out, where each subscriber gets one frame and one write; "runs of 16" is what a
//! busy log brings.

use std::hint::black_box;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluice::delivery::{Config, Outbox, Outgoing, Owner, Settings, Socket, Toll};
use sluice::mqtt::{ClientId, Delivery, ProtocolVersion, QoS};
use sluice::storage::{
    Batch, BatchBuilder, Kind, Memory, MemoryConfig, MessageView, Publisher, Purse,
};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const OUTBOXES: usize = 500;
const RUN: usize = 16;

#[derive(Default)]
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

fn batch() -> Arc<Batch> {
    let publisher = Publisher { client_id: ClientId::new("p"), incarnation: 1, epoch: 1 };
    let mut builder = BatchBuilder::new(Arc::new(publisher), 1);
    for _ in 0..RUN {
        builder.push(&MessageView {
            kind: Kind::Publish,
            qos: QoS::AtMostOnce,
            retain: false,
            packet_id: None,
            expiry_s: None,
            topic: "plant/7/line/3/device/0042/telemetry",
            properties: &[],
            payload: &[0x5a; 256],
        });
    }
    builder.finish()
}

fn outboxes(drain: &Arc<Drain>) -> Vec<Arc<Outbox>> {
    let queues = Memory::new(MemoryConfig::default()).stores().queues;
    let config = Arc::new(Config {
        write_buffer_high_bytes: 64 << 10,
        write_buffer_low_bytes: 32 << 10,
        v3_receive_maximum: 10,
        delayed_messages: 0,
        delayed_ttl: Duration::ZERO,
        topic_alias_max: 0,
        topic_alias_min_bytes: 0,
        outgoing_rate: None,
    });
    let outbox = |number| {
        let settings = Settings {
            client_id: ClientId::new(&format!("c{number}")),
            version: ProtocolVersion::V311,
            receive_maximum: 10,
            maximum_packet_size: None,
            topic_alias_maximum: 0,
            problem_information: true,
            gate: None,
        };
        let outbox = Outbox::new(settings, Arc::clone(&config), Arc::clone(&queues));
        outbox.write_by(Arc::clone(drain) as _, Weak::<Drain>::new());
        outbox
    };
    (0..OUTBOXES).map(outbox).collect()
}

fn offer(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _guard = runtime.enter();
    let (drain, batch) = (Arc::<Drain>::default(), batch());
    let outboxes = outboxes(&drain);
    let mut group = c.benchmark_group("qos 0 copy to an outbox, 256 B");
    for (name, run) in [("one copy a message", 1), ("runs of 16", RUN)] {
        group.throughput(Throughput::Elements((OUTBOXES * run) as u64));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                for outbox in &outboxes {
                    let mut purse = Purse::UNLIMITED;
                    let mut toll = Toll { outgoing: None, purse: &mut purse };
                    let copies = (0..run).map(|index| Outgoing {
                        batch: black_box(&batch),
                        index,
                        delivery: Delivery { qos: QoS::AtMostOnce, retain: false },
                        subscription_ids: &[],
                        paid: false,
                        share: None,
                    });
                    outbox.offer(copies, &mut toll);
                }
            });
        });
    }
    group.finish();
    assert!(drain.0.load(Ordering::Relaxed) > 0, "something was written");
}

criterion_group!(benches, offer);
criterion_main!(benches);
