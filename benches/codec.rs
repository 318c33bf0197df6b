//! What one PUBLISH costs the codec: measure its frame, decode it, encode its head for a
//! subscriber, patch a copy. `cargo bench --bench codec`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluice::codec::{
    AckKind, EncodedHead, ForwardedProperty, MAX_PACKET_SIZE, Peer, PublishHead, decode,
    encode_ack, frame_length, patch_packet_id, put_forwarded_property,
};
use sluice::mqtt::{PacketId, ProtocolVersion, QoS, ReasonCode};

const PAYLOAD: [u8; 256] = [0x5a; 256];
const TOPIC: &str = "plant/7/line/3/device/0042/telemetry";

fn head(version: ProtocolVersion, properties: &[u8]) -> PublishHead<'_> {
    PublishHead {
        version,
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: TOPIC,
        packet_id: PacketId::new(7),
        alias: None,
        expiry_s: version.is_v5().then_some(3_600),
        subscription_ids: &[],
        properties,
        payload_len: PAYLOAD.len(),
    }
}

fn frame(version: ProtocolVersion, properties: &[u8]) -> (Vec<u8>, EncodedHead) {
    let mut frame = Vec::new();
    let head = head(version, properties).encode(&mut frame).expect("encodes");
    frame.extend_from_slice(&PAYLOAD);
    (frame, head)
}

fn user_properties() -> Vec<u8> {
    let mut blob = Vec::new();
    for property in [
        ForwardedProperty::PayloadIsText(false),
        ForwardedProperty::User("trace", "00f067aa0ba902b7"),
        ForwardedProperty::User("unit", "celsius"),
    ] {
        put_forwarded_property(&mut blob, property).expect("short");
    }
    blob
}

fn publish(c: &mut Criterion) {
    let blob = user_properties();
    let cases = [
        ("v4", ProtocolVersion::V311, &[][..]),
        ("v5", ProtocolVersion::V5, &[][..]),
        ("v5 with properties", ProtocolVersion::V5, &blob[..]),
    ];
    let mut group = c.benchmark_group("publish 256 B");
    group.throughput(Throughput::Elements(1));
    for (name, version, properties) in cases {
        let (bytes, encoded) = frame(version, properties);
        group.bench_function(format!("frame_length {name}"), |b| {
            b.iter(|| {
                frame_length(black_box(&bytes), Some(version), Peer::Client, MAX_PACKET_SIZE)
            });
        });
        group.bench_function(format!("decode {name}"), |b| {
            b.iter(|| decode(black_box(&bytes), Some(version), Peer::Client).is_ok());
        });
        let head = head(version, properties);
        let mut out = Vec::with_capacity(bytes.len());
        group.bench_function(format!("encode head {name}"), |b| {
            b.iter(|| {
                out.clear();
                black_box(black_box(&head).encode(&mut out)).is_ok()
            });
        });
        let at = encoded.packet_id_at.expect("QoS 1");
        group.bench_function(format!("copy and patch {name}"), |b| {
            b.iter(|| {
                out.clear();
                out.extend_from_slice(black_box(&bytes));
                patch_packet_id(&mut out, at, PacketId::MAX);
                black_box(&mut out);
            });
        });
    }
    group.finish();
}

fn acks(c: &mut Criterion) {
    let mut out = Vec::with_capacity(8);
    c.bench_function("encode puback", |b| {
        b.iter(|| {
            out.clear();
            let (id, reason) = (black_box(PacketId::MAX), black_box(ReasonCode::Success));
            encode_ack(AckKind::Puback, id, reason, ProtocolVersion::V5, &mut out);
            black_box(&mut out);
        });
    });
    let puback = [0x40, 2, 0, 7];
    c.bench_function("decode puback", |b| {
        b.iter(|| decode(black_box(&puback), Some(ProtocolVersion::V5), Peer::Client).is_ok());
    });
}

criterion_group!(benches, publish, acks);
criterion_main!(benches);
