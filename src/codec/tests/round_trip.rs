//! What is written is read back the same: every packet, every version, both directions.

use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::arbitrary::{Sample, exchange, packet, publish, version};
use crate::codec::{
    DecodeError, EncodeError, EncodeLimits, ForwardedProperty, MAX_PACKET_SIZE, Packet, Peer,
    PublishHead, decode, encode, encode_ack, encode_within, forwarded_properties, frame_length,
    patch_dup, patch_packet_id, put_forwarded_property,
};
use crate::mqtt::{PacketId, ProtocolVersion, QoS, ReasonCode};

fn encoded(packet: &Packet<'_>, version: ProtocolVersion) -> Vec<u8> {
    let mut out = Vec::new();
    encode(packet, version, &mut out).expect("what the strategies make can be written");
    out
}

/// Every packet of `stream`, which arrives in chunks, or the first error.
fn feed(
    stream: &[u8],
    mut version: Option<ProtocolVersion>,
    from: Peer,
    mut chunk: impl FnMut() -> usize,
) -> (Vec<String>, Option<DecodeError>) {
    let (mut packets, mut at, mut end) = (Vec::new(), 0, 0);
    loop {
        let length = match frame_length(&stream[at..end], version, from, MAX_PACKET_SIZE) {
            Ok(length) => length,
            Err(error) => return (packets, Some(error)),
        };
        match length {
            Some(length) if at + length.total <= end => {
                match decode(&stream[at..at + length.total], version, from) {
                    Ok(packet) => {
                        if let Packet::Connect(connect) = &packet {
                            version = Some(connect.version);
                        }
                        packets.push(format!("{packet:?}"));
                    }
                    Err(error) => return (packets, Some(error)),
                }
                at += length.total;
            }
            Some(_) | None if end == stream.len() => return (packets, None),
            Some(_) | None => end = stream.len().min(end + chunk().max(1)),
        }
    }
}

