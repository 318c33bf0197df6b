//! Which master has which slot, and the connections to it.
//!
//! What is asked of it: the shard of a slot, a checked connection of it. It learns of a new master
//! from Sentinel, from the cluster's own table, or by connecting again; it never sends a command
//! twice itself.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use redis::{Pipeline, Value};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::key::SLOTS;
use super::known::Known;
use super::lane::{Call, Lane, What, drive};
use super::link::{Link, connect, unavailable};
use super::settings::{RedisAddress, RedisKind, RedisSettings};
use super::standing::Standing;
use crate::storage::StorageError;
use crate::telemetry::task;

/// The table of a cluster is asked for at most so often.
const REFRESH_EVERY: Duration = Duration::from_millis(100);

/// What a connection is for: none of them waits behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Runs of new entries, large.
    Append,
    /// What sessions ask for.
    Session,
    /// What must have reached a replica before it counts.
    Durable,
}

/// One master, whoever it is at the time.
#[derive(Debug)]
pub(super) struct Shard {
    /// `None`: the only one there is.
    pub(super) address: Option<RedisAddress>,
    links: [LinkSlot; 3],
    pub(super) session: Lane,
    pub(super) durable: Lane,
}

#[derive(Debug, Default)]
struct LinkSlot {
    current: Mutex<Option<Arc<Link>>>,
    connecting: tokio::sync::Mutex<()>,
}

/// Every master is asked how it is so often.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// And a cluster for its table.
const TABLE_EVERY: u32 = 10;

#[derive(Debug)]
struct Table {
    /// Every master there ever was, so that one that comes back is the same.
    shards: Vec<Arc<Shard>>,
    /// Those that have slots.
    masters: Vec<u16>,
    /// Of each slot; empty: all belong to the first shard.
    slots: Vec<u16>,
}

#[derive(Debug)]
pub(super) struct Shards {
    pub(super) settings: RedisSettings,
    table: RwLock<Arc<Table>>,
    /// When the table was last asked for.
    refreshed: tokio::sync::Mutex<Option<Instant>>,
    pub(super) known: Arc<Known>,
    pub(super) standing: Standing,
    /// The lanes' tasks; `None`: the backend has ended.
    tasks: Mutex<Option<Vec<JoinHandle<()>>>>,
}

impl Shard {
    fn new(address: Option<RedisAddress>) -> Arc<Self> {
        Arc::new(Self {
            address,
            links: Default::default(),
            session: Lane::new(Purpose::Session),
            durable: Lane::new(Purpose::Durable),
        })
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        self.address.as_ref().map_or_else(|| "master".to_owned(), ToString::to_string)
    }

    /// The connections whose server is to be asked how it is.
    fn linked(&self) -> Vec<(Purpose, Arc<Link>)> {
        let all = [Purpose::Append, Purpose::Session, Purpose::Durable];
        let of = |purpose| Some((purpose, self.links[purpose as usize].current.lock().clone()?));
        all.into_iter().filter_map(of).collect()
    }

    /// The connection failed or its server is no master any more.
    pub(super) fn give_up(&self, purpose: Purpose, link: &Arc<Link>) {
        let mut current = self.links[purpose as usize].current.lock();
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            *current = None;
        }
    }
}

impl Shards {
    pub(super) fn new(settings: RedisSettings) -> Self {
        let first = match &settings.kind {
            RedisKind::Standalone(_) | RedisKind::Sentinel { .. } => None,
            RedisKind::Cluster { nodes, .. } => nodes.first().cloned(),
        };
        let standing = Standing::new(settings.replica_lag);
        let table = Table { shards: vec![Shard::new(first)], masters: vec![0], slots: Vec::new() };
        Self {
            settings,
            table: RwLock::new(Arc::new(table)),
            refreshed: tokio::sync::Mutex::default(),
            known: Arc::default(),
            standing,
            tasks: Mutex::new(Some(Vec::new())),
        }
    }

    /// Runs the lanes of a shard.
    pub(super) fn start(self: &Arc<Self>, shard: &Arc<Shard>) {
        let mut tasks = self.tasks.lock();
        let Some(tasks) = tasks.as_mut() else { return };
        for purpose in [Purpose::Session, Purpose::Durable] {
            let lane = drive(Arc::clone(self), Arc::clone(shard), purpose);
            tasks.push(task::spawn("redis lane", lane));
        }
    }

    /// A task that ends with the backend.
    pub(super) fn also(&self, task: JoinHandle<()>) {
        match self.tasks.lock().as_mut() {
            Some(tasks) => tasks.push(task),
            None => task.abort(),
        }
    }

