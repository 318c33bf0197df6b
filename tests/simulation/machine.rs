//! The machine that the node runs on: its media, its power, its connections; and the operator who
//! lets it suffer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice::broker::Node;
use sluice::delivery::Slots;
use sluice::session::{Arrival, Peer, Sessions};
use sluice::storage::embedded::MemoryProjection;
use sluice::storage::embedded::wal::SimDisk;
use sluice::storage::memory::{Memory, MemoryConfig};
use sluice::storage::{Embedded, EmbeddedSettings, Stores};
use sluice::telemetry::{Door, task};
use tokio::io::DuplexStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::dice::Dice;
use crate::plan::{Medium, PACKET_MAX, Plan};
use crate::power::{Image, Link, Power, PowerDisk};
use crate::shared::Shared;

/// What survives while the node is down.
pub(crate) enum Media {
    Disk(SimDisk, Arc<MemoryProjection>),
    Memory(Memory),
}

/// The storage of a running node.
pub(crate) enum Backend {
    Disk(PowerDisk, Embedded),
    Memory(Memory),
}

/// A running node.
pub(crate) struct Running {
    pub(crate) node: Node,
    pub(crate) backend: Backend,
    pub(crate) power: Arc<Power>,
}

/// What clients can reach.
struct Socket {
    sessions: Sessions,
    slots: Arc<Slots>,
    power: Arc<Power>,
    serving: Vec<JoinHandle<()>>,
}

#[derive(Default)]
pub(crate) struct Machine {
    socket: Mutex<Option<Socket>>,
    changed: Notify,
}

impl Machine {
    /// Waits until the node takes connections, and opens one.
    pub(crate) async fn connect(&self, pipe: usize) -> (DuplexStream, Arc<Power>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(socket) = self.socket.lock().as_mut() {
                let (ours, theirs) = tokio::io::duplex(pipe);
                let link = Link { stream: theirs, power: Arc::clone(&socket.power) };
                let (read, write) = tokio::io::split(link);
                let write = Shared::new(write);
                let sessions = socket.sessions.clone();
                let peer = Peer { door: Door::Tcp, address: None, tls: None };
                let connect_by = Instant::now() + Duration::from_secs(10);
                let mut arrival = Arrival::of(peer, PACKET_MAX as u32, connect_by);
                arrival.socket = Some(write.socket());
                let serve = async move { sessions.serve(read, write, arrival).await };
                socket.serving.retain(|serving| !serving.is_finished());
                socket.serving.push(task::spawn("session", serve));
                return (ours, Arc::clone(&socket.power));
            }
            changed.await;
        }
    }

    /// The outboxes' owner, while the node runs.
    pub(crate) fn slots(&self) -> Option<Arc<Slots>> {
        let socket = self.socket.lock();
        socket.as_ref().filter(|s| !s.power.is_gone()).map(|s| Arc::clone(&s.slots))
    }

    pub(crate) async fn start(&self, plan: &Plan, media: Media, dice: &mut Dice) -> Running {
        let power = Arc::new(Power::default());
        let (backend, stores) = open(plan, media, Arc::clone(&power), dice);
        let loaded = Node::load(&plan.config, &stores).expect("what was written is understood");
        let node = loaded.start().await;
        *self.socket.lock() = Some(Socket {
            sessions: node.sessions(),
            slots: Arc::clone(node.slots()),
            power: Arc::clone(&power),
            serving: Vec::new(),
        });
        self.changed.notify_waiters();
        Running { node, backend, power }
    }

    /// The power is gone, or goes now: nothing runs on, and what is left of the media is given.
    pub(crate) fn crash(&self, running: Running) -> Media {
        let Running { node, backend, power } = running;
        let media = match backend {
            Backend::Disk(disk, embedded) => {
                let Image { disk: left, projection } = disk.cut();
                // It still writes, but to a disk that nobody reads again.
                drop(embedded);
                Media::Disk(left, Arc::new(projection))
            }
            Backend::Memory(memory) => {
                power.cut();
                Media::Memory(memory.crash())
            }
        };
        if let Some(socket) = self.socket.lock().take() {
            socket.serving.iter().for_each(JoinHandle::abort);
        }
        node.abort();
        media
    }

    /// An orderly stop.
    pub(crate) async fn stop(&self, running: Running) -> Media {
        let Running { node, backend, power } = running;
        let socket = self.socket.lock().take();
        node.stop(Duration::from_secs(5)).await;
        let media = match backend {
            Backend::Disk(disk, embedded) => {
                // Whatever comes of it on a bad disk: what was written stays written.
                drop(embedded.stop());
                if power.is_gone() {
                    let Image { disk, projection } = disk.cut();
                    Media::Disk(disk, Arc::new(projection))
                } else {
                    // A start on a bad disk is refused; that is not what is looked at here.
                    disk.heal();
                    Media::Disk(disk.sim().clone(), Arc::new(disk.projection().crash(usize::MAX)))
                }
            }
            Backend::Memory(memory) => Media::Memory(memory.restart()),
        };
        power.cut();
        for serving in socket.into_iter().flat_map(|socket| socket.serving) {
            serving.abort();
        }
        media
    }
}

/// The media of a machine that was never switched on.
pub(crate) fn blank(plan: &Plan, dice: &mut Dice) -> Media {
    match plan.medium {
        Medium::Disk => Media::Disk(SimDisk::new(dice.next()), Arc::default()),
        Medium::Memory => {
            let config = MemoryConfig { seed: dice.next(), ..MemoryConfig::default() };
            Media::Memory(Memory::new(config))
        }
    }
}

fn open(plan: &Plan, media: Media, power: Arc<Power>, dice: &mut Dice) -> (Backend, Stores) {
    match media {
        Media::Disk(disk, projection) => {
            let disk = PowerDisk::new(disk, Arc::clone(&projection), power, dice.fork());
            let mut settings = EmbeddedSettings::default();
            settings.wal.segment_bytes = plan.config.storage.embedded.segment_bytes;
            settings.wal.incarnation = Some(77);
            settings.wal.retry_after = Duration::from_millis(50);
            settings.checkpoint_every = Duration::from_millis(dice.between(5, 400));
            settings.sync_every = Duration::from_millis(dice.between(5, 1000));
            settings.retain_bytes = dice.between(32, 512) << 10;
            settings.feed_items = dice.between(1, 64) as usize;
            settings.batch_messages = dice.between(1, 64) as usize;
            settings.hot_bytes = dice.between(4, 256) << 10;
            let opened = Embedded::simulated(Arc::new(disk.clone()), projection, settings);
            let (embedded, stores) = opened.expect("what was written opens");
            (Backend::Disk(disk, embedded), stores)
        }
        Media::Memory(memory) => {
            let stores = memory.stores();
            (Backend::Memory(memory), stores)
        }
    }
}
