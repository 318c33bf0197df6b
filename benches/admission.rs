//! What limits cost a PUBLISH at admission, and a lost message on its way into the ledger.
//!
//! `cargo bench --bench admission`: `off` is the price of limits that are not there; `all on` is
//! two windows by client, one of them of bytes, and the throughput quota with nobody subscribed;
//! the others add a walk of the subscription index for each PUBLISH, and a fan-out of a thousand
//! persistent sessions to one topic.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::Criterion;
use sluice::codec::{self, Packet, Peer, Publish};
use sluice::delivery::{SlotView, Slots};
use sluice::limits::{RateTable, RateWindows};
use sluice::mqtt::{ClientId, ProtocolVersion, QoS, SubscriptionOptions, TopicFilter};
use sluice::routing::{Limits, SubscriptionRow, Subscriptions};
use sluice::session::{Gate, Ruling};
use sluice::storage::embedded::LocalBucket;
use sluice::storage::{Follower, Position, Purpose, Quota, QuotaSettings, Row, Table};
use sluice::telemetry::{self, Direction, DropReason, ledger};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn windows(text: &str) -> RateWindows {
    RateWindows::parse(text).expect("good windows")
}

/// Windows that never refuse, so that the whole way is measured.
fn limits(runtime: &tokio::runtime::Runtime) -> Limits {
    let most = windows("4294967295:1");
    let settings = QuotaSettings::new(Purpose::Throughput, &most, None, None);
    let quota = Quota::new(settings, Arc::new(LocalBucket::new(&[])));
    let driven = Arc::clone(&quota);
    let run = async move { driven.run().await };
    let _guard = runtime.enter();
    drop(telemetry::task::spawn("quota", run));
    Limits {
        incoming: Some(RateTable::new(&windows("4294967295:1,bytes:4294967295:1"))),
        throughput: Some(quota),
        ..Limits::default()
    }
}

/// So many persistent sessions, each with this filter.
fn subscribed(sessions: usize, filter: &str) -> Subscriptions {
    let slots = Arc::new(Slots::default());
    let subscriptions = Subscriptions::new(Arc::clone(&slots));
    let filter = TopicFilter::new(filter).expect("a good filter");
    for n in 0..sessions {
        let client_id = ClientId::new(&format!("s{n}"));
        let view =
            SlotView { incarnation: 1, persistent: true, outbox: None, ..SlotView::default() };
        slots.ensure(&client_id).set(view);
        let options = SubscriptionOptions::v3(QoS::AtLeastOnce);
        let value = SubscriptionRow { options, incarnation: 1, since: Some(0) }.encode();
        let key = SubscriptionRow::key(&client_id, &filter);
        let row = Row { table: Table::Subscriptions, key, value: Some(value) };
        subscriptions.apply(Position::default(), &row);
    }
    subscriptions
}

/// PUBLISH frames, QoS 1, 100 bytes, to so many topics.
fn frames(topics: usize) -> Vec<Vec<u8>> {
    let frame = |n: usize| {
        let topic = format!("site/{n:04}/device/7/sensor");
        let mut frame = vec![0x32, 0, 0, topic.len() as u8];
        frame.extend(topic.bytes());
        frame.extend([0, 1, 0]);
        frame.extend([b'x'; 70]);
        frame[1] = (frame.len() - 2) as u8;
        frame
    };
    (0..topics).map(frame).collect()
}

fn publish(frame: &[u8]) -> Publish<'_> {
    match codec::decode(frame, Some(ProtocolVersion::V5), Peer::Client) {
        Ok(Packet::Publish(publish)) => publish,
        other => panic!("{other:?}"),
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    let on = limits(&runtime);
    let mut group = criterion.benchmark_group("admission");
    let cases = [
        ("off", &Limits::default(), subscribed(0, "none"), 1),
        ("all on", &on, subscribed(0, "none"), 1),
        ("all on, other topics each time", &on, subscribed(1000, "other/+"), 1000),
        ("all on, fan-out of 1000", &on, subscribed(1000, "site/#"), 1),
    ];
    for (name, limits, subscriptions, topics) in cases {
        let frames = frames(topics);
        let publishes: Vec<Publish<'_>> = frames.iter().map(|frame| publish(frame)).collect();
        let client_id = ClientId::new("a-publisher");
        let mut gate = Gate::new(limits, &client_id, 0);
        let mut next = 0;
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let publish = &publishes[next % topics];
                next += 1;
                let packet = (publish.topic, publish);
                let ruling = gate.judge(limits, &subscriptions, &client_id, packet, false);
                if black_box(ruling) == Ruling::Wait {
                    runtime.block_on(gate.settle(limits));
                }
            });
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("a lost message");
    let lose = |topic: &str| {
        let (reason, side) = (DropReason::ChannelNotWritable, Direction::Outbound);
        telemetry::dropped_of(reason, side, black_box("a-subscriber"), topic, 1);
    };
    group.bench_function("counted", |bench| bench.iter(|| lose("site/7/device/7/sensor")));
    let guard = runtime.enter();
    let keeping = telemetry::task::spawn("ledger", ledger::keep());
    drop(guard);
    std::thread::sleep(Duration::from_millis(50));
    group.bench_function("in the ledger", |bench| bench.iter(|| lose("site/7/device/7/sensor")));
    group.finish();
    keeping.abort();
}
