//! The way of one connection from accept to its session: PROXY header, TLS, WebSocket, each in its
//! time and in its place.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::bind::Accepted;
use super::halves::WriteHalf;
use super::networks::Networks;
use super::places::{Admitted, House, Opening, Place};
use super::stream::Stream;
use super::tls::{self, Current, Served};
use super::ws::Ws;
use super::{Config, WsConfig, proxy};
use crate::limits::NOTSENT_LOWAT_BYTES;
use crate::session::{Arrival, Peer, Sessions};
use crate::telemetry::{Door, Throttle, Turned, metrics};

static TURNED_AWAY: Throttle = Throttle::every(Duration::from_secs(10));

/// What the connections of one listener have in common.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) door: Door,
    pub(super) house: Arc<House>,
    pub(super) trusted: Networks,
    pub(super) connect_timeout: Duration,
    pub(super) max_packet_bytes: usize,
    pub(super) so_keep_alive: bool,
    pub(super) so_send_buffer_bytes: Option<usize>,
    pub(super) proxy: bool,
    pub(super) tls: Option<Arc<Current>>,
    /// Handshakes are computed by so many at once, over all listeners.
    pub(super) turns: Arc<Semaphore>,
    pub(super) ws: Option<WsConfig>,
}

impl Way {
    /// A way without layers.
    pub(super) fn bare(
        door: Door,
        config: &Config,
        house: &Arc<House>,
        turns: &Arc<Semaphore>,
    ) -> Self {
        Self {
            door,
            house: Arc::clone(house),
            trusted: config.trusted.clone(),
            connect_timeout: config.connect_timeout,
            max_packet_bytes: 0,
            so_keep_alive: false,
            so_send_buffer_bytes: config.so_send_buffer_bytes,
            proxy: false,
            tls: None,
            turns: Arc::clone(turns),
            ws: None,
        }
    }

    /// Whether a connection is handed on as bare TCP.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none() && self.ws.is_none()
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(stream);
        socket.set_tcp_notsent_lowat(NOTSENT_LOWAT_BYTES as u32)?;
        if let Some(bytes) = self.so_send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if self.so_keep_alive {
            socket.set_tcp_keepalive(&TcpKeepalive::new())?;
        }
        Ok(())
    }
}

/// Why a connection goes no further.
struct NotIn {
    why: Turned,
    error: Option<io::Error>,
}

impl From<Turned> for NotIn {
    fn from(why: Turned) -> Self {
        Self { why, error: None }
    }
}

impl NotIn {
    /// A step that failed, unless it was the other side that went.
    fn at(why: Turned, error: io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Turned::Closed,
            _ => why,
        };
        Self { why, error: Some(error) }
    }
}

/// A connection on its way in.
#[derive(Debug)]
pub(super) struct Entry {
    way: Arc<Way>,
    peer: Peer,
    connect_by: Instant,
    opening: Opening,
}

/// A connection that may become a session: what the session needs, and what counts for its
/// address until its end.
type In<S> = (S, Box<Arrival>, Option<Box<Admitted>>);

/// Serves a connection over bare TCP until its end. What comes before the session is boxed, so
/// that an idle connection does not carry it.
pub(super) async fn plain(stream: TcpStream, entry: Box<Entry>, place: Place, sessions: Sessions) {
    let entered = Box::pin(entry.tcp(stream)).await;
    let Some((stream, mut arrival, admitted)) = entered else { return };
    let (read, write) = stream.into_split();
    let write = WriteHalf::new(write);
    arrival.socket = Some(write.socket());
    sessions.serve(read, write, arrival).await;
    drop((admitted, place));
}

/// Serves a connection over anything else.
pub(super) async fn layered(
    accepted: Accepted,
    entry: Box<Entry>,
    place: Place,
    sessions: Sessions,
) {
    let entered = Box::pin(entry.layers(accepted)).await;
    let Some((stream, arrival, admitted)) = entered else { return };
    let (read, write) = tokio::io::split(stream);
    sessions.serve(read, write, arrival).await;
    drop((admitted, place));
}

impl Entry {
    pub(super) fn new(way: &Arc<Way>, address: Option<SocketAddr>, opening: Opening) -> Box<Self> {
        let address = address.map(canonical);
        let peer = Peer { door: way.door, address, tls: None };
        tracing::trace!(stop = 1, %peer, "accepted");
        let connect_by = Instant::now() + way.connect_timeout;
        Box::new(Self { way: Arc::clone(way), peer, connect_by, opening })
    }

    async fn tcp(mut self: Box<Self>, mut stream: TcpStream) -> Option<In<TcpStream>> {
        let way = Arc::clone(&self.way);
        let step = async {
            let prepared = way.prepare(&stream);
            prepared.map_err(|error| NotIn::at(Turned::Closed, error))?;
            let address = introduce(&way, self.peer.address, &mut stream).await?;
            Ok((address, way.house.admit(address)?))
        };
        match within(&self.opening, self.connect_by, step).await {
            Ok((address, admitted)) => {
                self.peer.address = address;
                Some((stream, self.arrival(), admitted))
            }
            Err(not_in) => self.turn_away(&not_in),
        }
    }

