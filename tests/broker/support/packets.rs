//! Client packets made by hand, right or wrong: nothing here checks what it is asked to write.

/// The protocol level in CONNECT, and with it the shape of every later packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    V31,
    V311,
    V5,
}

impl Level {
    pub(crate) const ALL: [Level; 3] = [Level::V31, Level::V311, Level::V5];

    pub(crate) fn is_v5(self) -> bool {
        self == Level::V5
    }

    /// The variable header's start: protocol name and level.
    fn head(self) -> Vec<u8> {
        match self {
            Level::V31 => wire::all(&[&wire::text("MQIsdp"), &[3]]),
            Level::V311 => wire::all(&[&wire::text("MQTT"), &[4]]),
            Level::V5 => wire::all(&[&wire::text("MQTT"), &[5]]),
        }
    }
}

/// Bytes from hex digits; spaces may stand between them.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2), "an odd number of hex digits");
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// Single properties, each as its identifier and value.
pub(crate) mod prop {
    use super::wire;

    pub(crate) fn byte(id: u8, value: u8) -> Vec<u8> {
        vec![id, value]
    }

    pub(crate) fn two(id: u8, value: u16) -> Vec<u8> {
        wire::all(&[&[id], &value.to_be_bytes()])
    }

    pub(crate) fn four(id: u8, value: u32) -> Vec<u8> {
        wire::all(&[&[id], &value.to_be_bytes()])
    }

    /// Strings and binary data look alike on the wire.
    pub(crate) fn text(id: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
        wire::all(&[&[id], &wire::text(value)])
    }

    pub(crate) fn user(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Vec<u8> {
        wire::all(&[&[0x26], &wire::text(key), &wire::text(value)])
    }

    pub(crate) fn subscription_id(id: usize) -> Vec<u8> {
        wire::all(&[&[0x0B], &wire::varint(id)])
    }

    pub(crate) fn session_expiry(seconds: u32) -> Vec<u8> {
        four(0x11, seconds)
    }

    pub(crate) fn receive_maximum(value: u16) -> Vec<u8> {
        two(0x21, value)
    }
}

/// Whole packets and their parts.
pub(crate) mod wire {
    use super::Level;

    pub(crate) fn all(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    /// A length of two bytes, then the bytes.
    pub(crate) fn text(value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        all(&[&(value.len() as u16).to_be_bytes(), value])
    }

    pub(crate) fn varint(mut value: usize) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let low = (value % 128) as u8;
            value /= 128;
            out.push(if value > 0 { low | 0x80 } else { low });
            if value == 0 {
                return out;
            }
        }
    }

    pub(crate) fn frame(first: u8, body: &[u8]) -> Vec<u8> {
        all(&[&[first], &varint(body.len()), body])
    }

    /// The property block: empty for the levels that have none.
    pub(crate) fn block(level: Level, properties: &[u8]) -> Vec<u8> {
        if !level.is_v5() {
            assert!(properties.is_empty(), "properties need level 5");
            return Vec::new();
        }
        all(&[&varint(properties.len()), properties])
    }

    /// PUBLISH; the low bits of `flags` are DUP, QoS and RETAIN as on the wire.
    pub(crate) fn publish(
        level: Level,
        flags: u8,
        topic: impl AsRef<[u8]>,
        id: u16,
        properties: &[u8],
        payload: impl AsRef<[u8]>,
    ) -> Vec<u8> {
        let id = if flags & 0x06 == 0 { Vec::new() } else { id.to_be_bytes().to_vec() };
        let properties = block(level, properties);
        frame(0x30 | flags, &all(&[&text(topic), &id, &properties, payload.as_ref()]))
    }

    /// SUBSCRIBE to filters, each with its option byte.
    pub(crate) fn subscribe(
        level: Level,
        id: u16,
        properties: &[u8],
        filters: &[(&[u8], u8)],
    ) -> Vec<u8> {
        let mut body = all(&[&id.to_be_bytes(), &block(level, properties)]);
        for (filter, options) in filters {
            body.extend(text(filter));
            body.push(*options);
        }
        frame(0x82, &body)
    }

    pub(crate) fn unsubscribe(level: Level, id: u16, filters: &[&[u8]]) -> Vec<u8> {
        let mut body = all(&[&id.to_be_bytes(), &block(level, &[])]);
        filters.iter().for_each(|filter| body.extend(text(filter)));
        frame(0xA2, &body)
    }

