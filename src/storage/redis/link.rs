//! One connection to one Redis server: made, checked, and known by its term.
//!
//! A *term* is one life of a server as master: its run id and its replication id. Through one
//! connection everything goes to one process; so whoever has checked the term of the connection
//! that it uses knows that nothing it wrote earlier in this term was taken back.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, TlsCertificates, Value,
};
use sha2::{Digest, Sha256};

use super::script::ALL;
use super::settings::{RedisAddress, RedisSettings, RedisTls, Secret};
use crate::storage::StorageError;

/// One life of a server as master; all zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term(pub(super) [u8; 8]);

pub(super) struct Link {
    connection: MultiplexedConnection,
    pub(super) term: Term,
    replicas: AtomicU32,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("term", &self.term).finish_non_exhaustive()
    }
}

/// What a server says of its replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) master: bool,
    pub(super) term: Term,
    pub(super) replicas: u32,
}

pub(super) fn away(error: &RedisError) -> StorageError {
    StorageError::Unavailable(format!("Redis: {error}"))
}

pub(super) fn unavailable(text: impl Into<String>) -> StorageError {
    StorageError::Unavailable(text.into())
}

/// Connects without looking at who answers.
pub(super) async fn connect(
    settings: &RedisSettings,
    address: &RedisAddress,
    password: Option<&Secret>,
    username: Option<&str>,
) -> Result<MultiplexedConnection, StorageError> {
    let tls = match settings.tls.clone() {
        None => None,
        Some(tls) => {
            let read = tokio::task::spawn_blocking(move || certificates(&tls)).await;
            Some(read.map_err(|_| unavailable("a certificate could not be read"))??)
        }
    };
    let client = client(settings, address, password, username, tls);
    let client = client.map_err(|error| unavailable(format!("Redis at {address}: {error}")))?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(settings.read_timeout));
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(|error| unavailable(format!("Redis at {address}: {error}")))
}

fn client(
    settings: &RedisSettings,
    address: &RedisAddress,
    password: Option<&Secret>,
    username: Option<&str>,
    tls: Option<TlsCertificates>,
) -> Result<Client, RedisError> {
    let (host, port) = (address.host.clone(), address.port);
    let place = match &tls {
        None => ConnectionAddr::Tcp(host, port),
        Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
    };
    let mut redis = RedisConnectionInfo::default().set_db(i64::from(settings.db));
    if let Some(password) = password {
        redis = redis.set_password(password.expose());
    }
    if let Some(username) = username {
        redis = redis.set_username(username);
    }
    let info: ConnectionInfo = place.into_connection_info()?.set_redis_settings(redis);
    match tls {
        None => Client::open(info),
        Some(certificates) => Client::build_with_tls(info, certificates),
    }
}

/// Reads the PEM files.
fn certificates(tls: &RedisTls) -> Result<TlsCertificates, StorageError> {
    let read = |path: &Path| {
        let text = |error| unavailable(format!("{}: {error}", path.display()));
        std::fs::read(path).map_err(text)
    };
    let client_tls = match &tls.client {
        None => None,
        Some((certificate, key)) => {
            Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
        }
    };
    let root_cert = tls.ca.as_deref().map(read).transpose()?;
    Ok(TlsCertificates { client_tls, root_cert })
}

impl Link {
    /// Connects, makes sure that a master answers, and leaves the scripts there.
    pub(super) async fn open(
        settings: &RedisSettings,
        address: &RedisAddress,
    ) -> Result<Self, StorageError> {
        let (password, username) = (settings.password.as_ref(), settings.username.as_deref());
        let connection = connect(settings, address, password, username).await?;
        let link = Self { connection, term: Term::default(), replicas: AtomicU32::new(0) };
        let role = link.role().await?;
        if !role.master {
            return Err(unavailable(format!("Redis at {address} is not a master")));
        }
        link.load_scripts().await?;
        if let Some(name) = &settings.client_name {
            let mut pipe = Pipeline::new();
            pipe.cmd("CLIENT").arg("SETNAME").arg(name).ignore_errors();
            // A name is a help for the operator; a server that refuses it serves all the same.
            drop(link.run(&pipe, 1).await?);
        }
        link.replicas.store(role.replicas, Ordering::Relaxed);
        Ok(Self { term: role.term, ..link })
    }