proptest! {
    /// MQTT 5 chapter 3, v3.1.1 chapter 3.
    #[test]
    fn every_packet_reads_back_as_it_was_written((version, from, sample) in exchange()) {
        let packet = sample.packet();
        let frame = encoded(&packet, version);
        let length = frame_length(&frame, sample.agreed(version), from, MAX_PACKET_SIZE);
        prop_assert_eq!(length.expect("good").expect("whole").total, frame.len());
        let read = decode(&frame, sample.agreed(version), from);
        prop_assert_eq!(read.expect("good"), packet);
    }

    /// A frame that is cut or followed by something is never taken for a packet.
    #[test]
    fn only_one_whole_frame_is_a_packet(
        (version, from, sample) in exchange(),
        cut in any::<u16>(),
    ) {
        let mut frame = encoded(&sample.packet(), version);
        let cut = usize::from(cut) % frame.len();
        prop_assert!(decode(&frame[..cut], sample.agreed(version), from).is_err());
        frame.push(0);
        prop_assert!(decode(&frame, sample.agreed(version), from).is_err());
    }

    /// Tiny reads give the same packets as one large read, and the same error.
    #[test]
    fn chunks_of_any_size_give_the_same_packets(
        (version, samples) in version().prop_flat_map(|version| {
            (Just(version), prop::collection::vec(packet(version, Peer::Client), 1..6))
        }),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        sizes in prop::collection::vec(1..40usize, 1..8),
    ) {
        let mut stream = Vec::new();
        // No CONNECT may follow on an open connection.
        for sample in samples.iter().filter(|sample| sample.agreed(version).is_some()) {
            stream.extend(encoded(&sample.packet(), version));
        }
        for (index, byte) in flips {
            if !stream.is_empty() {
                let at = index.index(stream.len());
                stream[at] = byte;
            }
        }
        let whole = feed(&stream, Some(version), Peer::Client, || stream.len());
        let bytewise = feed(&stream, Some(version), Peer::Client, || 1);
        let mut sizes = sizes.iter().cycle();
        let chunked = feed(&stream, Some(version), Peer::Client, || *sizes.next().unwrap_or(&1));
        prop_assert_eq!(&whole, &bytewise);
        prop_assert_eq!(&whole, &chunked);
    }

    /// PRP-01: the size is known without encoding; a head is patched in place.
    #[test]
    fn a_head_tells_its_size_and_takes_another_packet_id(
        (version, sample) in version().prop_flat_map(|version| {
            (Just(version), publish(version, Peer::Server))
        }),
        id in 1..=u16::MAX,
        dup in any::<bool>(),
    ) {
        let packet = sample.packet();
        let Packet::Publish(publish) = &packet else { return Ok(()) };
        let head = PublishHead { packet_id: None, ..PublishHead::of(publish, version) };
        let mut frame = vec![0xAA; 3];
        let encoded = head.encode(&mut frame).expect("good");
        prop_assert_eq!(encoded.len, frame.len() - 3);
        frame.drain(..3);
        frame.extend_from_slice(publish.payload);
        prop_assert_eq!(frame.len(), head.wire_len());
        prop_assert_eq!(encoded.packet_id_at.is_some(), publish.qos.is_acknowledged());
        let mut expected = publish.clone();
        if let Some(at) = encoded.packet_id_at {
            patch_packet_id(&mut frame, at, PacketId::new(id).expect("not 0"));
            patch_dup(&mut frame, dup);
            expected.packet_id = PacketId::new(id);
            expected.dup = dup;
        }
        let read = decode(&frame, Some(version), Peer::Server).expect("good");
        prop_assert_eq!(read, Packet::Publish(expected));
    }

    /// MQTT-3.3.2-4, -15 to -20: in v5 a blob passes through unaltered; v3.x gets none of it.
    #[test]
    fn v3_gets_a_publish_without_what_it_cannot_carry(
        sample in publish(ProtocolVersion::V5, Peer::Server),
    ) {
        let packet = sample.packet();
        let Packet::Publish(publish) = &packet else { return Ok(()) };
        if publish.topic.is_empty() {
            return Ok(());
        }
        let frame = encoded(&packet, ProtocolVersion::V311);
        let read = decode(&frame, Some(ProtocolVersion::V311), Peer::Server).expect("good");
        let mut expected = publish.clone();
        (expected.topic_alias, expected.expiry_s) = (None, None);
        expected.subscription_ids.clear();
        expected.properties = Vec::new().into();
        prop_assert_eq!(read, Packet::Publish(expected));
    }

    /// A blob is the list of its properties, in order.
    #[test]
    fn a_blob_reads_back_property_by_property(
        sample in publish(ProtocolVersion::V5, Peer::Client),
    ) {
        let Sample::Publish { rest, .. } = sample else { return Ok(()) };
        let mut again = Vec::new();
        for property in forwarded_properties(&rest.properties) {
            put_forwarded_property(&mut again, property).expect("short");
        }
        prop_assert_eq!(&again[..], &rest.properties[..]);
    }

    /// PRP-03, PRP-10, MQTT-3.2.2-19, -20, MQTT-3.4.2-2, MQTT-3.9.2-1: what explains a reply gives
    /// way to the receiver's limit, the reply itself never does.
    #[test]
    fn a_reply_keeps_to_the_receivers_limits(
        (version, from, sample) in exchange(),
        maximum_packet_size in 2..120u32,
        problem_information in any::<bool>(),
    ) {
        let packet = sample.packet();
        let limits = EncodeLimits { maximum_packet_size, problem_information };
        let mut out = vec![7];
        match encode_within(&packet, version, limits, &mut out) {
            Err(error) => {
                prop_assert_eq!(error, EncodeError::TooLarge { limit: maximum_packet_size });
                prop_assert_eq!(out, vec![7]);
            }
            Ok(()) => {
                prop_assert!(out.len() - 1 <= maximum_packet_size as usize);
                let read = decode(&out[1..], sample.agreed(version), from).expect("good");
                prop_assert_eq!(without_extras(&read), without_extras(&packet));
                let whole = encoded(&packet, version).len() <= maximum_packet_size as usize;
                let may_explain = problem_information || !is_bound_by_problem_information(&packet);
                if whole && may_explain {
                    prop_assert_eq!(&read, &packet);
                }
                if !may_explain {
                    prop_assert_eq!(&read, &without_extras(&packet));
                }
            }
        }
    }
}

