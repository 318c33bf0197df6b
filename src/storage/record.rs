//! The log's own record format, versioned; never the wire format.
//!
//! A batch is what one read of one publisher's socket gave: several messages under one header, so
//! that the log, the dispatcher and the outboxes pay per batch. Layout, little endian:
//!
//! ```text
//! version u8 · reserved u8 · id length u16 · session incarnation u64 · epoch u64 · received ms u64
//! · client id · message …
//! message: flags u8 · packet id u16 · expiry s u32 (if flagged) · topic length u16
//!          · properties length u32 · payload length u32 · topic · properties · payload
//! ```
//! `properties` are the MQTT 5 properties that are forwarded unaltered and in order, in the
//! encoding of MQTT 5 section 2.2.2.2: payload format, content type, response topic, correlation
//! data, user properties. This room does not look into them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::ports::StorageError;
use crate::mqtt::{ClientId, PacketId, QoS};

/// The only version there is; another one is refused.
pub const BATCH_VERSION: u8 = 1;

const HEADER: usize = 28;
/// Bytes of a batch from which on spare room is given back.
const WORTH_SHRINKING: usize = 4096;
const QOS: u8 = 0b0000_0011;
const RETAIN: u8 = 0b0000_0100;
const WILL: u8 = 0b0000_1000;
const RELEASE: u8 = 0b0001_0000;
const EXPIRES: u8 = 0b0010_0000;

/// Who published a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publisher {
    pub client_id: ClientId,
    /// The session's incarnation (the position of the claim that began it).
    pub incarnation: u64,
    /// The connection's fencing epoch (the position of its claim).
    pub epoch: u64,
}

/// What a record in a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Publish,
    /// A Will, fired by `(client, epoch)`: a second one of the same epoch is dropped.
    Will,
    /// PUBREL: ends the QoS 2 exchange of its packet id.
    Release,
}

#[derive(Clone, Copy)]
struct Entry {
    topic_at: u32,
    properties_len: u32,
    payload_len: u32,
    expiry_s: u32,
    topic_len: u16,
    packet_id: u16,
    flags: u8,
}

/// An immutable batch: the encoded bytes and where each message stands in them.
#[derive(Clone)]
pub struct Batch {
    publisher: Arc<Publisher>,
    received_at_ms: u64,
    body: Bytes,
    entries: Box<[Entry]>,
}

/// One message, borrowed from its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageView<'a> {
    pub kind: Kind,
    pub qos: QoS,
    pub retain: bool,
    /// QoS 2 and releases.
    pub packet_id: Option<PacketId>,
    /// The publisher's Message Expiry Interval, seconds, counted from `received_at_ms`.
    pub expiry_s: Option<u32>,
    pub topic: &'a str,
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// Keeps a batch alive to point at one of its messages. Small and cheap to clone.
#[derive(Clone)]
pub struct MessageRef {
    batch: Arc<Batch>,
    index: u32,
}

// === impl Batch ===

