//! What ours writes, another codec must read and write, and ours must read back the same.
//!
//! Two partners: `mqttbytes`, where it is known to be right, and `rmqtt-codec`, a broker's codec.
//! Each test says which valid packets its partner can't represent; those are passed over.

use std::borrow::Cow;

use super::arbitrary::Sample;
use crate::codec::{
    ForwardedProperty, Packet, Peer, decode, encode, forwarded_properties, put_forwarded_property,
};
use crate::mqtt::ProtocolVersion;

/// Sends `sample` through `partner`, which reads a frame and writes it again, and compares what
/// comes back; `known` changes both sides for what the partner does not keep.
pub(super) fn check(
    sample: &Sample,
    version: ProtocolVersion,
    from: Peer,
    partner: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
    known: impl Fn(&mut Packet<'_>),
) {
    let mut packet = sample.packet();
    let mut ours = Vec::new();
    encode(&packet, version, &mut ours).expect("ours writes it");
    let theirs = partner(&ours).unwrap_or_else(|error| {
        panic!("the partner refuses {packet:?} = {ours:02x?}: {error}");
    });
    let mut back = decode(&theirs, sample.agreed(version), from).unwrap_or_else(|error| {
        panic!("ours refuses {theirs:02x?}, made of {packet:?}: {error}");
    });
    for packet in [&mut packet, &mut back] {
        in_canonical_order(packet);
        known(packet);
    }
    assert_eq!(back, packet, "{ours:02x?} came back as {theirs:02x?}");
}

/// Properties may come back in another order; only User Properties have one (MQTT-3.3.2-18).
fn in_canonical_order(packet: &mut Packet<'_>) {
    match packet {
        Packet::Publish(publish) => publish.properties = Cow::Owned(sorted(&publish.properties)),
        Packet::Connect(connect) => {
            if let Some(will) = &mut connect.will {
                will.properties = sorted(&will.properties);
            }
        }
        Packet::Connack(_)
        | Packet::Ack(..)
        | Packet::Subscribe(_)
        | Packet::Suback(_)
        | Packet::Unsubscribe(_)
        | Packet::Unsuback(_)
        | Packet::Pingreq
        | Packet::Pingresp
        | Packet::Disconnect(_)
        | Packet::Auth(_) => {}
    }
}

/// Neither partner tells "not text" from an absent Payload Format Indicator in every place.
fn sorted(blob: &[u8]) -> Vec<u8> {
    let mut properties: Vec<_> = forwarded_properties(blob)
        .filter(|property| *property != ForwardedProperty::PayloadIsText(false))
        .collect();
    properties.sort_by_key(|property| match property {
        ForwardedProperty::PayloadIsText(_) => 0,
        ForwardedProperty::ContentType(_) => 1,
        ForwardedProperty::ResponseTopic(_) => 2,
        ForwardedProperty::CorrelationData(_) => 3,
        ForwardedProperty::User(..) => 4,
    });
    let mut sorted = Vec::new();
    for property in properties {
        put_forwarded_property(&mut sorted, property).expect("short");
    }
    sorted
}
