//! MQTT 5 properties as a strict reader sees them: known, allowed here, once, and in range.

use super::parse::Reader;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u32),
    Bytes(Vec<u8>),
    Pair(Vec<u8>, Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Property {
    pub(crate) id: u8,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties(pub(crate) Vec<Property>);

enum Kind {
    Byte,
    Two,
    Four,
    Varint,
    Text,
    Binary,
    Pair,
}

/// Section 2.2.2.2, table 2-4: identifier, type, and the packets (by type number) that a server
/// may send it in.
const TABLE: [(u8, Kind, &[u8]); 25] = [
    (0x01, Kind::Byte, &[3]),
    (0x02, Kind::Four, &[3]),
    (0x03, Kind::Text, &[3]),
    (0x08, Kind::Text, &[3]),
    (0x09, Kind::Binary, &[3]),
    (0x0B, Kind::Varint, &[3]),
    (0x11, Kind::Four, &[2]),
    (0x12, Kind::Text, &[2]),
    (0x13, Kind::Two, &[2]),
    (0x15, Kind::Text, &[2, 15]),
    (0x16, Kind::Binary, &[2, 15]),
    (0x1A, Kind::Text, &[2]),
    (0x1C, Kind::Text, &[2, 14]),
    (0x1F, Kind::Text, &[2, 4, 5, 6, 7, 9, 11, 14, 15]),
    (0x21, Kind::Two, &[2]),
    (0x22, Kind::Two, &[2]),
    (0x23, Kind::Two, &[3]),
    (0x24, Kind::Byte, &[2]),
    (0x25, Kind::Byte, &[2]),
    (0x26, Kind::Pair, &[2, 3, 4, 5, 6, 7, 9, 11, 14, 15]),
    (0x27, Kind::Four, &[2]),
    (0x28, Kind::Byte, &[2]),
    (0x29, Kind::Byte, &[2]),
    (0x2A, Kind::Byte, &[2]),
    (0x17, Kind::Byte, &[]),
];

impl Properties {
    pub(crate) fn read(reader: &mut Reader<'_>, packet: u8) -> Result<Self, String> {
        let length = reader.varint()?;
        let mut inner = Reader::new(reader.take(length)?);
        let mut found: Vec<Property> = Vec::new();
        while !inner.is_empty() {
            let id = u8::try_from(inner.varint()?).map_err(|_| "property identifier".to_owned())?;
            let Some((_, kind, packets)) = TABLE.iter().find(|(known, _, _)| *known == id) else {
                return Err(format!("unknown property {id:#x}"));
            };
            if !packets.contains(&packet) {
                return Err(format!("property {id:#x} in packet type {packet}"));
            }
            let may_repeat = id == 0x26 || id == 0x0B;
            if !may_repeat && found.iter().any(|property| property.id == id) {
                return Err(format!("property {id:#x} twice"));
            }
            found.push(Property { id, value: value(&mut inner, id, kind)? });
        }
        Ok(Properties(found))
    }

    pub(crate) fn number(&self, id: u8) -> Option<u32> {
        self.0.iter().find(|property| property.id == id).and_then(|property| match property.value {
            Value::Number(number) => Some(number),
            Value::Bytes(_) | Value::Pair(_, _) => None,
        })
    }

    pub(crate) fn bytes(&self, id: u8) -> Option<&[u8]> {
        self.0.iter().find(|property| property.id == id).and_then(|property| {
            match &property.value {
                Value::Bytes(bytes) => Some(bytes.as_slice()),
                Value::Number(_) | Value::Pair(_, _) => None,
            }
        })
    }

    /// Every subscription identifier, in order of size.
    pub(crate) fn subscription_ids(&self) -> Vec<u32> {
        let ids = self.0.iter().filter(|property| property.id == 0x0B);
        let number = |property: &Property| match property.value {
            Value::Number(number) => Some(number),
            Value::Bytes(_) | Value::Pair(_, _) => None,
        };
        let mut ids: Vec<u32> = ids.filter_map(number).collect();
        ids.sort_unstable();
        ids
    }

    /// User properties as text, in their order.
    pub(crate) fn user(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pair = |property: &Property| match &property.value {
            Value::Pair(key, value) => Some((text(key), text(value))),
            Value::Number(_) | Value::Bytes(_) => None,
        };
        self.0.iter().filter_map(pair).collect()
    }
}

fn value(reader: &mut Reader<'_>, id: u8, kind: &Kind) -> Result<Value, String> {
    let value = match kind {
        Kind::Byte => Value::Number(u32::from(reader.byte()?)),
        Kind::Two => Value::Number(u32::from(reader.two()?)),
        Kind::Four => Value::Number(reader.four()?),
        Kind::Varint => Value::Number(reader.varint()? as u32),
        Kind::Text => Value::Bytes(reader.text()?),
        Kind::Binary => Value::Bytes(reader.binary()?),
        Kind::Pair => Value::Pair(reader.text()?, reader.text()?),
    };
    let flag = matches!(kind, Kind::Byte);
    let not_zero = matches!(id, 0x0B | 0x21 | 0x23 | 0x27);
    match value {
        Value::Number(number) if flag && number > 1 => Err(format!("property {id:#x} is {number}")),
        Value::Number(0) if not_zero => Err(format!("property {id:#x} is 0")),
        Value::Number(_) | Value::Bytes(_) | Value::Pair(_, _) => Ok(value),
    }
}
