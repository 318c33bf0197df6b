//! Frames on the hot path, by hand: a PUBLISH is a copy of a template that `mqttbytes` encoded
//! once, with four fields patched; what arrives is only looked at where it must be. The tests
//! hold both against `mqttbytes`.

use super::plan::Version;

/// Bytes at the head of each payload: run tag, publisher, sequence, send time.
pub(super) const STAMP_BYTES: usize = 24;
pub(super) const PINGREQ: [u8; 2] = [0xC0, 0];
/// Short form, which both versions allow a client.
pub(super) const DISCONNECT: [u8; 2] = [0xE0, 0];

pub(super) const CONNACK: u8 = 2;
pub(super) const PUBLISH: u8 = 3;
pub(super) const PUBACK: u8 = 4;
pub(super) const PUBREC: u8 = 5;
pub(super) const PUBREL: u8 = 6;
pub(super) const PUBCOMP: u8 = 7;
pub(super) const SUBACK: u8 = 9;
pub(super) const PINGRESP: u8 = 13;
pub(super) const SERVER_DISCONNECT: u8 = 14;

/// What a payload says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) run_tag: u32,
    pub(super) publisher: u32,
    pub(super) sequence: u64,
    pub(super) sent_ns: u64,
}

/// The frame of one publisher, to be patched per message.
#[derive(Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    packet_id_at: usize,
    payload_at: usize,
}

impl Template {
    /// From an encoded PUBLISH with this topic and a payload of this size.
    pub(super) fn new(bytes: Vec<u8>, topic_bytes: usize, payload_bytes: usize) -> Template {
        let header = bytes.iter().skip(1).take_while(|byte| **byte & 0x80 != 0).count() + 2;
        let payload_at = bytes.len() - payload_bytes;
        Template { packet_id_at: header + 2 + topic_bytes, payload_at, bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends one message; the packet id is ignored at QoS 0.
    #[inline]
    pub(super) fn append(&self, out: &mut Vec<u8>, packet_id: Option<u16>, stamp: Stamp) {
        let at = out.len();
        out.extend_from_slice(&self.bytes);
        let frame = &mut out[at..];
        if let Some(id) = packet_id {
            frame[self.packet_id_at..][..2].copy_from_slice(&id.to_be_bytes());
        }
        let payload = &mut frame[self.payload_at..][..STAMP_BYTES];
        payload[..4].copy_from_slice(&stamp.run_tag.to_be_bytes());
        payload[4..8].copy_from_slice(&stamp.publisher.to_be_bytes());
        payload[8..16].copy_from_slice(&stamp.sequence.to_be_bytes());
        payload[16..24].copy_from_slice(&stamp.sent_ns.to_be_bytes());
    }
}

/// Bytes that no broker may send us; the connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("remaining length of more than four bytes")]
    Length,
    #[error("packet type {0} ends too early")]
    Short(u8),
}

/// One whole packet as it lies in the read buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) first: u8,
    pub(super) body: &'a [u8],
    /// The packet with its fixed header.
    pub(super) whole: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first whole packet of `bytes`, or `None` if there is none yet.
    #[inline]
    pub(super) fn next(bytes: &'a [u8]) -> Result<Option<Frame<'a>>, Malformed> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let mut length = 0_usize;
        for (index, &byte) in bytes[1..].iter().take(4).enumerate() {
            length |= usize::from(byte & 0x7F) << (7 * index);
            if byte & 0x80 == 0 {
                let end = 2 + index + length;
                let whole = bytes.get(..end);
                return Ok(whole.map(|whole| Frame { first, body: &whole[2 + index..], whole }));
            }
        }
        if bytes.len() >= 5 { Err(Malformed::Length) } else { Ok(None) }
    }

    pub(super) fn kind(&self) -> u8 {
        self.first >> 4
    }

    /// The packet id at the head of a PUBACK, PUBREC, PUBREL or PUBCOMP.
    #[inline]
    pub(super) fn packet_id(&self) -> Result<u16, Malformed> {
        match *self.body {
            [high, low, ..] => Ok(u16::from_be_bytes([high, low])),
            _ => Err(Malformed::Short(self.kind())),
        }
    }

