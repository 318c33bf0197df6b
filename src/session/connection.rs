//! The session task: one connection's read side, from its first byte to its last.
//!
//! ```text
//! opened ──CONNECT, claim──→ connected ──end──→ ended
//! connected: read → decode whole packets → hand the batch to the log → hold, if full → read …
//! ```

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{timeout, timeout_at};

use super::Arrival;
use super::admission::{self, Wire};
use super::claim::Claimed;
use super::conn::{Conn, End, start_writing};
use super::context::{Context, Serving};
use super::edges::{
    LAST_WORDS, NoConnect, SECOND_EXPIRY, first_packet, linger, say_last, too_many_behind,
};
use super::inbound::{AckWindow, Inbound, Taken};
use super::lifecycle;
use super::read_buffer::ReadBuffer;
use super::reauthenticate;
use super::registry::Locked;
use super::retained_replay::Replay;
use super::subscribe::Subscriber;
use crate::codec::{
    self, AckKind, Auth, DecodeError, Disconnect, Packet, Peer, Subscribe, Unsubscribe,
};
use crate::delivery::ClientAck;
use crate::limits::CONTROL_LANE_BYTES;
use crate::mqtt::ProtocolVersion;
use crate::security;
use crate::telemetry::{Counted, Turned, metrics, task};

const UNEXPECTED: DecodeError = DecodeError::protocol("a packet that a client may not send now");

/// Serves one connection until it ends. What is needed only at its beginning and its end is boxed,
/// so that an idle connection does not carry it.
pub(super) async fn serve<R, W>(context: Arc<Context>, read: R, write: W, arrival: Box<Arrival>)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let opened = Box::pin(open(context, read, write, arrival)).await;
    let Some((mut session, mut read)) = opened else { return };
    let end = session.run(&mut read).await;
    Box::pin(session.finish(read, end)).await;
    metrics::CLIENT_DISCONNECTS.inc();
}

/// From the first byte to CONNACK; `None`: it came to nothing, and the peer was told.
async fn open<R, W>(
    context: Arc<Context>,
    mut read: R,
    mut write: W,
    arrival: Box<Arrival>,
) -> Option<(Box<SessionTask>, R)>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let Arrival { peer, max_packet_bytes: max_bytes, connect_by, socket, displaced } = *arrival;
    let mut buffer = ReadBuffer::default();
    let first = first_packet(&mut buffer, &mut read, max_bytes);
    let first = tokio::select! {
        biased;
        () = displaced => Err(NoConnect::from(Turned::Crowded)),
        first = timeout_at(connect_by, first) => first.unwrap_or(Err(Turned::Timeout.into())),
    };
    let connect = match first {
        Ok(connect) => *connect,
        Err(NoConnect { why, refusal }) => {
            metrics::CONNECTION_REFUSED.inc();
            peer.door.turned(why);
            tracing::debug!(%peer, why = why.text(), "no CONNECT");
            say_last(&mut read, &mut write, refusal).await;
            return None;
        }
    };
    let version = connect.version;
    let serving = Serving::of(&context);
    let packets = context.config.pre_connect_packets;
    let is_encrypted = peer.tls.is_some();
    let claimed = match too_many_behind(&buffer, &connect, packets, max_bytes) {
        None => {
            let (buffer, read, write) = (&mut buffer, &mut read, &mut write);
            let wire = Wire { buffer, read, write, max_bytes };
            admission::greet(&context, connect, peer, wire).await
        }
        Some(refusal) => Err(refusal),
    };
    let claimed = match claimed {
        Ok(claimed) => claimed,
        Err(refusal) => {
            metrics::CONNECTION_REFUSED.inc();
            drop(serving);
            say_last(&mut read, &mut write, Some(refusal)).await;
            return None;
        }
    };
    metrics::CONNECTION_ACCEPTED.inc();
    start_writing(&claimed.conn, write, socket);
    let connected = Counted::one(&metrics::CONNECTED_SESSIONS);
    let encrypted = is_encrypted.then(|| Counted::one(&metrics::CONNECTED_SSL_SESSIONS));
    let held = Held { serving, connected, encrypted };
    Some((Box::new(SessionTask::new(context, claimed, version, max_bytes, buffer, held)), read))
}

