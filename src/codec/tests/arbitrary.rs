//! Strategies for every packet that a peer may send in a version, over the whole range of each
//! field.

use std::borrow::Cow;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Union};

use crate::codec::{
    Ack, AckKind, AckProperties, Auth, Connack, ConnackProperties, Connect, ConnectProperties,
    Disconnect, ForwardedProperty, Packet, Peer, Publish, Suback, Subscribe, SubscribeFilter,
    Unsuback, Unsubscribe, UserProperty, Will, put_forwarded_property,
};
use crate::mqtt::{
    PacketId, ProtocolVersion, QoS, ReasonCode, RetainHandling, SubscriptionOptions, TopicFilter,
};

/// A packet that owns what a PUBLISH borrows.
#[derive(Clone, Debug)]
pub(super) enum Sample {
    Publish {
        /// Its borrowed fields are the ones below.
        rest: Publish<'static>,
        topic: String,
        payload: Vec<u8>,
    },
    Other(Packet<'static>),
}

impl Sample {
    pub(super) fn packet(&self) -> Packet<'_> {
        match self {
            Sample::Publish { rest, topic, payload } => {
                Packet::Publish(Publish { topic, payload, ..rest.clone() })
            }
            Sample::Other(packet) => packet.clone(),
        }
    }

    /// What a decoder of this packet has to know: nothing before a CONNECT.
    pub(super) fn agreed(&self, version: ProtocolVersion) -> Option<ProtocolVersion> {
        match self {
            Sample::Other(Packet::Connect(_)) => None,
            Sample::Other(_) | Sample::Publish { .. } => Some(version),
        }
    }
}

pub(super) fn version() -> impl Strategy<Value = ProtocolVersion> {
    select(vec![ProtocolVersion::V31, ProtocolVersion::V311, ProtocolVersion::V5])
}

pub(super) fn peer() -> impl Strategy<Value = Peer> {
    select(vec![Peer::Client, Peer::Server])
}

/// Version, sender, and a packet that this peer may send in this version.
pub(super) fn exchange() -> impl Strategy<Value = (ProtocolVersion, Peer, Sample)> {
    (version(), peer())
        .prop_flat_map(|(version, from)| (Just(version), Just(from), packet(version, from)))
}

pub(super) fn packet(version: ProtocolVersion, from: Peer) -> BoxedStrategy<Sample> {
    let other = |strategy: BoxedStrategy<Packet<'static>>| strategy.prop_map(Sample::Other).boxed();
    let mut all = vec![publish(version, from), other(ack(version)), after_connect(version, from)];
    match from {
        Peer::Client => {
            all.push(other(connect(version)));
            all.push(other(subscribe(version)));
            all.push(other(unsubscribe(version)));
        }
        Peer::Server => {
            all.push(other(connack(version)));
            all.push(other(suback(version)));
            all.push(other(unsuback(version)));
        }
    }
    Union::new(all).boxed()
}

/// As [`packet`], without CONNECT: what may follow on an open connection.
fn after_connect(version: ProtocolVersion, from: Peer) -> BoxedStrategy<Sample> {
    let v5 = version.is_v5();
    let mut all = vec![match from {
        Peer::Client => Just(Packet::Pingreq).boxed(),
        Peer::Server => Just(Packet::Pingresp).boxed(),
    }];
    if v5 || from == Peer::Client {
        all.push(disconnect(version, from));
    }
    if v5 {
        all.push(auth());
    }
    Union::new(all).prop_map(Sample::Other).boxed()
}

// === fields ===

/// Any text that the wire can carry, control characters included.
pub(super) fn text() -> BoxedStrategy<String> {
    "[^\0]{0,12}".boxed()
}

fn topic() -> BoxedStrategy<String> {
    "[^\0+#]{1,16}".boxed()
}

fn filter() -> BoxedStrategy<TopicFilter> {
    let level = Union::new(["[+]", "[^\0+#/]{0,4}", "[a-c]"]);
    (option::of("[$]share/[^\0+#/]{1,4}/"), vec(level, 1..5), any::<bool>())
        .prop_filter_map("a filter", |(share, mut levels, rest)| {
            if rest {
                levels.push("#".to_owned());
            }
            TopicFilter::new(&(share.unwrap_or_default() + &levels.join("/"))).ok()
        })
        .boxed()
}

