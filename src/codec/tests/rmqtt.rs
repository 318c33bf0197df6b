//! Against `rmqtt-codec`: every packet of v3.1, v3.1.1 and v5, in both directions.

use bytes::BytesMut;
use proptest::prelude::{ProptestConfig, proptest};
use rmqtt_codec::{v3, v5};
use tokio_util::codec::{Decoder, Encoder};

use super::arbitrary::exchange;
use super::differential::check;
use crate::codec::Packet;
use crate::mqtt::{ProtocolVersion, QoS};

fn through_v3(frame: &[u8]) -> Result<Vec<u8>, String> {
    let mut codec = v3::Codec::new(0);
    let (packet, _) = read(&mut codec, frame)?;
    let mut out = BytesMut::new();
    codec.encode(packet, &mut out).map_err(|error| format!("{error:?}"))?;
    // It reads level 3 and writes level 4 after the name of v3.1.
    let v31 = out.windows(7).position(|window| window == b"MQIsdp\x04");
    if let (0x10, Some(at)) = (frame[0], v31) {
        out[at + 6] = 3;
    }
    Ok(out.to_vec())
}

fn through_v5(frame: &[u8]) -> Result<Vec<u8>, String> {
    let mut codec = v5::Codec::new(0, 0);
    let (packet, _) = read(&mut codec, frame)?;
    // A fresh codec, since it would obey the Request Problem Information of a CONNECT.
    let mut out = BytesMut::new();
    v5::Codec::new(0, 0).encode(packet, &mut out).map_err(|error| format!("{error:?}"))?;
    Ok(out.to_vec())
}

fn read<D: Decoder>(codec: &mut D, frame: &[u8]) -> Result<D::Item, String>
where
    D::Error: std::fmt::Debug,
{
    let mut bytes = BytesMut::from(frame);
    let packet = codec.decode(&mut bytes).map_err(|error| format!("{error:?}"))?;
    if !bytes.is_empty() {
        return Err(format!("{} bytes left", bytes.len()));
    }
    packet.ok_or_else(|| "more bytes wanted".to_owned())
}

/// Valid packets that `rmqtt-codec` 0.3 has no value for.
fn is_beyond_it(packet: &Packet<'_>) -> bool {
    match packet {
        // An expiry of 0 seconds, and an empty id to resume with, are refused.
        Packet::Publish(publish) => publish.expiry_s == Some(0),
        Packet::Connect(connect) => {
            let expired = connect.will.as_ref().is_some_and(|will| will.expiry_s == Some(0));
            expired || (connect.client_id.is_empty() && !connect.clean_start)
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
        | Packet::Auth(_) => false,
    }
}

/// It leaves out a property that has its default value.
fn without_defaults(packet: &mut Packet<'_>) {
    fn clear<T: PartialEq>(value: &mut Option<T>, default: T) {
        if *value == Some(default) {
            *value = None;
        }
    }
    match packet {
        Packet::Connect(connect) => {
            let properties = &mut connect.properties;
            clear(&mut properties.session_expiry_s, 0);
            clear(&mut properties.topic_alias_maximum, 0);
            clear(&mut properties.request_problem_information, true);
            clear(&mut properties.request_response_information, false);
        }
        Packet::Connack(connack) => {
            let properties = &mut connack.properties;
            clear(&mut properties.receive_maximum, u16::MAX);
            clear(&mut properties.maximum_qos, QoS::ExactlyOnce);
            clear(&mut properties.topic_alias_maximum, 0);
            clear(&mut properties.retain_available, true);
            clear(&mut properties.wildcard_subscription_available, true);
            clear(&mut properties.subscription_ids_available, true);
            clear(&mut properties.shared_subscription_available, true);
        }
        Packet::Publish(_)
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn rmqtt_codec_reads_ours_and_ours_reads_rmqtt_codec((version, from, sample) in exchange()) {
        if is_beyond_it(&sample.packet()) {
            return Ok(());
        }
        match version {
            ProtocolVersion::V5 => check(&sample, version, from, through_v5, without_defaults),
            ProtocolVersion::V31 | ProtocolVersion::V311 => {
                check(&sample, version, from, through_v3, without_defaults);
            }
        }
    }
}
