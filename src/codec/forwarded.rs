//! The properties that travel with a message from publisher to subscriber, unaltered and in order
//! (MQTT-3.3.2-4, -15, -16, -17, -18, -20): reading a checked blob of them, and making one.

use super::properties::id;
use super::reader::Reader;
use super::writer::{put_binary, put_text};
use super::{DecodeError, EncodeError};

/// One of them, borrowed from a blob in the form of [`super::Publish::properties`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedProperty<'a> {
    /// Payload Format Indicator: whether the payload is UTF-8 text.
    PayloadIsText(bool),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    User(&'a str, &'a str),
}

/// Walks over a blob that a decoder has checked. Bytes that no decoder let through end the walk.
pub fn forwarded_properties(blob: &[u8]) -> impl Iterator<Item = ForwardedProperty<'_>> {
    let mut reader = Reader::new(blob);
    std::iter::from_fn(move || next(&mut reader).ok().flatten())
}

fn next<'a>(reader: &mut Reader<'a>) -> Result<Option<ForwardedProperty<'a>>, DecodeError> {
    if reader.is_empty() {
        return Ok(None);
    }
    Ok(Some(match reader.u8()? {
        id::PAYLOAD_FORMAT => ForwardedProperty::PayloadIsText(reader.u8()? == 1),
        id::CONTENT_TYPE => ForwardedProperty::ContentType(reader.text()?),
        id::RESPONSE_TOPIC => ForwardedProperty::ResponseTopic(reader.text()?),
        id::CORRELATION_DATA => ForwardedProperty::CorrelationData(reader.binary()?),
        id::USER_PROPERTY => ForwardedProperty::User(reader.text()?, reader.text()?),
        _ => return Ok(None),
    }))
}

/// Appends one property to a blob; nothing is appended when a field is longer than MQTT can carry.
/// All but [`ForwardedProperty::User`] may stand in a blob once: the caller's to keep, as is that
/// a response topic is a topic name and that no text holds U+0000.
pub fn put_forwarded_property(
    blob: &mut Vec<u8>,
    property: ForwardedProperty<'_>,
) -> Result<(), EncodeError> {
    let start = blob.len();
    let written = match property {
        ForwardedProperty::PayloadIsText(is_text) => {
            blob.extend_from_slice(&[id::PAYLOAD_FORMAT, u8::from(is_text)]);
            Ok(())
        }
        ForwardedProperty::ContentType(text) => {
            blob.push(id::CONTENT_TYPE);
            put_text(blob, text)
        }
        ForwardedProperty::ResponseTopic(topic) => {
            blob.push(id::RESPONSE_TOPIC);
            put_text(blob, topic)
        }
        ForwardedProperty::CorrelationData(data) => {
            blob.push(id::CORRELATION_DATA);
            put_binary(blob, data)
        }
        ForwardedProperty::User(name, value) => {
            blob.push(id::USER_PROPERTY);
            put_text(blob, name).and_then(|()| put_text(blob, value))
        }
    };
    if written.is_err() {
        blob.truncate(start);
    }
    written
}