fn binary() -> BoxedStrategy<Vec<u8>> {
    vec(any::<u8>(), 0..24).boxed()
}

/// Mostly small, and around the sizes at which Remaining Length grows a byte.
fn payload() -> BoxedStrategy<Vec<u8>> {
    let around = |size: usize| {
        (size - 40..size + 8, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]).boxed()
    };
    Union::new(vec![binary(), binary(), around(128), around(16_384)]).boxed()
}

fn packet_id() -> BoxedStrategy<PacketId> {
    (1..=u16::MAX).prop_map(|id| PacketId::new(id).expect("not 0")).boxed()
}

fn qos() -> BoxedStrategy<QoS> {
    select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]).boxed()
}

fn user_properties() -> BoxedStrategy<Vec<UserProperty>> {
    vec((text(), text()), 0..4).boxed()
}

/// A blob of forwarded properties, in any order.
fn blob() -> BoxedStrategy<Vec<u8>> {
    let encoded = |property: ForwardedProperty<'_>| {
        let mut blob = Vec::new();
        put_forwarded_property(&mut blob, property).expect("short");
        blob
    };
    let user = (text(), text())
        .prop_map(move |(name, value)| encoded(ForwardedProperty::User(&name, &value)));
    (
        option::of(any::<bool>().prop_map(move |it| encoded(ForwardedProperty::PayloadIsText(it)))),
        option::of(text().prop_map(move |it| encoded(ForwardedProperty::ContentType(&it)))),
        option::of(topic().prop_map(move |it| encoded(ForwardedProperty::ResponseTopic(&it)))),
        option::of(binary().prop_map(move |it| encoded(ForwardedProperty::CorrelationData(&it)))),
        vec(user, 0..4),
    )
        .prop_map(|(format, content, response, correlation, users)| {
            let once = [format, content, response, correlation].into_iter().flatten();
            once.chain(users).collect::<Vec<_>>()
        })
        .prop_shuffle()
        .prop_map(|properties| properties.concat())
        .boxed()
}

fn codes(bytes: &'static [u8]) -> BoxedStrategy<ReasonCode> {
    select(bytes).prop_map(|byte| ReasonCode::from_byte(byte).expect("known")).boxed()
}

// === packets ===

pub(super) fn publish(version: ProtocolVersion, from: Peer) -> BoxedStrategy<Sample> {
    let v5 = version.is_v5();
    let ids = if v5 && from == Peer::Server { 0..4 } else { 0..1 };
    let flags = (any::<bool>(), qos(), any::<bool>(), packet_id());
    let properties = (
        option::of(1..=u16::MAX),
        option::of(any::<u32>()),
        vec(1..=268_435_455u32, ids),
        blob(),
        any::<bool>(),
    );
    (flags, properties, topic(), payload())
        .prop_map(move |(flags, properties, topic, payload)| {
            let (dup, qos, retain, packet_id) = flags;
            let (topic_alias, expiry_s, subscription_ids, blob, by_alias) = properties;
            let topic_alias = topic_alias.filter(|_| v5);
            let topic = if by_alias && topic_alias.is_some() { String::new() } else { topic };
            let rest = Publish {
                dup: dup && qos.is_acknowledged(),
                qos,
                retain,
                topic: "",
                packet_id: qos.is_acknowledged().then_some(packet_id),
                topic_alias,
                expiry_s: expiry_s.filter(|_| v5),
                subscription_ids,
                properties: Cow::Owned(if v5 { blob } else { Vec::new() }),
                payload: &[],
            };
            Sample::Publish { rest, topic, payload }
        })
        .boxed()
}

fn ack_properties(version: ProtocolVersion) -> BoxedStrategy<Option<Box<AckProperties>>> {
    (option::of(text()), user_properties())
        .prop_map(move |(reason_string, user_properties)| {
            let properties = AckProperties { reason_string, user_properties };
            let some = version.is_v5() && properties != AckProperties::default();
            some.then(|| Box::new(properties))
        })
        .boxed()
}

fn ack(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    let first: &[u8] = &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
    let kinds = [
        (AckKind::Puback, first),
        (AckKind::Pubrec, first),
        (AckKind::Pubrel, &[0, 0x92]),
        (AckKind::Pubcomp, &[0, 0x92]),
    ];
    let one = |(kind, bytes): (AckKind, &'static [u8])| {
        let reasons = if version.is_v5() { bytes } else { &[0] };
        (packet_id(), codes(reasons), ack_properties(version)).prop_map(
            move |(packet_id, reason, properties)| {
                Packet::Ack(kind, Ack { packet_id, reason, properties })
            },
        )
    };
    Union::new(kinds.map(one)).boxed()
}

