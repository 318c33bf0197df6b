//! The packets. PUBLISH borrows from the read buffer, since it is the hot one and is copied once,
//! into the log's batch; the others own their few fields.

use std::borrow::Cow;

use crate::mqtt::{
    PacketId, ProtocolVersion, QoS, ReasonCode, SubscriptionOptions, TopicError, TopicFilter,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    Connect(Box<Connect>),
    Connack(Box<Connack>),
    Publish(Publish<'a>),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP.
    Ack(AckKind, Ack),
    Subscribe(Subscribe),
    Suback(Suback),
    Unsubscribe(Unsubscribe),
    Unsuback(Unsuback),
    Pingreq,
    Pingresp,
    Disconnect(Disconnect),
    Auth(Auth),
}

impl Packet<'_> {
    /// What the specification calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Packet::Connect(_) => "CONNECT",
            Packet::Connack(_) => "CONNACK",
            Packet::Publish(_) => "PUBLISH",
            Packet::Ack(AckKind::Puback, _) => "PUBACK",
            Packet::Ack(AckKind::Pubrec, _) => "PUBREC",
            Packet::Ack(AckKind::Pubrel, _) => "PUBREL",
            Packet::Ack(AckKind::Pubcomp, _) => "PUBCOMP",
            Packet::Subscribe(_) => "SUBSCRIBE",
            Packet::Suback(_) => "SUBACK",
            Packet::Unsubscribe(_) => "UNSUBSCRIBE",
            Packet::Unsuback(_) => "UNSUBACK",
            Packet::Pingreq => "PINGREQ",
            Packet::Pingresp => "PINGRESP",
            Packet::Disconnect(_) => "DISCONNECT",
            Packet::Auth(_) => "AUTH",
        }
    }
}

/// Name and value, in wire order, repeats allowed (MQTT 5 section 2.2.2.2, 0x26).
pub type UserProperty = (String, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub version: ProtocolVersion,
    pub clean_start: bool,
    /// Seconds; 0 = none.
    pub keep_alive_s: u16,
    /// May be empty where the version allows it.
    pub client_id: String,
    pub will: Option<Will>,
    /// `Some("")` is not `None` (CON-12).
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    pub properties: ConnectProperties,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectProperties {
    pub session_expiry_s: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub maximum_packet_size: Option<u32>,
    pub topic_alias_maximum: Option<u16>,
    pub request_response_information: Option<bool>,
    pub request_problem_information: Option<bool>,
    pub user_properties: Vec<UserProperty>,
    pub authentication_method: Option<String>,
    pub authentication_data: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    /// Will Delay Interval, 0 when absent.
    pub delay_s: u32,
    pub expiry_s: Option<u32>,
    /// The properties that are forwarded, in the form of [`Publish::properties`].
    pub properties: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connack {
    pub session_present: bool,
    /// v5: the reason code. v3.x: the return code 0 to 5.
    pub code: u8,
    pub properties: ConnackProperties,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnackProperties {
    pub session_expiry_s: Option<u32>,
    pub receive_maximum: Option<u16>,
    pub maximum_qos: Option<QoS>,
    pub retain_available: Option<bool>,
    pub maximum_packet_size: Option<u32>,
    pub assigned_client_id: Option<String>,
    pub topic_alias_maximum: Option<u16>,
    pub reason_string: Option<String>,
    pub user_properties: Vec<UserProperty>,
    pub wildcard_subscription_available: Option<bool>,
    pub subscription_ids_available: Option<bool>,
    pub shared_subscription_available: Option<bool>,
    pub server_keep_alive_s: Option<u16>,
    pub response_information: Option<String>,
    pub server_reference: Option<String>,
    pub authentication_method: Option<String>,
    pub authentication_data: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only with an alias (v5).
    pub topic: &'a str,
    /// `Some` exactly when `qos` is 1 or 2.
    pub packet_id: Option<PacketId>,
    /// Never 0.
    pub topic_alias: Option<u16>,
    pub expiry_s: Option<u32>,
    /// Server to client only.
    pub subscription_ids: Vec<u32>,
    /// What is forwarded unaltered and in order, in the encoding of section 2.2.2.2: payload
    /// format 0x01, content type 0x03, response topic 0x08, correlation data 0x09, user property
    /// 0x26. Checked; borrowed when they stand together on the wire.
    pub properties: Cow<'a, [u8]>,
    pub payload: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckKind {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    pub packet_id: PacketId,
    pub reason: ReasonCode,
    /// `None` when there are none: the common case allocates nothing.
    pub properties: Option<Box<AckProperties>>,
}

/// Reason String and User Properties: PUBACK family, SUBACK, UNSUBACK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AckProperties {
    pub reason_string: Option<String>,
    pub user_properties: Vec<UserProperty>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    pub packet_id: PacketId,
    pub user_properties: Vec<UserProperty>,
    /// At least one. The Subscription Identifier stands in each filter's options.
    pub filters: Vec<SubscribeFilter>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeFilter {
    /// v5: a misplaced wildcard is answered 0x8F for this filter alone (SUB-07). v3.x, an empty
    /// filter, U+0000 and a bad `$share` are malformed and never come here.
    pub filter: Result<TopicFilter, TopicError>,
    pub options: SubscriptionOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suback {
    pub packet_id: PacketId,
    /// One a filter, in order. v3.x: 0, 1, 2 or 0x80.
    pub codes: Vec<ReasonCode>,
    pub properties: Option<Box<AckProperties>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    pub packet_id: PacketId,
    pub user_properties: Vec<UserProperty>,
    /// As in [`SubscribeFilter::filter`].
    pub filters: Vec<Result<TopicFilter, TopicError>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsuback {
    pub packet_id: PacketId,
    /// v5: one a filter. v3.x: empty on the wire, whatever stands here.
    pub codes: Vec<ReasonCode>,
    pub properties: Option<Box<AckProperties>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    pub reason: ReasonCode,
    pub session_expiry_s: Option<u32>,
    pub reason_string: Option<String>,
    pub user_properties: Vec<UserProperty>,
    pub server_reference: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    pub reason: ReasonCode,
    pub authentication_method: Option<String>,
    pub authentication_data: Option<Vec<u8>>,
    pub reason_string: Option<String>,
    pub user_properties: Vec<UserProperty>,
}

impl Disconnect {
    pub fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            session_expiry_s: None,
            reason_string: None,
            user_properties: Vec::new(),
            server_reference: None,
        }
    }
}

impl Ack {
    pub fn new(packet_id: PacketId, reason: ReasonCode) -> Self {
        Self { packet_id, reason, properties: None }
    }
}
