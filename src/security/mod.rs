//! Room 3: who may come in, and what they may do.
//!
//! What comes in: what a listener and a CONNECT say of a client; credentials, blocks and accounts
//! from their tables. What goes out: a [`Grant`] or a refusal with its reason; tokens for
//! administrators. Sessions call it at CONNECT and AUTH and ask the grant at each publish and
//! subscription; the administration calls it to change things. Never: a password, token or key in
//! a log line, a metric or an answer; a hash on a network thread; a socket.

mod accounts;
mod admission;
mod blocked;
mod config;
mod credential;
mod credentials_file;
mod enhanced;
mod hashing;
mod http;
mod identity;
mod jwt;
mod key_set;
mod management;
mod providers;
mod request;
mod rules;
#[cfg(test)]
mod rules_tests;
mod scram;
mod service;
mod settle;
mod store;
mod template;
mod unauthorized;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};

pub use accounts::{Account, Role, Tokens};
pub use blocked::{Block, BlockType, MatchTarget};
pub use config::{
    AccountsConfig, Anonymous, Config, HashingConfig, HttpConfig, JwtConfig, ProviderName,
};
pub use credential::{Basic, Certificate, ClientType, Credential, Key, Proof, Scram, ScramHash};
pub use enhanced::Step;
pub use http::ServiceConfig;
pub use identity::{Attempt, ClientCertificate, Grant, Peer, Refused};
pub use management::{Draft, DraftProof, FirstAdministrator, ManageError};
pub use rules::{Action, AuthRules, Operation, Rights, Rule};
pub use template::Who;
pub use unauthorized::UnauthorizedClient;

use accounts::Accounts;
use blocked::Blocked;
use hashing::Pool;
use jwt::JwtKeys;
use key_set::KeySet;
use service::Judge;
use store::Credentials;
use unauthorized::Unauthorized;

use crate::storage::{
    ChangeLog, Durability, Follower, Position, Row, StorageError, Table, Unwatched,
};
use crate::telemetry::clock;

/// How often ended blocks and old refusals are cleared away (TBMQ clears blocks every 5 minutes).
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Everything that decides who comes in. Shared by sessions and administration.
pub struct Security {
    config: Config,
    tables: Arc<dyn ChangeLog>,
    pool: Pool,
    credentials: Arc<Credentials>,
    blocked: Arc<Blocked>,
    accounts: Arc<Accounts>,
    unauthorized: Unauthorized,
    jwt: Option<Arc<JwtKeys>>,
    key_set: Option<Arc<KeySet>>,
    service: Option<Judge>,
    /// Makes the salts of users that do not exist.
    scram_secret: [u8; 32],
    /// Changes by REST come one after another: none is made on what another just replaced.
    writes: Mutex<()>,
    /// How often connections had to be looked at.
    looks: AtomicU64,
    look: Notify,
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Security").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The followers of the settings table.
struct Both(Arc<Accounts>, Arc<dyn Follower>);

impl Follower for Both {
    fn apply(&self, position: Position, row: &Row) {
        self.0.apply(position, row);
        self.1.apply(position, row);
    }
}

/// What is wrong with the files and texts of the settings. Blocks on the disk.
pub fn faults(config: &Config) -> Vec<String> {
    let is_on = |provider| config.order.contains(&provider);
    let mut faults = Vec::new();
    if is_on(ProviderName::Jwt) {
        let set = config.jwt.key_set.as_ref();
        let set = set.and_then(|set| KeySet::new(set, config.jwt.key_set_period).err());
        faults.extend(set.map(|fault| format!("security.mqtt.jwt.jwks-url: {fault}")));
        let keys = JwtKeys::new(&config.jwt).err();
        faults.extend(keys.map(|fault| format!("security.mqtt.jwt: {fault}")));
    }
    if is_on(ProviderName::Http) {
        let judge = Judge::new(&config.http).err();
        faults.extend(judge.map(|fault| format!("security.mqtt.http: {fault}")));
    }
    faults
}

/// Why the security settings can't hold.
#[derive(Debug, thiserror::Error)]
#[error("security: {0}")]
pub struct SecurityError(String);

impl Security {
    pub fn new(config: Config, tables: Arc<dyn ChangeLog>) -> Result<Arc<Self>, SecurityError> {
        let is_on = |provider| config.order.contains(&provider);
        let jwt = is_on(ProviderName::Jwt).then(|| JwtKeys::new(&config.jwt)).transpose();
        let key_set = config.jwt.key_set.as_ref().filter(|_| is_on(ProviderName::Jwt));
        let key_set = key_set.map(|set| KeySet::new(set, config.jwt.key_set_period)).transpose();
        let judge = is_on(ProviderName::Http).then(|| Judge::new(&config.http)).transpose();
        Ok(Arc::new(Self {
            pool: Pool::new(&config.hashing),
            credentials: Arc::default(),
            blocked: Arc::default(),
            accounts: Arc::default(),
            unauthorized: Unauthorized::default(),
            jwt: jwt.map_err(SecurityError)?.map(Arc::new),
            key_set: key_set
                .map_err(|why| SecurityError(format!("jwks-url: {why}")))?
                .map(Arc::new),
            service: judge.map_err(|why| SecurityError(format!("mqtt.http: {why}")))?,
            scram_secret: credential::random(),
            writes: Mutex::default(),
            looks: AtomicU64::new(0),
            look: Notify::new(),
            config,
            tables,
        }))
    }

