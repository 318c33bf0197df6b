//! How Redis is reached, and what the queues in it are bounded by.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::storage::embedded::Window;

/// Where the masters are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisKind {
    Standalone(RedisAddress),
    /// The master's name, and who is asked for its address.
    Sentinel {
        master: String,
        sentinels: Vec<RedisAddress>,
        password: Option<Secret>,
    },
    /// Some of the nodes; the others are learned from them.
    Cluster {
        nodes: Vec<RedisAddress>,
        /// How often one call follows a redirection before it counts as failed.
        max_redirects: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisAddress {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A password; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// PEM files; read at every connection, so that new ones are taken without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Certificate authorities; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    pub kind: RedisKind,
    pub db: u16,
    /// An ACL user; `None`: the default user.
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub tls: Option<RedisTls>,
    pub client_name: Option<String>,
    pub connect_timeout: Duration,
    /// A call that takes longer has failed, and its connection is given up.
    pub read_timeout: Duration,
    /// Longer than a replica can be behind its master: when a master changed, the log is read again
    /// from what was applied so long ago.
    pub replica_lag: Duration,
    /// Stands before every key; without braces.
    pub prefix: Arc<str>,
    /// DEV-5.
    pub queue_limit: u64,
    /// DEV-6.
    pub queue_ttl: Duration,
    /// The windows of the token bucket; none means no limit.
    pub bucket: Vec<Window>,
    /// Those of the bucket of copies into durable queues.
    pub device_bucket: Vec<Window>,
}

impl Default for RedisSettings {
    fn default() -> Self {
        let host = "localhost".to_owned();
        Self {
            kind: RedisKind::Standalone(RedisAddress { host, port: 6379 }),
            db: 0,
            username: None,
            password: None,
            tls: None,
            client_name: None,
            connect_timeout: Duration::from_secs(2),
            read_timeout: Duration::from_secs(3),
            replica_lag: Duration::from_secs(60),
            prefix: Arc::from(""),
            queue_limit: 10_000,
            queue_ttl: Duration::from_secs(604_800),
            bucket: Vec::new(),
            device_bucket: Vec::new(),
        }
    }
}
