//! Between CONNECT and its claim: who is it, and may it come in? Asks the security room, and
//! carries an exchange of AUTH packets where the client asked for one (MQTT 5 section 4.12).

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::Peer;
use super::claim::Claimed;
use super::context::Context;
use super::handshake::{self, Refusal};
use super::read_buffer::ReadBuffer;
use crate::codec::{self, Auth, Connect, Packet, Peer as Side};
use crate::limits::AUTHENTICATION_MS;
use crate::mqtt::{ProtocolVersion, ReasonCode};
use crate::security::{self, Attempt, ClientCertificate, Grant};

/// A client that may come in.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// The id that was made for it.
    pub(super) assigned: Option<String>,
    /// `None`: it is anonymous, and nothing is denied to it.
    pub(super) grant: Option<Arc<Grant>>,
    /// For CONNACK: the method of its exchange, and our last word.
    pub(super) method: Option<String>,
    pub(super) data: Option<Vec<u8>>,
}

/// The wire of a connection that has no writer task yet.
pub(super) struct Wire<'w, R, W> {
    pub(super) buffer: &'w mut ReadBuffer,
    pub(super) read: &'w mut R,
    pub(super) write: &'w mut W,
    pub(super) max_bytes: u32,
}

/// What the listener's word on a connection proves.
pub(super) fn proof(peer: &Peer) -> security::Peer {
    let chain = peer.tls.as_ref().map(|tls| tls.chain.as_slice()).unwrap_or_default();
    security::Peer {
        door: peer.door,
        address: peer.address.map(|address| address.ip()),
        secure: peer.tls.is_some(),
        certificate: ClientCertificate::of_chain(chain).map(Arc::new),
    }
}

/// From a whole CONNECT to its claim, which puts CONNACK into the outbox.
pub(super) async fn greet<R, W>(
    context: &Arc<Context>,
    connect: Connect,
    peer: Peer,
    wire: Wire<'_, R, W>,
) -> Result<Claimed, Refusal>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let max_bytes = wire.max_bytes;
    handshake::check(context, &connect)?;
    let admitted = admit(context, &connect, &proof(&peer), wire).await?;
    handshake::connect(context, connect, admitted, peer, max_bytes).await
}

/// Asks whether the client may come in. Nothing of it is in any table before this.
async fn admit<R, W>(
    context: &Context,
    connect: &Connect,
    peer: &security::Peer,
    wire: Wire<'_, R, W>,
) -> Result<Admitted, Refusal>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let assigned = connect.client_id.is_empty().then(generated_id);
    let attempt = Attempt {
        client_id: assigned.as_deref().unwrap_or(&connect.client_id),
        username: connect.username.as_deref(),
        password: connect.password.as_deref(),
        peer,
    };
    let admitted = match &connect.properties.authentication_method {
        None => {
            let admitted = context.security.admit(&attempt).await;
            admitted.map(|grant| Admitted { grant, ..Admitted::default() }).map_err(|r| r.reason)
        }
        Some(method) => exchange(context, connect, method, &attempt, wire).await,
    };
    let mut admitted = admitted.map_err(|reason| refusal(connect, reason))?;
    let will = connect.will.as_ref().map(|will| will.topic.as_str());
    if let (Some(grant), Some(topic)) = (&admitted.grant, will)
        && !grant.may_publish(topic)
    {
        crate::telemetry::metrics::AUTHORIZATION_PUBLISH.inc();
        return Err(refusal(connect, ReasonCode::NotAuthorized));
    }
    admitted.assigned = assigned;
    Ok(admitted)
}

fn refusal(connect: &Connect, reason: ReasonCode) -> Refusal {
    let maximum_packet_size = connect.properties.maximum_packet_size;
    Refusal { version: connect.version, reason, maximum_packet_size }
}

/// One challenge, one answer.
async fn exchange<R, W>(
    context: &Context,
    connect: &Connect,
    method: &str,
    attempt: &Attempt<'_>,
    mut wire: Wire<'_, R, W>,
) -> Result<Admitted, ReasonCode>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let data = connect.properties.authentication_data.as_deref();
    let step = context.security.begin(method, data, attempt).map_err(|r| r.reason)?;
    let challenge = auth(ReasonCode::ContinueAuthentication, method, step.challenge());
    let patience = Duration::from_millis(AUTHENTICATION_MS);
    let answer = timeout(patience, wire.ask(&challenge)).await;
    let answer = answer.map_err(|_| ReasonCode::NotAuthorized)??;
    if answer.authentication_method.as_deref() != Some(method) {
        return Err(ReasonCode::ProtocolError);
    }
    let data = answer.authentication_data.as_deref();
    let finished = context.security.finish(&step, data, attempt, None);
    let (grant, data) = finished.map_err(|refused| refused.reason)?;
    let method = Some(method.to_owned());
    Ok(Admitted { grant: Some(grant), method, data: Some(data), assigned: None })
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Wire<'_, R, W> {
    /// Sends an AUTH and reads the client's. It may send nothing else now but DISCONNECT
    /// (MQTT-3.1.2-30), which ends it likewise.
    async fn ask(&mut self, challenge: &Packet<'_>) -> Result<Auth, ReasonCode> {
        let mut bytes = Vec::new();
        let v5 = ProtocolVersion::V5;
        codec::encode(challenge, v5, &mut bytes).map_err(|_| ReasonCode::UnspecifiedError)?;
        let gone = |_| ReasonCode::UnspecifiedError;
        self.write.write_all(&bytes).await.map_err(gone)?;
        self.write.flush().await.map_err(gone)?;
        let mut needed = 0;
        loop {
            let unread = self.buffer.unread();
            let frame = codec::frame_length(unread, Some(v5), Side::Client, self.max_bytes);
            if let Some(frame) = frame.map_err(|error| error.reason)? {
                needed = frame.total;
                if unread.len() >= needed {
                    let packet = codec::decode(&unread[..needed], Some(v5), Side::Client);
                    let packet = packet.map_err(|error| error.reason)?;
                    let Packet::Auth(auth) = packet else {
                        return Err(ReasonCode::ProtocolError);
                    };
                    if auth.reason != ReasonCode::ContinueAuthentication {
                        return Err(ReasonCode::ProtocolError);
                    }
                    self.buffer.consume(needed);
                    return Ok(auth);
                }
            }
            if self.buffer.fill(self.read, needed).await.map_err(gone)? == 0 {
                return Err(ReasonCode::UnspecifiedError);
            }
        }
    }
}

pub(super) fn auth(reason: ReasonCode, method: &str, data: &[u8]) -> Packet<'static> {
    Packet::Auth(Auth {
        reason,
        authentication_method: Some(method.to_owned()),
        authentication_data: Some(data.to_vec()),
        reason_string: None,
        user_properties: Vec::new(),
    })
}

/// An id for a client that brought none; never used twice in practice: 128 random bits.
fn generated_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let bits = || RandomState::new().hash_one(crate::telemetry::clock::wall_ms());
    format!("auto-{:016x}{:016x}", bits(), bits())
}