impl Batch {
    pub fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }

    /// The ingress node's wall clock, milliseconds since the epoch.
    pub fn received_at_ms(&self) -> u64 {
        self.received_at_ms
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes that go into the log.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    pub fn view(&self, index: usize) -> MessageView<'_> {
        let entry = &self.entries[index];
        let properties_at = entry.topic_at as usize + usize::from(entry.topic_len);
        let payload_at = properties_at + entry.properties_len as usize;
        let topic = &self.body[entry.topic_at as usize..properties_at];
        MessageView {
            kind: entry.kind(),
            qos: QoS::from_bits(entry.flags & QOS).unwrap_or(QoS::ExactlyOnce),
            retain: entry.flags & RETAIN != 0,
            packet_id: PacketId::new(entry.packet_id),
            expiry_s: (entry.flags & EXPIRES != 0).then_some(entry.expiry_s),
            // Checked when the batch was built or parsed.
            topic: std::str::from_utf8(topic).unwrap_or_default(),
            properties: &self.body[properties_at..payload_at],
            payload: &self.body[payload_at..payload_at + entry.payload_len as usize],
        }
    }

    /// The payload as shared bytes, for a frame that refers to it instead of copying.
    pub fn payload(&self, index: usize) -> Bytes {
        let entry = &self.entries[index];
        let at =
            entry.topic_at as usize + usize::from(entry.topic_len) + entry.properties_len as usize;
        self.body.slice(at..at + entry.payload_len as usize)
    }

    /// What the payload takes in memory as long as something refers to it: its part of the batch,
    /// allocator's rounding and headers of its messages included.
    pub fn payload_memory(&self, index: usize) -> usize {
        let payload = self.entries[index].payload_len as usize;
        let records = std::mem::size_of_val(&*self.entries);
        payload * (allocated(self.body.len()) + records) / self.body.len().max(1)
    }

    pub fn views(&self) -> impl Iterator<Item = MessageView<'_>> {
        (0..self.len()).map(|index| self.view(index))
    }

    /// When the message stops being worth delivering (MQTT-3.3.2-5), milliseconds of wall clock.
    pub fn expires_at_ms(&self, index: usize) -> Option<u64> {
        let expiry_s = self.view(index).expiry_s?;
        Some(self.received_at_ms.saturating_add(u64::from(expiry_s) * 1000))
    }

    /// Reads a batch back from the log.
    pub fn parse(body: Bytes) -> Result<Self, StorageError> {
        let mut at = Cursor { body: &body, at: 0 };
        let version = at.u8()?;
        if version != BATCH_VERSION {
            return Err(damaged(format!("batch version {version} is not known")));
        }
        at.u8()?;
        let id_len = at.u16()?;
        let (incarnation, epoch, received_at_ms) = (at.u64()?, at.u64()?, at.u64()?);
        let client_id = ClientId::new(at.text(usize::from(id_len))?);
        let mut entries = Vec::new();
        while at.at < body.len() {
            entries.push(at.entry()?);
        }
        let publisher = Arc::new(Publisher { client_id, incarnation, epoch });
        let entries = entries.into_boxed_slice();
        Ok(Self { publisher, received_at_ms, body, entries })
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}, {} messages)", self.publisher.client_id, self.len())
    }
}

impl Entry {
    fn kind(&self) -> Kind {
        if self.flags & RELEASE != 0 {
            Kind::Release
        } else if self.flags & WILL != 0 {
            Kind::Will
        } else {
            Kind::Publish
        }
    }
}

/// What an allocation of so many bytes takes: jemalloc has four sizes between two powers of two,
/// and gives a large one a page more, so that not all of them begin on the same cache lines.
fn allocated(bytes: usize) -> usize {
    const LARGE: usize = 16 * 1024;
    const PAGE: usize = 4096;
    let below = bytes.max(128) - 1;
    let step = 1 << (below.ilog2() - 2);
    let rounded = below / step * step + step;
    if rounded < LARGE { rounded } else { rounded + PAGE }
}

// === impl MessageRef ===

impl MessageRef {
    pub fn new(batch: Arc<Batch>, index: usize) -> Self {
        Self { batch, index: index as u32 }
    }

    pub fn batch(&self) -> &Arc<Batch> {
        &self.batch
    }

    pub fn index(&self) -> usize {
        self.index as usize
    }

    pub fn view(&self) -> MessageView<'_> {
        self.batch.view(self.index())
    }

    pub fn expires_at_ms(&self) -> Option<u64> {
        self.batch.expires_at_ms(self.index())
    }

    /// The message alone in a batch of its own: what is copied out of a segment that goes, and
    /// what keeps a small message from holding a large batch in memory.
    #[must_use]
    pub fn detached(&self) -> Self {
        let view = self.view();
        let publisher = Arc::clone(&self.batch.publisher);
        let mut builder = BatchBuilder::new(publisher, self.batch.received_at_ms);
        builder.push(&view);
        Self { batch: builder.finish(), index: 0 }
    }
}

