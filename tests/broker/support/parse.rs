//! A strict parser for what a server sends (CON-14): every reserved bit, length, code and property
//! is checked, so that each test is also a conformance test of the bytes it got.

use super::packets::Level;
use super::properties::Properties;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) dup: bool,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) topic: Vec<u8>,
    /// 0 at QoS 0.
    pub(crate) id: u16,
    pub(crate) properties: Properties,
    pub(crate) payload: Vec<u8>,
}

impl Publish {
    pub(crate) fn topic(&self) -> String {
        String::from_utf8_lossy(&self.topic).into_owned()
    }

    pub(crate) fn payload(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Connack {
        session_present: bool,
        code: u8,
        properties: Properties,
    },
    Publish(Publish),
    Ack {
        kind: AckKind,
        id: u16,
        code: u8,
        properties: Properties,
    },
    Suback {
        id: u16,
        codes: Vec<u8>,
        properties: Properties,
    },
    /// On the older levels there are no codes.
    Unsuback {
        id: u16,
        codes: Vec<u8>,
        properties: Properties,
    },
    Pingresp,
    Disconnect {
        code: u8,
        properties: Properties,
    },
    Auth {
        code: u8,
        properties: Properties,
    },
}

/// The next whole packet and its length; none while bytes are missing.
pub(crate) fn parse(level: Level, bytes: &[u8]) -> Result<Option<(Packet, usize)>, String> {
    let mut reader = Reader::new(bytes);
    let Ok(first) = reader.byte() else { return Ok(None) };
    let length = match reader.varint() {
        Ok(length) => length,
        Err(_) if bytes.len() < 5 => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let head = bytes.len() - reader.rest.len();
    let Ok(body) = reader.take(length) else { return Ok(None) };
    let total = head + length;
    let mut body = Reader::new(body);
    let packet = packet(level, first, &mut body)
        .map_err(|fault| format!("{fault} in {:02x?}", &bytes[..total.min(64)]))?;
    if !body.is_empty() {
        return Err(format!("surplus bytes in {:02x?}", &bytes[..total.min(64)]));
    }
    Ok(Some((packet, total)))
}

fn packet(level: Level, first: u8, body: &mut Reader<'_>) -> Result<Packet, String> {
    let (kind, flags) = (first >> 4, first & 0x0F);
    let due = match kind {
        3 => flags,
        6 => 2,
        _ => 0,
    };
    if flags != due {
        return Err(format!("reserved bits {flags:#x} in packet type {kind}"));
    }
    match kind {
        2 => connack(level, body),
        3 => publish(level, flags, body).map(Packet::Publish),
        4 => ack(level, AckKind::Puback, body),
        5 => ack(level, AckKind::Pubrec, body),
        6 => ack(level, AckKind::Pubrel, body),
        7 => ack(level, AckKind::Pubcomp, body),
        9 => suback(level, body),
        11 => unsuback(level, body),
        13 => Ok(Packet::Pingresp),
        14 if level.is_v5() => disconnect(body),
        15 if level.is_v5() => auth(body),
        _ => Err(format!("packet type {kind} from a server")),
    }
}

/// A reason code that the packet allows; the message says which packet.
fn code(code: u8, allowed: &[u8], packet: &str) -> Result<u8, String> {
    if allowed.contains(&code) { Ok(code) } else { Err(format!("{packet} with code {code:#x}")) }
}

const CONNACK: [u8; 22] = [
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
    0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
];

fn connack(level: Level, body: &mut Reader<'_>) -> Result<Packet, String> {
    let flags = body.byte()?;
    if flags > 1 {
        return Err(format!("CONNACK flags {flags:#x}"));
    }
    let allowed: &[u8] = if level.is_v5() { &CONNACK } else { &[0, 1, 2, 3, 4, 5] };
    let code = code(body.byte()?, allowed, "CONNACK")?;
    if code != 0 && flags != 0 {
        return Err("a refusal with Session Present 1".to_owned());
    }
    let properties = properties(level, body, 2)?;
    Ok(Packet::Connack { session_present: flags == 1, code, properties })
}

fn publish(level: Level, flags: u8, body: &mut Reader<'_>) -> Result<Publish, String> {
    let (dup, qos, retain) = (flags & 8 != 0, flags >> 1 & 3, flags & 1 != 0);
    if qos == 3 || (dup && qos == 0) {
        return Err(format!("PUBLISH flags {flags:#x}"));
    }
    let topic = body.text()?;
    if topic.contains(&b'+') || topic.contains(&b'#') {
        return Err("a wildcard in a topic name".to_owned());
    }
    let id = if qos == 0 { 0 } else { body.id()? };
    let properties = properties(level, body, 3)?;
    if topic.is_empty() && properties.number(0x23).is_none() {
        return Err("an empty topic name without an alias".to_owned());
    }
    let payload = body.rest.to_vec();
    body.rest = &[];
    Ok(Publish { dup, qos, retain, topic, id, properties, payload })
}

fn ack(level: Level, kind: AckKind, body: &mut Reader<'_>) -> Result<Packet, String> {
    let id = body.id()?;
    let first: &[u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
    let allowed = match kind {
        AckKind::Puback | AckKind::Pubrec => first,
        AckKind::Pubrel | AckKind::Pubcomp => &[0x00, 0x92],
    };
    let packet = 4 + kind as u8;
    let (mut reason, mut found) = (0, Properties::default());
    if level.is_v5() && !body.is_empty() {
        reason = code(body.byte()?, allowed, "an acknowledgement")?;
        if !body.is_empty() {
            found = properties(level, body, packet)?;
        }
    }
    Ok(Packet::Ack { kind, id, code: reason, properties: found })
}

fn codes(body: &mut Reader<'_>, allowed: &[u8], packet: &str) -> Result<Vec<u8>, String> {
    let mut codes = Vec::new();
    while !body.is_empty() {
        codes.push(code(body.byte()?, allowed, packet)?);
    }
    if codes.is_empty() { Err(format!("{packet} without a code")) } else { Ok(codes) }
}

fn suback(level: Level, body: &mut Reader<'_>) -> Result<Packet, String> {
    let id = body.id()?;
    let properties = properties(level, body, 9)?;
    let v5: &[u8] = &[0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2];
    let allowed = match level {
        Level::V31 => &[0, 1, 2, 0x80],
        Level::V311 => &[0, 1, 2, 0x80],
        Level::V5 => v5,
    };
    Ok(Packet::Suback { id, codes: codes(body, allowed, "SUBACK")?, properties })
}

fn unsuback(level: Level, body: &mut Reader<'_>) -> Result<Packet, String> {
    let id = body.id()?;
    let properties = properties(level, body, 11)?;
    let allowed = [0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91];
    let codes = if level.is_v5() { codes(body, &allowed, "UNSUBACK")? } else { Vec::new() };
    Ok(Packet::Unsuback { id, codes, properties })
}

fn disconnect(body: &mut Reader<'_>) -> Result<Packet, String> {
    if body.is_empty() {
        return Ok(Packet::Disconnect { code: 0, properties: Properties::default() });
    }
    let reason = body.byte()?;
    let allowed = reason == 0 || (0x80..=0xA2).contains(&reason) && !CONNECT_ONLY.contains(&reason);
    if !allowed {
        return Err(format!("DISCONNECT with code {reason:#x}"));
    }
    let properties =
        if body.is_empty() { Properties::default() } else { Properties::read(body, 14)? };
    Ok(Packet::Disconnect { code: reason, properties })
}

/// Reason codes of section 2.4 that no DISCONNECT carries.
const CONNECT_ONLY: [u8; 8] = [0x84, 0x85, 0x86, 0x88, 0x8A, 0x8C, 0x91, 0x92];

fn auth(body: &mut Reader<'_>) -> Result<Packet, String> {
    if body.is_empty() {
        return Ok(Packet::Auth { code: 0, properties: Properties::default() });
    }
    let code = code(body.byte()?, &[0, 0x18], "AUTH")?;
    Ok(Packet::Auth { code, properties: Properties::read(body, 15)? })
}

fn properties(level: Level, body: &mut Reader<'_>, packet: u8) -> Result<Properties, String> {
    if level.is_v5() { Properties::read(body, packet) } else { Ok(Properties::default()) }
}

/// What is left of a packet.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("bytes are missing")?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn two(&mut self) -> Result<u16, String> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(crate) fn four(&mut self) -> Result<u32, String> {
        Ok(u32::from(self.two()?) << 16 | u32::from(self.two()?))
    }

    fn id(&mut self) -> Result<u16, String> {
        let id = self.two()?;
        if id == 0 { Err("packet identifier 0".to_owned()) } else { Ok(id) }
    }

    /// In the fewest bytes only (MQTT-1.5.5-1).
    pub(crate) fn varint(&mut self) -> Result<usize, String> {
        let mut value = 0;
        for position in 0..4 {
            let byte = self.byte()?;
            value |= usize::from(byte & 0x7F) << (7 * position);
            if byte & 0x80 == 0 {
                let wasteful = byte == 0 && position > 0;
                return if wasteful { Err("a long integer".to_owned()) } else { Ok(value) };
            }
        }
        Err("an integer of five bytes".to_owned())
    }

    pub(crate) fn binary(&mut self) -> Result<Vec<u8>, String> {
        let length = usize::from(self.two()?);
        self.take(length).map(<[u8]>::to_vec)
    }

    /// UTF-8 without U+0000 (MQTT-1.5.4-1, -2).
    pub(crate) fn text(&mut self) -> Result<Vec<u8>, String> {
        let bytes = self.binary()?;
        match std::str::from_utf8(&bytes) {
            Ok(text) if !text.contains('\0') => Ok(bytes),
            Ok(_) | Err(_) => Err("bad UTF-8".to_owned()),
        }
    }
}