    /// Nothing is sent from here on.
    pub(super) fn end(&self) {
        self.tasks.lock().take().into_iter().flatten().for_each(|task| task.abort());
    }

    pub(super) fn of_slot(&self, slot: u16) -> Arc<Shard> {
        let table = self.table.read();
        let at = table.slots.get(usize::from(slot)).copied().unwrap_or(0);
        Arc::clone(&table.shards[usize::from(at)])
    }

    /// The masters that have slots.
    pub(super) fn masters(&self) -> Vec<Arc<Shard>> {
        let table = self.table.read();
        table.masters.iter().map(|at| Arc::clone(&table.shards[usize::from(*at)])).collect()
    }

    /// A connection that was checked when it was made.
    pub(super) async fn link(
        &self,
        shard: &Shard,
        purpose: Purpose,
    ) -> Result<Arc<Link>, StorageError> {
        let slot = &shard.links[purpose as usize];
        let current = || slot.current.lock().clone();
        if let Some(link) = current() {
            return Ok(link);
        }
        let _connecting = slot.connecting.lock().await;
        if let Some(link) = current() {
            return Ok(link);
        }
        let link = match self.open(shard).await {
            Ok(link) => Arc::new(link),
            Err(error) => {
                self.standing.away(&shard.name(), &error);
                return Err(error);
            }
        };
        self.standing.back(&shard.name());
        *slot.current.lock() = Some(Arc::clone(&link));
        if self.standing.saw(link.term) {
            self.remove_again();
        }
        Ok(link)
    }

    async fn open(&self, shard: &Shard) -> Result<Link, StorageError> {
        let address = self.master(shard).await?;
        let patience = self.settings.connect_timeout + self.settings.read_timeout;
        let opened = tokio::time::timeout(patience, Link::open(&self.settings, &address)).await;
        opened.map_err(|_| unavailable(format!("Redis at {address} does not answer")))?
    }

    /// A master that took another's place may lack what was removed last.
    fn remove_again(&self) {
        for (names, incarnation) in self.standing.removals() {
            let shard = self.of_slot(names.slot);
            shard.session.push(Call { names, incarnation, epoch: 0, what: What::Remove });
        }
    }

    /// Whether a shard is well.
    async fn look(&self, shard: &Shard) -> bool {
        let mut links = shard.linked();
        if links.is_empty() {
            match self.link(shard, Purpose::Session).await {
                Ok(link) => links.push((Purpose::Session, link)),
                Err(_) => return false,
            }
        }
        let mut well = true;
        for (purpose, link) in links {
            let error = match link.role().await {
                Ok(role) if role.master && role.term == link.term => continue,
                Ok(_) => unavailable("Redis is not the master that it was"),
                Err(error) => error,
            };
            well = false;
            shard.give_up(purpose, &link);
            self.standing.away(&shard.name(), &error);
        }
        well
    }

