//! The row of the sessions table: all that must be known of a session that is not connected here.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::mqtt::{ClientId, ProtocolVersion, QoS};
use crate::routing::{RetainedTable, decode_row, encode_row};
use crate::storage::{
    Batch, BatchBuilder, InForce, Kind, MessageRef, MessageView, Position, Publisher, Row,
    StorageError, Table, retained_row,
};
use crate::telemetry::clock;

/// A Session Expiry Interval that never passes (MQTT 5 section 3.1.2.11.2).
pub(super) const NEVER: u32 = u32::MAX;

/// A Will as the session keeps it until it is fired or cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WillRow {
    pub(super) delay_s: u32,
    topic: String,
    payload: Vec<u8>,
    qos: u8,
    retain: bool,
    expiry_s: Option<u32>,
    properties: Vec<u8>,
}

/// A Will that goes out, from the decision until the log has it: a row that forgot it earlier would
/// lose it with a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owed {
    pub(super) incarnation: u64,
    /// The connection that left it.
    pub(super) epoch: u64,
    pub(super) will: Box<WillRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRow {
    pub(super) incarnation: u64,
    /// The fencing epoch of the newest connection.
    pub(super) epoch: u64,
    /// The node it is or was connected to.
    pub(super) node: String,
    /// The protocol level, and [`APPLICATION`].
    version: u8,
    /// Session Expiry Interval, seconds; 0: it ends with its connection.
    pub(super) expiry_s: u32,
    /// When the connection ended, milliseconds of wall clock; `None`: it is connected.
    pub(super) offline_since_ms: Option<u64>,
    pub(super) will: Option<Box<WillRow>>,
    /// Wills of earlier connections that the log has not got yet; a handful at most.
    pub(super) owed: Vec<Owed>,
    /// Among several nodes: it is a claim, whose effect is worked out where it stands in the log.
    claim: Option<Claim>,
    /// Among several nodes: who made the newest claim, for those that the client is not connected
    /// to.
    pub(super) guest: Option<Box<Guest>>,
    /// Among several nodes: what an administrator of another one wants of it.
    pub(super) bid: Option<Bid>,
}

/// The client of a session, as its node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Guest {
    pub(super) connected_ms: u64,
    pub(super) address: Option<IpAddr>,
    pub(super) keep_alive_s: u16,
    pub(super) application: bool,
    pub(super) username: Option<String>,
    pub(super) provider: Option<String>,
}

/// An order to the node that has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Bid {
    /// Its connection is to end.
    Disconnect,
    /// All of it is to end.
    Remove,
}

/// What a CONNECT asks for, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    clean_start: bool,
    at_ms: u64,
}

/// Stands in a row beside the protocol level of an APPLICATION client's session.
const APPLICATION: u8 = 0x80;

impl SessionRow {
    pub(super) fn new(
        incarnation: u64,
        epoch: u64,
        node: &str,
        version: ProtocolVersion,
        expiry_s: u32,
        offline_since_ms: Option<u64>,
        will: Option<Box<WillRow>>,
    ) -> Self {
        let (node, version) = (node.to_owned(), version.level());
        Self {
            incarnation,
            epoch,
            node,
            version,
            expiry_s,
            offline_since_ms,
            will,
            owed: Vec::new(),
            claim: None,
            guest: None,
            bid: None,
        }
    }

    pub(super) fn owing(self, owed: Vec<Owed>) -> Self {
        Self { owed, ..self }
    }

    /// When it ends if nobody comes back; `None`: connected, or never.
    pub(super) fn ends_ms(&self) -> Option<u64> {
        let since_ms = self.offline_since_ms.filter(|_| self.expiry_s != NEVER)?;
        Some(since_ms.saturating_add(u64::from(self.expiry_s) * 1000))
    }

    /// What it leaves to the log when another connection claims it. The Will goes out when its
    /// connection is cut and it has no delay, when its delay is over, or when its session ends; a
    /// client that comes back in time cancels it (MQTT-3.1.3-9), and so does one that comes back
    /// after its node was away (then its off-line time lies ahead).
    pub(super) fn leaves(self, resumes: bool, now_ms: u64) -> Vec<Owed> {
        let ends_ms = self.ends_ms();
        let Self { incarnation, epoch, offline_since_ms, will, mut owed, .. } = self;
        let Some(will) = will else { return owed };
        let goes_out = match offline_since_ms {
            None => will.delay_s == 0 || !resumes,
            Some(since_ms) => {
                let delay_ms = u64::from(will.delay_s) * 1000;
                let due_ms = since_ms.saturating_add(delay_ms).min(ends_ms.unwrap_or(u64::MAX));
                due_ms <= now_ms || !resumes && since_ms <= now_ms
            }
        };
        owed.extend(goes_out.then_some(Owed { incarnation, epoch, will }));
        owed
    }

