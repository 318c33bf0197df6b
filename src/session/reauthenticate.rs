//! AUTH packets of a client that is connected: it proves itself again (MQTT 5 section 4.12.1).

use std::sync::Arc;

use super::admission::{auth, proof};
use super::conn::{Conn, End};
use super::context::Context;
use crate::codec::{Auth, DecodeError};
use crate::mqtt::ReasonCode;
use crate::security::{Attempt, Grant, Refused, Step};

const NO_METHOD: DecodeError =
    DecodeError::protocol("AUTH without an authentication method in CONNECT (MQTT-4.12.0-6)");
const OTHER_METHOD: DecodeError =
    DecodeError::protocol("AUTH with another method than CONNECT (MQTT-4.12.0-5)");
const OUT_OF_TURN: DecodeError =
    DecodeError::protocol("AUTH that continues nothing (MQTT 5 section 4.12)");

/// Takes one AUTH; `under_way` is the exchange that has begun.
pub(super) fn take(
    context: &Context,
    conn: &Arc<Conn>,
    under_way: &mut Option<Box<Step>>,
    packet: &Auth,
) -> Result<(), End> {
    let known = conn.method.as_deref().zip(conn.grant.as_ref());
    let Some((method, grant)) = known else { return Err(End::Fault(NO_METHOD)) };
    if packet.authentication_method.as_deref() != Some(method) {
        return Err(End::Fault(OTHER_METHOD));
    }
    let peer = proof(&conn.peer);
    let attempt =
        Attempt { client_id: conn.client_id.as_str(), username: None, password: None, peer: &peer };
    let data = packet.authentication_data.as_deref();
    // DISCONNECT has no word for a ban (MQTT 5 table 2-6).
    let refused = |refused: Refused| match refused.reason {
        ReasonCode::Banned => End::Server(ReasonCode::AdministrativeAction),
        reason => End::Server(reason),
    };
    match (packet.reason, under_way.take()) {
        (ReasonCode::ReAuthenticate, None) => {
            let step = context.security.begin(method, data, &attempt).map_err(refused)?;
            let reason = ReasonCode::ContinueAuthentication;
            conn.outbox.control(&auth(reason, method, step.challenge()));
            *under_way = Some(Box::new(step));
            Ok(())
        }
        (ReasonCode::ContinueAuthentication, Some(step)) => {
            let earlier: &Arc<Grant> = grant;
            let finished = context.security.finish(&step, data, &attempt, Some(earlier));
            let (_, data) = finished.map_err(refused)?;
            conn.outbox.control(&auth(ReasonCode::Success, method, &data));
            Ok(())
        }
        _ => Err(End::Fault(OUT_OF_TURN)),
    }
}
