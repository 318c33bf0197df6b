//! Bytes that nobody should send: no panic, no large allocation, an early refusal.

use std::borrow::Cow;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::Index;

use super::arbitrary::{exchange, peer, version};
use crate::codec::{
    AckProperties, Connack, Connect, DecodeError, Fault, FrameLength, MAX_PACKET_SIZE, Packet,
    Peer, UserProperty, connect_level, decode, encode, frame_length,
};
use crate::mqtt::{ProtocolVersion, ReasonCode, TopicFilter};

const V31: Option<ProtocolVersion> = Some(ProtocolVersion::V31);
const V4: Option<ProtocolVersion> = Some(ProtocolVersion::V311);
const V5: Option<ProtocolVersion> = Some(ProtocolVersion::V5);

fn text(text: &Option<String>) -> usize {
    text.as_ref().map_or(0, String::capacity)
}

fn data(data: &Option<Vec<u8>>) -> usize {
    data.as_ref().map_or(0, Vec::capacity)
}

fn users(users: &Vec<UserProperty>) -> usize {
    let strings = users.iter().map(|(name, value)| name.capacity() + value.capacity());
    users.capacity() * size_of::<UserProperty>() + strings.sum::<usize>()
}

fn explanation(properties: &Option<Box<AckProperties>>) -> usize {
    properties.as_ref().map_or(0, |found| {
        size_of_val(&**found) + text(&found.reason_string) + users(&found.user_properties)
    })
}

fn connect(it: &Connect) -> usize {
    let will = it.will.as_ref().map_or(0, |will| {
        will.topic.capacity() + will.payload.capacity() + will.properties.capacity()
    });
    let properties = &it.properties;
    size_of_val(it)
        + will
        + it.client_id.capacity()
        + text(&it.username)
        + data(&it.password)
        + users(&properties.user_properties)
        + text(&properties.authentication_method)
        + data(&properties.authentication_data)
}

fn connack(it: &Connack) -> usize {
    let properties = &it.properties;
    size_of_val(it)
        + text(&properties.assigned_client_id)
        + text(&properties.reason_string)
        + users(&properties.user_properties)
        + text(&properties.response_information)
        + text(&properties.server_reference)
        + text(&properties.authentication_method)
        + data(&properties.authentication_data)
}

/// Heap bytes that a decoded packet holds, counted by capacity.
fn heap(packet: &Packet<'_>) -> usize {
    // The text of a filter is shared, behind two counters.
    let filter = |filter: &TopicFilter| filter.as_str().len() + 16;
    match packet {
        Packet::Connect(it) => connect(it),
        Packet::Connack(it) => connack(it),
        Packet::Publish(it) => {
            let properties = match &it.properties {
                Cow::Borrowed(_) => 0,
                Cow::Owned(owned) => owned.capacity(),
            };
            properties + it.subscription_ids.capacity() * 4
        }
        Packet::Ack(_, it) => explanation(&it.properties),
        Packet::Subscribe(it) => {
            let size = size_of_val(&it.filters[0]);
            let texts = it.filters.iter().filter_map(|it| it.filter.as_ref().ok().map(filter));
            it.filters.capacity() * size + texts.sum::<usize>() + users(&it.user_properties)
        }
        Packet::Unsubscribe(it) => {
            let size = size_of_val(&it.filters[0]);
            let texts = it.filters.iter().filter_map(|it| it.as_ref().ok().map(filter));
            it.filters.capacity() * size + texts.sum::<usize>() + users(&it.user_properties)
        }
        Packet::Suback(it) => it.codes.capacity() + explanation(&it.properties),
        Packet::Unsuback(it) => it.codes.capacity() + explanation(&it.properties),
        Packet::Pingreq | Packet::Pingresp => 0,
        Packet::Disconnect(it) => {
            text(&it.reason_string) + text(&it.server_reference) + users(&it.user_properties)
        }
        Packet::Auth(it) => {
            text(&it.authentication_method)
                + data(&it.authentication_data)
                + text(&it.reason_string)
                + users(&it.user_properties)
        }
    }
}

/// PAR-05: the worst is a SUBSCRIBE of one-byte filters or empty User Properties: a few bytes of
/// wire for one list entry, in a list that has just doubled.
const HEAP_PER_BYTE: usize = 32;
const HEAP_AT_LEAST: usize = 1024;