fn is_bound_by_problem_information(packet: &Packet<'_>) -> bool {
    matches!(packet, Packet::Ack(..) | Packet::Suback(_) | Packet::Unsuback(_) | Packet::Auth(_))
}

/// The packet without Reason String and User Properties, where they merely explain.
fn without_extras<'a>(packet: &Packet<'a>) -> Packet<'a> {
    let mut packet = packet.clone();
    match &mut packet {
        Packet::Connack(connack) => {
            connack.properties.reason_string = None;
            connack.properties.user_properties.clear();
        }
        Packet::Ack(_, ack) => ack.properties = None,
        Packet::Suback(suback) => suback.properties = None,
        Packet::Unsuback(unsuback) => unsuback.properties = None,
        Packet::Disconnect(disconnect) => {
            disconnect.reason_string = None;
            disconnect.user_properties.clear();
        }
        Packet::Auth(auth) => {
            auth.reason_string = None;
            auth.user_properties.clear();
        }
        Packet::Connect(_)
        | Packet::Publish(_)
        | Packet::Subscribe(_)
        | Packet::Unsubscribe(_)
        | Packet::Pingreq
        | Packet::Pingresp => {}
    }
    packet
}

/// PRP-03: User Properties go before the Reason String does.
#[test]
fn the_reason_string_outlives_the_user_properties() {
    use crate::codec::{Ack, AckKind, AckProperties};
    let mut ack = Ack::new(PacketId::MIN, ReasonCode::NotAuthorized);
    ack.properties = Some(Box::new(AckProperties {
        reason_string: Some("no".to_owned()),
        user_properties: vec![("name".to_owned(), "value".to_owned())],
    }));
    let packet = Packet::Ack(AckKind::Puback, ack);
    let within = |maximum_packet_size| {
        let limits = EncodeLimits { maximum_packet_size, problem_information: true };
        let mut out = Vec::new();
        encode_within(&packet, ProtocolVersion::V5, limits, &mut out).map(|()| out)
    };
    let all = within(100).expect("fits");
    assert_eq!(all.len(), 25);
    assert_eq!(within(25).expect("fits"), all);
    let reason = [0x40, 9, 0, 1, 0x87, 5, 0x1f, 0, 2, b'n', b'o'];
    assert_eq!(within(24).expect("fits"), reason);
    assert_eq!(within(10).expect("fits"), [0x40, 3, 0, 1, 0x87]);
    assert_eq!(within(4), Err(EncodeError::TooLarge { limit: 4 }));
}

/// CON-14: reserved bits are 0 (PUBREL: 2); short forms for acks, the long form for DISCONNECT and
/// CONNACK of v5.
#[test]
fn small_packets_have_their_one_form() {
    use crate::codec::{AckKind, Connack, ConnackProperties, Disconnect};
    let ack = |kind, reason, version| {
        let mut out = Vec::new();
        encode_ack(kind, PacketId::MAX, reason, version, &mut out);
        out
    };
    let (v5, v4) = (ProtocolVersion::V5, ProtocolVersion::V311);
    let (ok, lost) = (ReasonCode::Success, ReasonCode::PacketIdentifierNotFound);
    assert_eq!(ack(AckKind::Puback, ok, v5), [0x40, 2, 0xff, 0xff]);
    assert_eq!(ack(AckKind::Pubrec, ok, v4), [0x50, 2, 0xff, 0xff]);
    assert_eq!(ack(AckKind::Pubrel, lost, v5), [0x62, 3, 0xff, 0xff, 0x92]);
    assert_eq!(ack(AckKind::Pubcomp, lost, v4), [0x70, 2, 0xff, 0xff]);
    let taken_over = Packet::Disconnect(Disconnect::new(ReasonCode::SessionTakenOver));
    assert_eq!(encoded(&taken_over, v5), [0xe0, 2, 0x8e, 0]);
    let normal = Packet::Disconnect(Disconnect::new(ok));
    assert_eq!(encoded(&normal, v5), [0xe0, 2, 0, 0]);
    assert_eq!(encoded(&normal, v4), [0xe0, 0]);
    let connack = |code| {
        let properties = ConnackProperties::default();
        Packet::Connack(Box::new(Connack { session_present: false, code, properties }))
    };
    assert_eq!(encoded(&connack(0), v5), [0x20, 3, 0, 0, 0]);
    assert_eq!(encoded(&connack(0), v4), [0x20, 2, 0, 0]);
    assert_eq!(encoded(&connack(0x84), v4), [0x20, 2, 0, 1]);
    assert_eq!(encoded(&connack(0x87), v4), [0x20, 2, 0, 5]);
    assert_eq!(encoded(&connack(0x97), v4), [0x20, 2, 0, 3]);
}

