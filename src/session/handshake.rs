//! CONNECT → checks → claim → CONNACK.

use std::sync::Arc;

use super::Peer;
use super::admission::Admitted;
use super::claim::{self, Ask, Claimed};
use super::conn::About;
use super::context::Context;
use super::lifecycle;
use super::rows::WillRow;
use crate::codec::{
    Connack, ConnackProperties, Connect, EncodeLimits, MAX_PACKET_SIZE, Packet, connack_v3_code,
    encode_within,
};
use crate::delivery::{Gate, Outbox, Settings};
use crate::mqtt::{ClientId, ProtocolVersion, ReasonCode};
use crate::security::{ClientType, Grant};

/// A CONNECT that is answered with this reason and the end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) version: ProtocolVersion,
    pub(super) reason: ReasonCode,
    pub(super) maximum_packet_size: Option<u32>,
}

/// Carries a checked CONNECT through to its CONNACK. Boxed by its caller: it is large, and short.
pub(super) async fn connect(
    context: &Arc<Context>,
    mut connect: Connect,
    admitted: Admitted,
    peer: Peer,
    max_packet_bytes: u32,
) -> Result<Claimed, Refusal> {
    let (version, limit) = (connect.version, connect.properties.maximum_packet_size);
    let refusal = |reason| Refusal { version, reason, maximum_packet_size: limit };
    let Admitted { assigned, grant, method, data } = admitted;
    let client_id = ClientId::new(assigned.as_deref().unwrap_or(&connect.client_id));
    let expiry_s = lifecycle::expiry_in_force(context, &connect);
    let keep_alive_s = keep_alive_in_force(context, &connect);
    let properties = ConnackProperties {
        session_expiry_s: claim::expiry_to_tell(&connect, expiry_s),
        receive_maximum: Some(context.config.receive_maximum),
        maximum_packet_size: Some(max_packet_bytes),
        assigned_client_id: assigned,
        topic_alias_maximum: Some(context.config.topic_alias_max).filter(|max| *max > 0),
        server_keep_alive_s: (keep_alive_s != connect.keep_alive_s).then_some(keep_alive_s),
        response_information: response_information(context, &connect),
        shared_subscription_available: (!context.config.shared_subscriptions).then_some(false),
        authentication_method: method.clone(),
        authentication_data: data,
        ..ConnackProperties::default()
    };
    let will = connect.will.take().map(|will| Box::new(WillRow::new(will)));
    let is_one = |grant: &Arc<Grant>| grant.client_type() == ClientType::Application;
    let ask = Ask {
        application: expiry_s > 0 && grant.as_ref().is_some_and(is_one),
        clean_start: connect.clean_start,
        expiry_s,
        keep_alive_s,
        will,
        settings: settings(context, client_id.clone(), &connect, grant.as_ref()),
        client_id,
        about: About { peer, grant, method },
    };
    let greet = |outbox: &Outbox, session_present: bool| {
        let code = ReasonCode::Success.byte();
        // MQTT-3.2.2-2: no session in 3.1's CONNACK.
        let session_present = session_present && connect.version != ProtocolVersion::V31;
        let connack = Connack { session_present, code, properties };
        outbox.control(&Packet::Connack(Box::new(connack)));
    };
    claim::claim(context, ask, greet).await.map_err(refusal)
}

/// What the codec can't know: limits of this node, and its state.
pub(super) fn check(context: &Context, connect: &Connect) -> Result<(), Refusal> {
    let (version, maximum_packet_size) = (connect.version, connect.properties.maximum_packet_size);
    let refusal = |reason| Refusal { version, reason, maximum_packet_size };
    judge(context, connect).map_err(refusal)
}

fn judge(context: &Context, connect: &Connect) -> Result<(), ReasonCode> {
    if context.is_stopping() {
        // CONNACK has no word for a shutdown (MQTT 5 table 3-1).
        return Err(ReasonCode::ServerUnavailable);
    }
    let v31 = connect.version == ProtocolVersion::V31;
    if v31 && connect.client_id.chars().count() > context.config.v31_max_client_id_chars {
        return Err(ReasonCode::ClientIdentifierNotValid);
    }
    let levels = context.config.max_topic_segments.map_or(usize::MAX, usize::from);
    let will_topic = connect.will.as_ref().map(|will| will.topic.as_str());
    match will_topic {
        Some(topic) if topic.starts_with('$') || topic.split('/').count() > levels => {
            Err(ReasonCode::TopicNameInvalid)
        }
        Some(_) | None => Ok(()),
    }
}

fn settings(
    context: &Context,
    client_id: ClientId,
    connect: &Connect,
    grant: Option<&Arc<Grant>>,
) -> Settings {
    let asked = &connect.properties;
    let default =
        if connect.version.is_v5() { u16::MAX } else { context.delivery.v3_receive_maximum };
    Settings {
        client_id,
        version: connect.version,
        receive_maximum: asked.receive_maximum.unwrap_or(default),
        maximum_packet_size: asked.maximum_packet_size,
        topic_alias_maximum: asked.topic_alias_maximum.unwrap_or(0),
        problem_information: asked.request_problem_information.unwrap_or(true),
        gate: grant.map(|grant| {
            let grant = Arc::clone(grant);
            Gate::new(move |topic| grant.may_receive(topic))
        }),
    }
}

/// v5 clients that ask for more than the cap, or for none, get the cap (MQTT-3.2.2-21).
fn keep_alive_in_force(context: &Context, connect: &Connect) -> u16 {
    match context.config.max_keep_alive_secs {
        Some(max) if connect.version.is_v5() => match connect.keep_alive_s {
            0 => max,
            asked => asked.min(max),
        },
        Some(_) | None => connect.keep_alive_s,
    }
}

fn response_information(context: &Context, connect: &Connect) -> Option<String> {
    let wanted = connect.properties.request_response_information == Some(true);
    context.config.response_info.as_ref().filter(|_| wanted).map(|info| info.to_string())
}

/// The CONNACK that refuses, in the form of the client's version; empty where that has none.
pub(super) fn refusal_bytes(refusal: Refusal) -> Vec<u8> {
    let is_v5 = refusal.version.is_v5();
    let code = if is_v5 { refusal.reason.byte() } else { connack_v3_code(refusal.reason) };
    let reason_string = is_v5.then(|| refusal.reason.text().to_owned());
    let properties = ConnackProperties { reason_string, ..ConnackProperties::default() };
    let connack = Connack { session_present: false, code, properties };
    let limits = EncodeLimits {
        maximum_packet_size: refusal.maximum_packet_size.unwrap_or(MAX_PACKET_SIZE),
        problem_information: true,
    };
    let mut bytes = Vec::new();
    let packet = Packet::Connack(Box::new(connack));
    match encode_within(&packet, refusal.version, limits, &mut bytes) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}