/// What stops the decoding of a read.
enum Step {
    /// No whole packet is left.
    Read,
    /// The read-ahead is used up, or the batch is full.
    Flush,
    /// The quota has to be asked; then the same packet comes again.
    Charge,
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
    Auth(Box<Auth>),
    End(End),
}

/// What a session does next.
enum Next {
    Read,
    Slow(Box<Step>),
}

struct SessionTask {
    context: Arc<Context>,
    conn: Arc<Conn>,
    version: ProtocolVersion,
    max_bytes: u32,
    incarnation: u64,
    persistent: bool,
    /// Session Expiry Interval of the CONNECT.
    expiry_s: u32,
    buffer: ReadBuffer,
    /// Length of the frame at hand, if known.
    needed: usize,
    inbound: Inbound,
    /// Acknowledgements of this read.
    acks: Vec<ClientAck>,
    /// An exchange of AUTH packets that has begun.
    reauthentication: Option<Box<security::Step>>,
    held: Held,
}

/// What a stop waits for, and what a connection's end waits for.
struct Held {
    serving: Serving,
    /// For the metrics page.
    connected: Counted,
    encrypted: Option<Counted>,
}

impl SessionTask {
    fn new(
        context: Arc<Context>,
        claimed: Claimed,
        version: ProtocolVersion,
        max_bytes: u32,
        buffer: ReadBuffer,
        held: Held,
    ) -> Self {
        let Claimed { conn, publisher, open_ids, persistent, expiry_s } = claimed;
        let is_v5 = version.is_v5();
        let budget = Arc::clone(&context.budget);
        let retained = Arc::clone(&context.retained);
        let quota = context.limits.throughput.clone();
        let window = AckWindow::new(Arc::clone(&conn), is_v5, open_ids, budget, retained, quota);
        let incarnation = publisher.incarnation;
        let inbound = Inbound::new(Arc::clone(&context), publisher, window, is_v5);
        let (needed, acks) = (0, Vec::new());
        Self {
            context,
            conn,
            version,
            max_bytes,
            incarnation,
            persistent,
            expiry_s,
            buffer,
            needed,
            inbound,
            acks,
            reauthentication: None,
            held,
        }
    }

    /// Reads and works until there is a reason to end. What is awaited seldom is boxed.
    async fn run(&mut self, read: &mut (impl AsyncRead + Unpin)) -> End {
        loop {
            match self.work() {
                Next::Read => {}
                Next::Slow(slow) => match Box::pin(self.slow(*slow)).await {
                    Ok(()) => continue,
                    Err(end) => return end,
                },
            }
            let filled = tokio::select! {
                biased;
                end = self.conn.ended() => return end,
                filled = self.buffer.fill(read, self.needed) => filled,
            };
            match filled {
                Ok(0) | Err(_) => return End::Closed,
                Ok(bytes) => {
                    metrics::RECEIVED_BYTES.add(bytes as u64);
                    tracing::trace!(stop = 2, client = %self.conn.client_id, bytes, "read");
                }
            }
        }
    }

    /// Decodes what is there and hands it on, as far as that needs no waiting.
    fn work(&mut self) -> Next {
        let step = self.decode().unwrap_or_else(|error| Step::End(End::Fault(error)));
        if !self.acks.is_empty() {
            self.conn.outbox.acknowledge(&self.acks);
            self.acks.clear();
        }
        if !matches!(step, Step::Read) {
            return Next::Slow(Box::new(step));
        }
        match self.inbound.try_flush() {
            Ok(true) if !self.must_hold() => Next::Read,
            Ok(_) => Next::Slow(Box::new(step)),
            Err(end) => Next::Slow(Box::new(Step::End(end))),
        }
    }

    /// What has to be waited for: the budget, the log, a row, the end.
    async fn slow(&mut self, step: Step) -> Result<(), End> {
        tokio::select! {
            biased;
            flushed = self.inbound.flush() => flushed?,
            end = self.conn.ended() => return Err(end),
        }
        match step {
            Step::Read | Step::Flush => {}
            Step::Charge => return self.inbound.settle_charge(&self.conn).await,
            Step::Subscribe(packet) => return self.subscribe(packet).await,
            Step::Unsubscribe(packet) => return self.unsubscribe(packet).await,
            Step::Auth(packet) => {
                let under_way = &mut self.reauthentication;
                return reauthenticate::take(&self.context, &self.conn, under_way, &packet);
            }
            Step::End(end) => return Err(end),
        }
        if self.must_hold() {
            return match self.hold().await {
                Some(end) => Err(end),
                None => Ok(()),
            };
        }
        Ok(())
    }

