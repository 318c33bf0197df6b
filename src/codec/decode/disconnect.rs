//! DISCONNECT (MQTT 5 section 3.14); v3.x knows it from clients only and without a body.

use super::Result;
use crate::codec::properties::{PropertyReader, id};
use crate::codec::reader::Reader;
use crate::codec::{DecodeError, Disconnect, Peer};
use crate::mqtt::{ProtocolVersion, ReasonCode};

pub(super) fn decode(
    reader: &mut Reader<'_>,
    version: ProtocolVersion,
    from: Peer,
) -> Result<Disconnect> {
    let mut disconnect = Disconnect::new(ReasonCode::Success);
    // The short forms: no reason code is 0x00, no property length is no properties.
    if version.is_v5() && !reader.is_empty() {
        disconnect.reason = reason(reader.u8()?, from)?;
        if !reader.is_empty() {
            properties(&mut disconnect, reader, from)?;
        }
    }
    reader.end()?;
    Ok(disconnect)
}

/// The table of section 3.14.2.1: which codes there are, and who sends them.
fn reason(byte: u8, from: Peer) -> Result<ReasonCode> {
    let no_reason = DecodeError::malformed("reason code is not for DISCONNECT (section 3.14.2.1)");
    let code = ReasonCode::from_byte(byte).ok_or(no_reason)?;
    let (by_client, by_server) = match code {
        ReasonCode::DisconnectWithWill => (true, false),
        ReasonCode::Success
        | ReasonCode::UnspecifiedError
        | ReasonCode::MalformedPacket
        | ReasonCode::ProtocolError
        | ReasonCode::ImplementationSpecificError
        | ReasonCode::TopicNameInvalid
        | ReasonCode::ReceiveMaximumExceeded
        | ReasonCode::TopicAliasInvalid
        | ReasonCode::PacketTooLarge
        | ReasonCode::MessageRateTooHigh
        | ReasonCode::QuotaExceeded
        | ReasonCode::AdministrativeAction
        | ReasonCode::PayloadFormatInvalid => (true, true),
        ReasonCode::NotAuthorized
        | ReasonCode::ServerBusy
        | ReasonCode::ServerShuttingDown
        | ReasonCode::BadAuthenticationMethod
        | ReasonCode::KeepAliveTimeout
        | ReasonCode::SessionTakenOver
        | ReasonCode::TopicFilterInvalid
        | ReasonCode::RetainNotSupported
        | ReasonCode::QoSNotSupported
        | ReasonCode::UseAnotherServer
        | ReasonCode::ServerMoved
        | ReasonCode::SharedSubscriptionsNotSupported
        | ReasonCode::ConnectionRateExceeded
        | ReasonCode::MaximumConnectTime
        | ReasonCode::SubscriptionIdentifiersNotSupported
        | ReasonCode::WildcardSubscriptionsNotSupported => (false, true),
        ReasonCode::GrantedQoS1
        | ReasonCode::GrantedQoS2
        | ReasonCode::NoMatchingSubscribers
        | ReasonCode::NoSubscriptionExisted
        | ReasonCode::ContinueAuthentication
        | ReasonCode::ReAuthenticate
        | ReasonCode::UnsupportedProtocolVersion
        | ReasonCode::ClientIdentifierNotValid
        | ReasonCode::BadUserNameOrPassword
        | ReasonCode::ServerUnavailable
        | ReasonCode::Banned
        | ReasonCode::PacketIdentifierInUse
        | ReasonCode::PacketIdentifierNotFound => return Err(no_reason),
    };
    let sent = match from {
        Peer::Client => by_client,
        Peer::Server => by_server,
    };
    if sent {
        Ok(code)
    } else {
        Err(DecodeError::protocol("this peer never sends this reason code (section 3.14.2.1)"))
    }
}

fn properties(disconnect: &mut Disconnect, reader: &mut Reader<'_>, from: Peer) -> Result<()> {
    let mut block = PropertyReader::open(reader)?;
    while let Some(id) = block.next_id()? {
        match (id, from) {
            (id::SESSION_EXPIRY, Peer::Client) => {
                disconnect.session_expiry_s = Some(block.u32()?);
            }
            (id::SESSION_EXPIRY, Peer::Server) => {
                return Err(DecodeError::protocol(
                    "a server sends no Session Expiry in DISCONNECT (MQTT-3.14.2-2)",
                ));
            }
            (id::SERVER_REFERENCE, Peer::Server) => {
                disconnect.server_reference = Some(block.text()?);
            }
            (id::SERVER_REFERENCE, Peer::Client) => {
                return Err(DecodeError::protocol(
                    "a client sends no Server Reference (section 3.14.2.2.5)",
                ));
            }
            (id::REASON_STRING, _) => disconnect.reason_string = Some(block.text()?),
            (id::USER_PROPERTY, _) => disconnect.user_properties.push(block.user_property()?),
            _ => return Err(PropertyReader::misplaced()),
        }
    }
    Ok(())
}
