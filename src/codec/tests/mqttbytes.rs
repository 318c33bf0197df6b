//! Against `mqttbytes` 0.6, only where an audit found it right: valid v4 packets but binary
//! passwords and empty user names; of v5 CONNECT without Will properties, PUBLISH with at most one
//! Subscription Identifier, the PUBACK family, SUBSCRIBE, SUBACK, UNSUBACK, pings, and its own
//! encodings of CONNACK and DISCONNECT with properties.

use bytes::{Bytes, BytesMut};
use mqttbytes::{v4, v5};
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert_eq, proptest};

use super::arbitrary::{connack, packet, peer, publish};
use super::differential::check;
use crate::codec::{
    Connack, Connect, Disconnect, ForwardedProperty, Packet, Peer, Publish, decode, encode,
    forwarded_properties,
};
use crate::mqtt::{ProtocolVersion, QoS, ReasonCode};

const LARGEST: usize = 268_435_455;

fn through_v4(frame: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = BytesMut::from(frame);
    let packet = v4::read(&mut bytes, LARGEST).map_err(|error| format!("{error:?}"))?;
    let mut out = BytesMut::new();
    let written = match packet {
        v4::Packet::Connect(it) => it.write(&mut out),
        v4::Packet::ConnAck(it) => it.write(&mut out),
        v4::Packet::Publish(it) => it.write(&mut out),
        v4::Packet::PubAck(it) => it.write(&mut out),
        v4::Packet::PubRec(it) => it.write(&mut out),
        v4::Packet::PubRel(it) => it.write(&mut out),
        v4::Packet::PubComp(it) => it.write(&mut out),
        v4::Packet::Subscribe(it) => it.write(&mut out),
        v4::Packet::SubAck(it) => it.write(&mut out),
        v4::Packet::Unsubscribe(it) => it.write(&mut out),
        v4::Packet::UnsubAck(it) => it.write(&mut out),
        v4::Packet::PingReq => v4::PingReq.write(&mut out),
        v4::Packet::PingResp => v4::PingResp.write(&mut out),
        v4::Packet::Disconnect => v4::Disconnect.write(&mut out),
    };
    written.map_err(|error| format!("{error:?}"))?;
    Ok(out.to_vec())
}

fn through_v5(frame: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = BytesMut::from(frame);
    let packet = v5::read(&mut bytes, LARGEST).map_err(|error| format!("{error:?}"))?;
    let mut out = BytesMut::new();
    let written = match packet {
        v5::Packet::Connect(it) => it.write(&mut out),
        v5::Packet::ConnAck(it) => it.write(&mut out),
        v5::Packet::Publish(it) => it.write(&mut out),
        v5::Packet::PubAck(it) => it.write(&mut out),
        v5::Packet::PubRec(it) => it.write(&mut out),
        v5::Packet::PubRel(it) => it.write(&mut out),
        v5::Packet::PubComp(it) => it.write(&mut out),
        v5::Packet::Subscribe(it) => it.write(&mut out),
        v5::Packet::SubAck(it) => it.write(&mut out),
        v5::Packet::Unsubscribe(it) => it.write(&mut out),
        v5::Packet::UnsubAck(it) => it.write(&mut out),
        v5::Packet::PingReq => v5::PingReq.write(&mut out),
        v5::Packet::PingResp => v5::PingResp.write(&mut out),
        v5::Packet::Disconnect(it) => it.write(&mut out),
    };
    written.map_err(|error| format!("{error:?}"))?;
    Ok(out.to_vec())
}

/// It keeps user name and password as text, and takes an empty one for an absent one.
fn has_text_login(connect: &Connect) -> bool {
    let name = connect.username.as_ref().is_none_or(|name| !name.is_empty());
    let password = connect.password.as_ref();
    name && password.is_none_or(|it| !it.is_empty() && std::str::from_utf8(it).is_ok())
}