    /// PUBACK 4, PUBREC 5, PUBREL 6, PUBCOMP 7, in the short form that every level knows.
    pub(crate) fn ack(kind: u8, id: u16) -> Vec<u8> {
        let flags = if kind == 6 { 2 } else { 0 };
        frame(kind << 4 | flags, &id.to_be_bytes())
    }

    pub(crate) const PINGREQ: [u8; 2] = [0xC0, 0];
    pub(crate) const DISCONNECT: [u8; 2] = [0xE0, 0];
}

/// A Will, as CONNECT carries it.
#[derive(Clone, Debug)]
pub(crate) struct Will {
    pub(crate) topic: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) qos: u8,
    pub(crate) retain: bool,
    pub(crate) properties: Vec<u8>,
}

impl Will {
    pub(crate) fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        let (topic, payload) = (topic.as_ref().to_vec(), payload.as_ref().to_vec());
        Will { topic, payload, qos: 0, retain: false, properties: Vec::new() }
    }

    pub(crate) fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    pub(crate) fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    pub(crate) fn delay(self, seconds: u32) -> Self {
        self.with(prop::four(0x18, seconds))
    }

    pub(crate) fn with(mut self, property: Vec<u8>) -> Self {
        self.properties.extend(property);
        self
    }
}

/// CONNECT with every option.
#[derive(Clone, Debug)]
pub(crate) struct Connect {
    pub(crate) level: Level,
    id: Vec<u8>,
    clean: bool,
    keep_alive: u16,
    user: Option<Vec<u8>>,
    password: Option<Vec<u8>>,
    will: Option<Will>,
    properties: Vec<u8>,
}

impl Connect {
    /// A clean session without keep-alive.
    pub(crate) fn new(level: Level, id: impl AsRef<[u8]>) -> Self {
        Connect {
            level,
            id: id.as_ref().to_vec(),
            clean: true,
            keep_alive: 0,
            user: None,
            password: None,
            will: None,
            properties: Vec::new(),
        }
    }

    pub(crate) fn v311(id: impl AsRef<[u8]>) -> Self {
        Connect::new(Level::V311, id)
    }

    pub(crate) fn v5(id: impl AsRef<[u8]>) -> Self {
        Connect::new(Level::V5, id)
    }

    /// A session that outlives the connection, resumed if there is one: clean session 0, and on
    /// level 5 an expiry of 300 s.
    pub(crate) fn persistent(self) -> Self {
        if self.level.is_v5() { self.resume().expiry(300) } else { self.resume() }
    }

    /// Clean start 0 (clean session 0).
    pub(crate) fn resume(mut self) -> Self {
        self.clean = false;
        self
    }

    pub(crate) fn expiry(self, seconds: u32) -> Self {
        self.with(prop::session_expiry(seconds))
    }

    pub(crate) fn keep_alive(mut self, seconds: u16) -> Self {
        self.keep_alive = seconds;
        self
    }

    pub(crate) fn user(mut self, user: impl AsRef<[u8]>) -> Self {
        self.user = Some(user.as_ref().to_vec());
        self
    }

    pub(crate) fn password(mut self, password: impl AsRef<[u8]>) -> Self {
        self.password = Some(password.as_ref().to_vec());
        self
    }

    pub(crate) fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    pub(crate) fn with(mut self, property: Vec<u8>) -> Self {
        self.properties.extend(property);
        self
    }

    pub(crate) fn id(&self) -> &[u8] {
        &self.id
    }

    pub(crate) fn flags(&self) -> u8 {
        let will = self.will.as_ref();
        let will = will.map_or(0, |will| 4 | will.qos << 3 | u8::from(will.retain) << 5);
        u8::from(self.clean) << 1
            | will
            | u8::from(self.password.is_some()) << 6
            | u8::from(self.user.is_some()) << 7
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes_with(self.flags(), &[])
    }

    /// The packet with other flags than its fields call for, and with surplus bytes at its end.
    pub(crate) fn bytes_with(&self, flags: u8, surplus: &[u8]) -> Vec<u8> {
        let mut body = self.level.head();
        body.push(flags);
        body.extend(self.keep_alive.to_be_bytes());
        body.extend(wire::block(self.level, &self.properties));
        body.extend(wire::text(&self.id));
        if let Some(will) = &self.will {
            body.extend(wire::block(self.level, &will.properties));
            body.extend(wire::text(&will.topic));
            body.extend(wire::text(&will.payload));
        }
        for field in [&self.user, &self.password].into_iter().flatten() {
            body.extend(wire::text(field));
        }
        body.extend(surplus);
        wire::frame(0x10, &body)
    }
}
