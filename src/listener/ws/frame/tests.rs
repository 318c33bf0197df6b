use proptest::prelude::*;

use super::*;

/// A client's frame, masked.
fn frame(first: u8, mask: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..126 => bytes.push(0x80 | short as u8),
        middle @ 126..65_536 => {
            bytes.push(0x80 | 126);
            bytes.extend((middle as u16).to_be_bytes());
        }
        long => {
            bytes.push(0x80 | 127);
            bytes.extend((long as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// Feeds `bytes` in pieces: the payload, the pings, the end.
fn feed(decoder: &mut Decoder, bytes: &[u8], piece: usize) -> (Vec<u8>, Vec<Vec<u8>>, Option<End>) {
    let (mut payload, mut pings) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        let mut piece = piece.to_vec();
        let decoded = decoder.decode(&mut piece);
        payload.extend_from_slice(&piece[..decoded.payload]);
        pings.extend(decoded.ping);
        if decoded.end.is_some() {
            return (payload, pings, decoded.end);
        }
    }
    (payload, pings, None)
}

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

proptest! {
    /// Whatever is cut into frames, fragments and pieces how, with pings in between: the payload
    /// comes out as it went in.
    #[test]
    fn payload_survives_every_cut(
        parts in prop::collection::vec((0usize..70_000, any::<[u8; 4]>(), any::<bool>()), 0..6),
        piece in 1usize..100_000,
    ) {
        let (mut bytes, mut expected, mut open) = (Vec::new(), Vec::new(), false);
        let mut pings = 0;
        for (length, mask, last) in parts {
            let payload: Vec<u8> = (0..length).map(|n| (n * 31 % 251) as u8).collect();
            let opcode = if open { 0 } else { 2 };
            bytes.extend(frame(if last { 0x80 } else { 0 } | opcode, mask, &payload));
            open = !last;
            bytes.extend(frame(0x89, mask, b"still there?"));
            bytes.extend(frame(0x8A, mask, b""));
            pings += 1;
            expected.extend(payload);
        }
        let mut decoder = Decoder::new(70_000);
        let (payload, answered, end) = feed(&mut decoder, &bytes, piece);
        prop_assert_eq!(payload, expected);
        prop_assert!(answered.len() <= pings && (pings == 0 || !answered.is_empty()));
        prop_assert!(answered.iter().all(|ping| ping == b"still there?"));
        prop_assert_eq!(end, None);
    }

    /// No bytes make it panic or go on behind an end.
    #[test]
    fn any_bytes_are_frames_or_an_end(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        piece in 1usize..100,
    ) {
        feed(&mut Decoder::new(1000), &bytes, piece);
    }
}

/// WSS-02, WSS-04, MQTT-6.0.0-1: text, no mask, extension bits, odd fragments, wasteful lengths
/// and over-long frames end with the close code that tells why.
#[test]
fn broken_rules_have_their_close_code() {
    let protocol = code::PROTOCOL;
    let of = |first: u8, payload: &[u8]| frame(first, MASK, payload);
    let cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("text", of(0x81, b"hello"), code::UNSUPPORTED),
        ("no mask", vec![0x82, 0x01, 0x00], protocol),
        ("an extension bit", of(0xC2, b"x"), protocol),
        ("a fragment of nothing", of(0x80, b"x"), protocol),
        ("a message inside a message", [of(0x02, b"x"), of(0x82, b"y")].concat(), protocol),
        ("a ping in pieces", of(0x09, b"x"), protocol),
        ("a long ping", of(0x89, &[0; 126]), protocol),
        ("an unknown opcode", of(0x83, b"x"), protocol),
        ("an unknown control frame", of(0x8B, b"x"), protocol),
        ("a wasteful length", vec![0x82, 0xFE, 0, 5], protocol),
        ("a wasteful long length", vec![0x82, 0xFF, 0, 0, 0, 0, 0, 0, 1, 0], protocol),
        ("a negative length", vec![0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0], protocol),
        ("64 MB", vec![0x82, 0xFF, 0, 0, 0, 0, 4, 0, 0, 0], code::TOO_BIG),
        ("half a close code", of(0x88, &[3]), protocol),
        ("a close code that is never sent", of(0x88, &1005_u16.to_be_bytes()), protocol),
        ("a close reason that is no text", of(0x88, &[3, 0xE8, 0xFF]), protocol),
    ];
    for (what, bytes, code) in cases {
        for piece in [1, bytes.len()] {
            let (_, _, end) = feed(&mut Decoder::new(1 << 20), &bytes, piece);
            assert_eq!(end, Some(End::Fault(code)), "{what}");
        }
    }
}

#[test]
fn a_close_frame_is_answered_with_its_code_and_ends_all() {
    let bytes = [frame(0x88, MASK, b"\x03\xE9going"), frame(0x82, MASK, b"late")].concat();
    let (payload, _, end) = feed(&mut Decoder::new(1000), &bytes, 1000);
    assert_eq!((payload, end), (Vec::new(), Some(End::Closed(vec![3, 0xE9]))));
    let (_, _, end) = feed(&mut Decoder::new(1000), &frame(0x88, MASK, b""), 1);
    assert_eq!(end, Some(End::Closed(Vec::new())));
}

/// RFC 6455 section 5.7's example, and the three forms of our own heads.
#[test]
fn heads_are_those_of_the_specification() {
    let hello = [0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(feed(&mut Decoder::new(5), &hello, 3).0, b"Hello");
    assert_eq!(binary_head(125), ([0x82, 125, 0, 0, 0, 0, 0, 0, 0, 0], 2));
    assert_eq!(binary_head(126), ([0x82, 126, 0, 126, 0, 0, 0, 0, 0, 0], 4));
    assert_eq!(binary_head(65_536), ([0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], 10));
    assert_eq!(pong(b"x"), [0x8A, 1, b'x']);
    assert_eq!(close(&code::NORMAL.to_be_bytes()), [0x88, 2, 3, 0xE8]);
}