    /// Decodes whole packets until there are no more, or one that has to be waited for.
    fn decode(&mut self) -> Result<Step, DecodeError> {
        let mut heard = false;
        self.inbound.look();
        let step = loop {
            if self.inbound.batch_fills_read_ahead() || self.inbound.batch_is_full() {
                break Step::Flush;
            }
            let unread = self.buffer.unread();
            let version = Some(self.version);
            let frame = codec::frame_length(unread, version, Peer::Client, self.max_bytes)?;
            self.needed = frame.map_or(0, |frame| frame.total);
            if frame.is_none() || unread.len() < self.needed {
                break Step::Read;
            }
            heard = true;
            let packet = codec::decode(&unread[..self.needed], version, Peer::Client)?;
            let (client, bytes) = (&self.conn.client_id, self.needed);
            tracing::trace!(stop = 3, %client, packet = packet.name(), bytes, "decoded");
            let step = Self::packet(&mut self.inbound, &mut self.acks, &self.conn, packet)?;
            if matches!(step, Some(Step::Charge)) {
                break Step::Charge;
            }
            self.buffer.consume(self.needed);
            if let Some(step) = step {
                break step;
            }
        };
        if heard {
            self.conn.heard();
        }
        Ok(step)
    }

    /// Deals with one packet; what has to be waited for is handed back.
    fn packet(
        inbound: &mut Inbound,
        acks: &mut Vec<ClientAck>,
        conn: &Conn,
        packet: Packet<'_>,
    ) -> Result<Option<Step>, DecodeError> {
        match packet {
            Packet::Publish(publish) => {
                let taken = inbound.publish(&publish)?;
                return Ok((taken == Taken::Later).then_some(Step::Charge));
            }
            Packet::Ack(AckKind::Pubrel, ack) => inbound.release(ack.packet_id),
            Packet::Ack(kind, ack) => {
                acks.push(ClientAck { kind, id: ack.packet_id, reason: ack.reason });
            }
            Packet::Pingreq => {
                // Whoever has the answer knows that what it said before is taken note of.
                conn.outbox.acknowledge(acks);
                acks.clear();
                conn.outbox.control(&Packet::Pingresp);
            }
            Packet::Subscribe(packet) => return Ok(Some(Step::Subscribe(packet))),
            Packet::Unsubscribe(packet) => return Ok(Some(Step::Unsubscribe(packet))),
            Packet::Disconnect(packet) => return Ok(Some(Step::End(End::goodbye(&packet)))),
            Packet::Auth(packet) => return Ok(Some(Step::Auth(Box::new(packet)))),
            Packet::Connect(_)
            | Packet::Connack(_)
            | Packet::Suback(_)
            | Packet::Unsuback(_)
            | Packet::Pingresp => return Err(UNEXPECTED),
        }
        Ok(None)
    }

    /// Whether the socket must not be read for now.
    fn must_hold(&mut self) -> bool {
        self.inbound.is_full() || self.context.is_lagging() || self.lane_is_full()
    }

    /// The client does not take our answers: no further packet may ask for one (OUT-4).
    fn lane_is_full(&self) -> bool {
        self.conn.outbox.buffered() > self.lane()
    }

    fn lane(&self) -> usize {
        self.context.delivery.write_buffer_high_bytes + CONTROL_LANE_BYTES
    }

    /// Waits until the socket may be read again; the keep-alive clock stands still (IN-5).
    async fn hold(&mut self) -> Option<End> {
        self.conn.set_held(true);
        let held = Counted::one(&metrics::HELD_READERS);
        let end = self.wait_for_room().await;
        drop(held);
        self.conn.set_held(false);
        end
    }

    async fn wait_for_room(&mut self) -> Option<End> {
        let append_timeout = self.context.config.append_timeout;
        loop {
            // One look decides whether to wait and for what: a reason that goes away between two
            // looks would leave nothing that wakes this reader.
            let full = self.inbound.is_full();
            let (lags, lane) = (self.context.is_lagging(), self.lane_is_full());
            if !full && !lags && !lane {
                return None;
            }
            let window = Arc::clone(self.inbound.window());
            tokio::select! {
                biased;
                end = self.conn.ended() => return Some(end),
                () = window.progress(), if full => {}
                () = self.context.caught_up(), if lags => {}
                () = self.conn.outbox.drained_to(self.lane()), if lane => {}
                () = tokio::time::sleep(append_timeout), if full => {
                    // IN-7: nobody knows whether what is open will be stored.
                    let stuck = window.oldest().is_some_and(|at| at.elapsed() >= append_timeout);
                    if stuck {
                        return Some(End::Storage);
                    }
                }
            }
        }
    }