    async fn layers(mut self: Box<Self>, accepted: Accepted) -> Option<In<Stream>> {
        let way = Arc::clone(&self.way);
        let mut peer = self.peer.clone();
        let step = layers(&way, &mut peer, accepted);
        let result = within(&self.opening, self.connect_by, step).await;
        self.peer = peer;
        match result {
            Ok((stream, admitted)) => Some((stream, self.arrival(), admitted)),
            Err(not_in) => self.turn_away(&not_in),
        }
    }

    fn arrival(self) -> Box<Arrival> {
        let Entry { way, peer, connect_by, opening } = self;
        Box::new(Arrival {
            peer,
            max_packet_bytes: way.max_packet_bytes as u32,
            connect_by,
            socket: None,
            displaced: Box::pin(async move { opening.displaced().await }),
        })
    }

    fn turn_away<T>(&self, not_in: &NotIn) -> Option<T> {
        metrics::CONNECTION_REFUSED.inc();
        let NotIn { why, error } = not_in;
        let (peer, cause) = (&self.peer, why.text());
        peer.door.turned(*why);
        let detail = error.as_ref().map(tracing::field::display);
        tracing::debug!(%peer, cause, error = detail, "a connection got no further");
        // An operator who sets one of these up wants to know why it does not work.
        let told = matches!(why, Turned::Tls | Turned::Certificate | Turned::Proxy);
        if let Some(unsaid) = told.then(|| TURNED_AWAY.ready()).flatten() {
            tracing::info!(%peer, cause, error = detail, unsaid, "a connection got no further");
        }
        None
    }
}

/// A step of the way, in its time and while nobody else needs the place.
async fn within<T>(
    opening: &Opening,
    connect_by: Instant,
    step: impl Future<Output = Result<T, NotIn>>,
) -> Result<T, NotIn> {
    tokio::select! {
        biased;
        () = opening.displaced() => Err(Turned::Crowded.into()),
        done = timeout_at(connect_by, step) => done.unwrap_or_else(|_| Err(Turned::Timeout.into())),
    }
}

/// Reads the PROXY header, if one is due; gives the client's own address.
async fn introduce(
    way: &Way,
    socket: Option<SocketAddr>,
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<SocketAddr>, NotIn> {
    if !way.proxy {
        return Ok(socket);
    }
    // Who can open a UNIX socket is on this machine, and was let in by its file's permissions.
    if socket.is_some_and(|socket| !way.trusted.contains(socket.ip())) {
        return Err(Turned::Proxy.into());
    }
    match proxy::read(stream).await {
        Ok(told) => Ok(told.map(canonical).or(socket)),
        Err(error) => Err(NotIn::at(Turned::Proxy, error)),
    }
}

async fn layers(
    way: &Way,
    peer: &mut Peer,
    accepted: Accepted,
) -> Result<(Stream, Option<Box<Admitted>>), NotIn> {
    let mut stream = match accepted {
        Accepted::Unix(mut stream) => {
            peer.address = introduce(way, None, &mut stream).await?;
            let admitted = way.house.admit(peer.address)?;
            return Ok((Stream::Unix(stream), admitted));
        }
        Accepted::Tcp(stream, _) => stream,
    };
    way.prepare(&stream).map_err(|error| NotIn::at(Turned::Closed, error))?;
    peer.address = introduce(way, peer.address, &mut stream).await?;
    // Behind an HTTP proxy of ours, the address is not known before the upgrade.
    let is_proxy = peer.address.is_some_and(|address| way.trusted.contains(address.ip()));
    let later = is_proxy && way.ws.as_ref().is_some_and(|ws| ws.forwarded);
    let early = if later { None } else { way.house.admit(peer.address)? };
    let served = way.tls.as_ref().map(|current| current.get());
    let stream = match served {
        Some(served) => encrypted(way, peer, stream, served).await?,
        None => match &way.ws {
            Some(ws) => Stream::Ws(Box::new(upgraded(way, ws, peer, stream).await?)),
            // Bare TCP has its own way.
            None => return Err(Turned::Closed.into()),
        },
    };
    let admitted = if later { way.house.admit(peer.address)? } else { early };
    Ok((stream, admitted))
}

async fn encrypted(
    way: &Way,
    peer: &mut Peer,
    stream: TcpStream,
    served: Served,
) -> Result<Stream, NotIn> {
    let accepted = tls::accept(stream, served, &way.turns).await;
    let (stream, told, resumed) = accepted.map_err(|error| NotIn::at(tls::cause(&error), error))?;
    way.door.shaken(resumed);
    peer.tls = Some(Arc::new(told));
    Ok(match &way.ws {
        Some(ws) => Stream::Wss(Box::new(upgraded(way, ws, peer, stream).await?)),
        None => Stream::Tls(Box::new(stream)),
    })
}

async fn upgraded<S: AsyncRead + AsyncWrite + Unpin>(
    way: &Way,
    config: &WsConfig,
    peer: &mut Peer,
    stream: S,
) -> Result<Ws<S>, NotIn> {
    let most = way.max_packet_bytes;
    let accepted = Ws::accept(stream, config, &way.trusted, peer.address, most).await;
    let (ws, address) = accepted.map_err(|error| NotIn::at(Turned::WebSocket, error))?;
    peer.address = address;
    Ok(ws)
}

/// An IPv4 client of a dual-stack socket is an IPv4 client.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