    /// Sends a pipeline of `count` commands; server errors stand among the values.
    pub(super) async fn run(
        &self,
        pipe: &Pipeline,
        count: usize,
    ) -> Result<Vec<Value>, StorageError> {
        let mut connection = self.connection.clone();
        let values = connection.send_packed_commands(pipe, 0, count).await;
        values.map_err(|error| away(&error))
    }

    pub(super) async fn load_scripts(&self) -> Result<(), StorageError> {
        let mut pipe = Pipeline::with_capacity(ALL.len());
        for (_, text) in ALL {
            pipe.cmd("SCRIPT").arg("LOAD").arg(text);
        }
        let values = self.run(pipe.ignore_errors(), ALL.len()).await?;
        match values.into_iter().find_map(|value| value.extract_error().err()) {
            Some(error) => Err(away(&error)),
            None => Ok(()),
        }
    }

    /// Asks the server who it is now, and remembers how many replicas it has.
    pub(super) async fn role(&self) -> Result<Role, StorageError> {
        let mut pipe = Pipeline::new();
        pipe.cmd("INFO").arg("server").cmd("INFO").arg("replication").ignore_errors();
        let values = self.run(&pipe, 2).await?;
        let mut text = String::new();
        for value in values {
            match value {
                Value::BulkString(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
                Value::VerbatimString { text: part, .. } => text.push_str(&part),
                Value::ServerError(error) => {
                    return Err(unavailable(format!("Redis says {error}")));
                }
                _ => return Err(unavailable("Redis does not tell its role")),
            }
        }
        let role = parse_role(&text);
        self.replicas.store(role.replicas, Ordering::Relaxed);
        Ok(role)
    }

    /// Waits until a replica has what went through this connection; `true` when none is there.
    pub(super) async fn replicated(&self, patience: Duration) -> Result<bool, StorageError> {
        if self.replicas.load(Ordering::Relaxed) == 0 {
            return Ok(true);
        }
        let mut pipe = Pipeline::new();
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        pipe.cmd("WAIT").arg(1).arg(millis).ignore_errors();
        match self.run(&pipe, 1).await?.pop() {
            Some(Value::Int(count)) => Ok(count >= 1),
            Some(Value::ServerError(error)) => Err(unavailable(format!("Redis says {error}"))),
            Some(_) | None => Err(unavailable("Redis does not answer WAIT")),
        }
    }
}

fn parse_role(info: &str) -> Role {
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let mut hash = Sha256::new();
    for name in ["run_id", "master_replid"] {
        hash.update(field(name).unwrap_or_default());
        hash.update([0]);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut term = [0; 8];
    term.copy_from_slice(&digest[..8]);
    // Zero says "no term".
    term[0] |= 1;
    Role {
        master: field("role") == Some("master") && field("loading") != Some("1"),
        term: Term(term),
        replicas: field("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(run: &str, replid: &str) -> String {
        format!(
            "# Server\r\nrun_id:{run}\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
             master_replid:{replid}\r\n"
        )
    }

    /// Design decision 6: another process and another history are another term each.
    #[test]
    fn a_term_is_a_run_and_a_history() {
        let role = parse_role(&info("a", "b"));
        assert!(role.master && role.replicas == 2);
        assert_eq!(role, parse_role(&info("a", "b")));
        assert_ne!(role.term, parse_role(&info("a", "c")).term);
        assert_ne!(role.term, parse_role(&info("c", "b")).term);
        assert!(!parse_role("role:slave\r\n").master);
        assert_ne!(role.term, Term::default());
    }
}