fn judge(frame: &[u8], version: Option<ProtocolVersion>, from: Peer) {
    if let Ok(packet) = decode(frame, version, from) {
        let limit = HEAP_AT_LEAST + HEAP_PER_BYTE * frame.len();
        assert!(heap(&packet) <= limit, "{} bytes hold {}", frame.len(), heap(&packet));
        let agreed = if let Packet::Connect(connect) = &packet {
            connect.version
        } else {
            version.expect("only a CONNECT comes before")
        };
        let mut again = Vec::new();
        // A filter that is answered 0x8F has no text to write.
        if encode(&packet, agreed, &mut again).is_ok() {
            assert_eq!(decode(&again, version, from).as_ref(), Ok(&packet), "{frame:02x?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// PAR-01, PAR-03, PAR-05.
    #[test]
    fn any_bytes_are_a_packet_or_an_error(
        first in any::<u8>(),
        body in vec(any::<u8>(), 0..120),
        agreed in proptest::option::of(version()),
        from in peer(),
    ) {
        let mut frame = vec![first, u8::try_from(body.len()).expect("short")];
        frame.extend(body);
        judge(&frame, agreed, from);
        judge(&frame[2..], agreed, from);
    }

    /// As above, from good packets in which some bytes are changed.
    #[test]
    fn a_damaged_packet_is_a_packet_or_an_error(
        (version, from, sample) in exchange(),
        changes in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = Vec::new();
        encode(&sample.packet(), version, &mut frame).expect("good");
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        judge(&frame, sample.agreed(version), from);
        judge(&frame, Some(version), from);
    }

    /// PRP-04: nothing behind the fixed header matters, and what was refused stays refused.
    #[test]
    fn a_fixed_header_is_judged_by_itself(
        bytes in vec(any::<u8>().prop_map(|byte| byte | 0x80), 0..6),
        more in vec(any::<u8>(), 1..20),
        agreed in proptest::option::of(version()),
        from in peer(),
        limit in 2..=MAX_PACKET_SIZE,
    ) {
        let early = frame_length(&bytes, agreed, from, limit);
        let whole = [&bytes[..], &more].concat();
        let late = frame_length(&whole, agreed, from, limit);
        match early {
            Ok(Some(_)) => prop_assert_eq!(early, late),
            Ok(None) => {}
            Err(_) => prop_assert!(late.is_err()),
        }
        let header = &whole[..whole.len().min(5)];
        prop_assert_eq!(frame_length(header, agreed, from, limit), late);
        if let Ok(Some(FrameLength { header, total })) = late {
            prop_assert!((2..=5).contains(&header));
            prop_assert!(total >= header && total <= limit as usize);
        }
    }
}

fn refusal(bytes: &[u8], agreed: Option<ProtocolVersion>, limit: u32) -> (Fault, u8) {
    match frame_length(bytes, agreed, Peer::Client, limit) {
        Err(DecodeError { fault, reason, .. }) => (fault, reason.byte()),
        Ok(length) => panic!("{bytes:02x?} is not refused: {length:?}"),
    }
}

/// CON-07, CON-08, PAR-01, PAR-03, PRP-04: on the first byte that proves it.
#[test]
fn a_wrong_packet_is_refused_before_its_body_comes() {
    const ALL: u32 = MAX_PACKET_SIZE;
    let (malformed, protocol) = ((Fault::Malformed, 0x81), (Fault::ProtocolError, 0x82));
    let too_large = (Fault::ProtocolError, 0x95);
    for first in [0x00, 0x30, 0x40, 0x62, 0x82, 0xc0, 0xe0, 0xf0] {
        assert_eq!(refusal(&[first], None, ALL), protocol, "{first:#04x} is no CONNECT");
    }
    assert_eq!(refusal(&[0x11], None, ALL), malformed);
    assert_eq!(refusal(&[0x10], V5, ALL), protocol, "a second CONNECT");
    for first in [0x20, 0x90, 0xb0, 0xd0] {
        assert_eq!(refusal(&[first], V4, ALL), protocol, "{first:#04x} is a server's");
    }
    for first in [0x36, 0x3e, 0x38, 0x39, 0x41, 0x60, 0x80, 0xa0, 0xc1, 0xe2, 0x00, 0xf1] {
        assert_eq!(refusal(&[first], V5, ALL), malformed, "{first:#04x}");
    }
    assert_eq!(refusal(&[0xf0], V4, ALL), malformed);
    assert_eq!(refusal(&[0x6a], V4, ALL), malformed);
    assert_eq!(refusal(&[0x30, 0x80, 0x00], V5, ALL), malformed);
    assert_eq!(refusal(&[0x30, 0xff, 0xff, 0xff, 0x80], V5, ALL), malformed);

    assert_eq!(refusal(&[0x30, 0x7f], V5, 128), too_large);
    assert_eq!(refusal(&[0x30, 0x80], V5, 127), too_large);
    assert_eq!(refusal(&[0x30, 0x80, 0x80], V5, 16_383), too_large);
    assert_eq!(refusal(&[0x10, 0xff, 0xff, 0xff], None, 1_000_000), too_large);
    let whole = frame_length(&[0x30, 0x7e], V5, Peer::Client, 128).expect("fits");
    assert_eq!(whole, Some(FrameLength { header: 2, total: 128 }));
    assert_eq!(frame_length(&[0x30, 0x80], V5, Peer::Client, 130), Ok(None));
    let largest = [0x30, 0xff, 0xff, 0xff, 0x7f];
    let largest = frame_length(&largest, V5, Peer::Client, ALL).expect("fits").expect("known");
    assert_eq!(largest.total, MAX_PACKET_SIZE as usize);
}

/// Says in whose form a refused CONNECT is answered, from as little of it as came.
#[test]
fn the_level_of_a_refused_connect_is_known() {
    let v5 = b"\x10\x0f\x00\x04MQTT\x05\x02";
    assert_eq!(connect_level(v5), Some(5));
    assert_eq!(connect_level(&v5[..8]), None);
    assert_eq!(connect_level(b"\x10\xff\xff\x7f\x00\x06MQIsdp\x03"), Some(3));
    assert_eq!(connect_level(b"\x10\x0f\x00\x04MQTT\x07"), Some(7));
    assert_eq!(connect_level(&[0x10, 0x05, 0xff, 0xff, b'M']), None);
    assert_eq!(connect_level(&[0x30, 0x05, 0x00, 0x00, 0x05]), None);
    assert_eq!(connect_level(&[]), None);
}

/// CON-04, CON-12 and v3.1 section 3.1: what v3.1 lets a client leave out.
#[test]
fn v31_lets_a_flagged_field_be_missing_at_the_end() {
    let connect = |flags: u8, rest: &[u8]| {
        let mut frame = b"\x10\x00\x00\x06MQIsdp\x03".to_vec();
        frame.extend([flags, 0, 60, 0, 1, b'c']);
        frame.extend(rest);
        frame[1] = u8::try_from(frame.len() - 2).expect("short");
        match decode(&frame, None, Peer::Client) {
            Ok(Packet::Connect(connect)) => Ok((connect.username, connect.password)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.fault),
        }
    };
    let name = Some("u".to_owned());
    assert_eq!(connect(0x82, &[]), Ok((None, None)));
    assert_eq!(connect(0xc2, &[0, 1, b'u']), Ok((name.clone(), None)));
    assert_eq!(connect(0xc2, &[0, 1, b'u', 0, 1, 9]), Ok((name, Some(vec![9]))));
    assert_eq!(connect(0xc2, &[0, 1, b'u', 0]), Err(Fault::Malformed));
    // Will QoS and Will Retain are disregarded without a Will.
    assert_eq!(connect(0x3a, &[]), Ok((None, None)));
}

fn publish(topic: &[u8]) -> Vec<u8> {
    let len = u8::try_from(topic.len()).expect("short");
    [&[0x30, len + 2, 0, len], topic].concat()
}

/// TOP-06, PAR-09, MQTT-1.5.4-1, -2, -3.
#[test]
fn strings_are_checked_alike_everywhere() {
    let good: [&[u8]; 8] = [
        b"a",
        b"\x01\x1f\x7f",
        "\u{80}\u{9f}".as_bytes(),
        "\u{feff}a".as_bytes(),
        "\u{fffe}\u{ffff}".as_bytes(),
        "\u{10ffff}".as_bytes(),
        "eight by".as_bytes(),
        "nine byte\u{e9}".as_bytes(),
    ];
    let bad: [&[u8]; 9] = [
        b"\0",
        b"0123456\x00",
        b"01234567\x00",
        b"0123456789\x00 \xc3\xa9",
        b"\x80",
        b"01234567\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ];
    let user_property = |text: &[u8]| {
        let len = u8::try_from(text.len()).expect("short");
        let block = [&[0x26, 0, len], text, &[0, 0]].concat();
        let block_len = u8::try_from(block.len()).expect("short");
        [&[0x30, block_len + 4, 0, 1, b't', block_len], &block[..]].concat()
    };
    for text in good {
        assert!(decode(&publish(text), V4, Peer::Client).is_ok(), "{text:02x?}");
        assert!(decode(&user_property(text), V5, Peer::Client).is_ok(), "{text:02x?}");
    }
    for text in bad {
        for (frame, agreed) in [(publish(text), V4), (user_property(text), V5)] {
            let error = decode(&frame, agreed, Peer::Client).expect_err("bad text");
            assert_eq!(error.fault, Fault::Malformed, "{text:02x?}");
        }
    }
}

/// The rules that no row of the table covers.
#[test]
fn further_rules_of_v5() {
    use Fault::{Malformed, ProtocolError};
    let rows: [(&str, Peer, &[u8], Fault, u8); 17] = [
        ("reserved option bits", Peer::Client, b"\x82\x07\0\x0a\0\0\x01a\x40", Malformed, 0x81),
        ("empty filter", Peer::Client, b"\x82\x06\0\x0a\0\0\0\0", Malformed, 0x81),
        (
            "bad share to unsubscribe",
            Peer::Client,
            b"\xa2\x0c\0\x01\0\0\x07$share/",
            Malformed,
            0x81,
        ),
        ("empty response topic", Peer::Client, b"\x30\x07\0\x01a\x03\x08\0\0", ProtocolError, 0x82),
        (
            "correlation twice",
            Peer::Client,
            b"\x30\x0a\0\x01a\x06\x09\0\0\x09\0\0",
            ProtocolError,
            0x82,
        ),
        ("unknown property", Peer::Client, b"\x30\x05\0\x01a\x01\x7f", Malformed, 0x81),
        ("property id of two bytes", Peer::Client, b"\x30\x06\0\x01a\x02\x81\0", Malformed, 0x81),
        ("server's reason", Peer::Client, b"\xe0\x01\x8e", ProtocolError, 0x82),
        ("server reference", Peer::Client, b"\xe0\x05\0\x03\x1c\0\0", ProtocolError, 0x82),
        ("client's reason", Peer::Server, b"\xe0\x01\x04", ProtocolError, 0x82),
        ("session expiry", Peer::Server, b"\xe0\x07\0\x05\x11\0\0\0\0", ProtocolError, 0x82),
        ("auth without method", Peer::Client, b"\xf0\x02\x18\0", ProtocolError, 0x82),
        ("auth data without method", Peer::Client, b"\xf0\x05\0\x03\x16\0\0", ProtocolError, 0x82),
        ("auth without a block", Peer::Client, b"\xf0\x01\0", Malformed, 0x81),
        ("pubrel reason", Peer::Client, b"\x62\x03\0\x01\x10", Malformed, 0x81),
        ("suback without code", Peer::Server, b"\x90\x03\0\x01\0", Malformed, 0x81),
        ("session of a refusal", Peer::Server, b"\x20\x03\x01\x87\0", ProtocolError, 0x82),
    ];
    for (name, from, frame, fault, reason) in rows {
        let error = decode(frame, V5, from).expect_err(name);
        assert_eq!((error.fault, error.reason.byte()), (fault, reason), "{name}: {error}");
    }
}

/// SUB-07: in v5 one bad filter is answered by itself, in v3.x it ends the connection.
#[test]
fn a_misplaced_wildcard_is_one_filters_fault_in_v5() {
    let frame = b"\x82\x0e\0\x0a\0\0\x03a#x\x01\0\x02ok\x02";
    let Ok(Packet::Subscribe(subscribe)) = decode(frame, V5, Peer::Client) else {
        panic!("a good SUBSCRIBE");
    };
    assert!(subscribe.filters[0].filter.is_err());
    assert!(subscribe.filters[1].filter.is_ok());
    let frame = b"\x82\x08\0\x0a\0\x03a#x\x01";
    for agreed in [V31, V4] {
        let error = decode(frame, agreed, Peer::Client).expect_err("malformed in v3.x");
        assert_eq!(error.reason, ReasonCode::MalformedPacket);
    }
}

/// PAR-05: the worst lists of a large packet, held to the same bound; a PUBLISH holds nothing.
#[test]
fn large_packets_of_tiny_entries_keep_to_the_bound() {
    let frame = |first: u8, head: &[u8], entry: &[u8], count: usize| {
        let body = [head, &entry.repeat(count)].concat();
        let mut frame = vec![first];
        crate::codec::writer::put_varint(&mut frame, u32::try_from(body.len()).expect("fits"));
        [frame, body].concat()
    };
    let publish = frame(0x30, b"\0\x01t", b"payload", 9_000);
    let packet = decode(&publish, V4, Peer::Client).expect("good");
    assert_eq!(heap(&packet), 0);
    for count in [1, 4_097, 16_385] {
        judge(&frame(0x82, b"\0\x01", b"\0\x01a\0", count), V4, Peer::Client);
        judge(&frame(0xa2, b"\0\x01", b"\0\x01a", count), V4, Peer::Client);
        judge(&frame(0x82, b"\0\x01\0", b"\0\x03a#b\0", count), V5, Peer::Client);
        let mut block = Vec::new();
        let users = u32::try_from(count * 5).expect("fits");
        crate::codec::writer::put_varint(&mut block, users);
        let head = [&[0, 1, 0][..], &block].concat();
        judge(&frame(0x40, &head, b"\x26\0\0\0\0", count), V5, Peer::Client);
    }
}
