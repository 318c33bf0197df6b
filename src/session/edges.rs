//! A connection's edges: its first packet, and the last words to a peer that has to go.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, timeout};

use super::handshake::{self, Refusal};
use super::read_buffer::ReadBuffer;
use crate::codec::{self, Connect, DecodeError, Packet, Peer};
use crate::mqtt::{ProtocolVersion, ReasonCode};
use crate::telemetry::{self, Direction, DropReason, Turned};

pub(super) const SECOND_EXPIRY: DecodeError = DecodeError::protocol(
    "a session without expiry can't get one at DISCONNECT (MQTT 5 section 3.14.2.2.2)",
);

/// How long a refused or faulty peer may take to accept its last packet.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// A connection that never got to a CONNECT.
pub(super) struct NoConnect {
    pub(super) why: Turned,
    /// What it is answered; `None`: nothing.
    pub(super) refusal: Option<Refusal>,
}

impl From<Turned> for NoConnect {
    fn from(why: Turned) -> Self {
        Self { why, refusal: None }
    }
}

/// Reads the CONNECT.
pub(super) async fn first_packet(
    buffer: &mut ReadBuffer,
    read: &mut (impl AsyncRead + Unpin),
    max_bytes: u32,
) -> Result<Box<Connect>, NoConnect> {
    let mut needed = 0;
    loop {
        let unread = buffer.unread();
        let fault = |error: DecodeError| NoConnect {
            why: Turned::Connect,
            refusal: refusal_of(unread, error),
        };
        if let Some(frame) =
            codec::frame_length(unread, None, Peer::Client, max_bytes).map_err(fault)?
        {
            needed = frame.total;
            if unread.len() >= needed {
                let packet = codec::decode(&unread[..needed], None, Peer::Client).map_err(fault)?;
                let Packet::Connect(connect) = packet else { return Err(Turned::Connect.into()) };
                buffer.consume(needed);
                return Ok(connect);
            }
        }
        if buffer.fill(read, needed).await.map_err(|_| Turned::Closed)? == 0 {
            return Err(Turned::Closed.into());
        }
    }
}

/// Refuses a client that sent more packets behind its CONNECT than may wait for CONNACK (MET-3).
/// Nothing more is read before that, so what is buffered now is all that can wait.
pub(super) fn too_many_behind(
    buffer: &ReadBuffer,
    connect: &Connect,
    packets_max: usize,
    max_bytes: u32,
) -> Option<Refusal> {
    let (mut rest, mut packets) = (buffer.unread(), 0);
    let length = |rest| codec::frame_length(rest, Some(connect.version), Peer::Client, max_bytes);
    // What does not parse ends the connection when its turn comes.
    while let Ok(Some(frame)) = length(rest)
        && let Some(behind) = rest.get(frame.total..)
    {
        packets += 1;
        rest = behind;
    }
    (packets > packets_max).then(|| {
        let (why, lost) = (DropReason::QuotaExceeded, packets as u64);
        telemetry::dropped_of(why, Direction::Inbound, &connect.client_id, "", lost);
        Refusal {
            version: connect.version,
            reason: ReasonCode::QuotaExceeded,
            maximum_packet_size: connect.properties.maximum_packet_size,
        }
    })
}

/// What a bad CONNECT is answered: v5 a CONNACK with the reason, v3.x one only where it has a
/// return code for it, everything that is no CONNECT nothing at all.
fn refusal_of(frame: &[u8], error: DecodeError) -> Option<Refusal> {
    tracing::debug!(%error, "CONNECT refused");
    let level = codec::connect_level(frame)?;
    let reason = match error.connack_v3 {
        None if level < 5 => return None,
        Some(1) => ReasonCode::UnsupportedProtocolVersion,
        Some(2) => ReasonCode::ClientIdentifierNotValid,
        Some(_) | None => error.reason,
    };
    let version = if level >= 5 { ProtocolVersion::V5 } else { ProtocolVersion::V311 };
    Some(Refusal { version, reason, maximum_packet_size: None })
}

/// Sends the CONNACK of a refusal, if there is one, and ends: also what carries MQTT, such as a
/// WebSocket, which has last words of its own.
pub(super) async fn say_last(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    refusal: Option<Refusal>,
) {
    let bytes = refusal.map(handshake::refusal_bytes).unwrap_or_default();
    let say = async {
        write.write_all(&bytes).await?;
        write.shutdown().await
    };
    if matches!(timeout(LAST_WORDS, say).await, Ok(Ok(()))) && refusal.is_some() {
        linger(read).await;
    }
}

/// Reads away what the peer still sends, so that closing does not throw our last packet away with
/// it. Bounded in time and bytes.
pub(super) async fn linger(read: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = ReadBuffer::default();
    let drain = async {
        for _ in 0..16 {
            match buffer.fill(read, 0).await {
                Ok(read) if read > 0 => buffer.consume(read),
                Ok(_) | Err(_) => return,
            }
        }
    };
    drop(timeout(LAST_WORDS, drain).await);
}