    /// A claim of this node; its place in the log becomes its epoch.
    pub(super) fn claiming(mut self, clean_start: bool, guest: Guest) -> Self {
        (self.incarnation, self.epoch) = (0, 0);
        self.guest = Some(Box::new(guest));
        self.claim = Some(Claim { clean_start, at_ms: clock::wall_ms() });
        self
    }

    /// Whether a client that comes at this time finds it.
    fn outlives(&self, at_ms: u64) -> bool {
        let ends = |since_ms: u64| since_ms.saturating_add(u64::from(self.expiry_s) * 1000);
        let over = self.offline_since_ms.is_some_and(|since_ms| ends(since_ms) <= at_ms);
        self.expiry_s > 0 && (self.expiry_s == NEVER || !over)
    }

    pub(super) fn version(&self) -> ProtocolVersion {
        ProtocolVersion::from_level(self.version & !APPLICATION).unwrap_or(ProtocolVersion::V311)
    }

    /// What a session that outlives its connection keeps its messages in, from its beginning to
    /// its end: an APPLICATION client's log, or a DEVICE client's queue.
    pub(super) fn of_application(mut self, application: bool) -> Self {
        self.version &= !APPLICATION;
        self.version |= if application { APPLICATION } else { 0 };
        self
    }

    pub(super) fn is_application(&self) -> bool {
        self.version & APPLICATION != 0
    }