    fn subscriber(&self) -> Subscriber<'_> {
        Subscriber {
            context: &self.context,
            conn: &self.conn,
            version: self.version,
            incarnation: self.incarnation,
            persistent: self.persistent,
        }
    }

    async fn subscribe(&self, packet: Subscribe) -> Result<(), End> {
        let Some(_turn) = self.turn().await else { return Err(End::TakenOver) };
        let owed = self.subscriber().subscribe(packet).await.map_err(End::Fault)?;
        if let Some(owed) = owed {
            let replay = Replay {
                context: Arc::clone(&self.context),
                conn: Arc::clone(&self.conn),
                incarnation: self.incarnation,
                persistent: self.persistent,
                owed,
            };
            task::spawn("retained replay", replay.run());
        }
        Ok(())
    }

    async fn unsubscribe(&self, packet: Unsubscribe) -> Result<(), End> {
        let Some(_turn) = self.turn().await else { return Err(End::TakenOver) };
        self.subscriber().unsubscribe(packet).await.map_err(End::Fault)
    }

    /// The session's gate while its subscriptions change: a row of this connection never comes
    /// behind a newer connection's claim, and the end of a session meets none on its way. Held no
    /// longer than one append may take. `None`: the session has a newer connection.
    async fn turn(&self) -> Option<Locked<'_>> {
        let locked = self.context.registry.lock(&self.conn.client_id).await;
        locked.is_live(&self.conn).then_some(locked)
    }

    /// Ends the connection: tells the client, then the session.
    async fn finish(mut self: Box<Self>, mut read: impl AsyncRead + Unpin, end: End) {
        let end = self.checked(end);
        self.inbound.abandon();
        match end {
            End::Fault(error) => {
                metrics::CONNECTION_ERROR.inc();
                let (client, peer) = (&self.conn.client_id, &self.conn.peer);
                tracing::info!(%client, %peer, %error, "connection ended");
            }
            End::Storage => {
                tracing::warn!(client = %self.conn.client_id, "connection ended: storage");
            }
            _ => {
                let (client, peer) = (&self.conn.client_id, &self.conn.peer);
                tracing::debug!(%client, %peer, ?end, "connection ended");
            }
        }
        let last = end.reason().filter(|_| self.version.is_v5()).map(|reason| {
            let mut disconnect = Disconnect::new(reason);
            if let End::Fault(error) = end {
                disconnect.reason_string = Some(error.detail.to_owned());
            }
            Packet::Disconnect(disconnect)
        });
        self.conn.outbox.close(last.as_ref());
        self.conn.end(end);
        lifecycle::disconnected(&self.context, &self.conn, end).await;
        // A peer that takes nothing is the writer's to give up.
        let Held { serving, connected: _connected, encrypted: _encrypted } = self.held;
        drop(timeout(LAST_WORDS, self.conn.outbox.gone()).await);
        drop(serving);
        if end.reason().is_some() {
            linger(&mut read).await;
        }
    }

    /// A DISCONNECT may not give an expiry to a session that CONNECT gave none.
    fn checked(&self, end: End) -> End {
        match end {
            End::Goodbye(Some(expiry_s)) | End::GoodbyeWithWill(Some(expiry_s))
                if expiry_s > 0 && self.expiry_s == 0 =>
            {
                End::Fault(SECOND_EXPIRY)
            }
            _ => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

    use super::*;
    use crate::delivery;

    fn size<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_writer<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// An idle connection holds these two futures for as long as it lives: they are most of what
    /// it costs.
    #[test]
    fn the_futures_of_a_connection_stay_small() {
        let session = size(serve::<OwnedReadHalf, OwnedWriteHalf>);
        let writer = size_of_writer(delivery::write::<OwnedWriteHalf>);
        let parts = (size_of::<SessionTask>(), size_of::<delivery::Outbox>());
        assert!(session <= 700 && writer <= 350, "{session} and {writer} bytes; {parts:?}");
    }
}