fn is_right_in_v5(packet: &Packet<'_>) -> bool {
    match packet {
        Packet::Connect(connect) => {
            let plain_will = connect.will.as_ref().is_none_or(|will| {
                will.properties.is_empty() && will.delay_s == 0 && will.expiry_s.is_none()
            });
            plain_will && has_text_login(connect)
        }
        Packet::Publish(publish) => publish.subscription_ids.len() <= 1,
        Packet::Ack(..)
        | Packet::Subscribe(_)
        | Packet::Suback(_)
        | Packet::Unsuback(_)
        | Packet::Pingreq
        | Packet::Pingresp => true,
        Packet::Connack(_) | Packet::Unsubscribe(_) | Packet::Disconnect(_) | Packet::Auth(_) => {
            false
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn mqttbytes_v4_reads_ours_and_ours_reads_mqttbytes(
        (from, sample) in peer().prop_flat_map(|from| {
            (Just(from), packet(ProtocolVersion::V311, from))
        }),
    ) {
        if let Packet::Connect(connect) = sample.packet() && !has_text_login(&connect) {
            return Ok(());
        }
        check(&sample, ProtocolVersion::V311, from, through_v4, |_| {});
    }

    #[test]
    fn mqttbytes_v5_reads_ours_and_ours_reads_mqttbytes(
        (from, sample) in peer().prop_flat_map(|from| {
            (Just(from), packet(ProtocolVersion::V5, from))
        }),
    ) {
        if is_right_in_v5(&sample.packet()) {
            check(&sample, ProtocolVersion::V5, from, through_v5, |_| {});
        }
    }

    /// Its names against ours: a property under the wrong name would survive a round trip.
    #[test]
    fn every_connect_property_has_the_same_name_in_mqttbytes(
        packet in super::arbitrary::connect(ProtocolVersion::V5),
    ) {
        let Packet::Connect(connect) = &packet else { return Ok(()) };
        if !has_text_login(connect) {
            return Ok(());
        }
        let mut out = BytesMut::new();
        named_connect(connect).write(&mut out).expect("writes");
        let mut expected = connect.clone();
        if let Some(will) = &mut expected.will {
            (will.delay_s, will.expiry_s, will.properties) = (0, None, Vec::new());
        }
        let read = decode(&out, None, Peer::Client).expect("good");
        prop_assert_eq!(read, Packet::Connect(expected));
    }

    #[test]
    fn every_connack_property_has_the_same_name_in_mqttbytes(
        packet in connack(ProtocolVersion::V5),
    ) {
        let Packet::Connack(connack) = &packet else { return Ok(()) };
        let mut out = BytesMut::new();
        named_connack(connack).write(&mut out).expect("writes");
        let read = decode(&out, Some(ProtocolVersion::V5), Peer::Server).expect("good");
        prop_assert_eq!(read, packet);
    }

    #[test]
    fn every_publish_property_has_the_same_name_in_mqttbytes(
        sample in publish(ProtocolVersion::V5, Peer::Server),
    ) {
        let packet = sample.packet();
        let Packet::Publish(publish) = &packet else { return Ok(()) };
        let mut out = BytesMut::new();
        named_publish(publish).write(&mut out).expect("writes");
        // Ours has written, theirs has written: the same after ours has read both.
        let read = decode(&out, Some(ProtocolVersion::V5), Peer::Server).expect("good");
        let Packet::Publish(read) = read else { panic!("a PUBLISH: {read:?}") };
        prop_assert_eq!(named_publish(&read), named_publish(publish));
        let mut ours = Vec::new();
        encode(&packet, ProtocolVersion::V5, &mut ours).expect("writes");
        prop_assert_eq!(ours.len(), out.len());
    }
}

fn qos(qos: QoS) -> mqttbytes::QoS {
    mqttbytes::qos(qos.bits()).expect("0, 1 or 2")
}

fn named_connect(connect: &Connect) -> v5::Connect {
    let found = &connect.properties;
    v5::Connect {
        protocol: mqttbytes::Protocol::V5,
        keep_alive: connect.keep_alive_s,
        client_id: connect.client_id.clone(),
        clean_session: connect.clean_start,
        last_will: connect.will.as_ref().map(|will| v5::LastWill {
            topic: will.topic.clone(),
            message: Bytes::copy_from_slice(&will.payload),
            qos: qos(will.qos),
            retain: will.retain,
            properties: None,
        }),
        login: (connect.username.is_some() || connect.password.is_some()).then(|| v5::Login {
            username: connect.username.clone().unwrap_or_default(),
            password: String::from_utf8(connect.password.clone().unwrap_or_default())
                .expect("text"),
        }),
        properties: Some(v5::ConnectProperties {
            session_expiry_interval: found.session_expiry_s,
            receive_maximum: found.receive_maximum,
            max_packet_size: found.maximum_packet_size,
            topic_alias_max: found.topic_alias_maximum,
            request_response_info: found.request_response_information.map(u8::from),
            request_problem_info: found.request_problem_information.map(u8::from),
            user_properties: found.user_properties.clone(),
            authentication_method: found.authentication_method.clone(),
            authentication_data: found.authentication_data.clone().map(Bytes::from),
        }),
    }
}

fn named_connack(connack: &Connack) -> v5::ConnAck {
    let found = &connack.properties;
    v5::ConnAck {
        session_present: connack.session_present,
        code: connack_code(connack.code),
        properties: Some(v5::ConnAckProperties {
            session_expiry_interval: found.session_expiry_s,
            receive_max: found.receive_maximum,
            max_qos: found.maximum_qos.map(QoS::bits),
            retain_available: found.retain_available.map(u8::from),
            max_packet_size: found.maximum_packet_size,
            assigned_client_identifier: found.assigned_client_id.clone(),
            topic_alias_max: found.topic_alias_maximum,
            reason_string: found.reason_string.clone(),
            user_properties: found.user_properties.clone(),
            wildcard_subscription_available: found.wildcard_subscription_available.map(u8::from),
            subscription_identifiers_available: found.subscription_ids_available.map(u8::from),
            shared_subscription_available: found.shared_subscription_available.map(u8::from),
            server_keep_alive: found.server_keep_alive_s,
            response_information: found.response_information.clone(),
            server_reference: found.server_reference.clone(),
            authentication_method: found.authentication_method.clone(),
            authentication_data: found.authentication_data.clone().map(Bytes::from),
        }),
    }
}

fn connack_code(code: u8) -> v5::ConnectReturnCode {
    use v5::ConnectReturnCode as Code;
    let all = [
        Code::Success,
        Code::UnspecifiedError,
        Code::MalformedPacket,
        Code::ProtocolError,
        Code::ImplementationSpecificError,
        Code::UnsupportedProtocolVersion,
        Code::ClientIdentifierNotValid,
        Code::BadUserNamePassword,
        Code::NotAuthorized,
        Code::ServerUnavailable,
        Code::ServerBusy,
        Code::Banned,
        Code::BadAuthenticationMethod,
        Code::TopicNameInvalid,
        Code::PacketTooLarge,
        Code::QuotaExceeded,
        Code::PayloadFormatInvalid,
        Code::RetainNotSupported,
        Code::QoSNotSupported,
        Code::UseAnotherServer,
        Code::ServerMoved,
        Code::ConnectionRateExceeded,
    ];
    all.into_iter().find(|it| *it as u8 == code).expect("a code of CONNACK")
}

fn named_publish(publish: &Publish<'_>) -> v5::Publish {
    let mut properties = v5::PublishProperties {
        payload_format_indicator: None,
        message_expiry_interval: publish.expiry_s,
        topic_alias: publish.topic_alias,
        response_topic: None,
        correlation_data: None,
        user_properties: Vec::new(),
        subscription_identifiers: publish.subscription_ids.iter().map(|id| *id as usize).collect(),
        content_type: None,
    };
    for property in forwarded_properties(&publish.properties) {
        match property {
            ForwardedProperty::PayloadIsText(is_text) => {
                properties.payload_format_indicator = Some(u8::from(is_text));
            }
            ForwardedProperty::ContentType(text) => properties.content_type = Some(text.to_owned()),
            ForwardedProperty::ResponseTopic(topic) => {
                properties.response_topic = Some(topic.to_owned());
            }
            ForwardedProperty::CorrelationData(data) => {
                properties.correlation_data = Some(Bytes::copy_from_slice(data));
            }
            ForwardedProperty::User(name, value) => {
                properties.user_properties.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    v5::Publish {
        dup: publish.dup,
        qos: qos(publish.qos),
        retain: publish.retain,
        topic: publish.topic.to_owned(),
        pkid: publish.packet_id.map_or(0, |id| id.get()),
        properties: Some(properties),
        payload: Bytes::copy_from_slice(publish.payload),
    }
}

/// Its own DISCONNECT with properties, which it and others misread without.
#[test]
fn a_disconnect_of_mqttbytes_is_read() {
    let theirs = v5::Disconnect {
        reason_code: v5::DisconnectReasonCode::DisconnectWithWillMessage,
        properties: Some(v5::DisconnectProperties {
            session_expiry_interval: Some(9),
            reason_string: Some("bye".to_owned()),
            user_properties: vec![("a".to_owned(), "b".to_owned())],
            server_reference: None,
        }),
    };
    let mut out = BytesMut::new();
    theirs.write(&mut out).expect("writes");
    let mut expected = Disconnect::new(ReasonCode::DisconnectWithWill);
    expected.session_expiry_s = Some(9);
    expected.reason_string = Some("bye".to_owned());
    expected.user_properties = vec![("a".to_owned(), "b".to_owned())];
    let read = decode(&out, Some(ProtocolVersion::V5), Peer::Client);
    assert_eq!(read, Ok(Packet::Disconnect(expected)));
}