/// Forwarded properties that others stand between are put together again, in their order.
#[test]
fn scattered_properties_are_gathered_and_standing_together_are_borrowed() {
    let publish = |properties: &[u8]| {
        let mut frame = vec![0x30, 0, 0, 1, b't'];
        frame.push(u8::try_from(properties.len()).expect("short"));
        frame.extend_from_slice(properties);
        frame[1] = u8::try_from(frame.len() - 2).expect("short");
        frame
    };
    let user = |text: u8| [0x26, 0, 1, text, 0, 1, text];
    let expiry = [0x02, 0, 0, 0, 9];
    let alias = [0x23, 0, 1];
    let scattered = [&user(b'a')[..], &expiry, &[1, 1], &user(b'b'), &alias, &user(b'c')].concat();
    let frame = publish(&scattered);
    let Ok(Packet::Publish(read)) = decode(&frame, Some(ProtocolVersion::V5), Peer::Client) else {
        panic!("a good PUBLISH");
    };
    assert_eq!(read.properties, [&user(b'a')[..], &[1, 1], &user(b'b'), &user(b'c')].concat());
    assert_eq!((read.expiry_s, read.topic_alias), (Some(9), Some(1)));
    let users: Vec<_> = forwarded_properties(&read.properties).collect();
    assert_eq!(users[1], ForwardedProperty::PayloadIsText(true));
    assert_eq!(users[3], ForwardedProperty::User("c", "c"));

    let together = [&expiry[..], &user(b'a'), &[1, 0], &user(b'b'), &alias].concat();
    let frame = publish(&together);
    let Ok(Packet::Publish(read)) = decode(&frame, Some(ProtocolVersion::V5), Peer::Client) else {
        panic!("a good PUBLISH");
    };
    assert!(matches!(read.properties, std::borrow::Cow::Borrowed(_)));
    assert_eq!(read.properties, [&user(b'a')[..], &[1, 0], &user(b'b')].concat());
}

/// A packet that can't be written leaves the buffer as it was.
#[test]
fn what_cannot_be_written_is_an_error_and_appends_nothing() {
    use crate::codec::{Auth, Disconnect};
    let mut disconnect = Disconnect::new(ReasonCode::ProtocolError);
    disconnect.reason_string = Some("x".repeat(65_536));
    let auth = Auth {
        reason: ReasonCode::Success,
        authentication_method: None,
        authentication_data: None,
        reason_string: None,
        user_properties: Vec::new(),
    };
    let mut out = vec![1, 2, 3];
    let too_long = encode(&Packet::Disconnect(disconnect), ProtocolVersion::V5, &mut out);
    assert_eq!(too_long, Err(EncodeError::FieldTooLong));
    let no_auth = encode(&Packet::Auth(auth), ProtocolVersion::V311, &mut out);
    assert_eq!(no_auth, Err(EncodeError::NotInVersion));
    let mut head = PublishHead {
        version: ProtocolVersion::V5,
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: None,
        alias: None,
        expiry_s: None,
        subscription_ids: &[0],
        properties: &[],
        payload_len: 0,
    };
    assert_eq!(head.encode(&mut out), Err(EncodeError::SubscriptionId));
    head.subscription_ids = &[];
    head.payload_len = 268_435_455 - 4;
    let largest = head.encode(&mut out).expect("exactly the largest packet");
    assert_eq!(largest.len + head.payload_len, MAX_PACKET_SIZE as usize);
    out.truncate(3);
    head.payload_len += 1;
    assert_eq!(head.encode(&mut out), Err(EncodeError::TooLarge { limit: MAX_PACKET_SIZE }));
    assert_eq!(out, [1, 2, 3]);
}
