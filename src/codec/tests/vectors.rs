//! Every row of `tests/data/codec-vectors.csv`: the class of its fault and its reason code.

use crate::codec::{
    DecodeError, Fault, MAX_PACKET_SIZE, Packet, Peer, SubscribeFilter, decode, encode,
    frame_length,
};
use crate::mqtt::ProtocolVersion;

const VECTORS: &str = include_str!("../../../tests/data/codec-vectors.csv");

pub(super) struct Vector {
    pub(super) name: &'static str,
    pub(super) version: ProtocolVersion,
    pub(super) from: Peer,
    pub(super) frame: Vec<u8>,
    pub(super) expected: &'static str,
    /// A byte, `close`, or nothing.
    code: &'static str,
}

impl Vector {
    /// What the connection knows when the frame arrives: nothing before a CONNECT.
    pub(super) fn agreed(&self) -> Option<ProtocolVersion> {
        (self.frame[0] >> 4 != 1).then_some(self.version)
    }

    /// As a connection does it: the fixed header first, then the whole frame.
    pub(super) fn decode(&self) -> Result<Packet<'_>, DecodeError> {
        let length = frame_length(&self.frame, self.agreed(), self.from, MAX_PACKET_SIZE)?;
        let length = length.expect("the vector's fixed header is whole");
        assert_eq!(length.total, self.frame.len(), "{}: one whole frame", self.name);
        decode(&self.frame, self.agreed(), self.from)
    }
}

pub(super) fn all() -> Vec<Vector> {
    VECTORS.lines().skip(1).map(parse).collect()
}

fn parse(line: &'static str) -> Vector {
    let fields: Vec<&str> = line.split(',').collect();
    let [name, level, direction, hex, expected, code] = fields[..] else {
        panic!("six fields: {line}");
    };
    let level = level.parse().expect("a level");
    Vector {
        name,
        version: ProtocolVersion::from_level(level).expect("a known level"),
        from: match direction {
            "c2s" => Peer::Client,
            "s2c" => Peer::Server,
            other => panic!("{name}: direction {other}"),
        },
        frame: bytes(hex),
        expected,
        code,
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// CON-01, CON-04, CON-05, CON-09, CON-12, PAR-01, PAR-03, PAR-08, SUB-10, SUB-11.
#[test]
fn every_vector_is_judged_as_the_table_says() {
    let vectors = all();
    assert!(vectors.len() >= 126, "the table is there: {} rows", vectors.len());
    for vector in &vectors {
        let name = vector.name;
        match (vector.decode(), vector.expected) {
            (Ok(packet), "ok") => check_answer(vector, &packet),
            (Err(error), "malformed") => {
                assert_eq!(error.fault, Fault::Malformed, "{name}: {error}");
                check_reason(vector, &error);
            }
            (Err(error), "protocol-error") => {
                assert_eq!(error.fault, Fault::ProtocolError, "{name}: {error}");
                check_reason(vector, &error);
            }
            (got, expected) => panic!("{name}: {expected} expected, got {got:?}"),
        }
    }
}

/// The reason code that a good packet itself leads to, where the table names one.
fn check_answer(vector: &Vector, packet: &Packet<'_>) {
    let answer = if let Packet::Subscribe(subscribe) = packet {
        let SubscribeFilter { filter, options } = &subscribe.filters[0];
        assert!(filter.is_ok(), "{}: {filter:?}", vector.name);
        options.qos.bits()
    } else if let Packet::Auth(auth) = packet {
        auth.reason.byte()
    } else {
        0
    };
    if !vector.code.is_empty() {
        assert_eq!(format!("0x{answer:02x}"), vector.code, "{}", vector.name);
    }
}

fn check_reason(vector: &Vector, error: &DecodeError) {
    let name = vector.name;
    let code = match (vector.version.is_v5(), error.connack_v3) {
        (true, _) => format!("0x{:02x}", error.reason.byte()),
        (false, Some(code)) => format!("0x{code:02x}"),
        (false, None) => "close".to_owned(),
    };
    assert_eq!(code, vector.code, "{name}: {error}");
}

/// What was read means the same when it is written and read again.
#[test]
fn every_good_vector_survives_encoding() {
    for vector in all().iter().filter(|vector| vector.expected == "ok") {
        let packet = vector.decode().expect(vector.name);
        let mut again = Vec::new();
        encode(&packet, vector.version, &mut again).expect(vector.name);
        let read = decode(&again, vector.agreed(), vector.from).expect(vector.name);
        assert_eq!(read, packet, "{}: {again:02x?}", vector.name);
    }
}
