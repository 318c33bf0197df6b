//! What an operator decides about who may come in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::http::ServiceConfig;
use crate::telemetry::Door;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Providers that are on, in the order in which they are asked.
    pub order: Vec<ProviderName>,
    /// Whether SCRAM is offered to clients that ask for it by their authentication method.
    pub scram: bool,
    pub anonymous: Anonymous,
    /// Listeners that have their own word on that.
    pub anonymous_at: BTreeMap<Door, Anonymous>,
    /// Credentials that are put in force at each start.
    pub credentials_file: Option<PathBuf>,
    pub jwt: JwtConfig,
    pub http: HttpConfig,
    pub hashing: HashingConfig,
    pub accounts: AccountsConfig,
    /// Whether refused clients are remembered for the administrator.
    pub unauthorized: bool,
    /// How long a block stays in the list behind its end.
    pub blocked_kept: Duration,
}

impl Config {
    /// Who gets in by this listener without proving anything.
    pub(super) fn anonymous_by(&self, door: Door) -> Anonymous {
        self.anonymous_at.get(&door).copied().unwrap_or(self.anonymous)
    }
}

/// Nobody is asked for anything: for tests, which bring their own clients.
impl Default for Config {
    fn default() -> Self {
        Self {
            order: Vec::new(),
            scram: false,
            anonymous: Anonymous::Loopback,
            anonymous_at: BTreeMap::new(),
            credentials_file: None,
            jwt: JwtConfig::default(),
            http: HttpConfig::default(),
            hashing: HashingConfig { threads: 1, memory_kib: 64, iterations: 1 },
            accounts: AccountsConfig {
                username: "admin".into(),
                password: None,
                signing_key: None,
                token_life: Duration::from_secs(60),
                refresh_life: Duration::from_secs(60),
            },
            unauthorized: true,
            blocked_kept: Duration::from_secs(60),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderName {
    Basic,
    X509,
    Jwt,
    Http,
}

/// Who gets in without proving anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Clients of this machine, as long as no provider is on.
    Loopback,
    /// Everybody, as long as no provider is on; with one, clients that bring no credentials.
    Allowed,
    Refused,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub struct JwtConfig {
    pub secret: Option<Arc<str>>,
    pub public_key_file: Option<PathBuf>,
    /// Where a set of public keys is.
    pub key_set: Option<ServiceConfig>,
    /// How often the set is asked for.
    pub key_set_period: Duration,
    pub issuer: Option<Arc<str>>,
    pub audience: Option<Arc<str>>,
    /// Claims that have to be equal to the client id and the user name.
    pub client_id_claim: Option<Arc<str>>,
    pub username_claim: Option<Arc<str>>,
    pub client_type_claim: Option<Arc<str>>,
    pub publish_claim: Option<Arc<str>>,
    pub subscribe_claim: Option<Arc<str>>,
}

impl std::fmt::Debug for JwtConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key_file = &self.public_key_file;
        f.debug_struct("JwtConfig").field("public_key_file", key_file).finish_non_exhaustive()
    }
}

/// A service that judges clients.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HttpConfig {
    pub service: ServiceConfig,
    /// POST with a body; else GET.
    pub post: bool,
    /// Its text with placeholders; `None`: a JSON object of all values.
    pub body: Option<String>,
    pub content_type: String,
    /// Requests at once. More wait.
    pub max_parallel: usize,
    /// How long an answer counts for the same client with the same proof.
    pub remembered: Duration,
}

impl std::fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpConfig").field("service", &self.service).finish_non_exhaustive()
    }
}

/// What one password hash costs, and who works on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashingConfig {
    /// 0: one less than there are processors, at least one, so that clients that are in keep one.
    pub threads: usize,
    pub memory_kib: u32,
    pub iterations: u32,
}

#[derive(Clone, PartialEq, Eq)]
pub struct AccountsConfig {
    /// The first administrator.
    pub username: Arc<str>,
    /// Its password; `None`: one is made at the first start.
    pub password: Option<Arc<str>>,
    /// What tokens are signed with; `None`: a key is made at the first start.
    pub signing_key: Option<Arc<[u8]>>,
    pub token_life: Duration,
    pub refresh_life: Duration,
}

impl std::fmt::Debug for AccountsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccountsConfig").field("username", &self.username).finish_non_exhaustive()
    }
}

impl ProviderName {
    pub fn text(self) -> &'static str {
        match self {
            ProviderName::Basic => "MQTT_BASIC",
            ProviderName::X509 => "X_509",
            ProviderName::Jwt => "JWT",
            ProviderName::Http => "HTTP",
        }
    }
}