fn suback(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    let bytes: &[u8] = match version {
        ProtocolVersion::V5 => &[0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2],
        ProtocolVersion::V31 | ProtocolVersion::V311 => &[0, 1, 2, 0x80],
    };
    (packet_id(), vec(codes(bytes), 1..8), ack_properties(version))
        .prop_map(|(packet_id, codes, properties)| {
            Packet::Suback(Suback { packet_id, codes, properties })
        })
        .boxed()
}

fn unsuback(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    let lengths = if version.is_v5() { 1..8 } else { 0..1 };
    let reasons = codes(&[0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]);
    (packet_id(), vec(reasons, lengths), ack_properties(version))
        .prop_map(|(packet_id, codes, properties)| {
            Packet::Unsuback(Unsuback { packet_id, codes, properties })
        })
        .boxed()
}

fn subscribe(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    let v5 = version.is_v5();
    let handling = select(vec![
        RetainHandling::SendAtSubscribe,
        RetainHandling::SendIfNew,
        RetainHandling::DoNotSend,
    ]);
    let one = (filter(), qos(), any::<bool>(), any::<bool>(), handling);
    let ids = option::of(1..=268_435_455u32);
    (packet_id(), user_properties(), vec(one, 1..5), ids)
        .prop_map(move |(packet_id, user_properties, filters, subscription_id)| {
            let filters = filters.into_iter().map(|(filter, qos, no_local, as_published, at)| {
                let options = SubscriptionOptions {
                    qos,
                    no_local: no_local && !filter.is_shared(),
                    retain_as_published: as_published,
                    retain_handling: at,
                    subscription_id,
                };
                let options = if v5 { options } else { SubscriptionOptions::v3(qos) };
                SubscribeFilter { filter: Ok(filter), options }
            });
            let user_properties = if v5 { user_properties } else { Vec::new() };
            Packet::Subscribe(Subscribe { packet_id, user_properties, filters: filters.collect() })
        })
        .boxed()
}

fn unsubscribe(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    (packet_id(), user_properties(), vec(filter(), 1..5))
        .prop_map(move |(packet_id, user_properties, filters)| {
            let user_properties = if version.is_v5() { user_properties } else { Vec::new() };
            let filters = filters.into_iter().map(Ok).collect();
            Packet::Unsubscribe(Unsubscribe { packet_id, user_properties, filters })
        })
        .boxed()
}

fn disconnect(version: ProtocolVersion, from: Peer) -> BoxedStrategy<Packet<'static>> {
    if !version.is_v5() {
        return Just(Packet::Disconnect(Disconnect::new(ReasonCode::Success))).boxed();
    }
    let by_client = from == Peer::Client;
    let reasons: &[u8] = match from {
        Peer::Client => {
            &[0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]
        }
        Peer::Server => &[
            0, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94,
            0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
        ],
    };
    let strings = (option::of(text()), option::of(text()), user_properties());
    (codes(reasons), option::of(any::<u32>()), strings)
        .prop_map(move |(reason, expiry, (reason_string, server, user_properties))| {
            Packet::Disconnect(Disconnect {
                reason,
                session_expiry_s: expiry.filter(|_| by_client),
                reason_string,
                user_properties,
                server_reference: server.filter(|_| !by_client),
            })
        })
        .boxed()
}

fn auth() -> BoxedStrategy<Packet<'static>> {
    let strings = (text(), option::of(binary()), option::of(text()), user_properties());
    (codes(&[0, 0x18, 0x19]), any::<bool>(), strings)
        .prop_map(|(reason, has_method, (method, data, reason_string, user_properties))| {
            let has_method = has_method || reason != ReasonCode::Success;
            Packet::Auth(Auth {
                reason,
                authentication_method: has_method.then_some(method),
                authentication_data: data.filter(|_| has_method),
                reason_string,
                user_properties,
            })
        })
        .boxed()
}