    async fn master(&self, shard: &Shard) -> Result<RedisAddress, StorageError> {
        match (&self.settings.kind, &shard.address) {
            (RedisKind::Standalone(address), _) => Ok(address.clone()),
            (RedisKind::Cluster { .. }, Some(address)) => Ok(address.clone()),
            (RedisKind::Cluster { .. }, None) => Err(unavailable("Redis Cluster has no nodes")),
            (RedisKind::Sentinel { master, sentinels, .. }, _) => {
                let mut last = unavailable("no Sentinel is configured");
                for sentinel in sentinels {
                    match self.ask_sentinel(sentinel, master).await {
                        Ok(address) => return Ok(address),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    async fn ask_sentinel(
        &self,
        sentinel: &RedisAddress,
        master: &str,
    ) -> Result<RedisAddress, StorageError> {
        let RedisKind::Sentinel { password, .. } = &self.settings.kind else {
            return Err(unavailable("no Sentinel is configured"));
        };
        let plain = RedisSettings { db: 0, ..self.settings.clone() };
        let mut connection = connect(&plain, sentinel, password.as_ref(), None).await?;
        let mut pipe = Pipeline::new();
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).ignore_errors();
        let answer = connection.send_packed_commands(&pipe, 0, 1).await;
        let answer =
            answer.map_err(|error| unavailable(format!("Sentinel {sentinel}: {error}")))?;
        match answer.into_iter().next().map(redis::from_redis_value) {
            Some(Ok(Some((host, port)))) => Ok(RedisAddress { host, port }),
            Some(Ok(None)) => {
                Err(unavailable(format!("Sentinel {sentinel} knows no master {master:?}")))
            }
            Some(Err(error)) => Err(unavailable(format!("Sentinel {sentinel}: {error}"))),
            None => Err(unavailable(format!("Sentinel {sentinel} gives no answer"))),
        }
    }

    /// Learns a cluster's table anew, and runs the lanes of masters that are new in it.
    pub(super) async fn refresh(self: &Arc<Self>) {
        match self.ask_all().await {
            Ok(fresh) => fresh.iter().for_each(|shard| self.start(shard)),
            Err(error) => tracing::debug!(%error, "the table of Redis Cluster is not known"),
        }
    }

    /// Whichever node answers; elsewhere than in a cluster there is no table.
    async fn ask_all(&self) -> Result<Vec<Arc<Shard>>, StorageError> {
        let RedisKind::Cluster { nodes, .. } = &self.settings.kind else { return Ok(Vec::new()) };
        let mut refreshed = self.refreshed.lock().await;
        if refreshed.is_some_and(|at| at.elapsed() < REFRESH_EVERY) {
            return Ok(Vec::new());
        }
        let known = self.table.read().shards.clone();
        let known = known.iter().filter_map(|shard| shard.address.clone());
        let mut last = unavailable("Redis Cluster has no nodes");
        for address in known.chain(nodes.iter().cloned()) {
            match self.ask_slots(&address).await {
                Ok(ranges) => {
                    *refreshed = Some(Instant::now());
                    return Ok(self.install(ranges));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn ask_slots(
        &self,
        address: &RedisAddress,
    ) -> Result<Vec<(u16, u16, RedisAddress)>, StorageError> {
        let settings = &self.settings;
        let (password, username) = (settings.password.as_ref(), settings.username.as_deref());
        let mut connection = connect(settings, address, password, username).await?;
        let mut pipe = Pipeline::new();
        pipe.cmd("CLUSTER").arg("SLOTS").ignore_errors();
        let answer = connection.send_packed_commands(&pipe, 0, 1).await;
        let answer = answer.map_err(|error| unavailable(format!("Redis at {address}: {error}")))?;
        let ranges = answer.first().and_then(|value| parse_slots(value, address));
        ranges
            .filter(|ranges| !ranges.is_empty())
            .ok_or_else(|| unavailable(format!("Redis at {address} has no table of slots")))
    }

    /// Takes a table over; gives the shards that are new in it.
    fn install(&self, ranges: Vec<(u16, u16, RedisAddress)>) -> Vec<Arc<Shard>> {
        let mut table = self.table.write();
        let (mut shards, mut fresh) = (table.shards.clone(), Vec::new());
        let mut masters = Vec::new();
        let mut slots = vec![0; usize::from(SLOTS)];
        for (first, last, address) in ranges {
            let known = shards.iter().position(|shard| shard.address.as_ref() == Some(&address));
            let at = known.unwrap_or_else(|| {
                let shard = Shard::new(Some(address));
                fresh.push(Arc::clone(&shard));
                shards.push(shard);
                shards.len() - 1
            }) as u16;
            slots[usize::from(first)..=usize::from(last.min(SLOTS - 1))].fill(at);
            if !masters.contains(&at) {
                masters.push(at);
            }
        }
        *table = Arc::new(Table { shards, masters, slots });
        fresh
    }
}

/// Looks at every master: one that hangs, or is none any more, is left; the numbers of replicas are
/// kept.
pub(super) async fn watch(shards: Arc<Shards>) {
    let mut round = 0_u32;
    loop {
        let masters = shards.masters();
        shards.standing.only(&masters.iter().map(|shard| shard.name()).collect::<Vec<_>>());
        let mut well = true;
        for shard in masters {
            well &= shards.look(&shard).await;
        }
        if well {
            shards.standing.settled();
        }
        round += 1;
        if !well || round.is_multiple_of(TABLE_EVERY) {
            shards.refresh().await;
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

fn parse_slots(value: &Value, asked: &RedisAddress) -> Option<Vec<(u16, u16, RedisAddress)>> {
    let Value::Array(ranges) = value else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    };
    let mut found = Vec::new();
    for range in ranges {
        let Value::Array(fields) = range else { return None };
        let [first, last, Value::Array(master), ..] = &fields[..] else { return None };
        let [Value::BulkString(host), port, ..] = &master[..] else { return None };
        let host = String::from_utf8_lossy(host).into_owned();
        // A node that doesn't know its own name means the one that was asked.
        let host = if host.is_empty() { asked.host.clone() } else { host };
        found.push((number(first)?, number(last)?, RedisAddress { host, port: number(port)? }));
    }
    Some(found)
}