    /// Takes up what is stored, before a listener opens. Blocks on the medium. `others`: who else
    /// has rows in the settings table.
    pub fn load(&self, others: Arc<dyn Follower>) -> Result<(), StorageError> {
        let mut fault = Ok(());
        let mut note = |result: Result<(), StorageError>| {
            if fault.is_ok() {
                fault = result;
            }
        };
        self.tables.load(Table::Credentials, &mut |_, _, value| {
            note(self.credentials.load(value));
        })?;
        self.tables.load(Table::Blocked, &mut |_, _, value| note(self.blocked.load(value)))?;
        self.tables.load(Table::Settings, &mut |position, key, value| {
            note(self.accounts.set(key, Some(value)));
            let [key, value] = [key, value].map(Bytes::copy_from_slice);
            let row = Row { table: Table::Settings, key, value: Some(value) };
            others.apply(position, &row);
        })?;
        fault?;
        self.tables.follow(Table::Credentials, Arc::clone(&self.credentials) as _);
        self.tables.follow(Table::Blocked, Arc::clone(&self.blocked) as _);
        let both = Both(Arc::clone(&self.accounts), others);
        self.tables.follow(Table::Settings, Arc::new(both));
        Ok(())
    }

    /// Acts on changes from wherever they come, and clears away what is over.
    pub async fn run(self: Arc<Self>) {
        match &self.key_set {
            Some(set) => drop(tokio::join!(self.watch(), set.refresh())),
            None => self.watch().await,
        }
    }

    async fn watch(&self) {
        loop {
            tokio::select! {
                () = self.credentials.news.notified() => self.act().await,
                () = tokio::time::sleep(PURGE_EVERY) => self.purge(),
            }
        }
    }

    /// Makes what was changed act on connections that are there. Compiling is no work for this
    /// thread.
    async fn act(&self) {
        let credentials = Arc::clone(&self.credentials);
        let acted = tokio::task::spawn_blocking(move || credentials.act_on_live()).await;
        if acted.unwrap_or(true) {
            self.look_again();
        }
    }

    fn purge(&self) {
        let now_ms = clock::wall_ms();
        self.unauthorized.purge(now_ms);
        let rows = self.blocked.purge(now_ms, self.config.blocked_kept.as_millis() as u64);
        if !rows.is_empty() {
            let sink = Arc::new(Unwatched("the end of blocks"));
            self.tables.put(rows, Durability::Durable, sink, 0);
        }
    }

    fn look_again(&self) {
        self.looks.fetch_add(1, Ordering::AcqRel);
        self.look.notify_waiters();
    }

    /// Waits until connections have to be looked at, more often than `seen` times; how often it is
    /// now. Cancel safe: yes.
    pub async fn changed(&self, seen: u64) -> u64 {
        loop {
            let notified = self.look.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let looks = self.looks.load(Ordering::Acquire);
            if looks != seen {
                return looks;
            }
            notified.await;
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }
}