    /// Whether a PUBACK or PUBREC says that the message was not taken (version 5 only).
    #[inline]
    pub(super) fn refuses(&self) -> bool {
        self.body.get(2).is_some_and(|reason| *reason >= 0x80)
    }

    /// Reads a PUBLISH as far as its stamp.
    #[inline]
    pub(super) fn publish(&self, version: Version) -> Result<Arrival<'a>, Malformed> {
        let short = Malformed::Short(PUBLISH);
        let [high, low, rest @ ..] = self.body else { return Err(short) };
        let topic_bytes = usize::from(u16::from_be_bytes([*high, *low]));
        let mut rest = rest.get(topic_bytes..).ok_or(short)?;
        let qos = (self.first >> 1) & 3;
        let mut packet_id = 0;
        if qos > 0 {
            let [high, low, after @ ..] = rest else { return Err(short) };
            packet_id = u16::from_be_bytes([*high, *low]);
            rest = after;
        }
        if version == Version::V5 {
            rest = skip_properties(rest).ok_or(short)?;
        }
        Ok(Arrival { qos, dup: self.first & 0x08 != 0, packet_id, payload: rest })
    }
}

fn skip_properties(bytes: &[u8]) -> Option<&[u8]> {
    let mut length = 0_usize;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return bytes.get(1 + index + length..);
        }
    }
    None
}

/// A PUBLISH that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) qos: u8,
    pub(super) dup: bool,
    pub(super) packet_id: u16,
    pub(super) payload: &'a [u8],
}

impl Arrival<'_> {
    /// `None` if the payload is too short to be one of ours.
    #[inline]
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let head = self.payload.first_chunk::<STAMP_BYTES>()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| (u64::from(word(at)) << 32) | u64::from(word(at + 4));
        let (run_tag, publisher) = (word(0), word(4));
        Some(Stamp { run_tag, publisher, sequence: long(8), sent_ns: long(16) })
    }
}