    pub(super) fn row(&self, client_id: &ClientId) -> Row {
        Row { table: Table::Sessions, key: key(client_id), value: Some(encode_row(self)) }
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, StorageError> {
        decode_row(value, "session")
    }
}

/// The row that deletes a session.
pub(super) fn tombstone(client_id: &ClientId) -> Row {
    Row { table: Table::Sessions, key: key(client_id), value: None }
}

/// What stands for the version in a row that ends a session.
const ENDED: u8 = 0xFF;
/// The same in a row that asks its node for something.
const ASKED: u8 = 0xFE;

/// The row that ends a session, if nobody has claimed it since.
pub(super) fn ended(client_id: &ClientId, epoch: u64) -> Row {
    let value = Bytes::from([&[ENDED], &epoch.to_le_bytes()[..]].concat());
    Row { table: Table::Sessions, key: key(client_id), value: Some(value) }
}

/// The row that asks the session's node for something, if nobody has claimed it since.
pub(super) fn asked(client_id: &ClientId, epoch: u64, bid: Bid) -> Row {
    let bid = match bid {
        Bid::Disconnect => 0,
        Bid::Remove => 1,
    };
    let value = Bytes::from([&[ASKED, bid], &epoch.to_le_bytes()[..]].concat());
    Row { table: Table::Sessions, key: key(client_id), value: Some(value) }
}

/// The session with what is asked of it.
fn with_bid(known: Option<SessionRow>, asked: &[u8]) -> Option<SessionRow> {
    let (&bid, epoch) = asked.split_first()?;
    let epoch = u64::from_le_bytes(epoch.try_into().ok()?);
    let bid = Some(if bid == 0 { Bid::Disconnect } else { Bid::Remove });
    known.filter(|known| known.epoch == epoch).map(|known| SessionRow { bid, ..known })
}

/// What becomes of a row where several nodes write them. A claim counts always, and goes on with
/// the session that it finds; what else is said of a session counts only for its newest claim.
pub(super) fn resolve(position: Position, before: Option<&[u8]>, row: Row) -> Option<InForce> {
    let known = before.and_then(|value| SessionRow::decode(value).ok());
    let Some(value) = &row.value else { return Some(InForce { row, claimed: None }) };
    if let Some((&ENDED, epoch)) = value.split_first() {
        let epoch = u64::from_le_bytes(epoch.try_into().ok()?);
        let row = Row { value: None, ..row };
        return known.filter(|known| known.epoch == epoch).map(|_| InForce { row, claimed: None });
    }
    if let Some((&ASKED, asked)) = value.split_first() {
        let value = with_bid(known, asked).map(|now| encode_row(&now));
        return value
            .map(|value| InForce { row: Row { value: Some(value), ..row }, claimed: None });
    }
    let mut now = SessionRow::decode(value).ok()?;
    let Some(claim) = now.claim.take() else {
        let known = known.filter(|known| known.epoch == now.epoch)?;
        // Whoever says it for a node that is gone: the claim was that node's.
        (now.node, now.guest) = (known.node, known.guest);
        let row = Row { value: Some(encode_row(&now)), ..row };
        return Some(InForce { row, claimed: None });
    };
    let moved = known.is_some();
    now.epoch = position.offset;
    let finds = |known: &&SessionRow| !claim.clean_start && known.outlives(claim.at_ms);
    let kept = known.as_ref().filter(finds);
    now.incarnation = kept.map_or(position.offset, |kept| kept.incarnation);
    if let Some(kept) = kept {
        // What waits for it is where it is.
        now = now.of_application(kept.is_application());
    }
    let resumed = kept.is_some();
    now.owed = known.map(|old| old.leaves(resumed, claim.at_ms)).unwrap_or_default();
    let claimed = Some((Arc::from(&*now.node), moved));
    Some(InForce { row: Row { value: Some(encode_row(&now)), ..row }, claimed })
}

fn key(client_id: &ClientId) -> Bytes {
    Bytes::copy_from_slice(client_id.as_str().as_bytes())
}

impl WillRow {
    pub(super) fn new(will: crate::codec::Will) -> Self {
        Self {
            delay_s: will.delay_s,
            topic: will.topic,
            payload: will.payload,
            qos: will.qos.bits(),
            retain: will.retain,
            expiry_s: will.expiry_s,
            properties: will.properties,
        }
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    /// The Will as a message of now: its expiry counts from its publication (MQTT-3.1.2-8).
    pub(super) fn batch(&self, publisher: Arc<Publisher>) -> Arc<Batch> {
        let mut builder = BatchBuilder::new(publisher, clock::wall_ms());
        builder.push(&MessageView {
            kind: Kind::Will,
            qos: QoS::from_bits(self.qos).unwrap_or(QoS::AtMostOnce),
            retain: self.retain,
            packet_id: None,
            expiry_s: self.expiry_s,
            topic: &self.topic,
            properties: &self.properties,
            payload: &self.payload,
        });
        builder.finish()
    }

    /// The Will as its own retained row, if it is a retained one and the caps allow it.
    pub(super) fn retained(&self, table: &RetainedTable, batch: &Arc<Batch>) -> Option<Row> {
        let message = MessageRef::new(Arc::clone(batch), 0);
        let view = message.view();
        let bytes = view.payload.len() + view.properties.len();
        let fits = view.payload.is_empty() || self.retain && table.admit(view.topic, bytes);
        (self.retain && fits).then(|| retained_row(&message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(clean_start: bool, node: &str, expiry_s: u32) -> Row {
        let version = ProtocolVersion::V5;
        let row = SessionRow::new(0, 0, node, version, expiry_s, None, None);
        let guest = Guest {
            connected_ms: 1,
            address: None,
            keep_alive_s: 60,
            application: false,
            username: Some("u".into()),
            provider: None,
        };
        row.claiming(clean_start, guest).row(&ClientId::new("c"))
    }

    fn at(offset: u64) -> Position {
        Position { partition: 0, offset }
    }

    fn in_force(before: Option<&Row>, position: u64, row: Row) -> Option<Row> {
        let before = before.and_then(|row| row.value.as_deref());
        resolve(at(position), before, row).map(|found| found.row)
    }

    fn read(row: &Row) -> SessionRow {
        SessionRow::decode(row.value.as_ref().expect("no end")).expect("reads back")
    }

    /// SES-06, SES-08: what a claim finds where it stands decides whether it goes on.
    #[test]
    fn a_claim_goes_on_with_what_it_finds() {
        let first = in_force(None, 10, claim(false, "a", 60)).expect("a claim counts");
        assert_eq!((read(&first).incarnation, read(&first).epoch), (10, 10));
        let second = in_force(Some(&first), 20, claim(false, "b", 60)).expect("a claim counts");
        assert_eq!((read(&second).incarnation, read(&second).epoch), (10, 20));
        let afresh = in_force(Some(&second), 30, claim(true, "a", 0)).expect("a claim counts");
        assert_eq!((read(&afresh).incarnation, read(&afresh).epoch), (30, 30));
        let next = in_force(Some(&afresh), 40, claim(false, "a", 60)).expect("a claim counts");
        assert_eq!(read(&next).incarnation, 40, "that one ends with its connection");
        let mut over = read(&second);
        over.offline_since_ms = Some(1);
        let over = over.row(&ClientId::new("c"));
        let late = in_force(Some(&over), 50, claim(false, "a", 60)).expect("a claim counts");
        assert_eq!(read(&late).incarnation, 50, "it had expired");
    }

    /// TKO-02, CLU-06: what is said of an earlier connection changes nothing any more.
    #[test]
    fn a_row_that_comes_too_late_counts_for_nothing() {
        let client = ClientId::new("c");
        let first = in_force(None, 10, claim(false, "a", 60)).expect("a claim counts");
        let mut away = read(&first);
        away.offline_since_ms = Some(5);
        away.node = "heir".into();
        let away = away.row(&client);
        let said = in_force(Some(&first), 15, away.clone()).expect("it is the newest");
        assert_eq!((&*read(&said).node, read(&said).offline_since_ms), ("a", Some(5)));
        assert_eq!(read(&said).guest, read(&first).guest, "it is the same client");
        let second = in_force(Some(&said), 20, claim(false, "b", 60)).expect("a claim counts");
        assert_eq!(in_force(Some(&second), 21, away), None);
        assert_eq!(in_force(Some(&second), 22, ended(&client, 10)), None);
        let end = in_force(Some(&second), 23, ended(&client, 20)).expect("it is the newest");
        assert_eq!(end.value, None);
        assert_eq!(in_force(None, 24, ended(&client, 20)), None);
    }

    /// What is asked of a session is asked of its newest claim, and stands until its node has
    /// said something.
    #[test]
    fn a_bid_is_about_one_connection() {
        let client = ClientId::new("c");
        let first = in_force(None, 10, claim(false, "a", 60)).expect("a claim counts");
        let bid = |epoch| asked(&client, epoch, Bid::Remove);
        assert_eq!(in_force(Some(&first), 11, bid(9)), None);
        assert_eq!(in_force(None, 11, bid(10)), None);
        let asked = in_force(Some(&first), 11, bid(10)).expect("it is the newest");
        let wanted = SessionRow { bid: Some(Bid::Remove), ..read(&first) };
        assert_eq!(read(&asked), wanted);
        let done = in_force(Some(&asked), 12, read(&first).row(&client)).expect("the newest");
        assert_eq!(read(&done), read(&first));
    }

    /// WIL-01: a claim keeps the Will that it displaces, until whoever has the session then has
    /// stored it.
    #[test]
    fn a_claim_owes_the_will_that_it_displaces() {
        let version = ProtocolVersion::V5;
        let with_will = |delay_s, away: Option<bool>| {
            let will = WillRow {
                delay_s,
                topic: "w".into(),
                payload: vec![1],
                qos: 1,
                retain: false,
                expiry_s: None,
                properties: vec![],
            };
            let (will, later) = (Some(Box::new(will)), clock::wall_ms() + 60_000);
            let since_ms = away.map(|away| if away { 1 } else { later });
            SessionRow::new(10, 10, "a", version, NEVER, since_ms, will).row(&ClientId::new("c"))
        };
        let owed = |before: Row, clean_start| {
            let now = in_force(Some(&before), 20, claim(clean_start, "b", NEVER));
            let owed = read(&now.expect("a claim counts")).owed;
            assert!(owed.iter().all(|one| (one.incarnation, one.epoch) == (10, 10)));
            owed.len()
        };
        assert_eq!(owed(with_will(0, None), false), 1, "it was connected");
        assert_eq!(owed(with_will(9, None), false), 0, "back in time");
        assert_eq!(owed(with_will(9, None), true), 1, "its session ends");
        assert_eq!(owed(with_will(9, Some(true)), false), 1, "its delay is over");
        assert_eq!(owed(with_will(NEVER, Some(true)), false), 0);
        assert_eq!(owed(with_will(NEVER, Some(true)), true), 1, "its session ends");
        assert_eq!(owed(with_will(0, Some(false)), true), 0, "its node was away, it was not");
    }

    #[test]
    fn a_session_row_reads_back() {
        let will = WillRow {
            delay_s: 5,
            topic: "w".into(),
            payload: vec![0, 255],
            qos: 2,
            retain: true,
            expiry_s: Some(9),
            properties: vec![1, 1],
        };
        let version = ProtocolVersion::V5;
        let will = Box::new(will);
        let owed = vec![Owed { incarnation: 1, epoch: 2, will: will.clone() }];
        let row = SessionRow::new(3, 4, "n", version, NEVER, Some(8), Some(will)).owing(owed);
        let stored = row.row(&ClientId::new("c")).value.expect("not a tombstone");
        assert_eq!(SessionRow::decode(&stored).expect("reads back"), row);
        assert_eq!(row.version(), version);
    }
}