impl fmt::Debug for MessageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageRef({}[{}])", self.batch.publisher.client_id, self.index)
    }
}

// === impl BatchBuilder ===

/// Encodes messages straight into the bytes that go into the log: the one copy of a payload.
pub struct BatchBuilder {
    publisher: Arc<Publisher>,
    received_at_ms: u64,
    body: Vec<u8>,
    entries: Vec<Entry>,
}

impl BatchBuilder {
    pub fn new(publisher: Arc<Publisher>, received_at_ms: u64) -> Self {
        let id = publisher.client_id.as_str().as_bytes();
        let mut body = Vec::with_capacity(HEADER + id.len());
        body.extend_from_slice(&[BATCH_VERSION, 0]);
        body.extend_from_slice(&(id.len() as u16).to_le_bytes());
        body.extend_from_slice(&publisher.incarnation.to_le_bytes());
        body.extend_from_slice(&publisher.epoch.to_le_bytes());
        body.extend_from_slice(&received_at_ms.to_le_bytes());
        body.extend_from_slice(id);
        Self { publisher, received_at_ms, body, entries: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Encoded bytes so far.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Room for what is about to come, so that pushes don't reallocate.
    pub fn reserve(&mut self, bytes: usize, messages: usize) {
        self.body.reserve(bytes);
        self.entries.reserve(messages);
    }

    pub fn push(&mut self, message: &MessageView<'_>) {
        let mut flags = message.qos.bits();
        flags |= if message.retain { RETAIN } else { 0 };
        flags |= match message.kind {
            Kind::Publish => 0,
            Kind::Will => WILL,
            Kind::Release => RELEASE,
        };
        flags |= if message.expiry_s.is_some() { EXPIRES } else { 0 };
        let packet_id = message.packet_id.map_or(0, PacketId::get);
        let (topic_len, properties_len) = (message.topic.len(), message.properties.len());
        self.body.push(flags);
        self.body.extend_from_slice(&packet_id.to_le_bytes());
        if let Some(expiry_s) = message.expiry_s {
            self.body.extend_from_slice(&expiry_s.to_le_bytes());
        }
        self.body.extend_from_slice(&(topic_len as u16).to_le_bytes());
        self.body.extend_from_slice(&(properties_len as u32).to_le_bytes());
        self.body.extend_from_slice(&(message.payload.len() as u32).to_le_bytes());
        self.entries.push(Entry {
            topic_at: self.body.len() as u32,
            properties_len: properties_len as u32,
            payload_len: message.payload.len() as u32,
            expiry_s: message.expiry_s.unwrap_or_default(),
            topic_len: topic_len as u16,
            packet_id,
            flags,
        });
        self.body.extend_from_slice(message.topic.as_bytes());
        self.body.extend_from_slice(message.properties);
        self.body.extend_from_slice(message.payload);
    }

    /// Ends the QoS 2 exchange of `packet_id`.
    pub fn push_release(&mut self, packet_id: PacketId) {
        self.push(&MessageView {
            kind: Kind::Release,
            qos: QoS::ExactlyOnce,
            retain: false,
            packet_id: Some(packet_id),
            expiry_s: None,
            topic: "",
            properties: &[],
            payload: &[],
        });
    }

    pub fn finish(mut self) -> Arc<Batch> {
        // The batch may be held for long, by queues and slow clients: room it has no use for goes.
        // Of a small one it is not worth a copy; a large one shrinks in its place.
        if self.body.len() >= WORTH_SHRINKING {
            self.body.shrink_to_fit();
        }
        Arc::new(Batch {
            publisher: self.publisher,
            received_at_ms: self.received_at_ms,
            body: Bytes::from(self.body),
            entries: self.entries.into_boxed_slice(),
        })
    }
}

impl fmt::Debug for BatchBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchBuilder({}, {} messages)", self.publisher.client_id, self.entries.len())
    }
}

// === reading ===

struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], StorageError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.body.len());
        let end = end.ok_or_else(|| damaged("a batch ends in the middle of a field".into()))?;
        let taken = &self.body[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StorageError> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| damaged("a batch field has the wrong size".into()))
    }

    fn u8(&mut self) -> Result<u8, StorageError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, StorageError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, StorageError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, StorageError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, len: usize) -> Result<&'a str, StorageError> {
        let taken = self.take(len)?;
        std::str::from_utf8(taken).map_err(|_| damaged("text in a batch is not UTF-8".into()))
    }

    fn entry(&mut self) -> Result<Entry, StorageError> {
        let flags = self.u8()?;
        if flags & QOS == QOS || flags & 0b1100_0000 != 0 {
            return Err(damaged(format!("message flags {flags:#04x} are not known")));
        }
        let packet_id = self.u16()?;
        let expiry_s = if flags & EXPIRES != 0 { self.u32()? } else { 0 };
        let (topic_len, properties_len, payload_len) = (self.u16()?, self.u32()?, self.u32()?);
        let topic_at = self.at as u32;
        self.text(usize::from(topic_len))?;
        self.take(properties_len as usize)?;
        self.take(payload_len as usize)?;
        Ok(Entry { topic_at, properties_len, payload_len, expiry_s, topic_len, packet_id, flags })
    }
}

fn damaged(text: String) -> StorageError {
    StorageError::Damaged(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BatchBuilder {
        let client_id = ClientId::new("a{b}");
        let publisher = Arc::new(Publisher { client_id, incarnation: 7, epoch: 9 });
        let mut builder = BatchBuilder::new(publisher, 1_000);
        builder.push(&MessageView {
            kind: Kind::Publish,
            qos: QoS::ExactlyOnce,
            retain: true,
            packet_id: PacketId::new(5),
            expiry_s: Some(10),
            topic: "t/x",
            properties: &[1, 1],
            payload: b"hello",
        });
        builder.push_release(PacketId::MAX);
        builder
    }

    #[test]
    fn a_batch_reads_back_as_it_was_built() {
        let batch = sample().finish();
        let back = Batch::parse(batch.body().clone()).expect("parses");
        assert_eq!(back.publisher(), batch.publisher());
        assert_eq!(back.received_at_ms(), 1_000);
        assert!(back.views().eq(batch.views()));
        assert_eq!(back.expires_at_ms(0), Some(11_000));
        assert_eq!(back.view(1).kind, Kind::Release);
        let alone = MessageRef::new(Arc::new(back), 0);
        assert_eq!(alone.detached().view(), alone.view());
    }

    /// OUT-1: what is reckoned against the marks is what memory is held by.
    #[test]
    fn payloads_share_the_memory_of_their_batch() {
        for (bytes, takes) in [(1, 128), (129, 160), (8300, 10_240), (16_384, 20_480)] {
            assert_eq!(allocated(bytes), takes, "{bytes}");
        }
        assert_eq!((allocated(20_481), allocated(65_537)), (28_672, 86_016));
        let mut builder = sample();
        let payload = vec![0; 9000];
        (0..3).for_each(|n| {
            builder.push(&MessageView { payload: &payload[n..], ..sample().finish().view(0) });
        });
        let batch = builder.finish();
        let parts: usize = (0..batch.len()).map(|index| batch.payload_memory(index)).sum();
        let whole = allocated(batch.body.len());
        assert!(parts > 27_000 && parts <= whole + 5 * size_of::<Entry>(), "{parts} of {whole}");
    }

    #[test]
    fn every_cut_and_an_unknown_version_are_refused() {
        let body = sample().finish().body().clone();
        let whole = [28 + 4, body.len()];
        for len in 0..body.len() {
            let parsed = Batch::parse(body.slice(..len));
            let ends_between_messages = parsed.as_ref().is_ok_and(|batch| batch.len() < 2);
            assert!(parsed.is_err() || ends_between_messages, "cut at {len} of {whole:?}");
        }
        let mut other = body.to_vec();
        other[0] = 2;
        assert!(Batch::parse(Bytes::from(other)).is_err());
    }
}