/// Appends a PUBACK, PUBREC, PUBREL or PUBCOMP without a reason code, which is success in both
/// versions.
#[inline]
pub(super) fn append_ack(out: &mut Vec<u8>, kind: u8, packet_id: u16) {
    let [high, low] = packet_id.to_be_bytes();
    let flags = if kind == PUBREL { 2 } else { 0 };
    out.extend_from_slice(&[kind << 4 | flags, 2, high, low]);
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use mqttbytes::{QoS, v4, v5};

    use super::*;

    const TOPIC: &str = "bench/0000002a/7";
    const STAMP: Stamp =
        Stamp { run_tag: 42, publisher: 7, sequence: 1 << 40, sent_ns: u64::MAX - 1 };

    fn published_v4(level: QoS, payload: usize) -> Vec<u8> {
        let pkid = u16::from(level != QoS::AtMostOnce);
        let packet = v4::Publish { pkid, ..v4::Publish::new(TOPIC, level, vec![9; payload]) };
        let mut bytes = BytesMut::new();
        packet.write(&mut bytes).unwrap();
        bytes.to_vec()
    }

    fn published_v5(level: QoS, properties: Option<v5::PublishProperties>) -> Vec<u8> {
        let pkid = u16::from(level != QoS::AtMostOnce);
        let mut packet = v5::Publish { pkid, ..v5::Publish::new(TOPIC, level, vec![9; 300]) };
        packet.properties = properties;
        let mut bytes = BytesMut::new();
        packet.write(&mut bytes).unwrap();
        bytes.to_vec()
    }

    #[test]
    fn a_patched_template_decodes_to_the_message_it_was_patched_for() {
        for payload in [STAMP_BYTES, 100, 256, 20_000, 3_000_000] {
            let bytes = published_v4(QoS::AtLeastOnce, payload);
            let template = Template::new(bytes, TOPIC.len(), payload);
            let mut out = Vec::new();
            template.append(&mut out, Some(0xBEEF), STAMP);
            assert_eq!(out.len(), template.len());
            let decoded = v4::read(&mut BytesMut::from(&out[..]), 4_000_000).unwrap();
            let v4::Packet::Publish(publish) = decoded else { panic!("{decoded:?}") };
            assert_eq!((publish.pkid, publish.topic.as_str()), (0xBEEF, TOPIC));
            assert_eq!(publish.payload.len(), payload);
            assert!(publish.payload[STAMP_BYTES..].iter().all(|byte| *byte == 9));
        }
    }

    #[test]
    fn a_template_without_packet_id_patches_the_payload_alone() {
        for bytes in [published_v4(QoS::AtMostOnce, 300), published_v5(QoS::AtMostOnce, None)] {
            let v5 = bytes.len() > published_v4(QoS::AtMostOnce, 300).len();
            let version = if v5 { Version::V5 } else { Version::V4 };
            let template = Template::new(bytes, TOPIC.len(), 300);
            let mut out = Vec::new();
            template.append(&mut out, None, STAMP);
            let frame = Frame::next(&out).unwrap().unwrap();
            assert_eq!(frame.publish(version).unwrap().stamp(), Some(STAMP));
        }
    }

    #[test]
    fn what_mqttbytes_encodes_is_read_the_same_by_hand() {
        let properties = v5::PublishProperties {
            payload_format_indicator: Some(1),
            message_expiry_interval: Some(60),
            topic_alias: None,
            response_topic: Some("r".repeat(200)),
            correlation_data: None,
            user_properties: vec![("k".to_owned(), "v".to_owned())],
            subscription_identifiers: Vec::new(),
            content_type: None,
        };
        let levels = [(QoS::AtMostOnce, 0), (QoS::AtLeastOnce, 1), (QoS::ExactlyOnce, 2)];
        for (level, qos) in levels {
            let cases = [
                (Version::V4, published_v4(level, 300)),
                (Version::V5, published_v5(level, None)),
                (Version::V5, published_v5(level, Some(properties.clone()))),
            ];
            for (version, mut bytes) in cases {
                bytes[0] |= 0x08;
                let frame = Frame::next(&bytes).unwrap().unwrap();
                let arrival = frame.publish(version).unwrap();
                assert_eq!(frame.whole.len(), bytes.len());
                assert_eq!((arrival.qos, arrival.dup), (qos, true));
                assert_eq!(arrival.packet_id, u16::from(qos > 0));
                assert_eq!(arrival.payload, [9; 300]);
            }
        }
    }

    #[test]
    fn our_acknowledgements_decode_in_both_versions() {
        for kind in [PUBACK, PUBREC, PUBREL, PUBCOMP] {
            let mut out = Vec::new();
            append_ack(&mut out, kind, 0x1234);
            let id = match v4::read(&mut BytesMut::from(&out[..]), 100).unwrap() {
                v4::Packet::PubAck(ack) => ack.pkid,
                v4::Packet::PubRec(ack) => ack.pkid,
                v4::Packet::PubRel(ack) => ack.pkid,
                v4::Packet::PubComp(ack) => ack.pkid,
                other => panic!("{other:?}"),
            };
            assert_eq!(id, 0x1234);
            assert!(v5::read(&mut BytesMut::from(&out[..]), 100).is_ok());
            let frame = Frame::next(&out).unwrap().unwrap();
            assert_eq!((frame.kind(), frame.packet_id()), (kind, Ok(0x1234)));
            assert!(!frame.refuses());
        }
    }

    #[test]
    fn a_cut_packet_is_awaited_and_a_packet_cut_inside_is_malformed() {
        let bytes = published_v5(QoS::AtLeastOnce, None);
        for cut in 0..bytes.len() {
            assert!(Frame::next(&bytes[..cut]).unwrap().is_none(), "cut at {cut}");
        }
        assert_eq!(Frame::next(&[0x30, 0x80, 0x80, 0x80, 0x80]).err(), Some(Malformed::Length));
        for body in [&[0_u8][..], &[0, 9, 1], &[0, 1, b't', 0], &[0, 1, b't', 0, 1, 0x80]] {
            let frame = Frame { first: 0x32, body, whole: body };
            assert!(frame.publish(Version::V5).is_err(), "{body:?}");
        }
    }

    #[test]
    fn a_negative_acknowledgement_is_told_from_success() {
        let refuses = |body: &[u8]| Frame { first: 0x40, body, whole: body }.refuses();
        assert!(refuses(&[0, 1, 0x97]) && refuses(&[0, 1, 0x80, 0]));
        assert!(!refuses(&[0, 1, 0x10, 0]) && !refuses(&[0, 1]));
    }
}
