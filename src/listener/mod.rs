//! Room 5: sockets. Accepts connections over TCP, TLS, WebSocket, both, and UNIX sockets, finds out
//! who is at the other end, and hands each, with its place, to a session.
//!
//! What comes in: connections on bound ports and paths. What goes out: a stream of MQTT's bytes,
//! and an `Arrival` that tells its client's address and verified certificates, given to a new
//! session task; TLS for the administration. Who calls: the broker binds and starts it; the
//! configuration has files checked.
//! Never: a look into a packet.

mod bind;
mod config;
mod halves;
mod networks;
mod places;
mod proxy;
mod rate;
mod stream;
mod tls;
mod way;
mod ws;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

pub use config::{
    ClientAuth, Config, DoorConfig, Identity, Secret, TlsConfig, TlsVersion, UnixConfig, WsConfig,
};
pub use networks::Networks;
pub use rate::ConnectionRateConfig;
pub use tls::{Certificates, Encrypted, Encryption, TlsFault, faults as tls_faults, to_own_door};

use bind::{Accepted, Listening};
use places::{Gate, House};
use tls::Current;
use way::{Entry, Way};

use crate::session::Sessions;
use crate::telemetry::{Door, metrics, task};

/// After a failed accept (too many open files, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a listener could not open.
#[derive(Debug, thiserror::Error)]
#[error("MQTT can't listen on {place} (listener.{}.…): {fault}", .door.text())]
pub struct BindError {
    door: Door,
    place: String,
    fault: String,
}

/// Bound listeners that do not accept yet.
#[derive(Debug)]
pub struct Listeners {
    bound: Vec<Bound>,
    certificates: Certificates,
    reload_period: Duration,
}

#[derive(Debug)]
struct Bound {
    listening: Listening,
    place: String,
    gate: Arc<Gate>,
    way: Arc<Way>,
}

impl Listeners {
    /// Reads certificates, which join those of other doors, and binds all that is switched on.
    /// Blocks on the disk, shortly.
    pub fn bind(config: &Config, certificates: Certificates) -> Result<Self, BindError> {
        let house = Arc::new(House::new(config));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = Arc::new(Semaphore::new(threads));
        let mut bound = Vec::new();
        if let Some(own) = &config.unix {
            let (door, place) = (Door::Unix, own.path.display().to_string());
            let listening = Listening::unix(&own.path, own.mode);
            let listening = listening.map_err(|error| BindError {
                door,
                place: place.clone(),
                fault: error.to_string(),
            })?;
            let way = Way {
                max_packet_bytes: own.max_packet_bytes,
                proxy: own.proxy,
                ..Way::bare(door, config, &house, &turns)
            };
            bound.push(Bound::new(listening, place, way, own.max_connections));
        }
        // Bare TCP comes last: who finds its port open finds all of them.
        let doors = [
            (Door::Wss, &config.wss),
            (Door::Ws, &config.ws),
            (Door::Ssl, &config.ssl),
            (Door::Tcp, &config.tcp),
        ];
        for (door, own) in doors {
            let Some(own) = own else { continue };
            let place = own.bind.to_string();
            let fault = |fault: String| BindError { door, place: place.clone(), fault };
            let below =
                if door == Door::Wss { "listener.wss.config" } else { "listener.ssl.config" };
            let current = own.tls.as_ref().map(|tls| Current::load(below, tls)).transpose();
            let current = current.map_err(|faults| fault(tls::texts(&faults)))?.map(Arc::new);
            current.iter().for_each(|current| certificates.add(current));
            let listening = Listening::tcp(config, own.bind);
            let listening = listening.map_err(|error| fault(error.to_string()))?;
            let way = Way {
                max_packet_bytes: own.max_packet_bytes,
                so_keep_alive: own.so_keep_alive,
                proxy: own.proxy,
                tls: current,
                ws: own.ws.clone(),
                ..Way::bare(door, config, &house, &turns)
            };
            bound.push(Bound::new(listening, place, way, own.max_connections));
        }
        Ok(Self { bound, certificates, reload_period: config.reload_period })
    }

    /// Where it listens, as one reads it: ports are known even when any was asked for.
    pub fn places(&self) -> Vec<(Door, String)> {
        let place = |bound: &Bound| {
            bound.address().map_or_else(|| bound.place.clone(), |address| address.to_string())
        };
        self.bound.iter().map(|bound| (bound.way.door, place(bound))).collect()
    }

    pub fn address(&self, door: Door) -> Option<SocketAddr> {
        self.bound.iter().find(|bound| bound.way.door == door)?.address()
    }

    /// Accepts, until the tasks are aborted.
    pub fn start(self, sessions: &Sessions) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        if !self.certificates.is_empty() {
            let watch = tls::watch(self.certificates, self.reload_period);
            tasks.push(task::spawn("certificate watch", watch));
        }
        for bound in self.bound {
            tasks.push(task::spawn("listener", bound.accept_loop(sessions.clone())));
        }
        tasks
    }
}

impl Bound {
    fn new(listening: Listening, place: String, way: Way, most: Option<usize>) -> Self {
        let gate = Arc::new(Gate::new(way.door, Arc::clone(&way.house), most));
        Self { listening, place, gate, way: Arc::new(way) }
    }

    fn address(&self) -> Option<SocketAddr> {
        self.listening.local_addr()
    }

    /// Without room it waits, and the kernel's backlog is the queue.
    async fn accept_loop(self, sessions: Sessions) {
        loop {
            self.gate.ready().await;
            let accepted = self.accept().await;
            let (place, opening) = self.gate.enter().await;
            match accepted {
                Accepted::Tcp(stream, address) if self.way.is_plain() => {
                    let entry = Entry::new(&self.way, Some(address), opening);
                    task::spawn("session", way::plain(stream, entry, place, sessions.clone()));
                }
                Accepted::Tcp(_, address) => {
                    let entry = Entry::new(&self.way, Some(address), opening);
                    task::spawn("session", way::layered(accepted, entry, place, sessions.clone()));
                }
                Accepted::Unix(_) => {
                    let entry = Entry::new(&self.way, None, opening);
                    task::spawn("session", way::layered(accepted, entry, place, sessions.clone()));
                }
            }
        }
    }

    async fn accept(&self) -> Accepted {
        loop {
            match self.listening.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    metrics::CONNECTION_REFUSED.inc();
                    let listener = self.way.door.text();
                    tracing::warn!(listener, %error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