pub(super) fn connect(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    let v5 = version.is_v5();
    let login = (option::of(text()), option::of(binary()));
    let head = (any::<bool>(), any::<u16>(), text());
    (head, option::of(will(version)), login, connect_properties(version))
        .prop_map(
            move |((clean_start, keep_alive_s, id), will, (username, password), properties)| {
                let may_be_empty = v5 || (version == ProtocolVersion::V311 && clean_start);
                let client_id = if id.is_empty() && !may_be_empty { "c".to_owned() } else { id };
                let password = password.filter(|_| v5 || username.is_some());
                Packet::Connect(Box::new(Connect {
                    version,
                    clean_start,
                    keep_alive_s,
                    client_id,
                    will,
                    username,
                    password,
                    properties,
                }))
            },
        )
        .boxed()
}

fn will(version: ProtocolVersion) -> BoxedStrategy<Will> {
    let v5 = version.is_v5();
    let times = (any::<u32>(), option::of(any::<u32>()));
    (topic(), binary(), qos(), any::<bool>(), times, blob())
        .prop_map(move |(topic, payload, qos, retain, (delay_s, expiry_s), blob)| Will {
            topic,
            payload,
            qos,
            retain,
            delay_s: if v5 { delay_s } else { 0 },
            expiry_s: expiry_s.filter(|_| v5),
            properties: if v5 { blob } else { Vec::new() },
        })
        .boxed()
}

fn connect_properties(version: ProtocolVersion) -> BoxedStrategy<ConnectProperties> {
    if !version.is_v5() {
        return Just(ConnectProperties::default()).boxed();
    }
    let numbers = (
        option::of(any::<u32>()),
        option::of(1..=u16::MAX),
        option::of(1..=u32::MAX),
        option::of(any::<u16>()),
        option::of(any::<bool>()),
        option::of(any::<bool>()),
    );
    (numbers, user_properties(), option::of((text(), option::of(binary()))))
        .prop_map(|(numbers, user_properties, authentication)| {
            let (session_expiry_s, receive_maximum, maximum_packet_size, ..) = numbers;
            let (_, _, _, topic_alias_maximum, response, problem) = numbers;
            let (method, data) = authentication.unzip();
            ConnectProperties {
                session_expiry_s,
                receive_maximum,
                maximum_packet_size,
                topic_alias_maximum,
                request_response_information: response,
                request_problem_information: problem,
                user_properties,
                authentication_method: method,
                authentication_data: data.flatten(),
            }
        })
        .boxed()
}

pub(super) fn connack(version: ProtocolVersion) -> BoxedStrategy<Packet<'static>> {
    let codes: &[u8] = match version {
        ProtocolVersion::V5 => &[
            0, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95,
            0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
        ],
        ProtocolVersion::V31 | ProtocolVersion::V311 => &[0, 1, 2, 3, 4, 5],
    };
    (any::<bool>(), select(codes), connack_properties(version))
        .prop_map(move |(present, code, properties)| {
            let session_present = present && code == 0 && version != ProtocolVersion::V31;
            Packet::Connack(Box::new(Connack { session_present, code, properties }))
        })
        .boxed()
}

fn connack_properties(version: ProtocolVersion) -> BoxedStrategy<ConnackProperties> {
    if !version.is_v5() {
        return Just(ConnackProperties::default()).boxed();
    }
    let numbers = (
        option::of(any::<u32>()),
        option::of(1..=u16::MAX),
        option::of(select(vec![QoS::AtMostOnce, QoS::AtLeastOnce])),
        option::of(1..=u32::MAX),
        option::of(any::<u16>()),
        option::of(any::<u16>()),
    );
    let flag = || option::of(any::<bool>());
    let string = || option::of(text());
    let flags = (flag(), flag(), flag(), flag());
    let strings = (string(), string(), string(), string(), string(), option::of(binary()));
    (numbers, flags, strings, user_properties())
        .prop_map(|(numbers, flags, strings, user_properties)| ConnackProperties {
            session_expiry_s: numbers.0,
            receive_maximum: numbers.1,
            maximum_qos: numbers.2,
            maximum_packet_size: numbers.3,
            topic_alias_maximum: numbers.4,
            server_keep_alive_s: numbers.5,
            retain_available: flags.0,
            wildcard_subscription_available: flags.1,
            subscription_ids_available: flags.2,
            shared_subscription_available: flags.3,
            assigned_client_id: strings.0,
            reason_string: strings.1,
            response_information: strings.2,
            server_reference: strings.3,
            authentication_method: strings.4,
            authentication_data: strings.5,
            user_properties,
        })
        .boxed()
}
