//! Who a client is: what a listener and its CONNECT say, and what came of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::credential::ClientType;
use super::rules::{AuthRules, Rights};
use super::template::Who;
use crate::mqtt::ReasonCode;
use crate::telemetry::Door;

/// What a listener knows of a connection before its first packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    pub door: Door,
    /// The client's own address, behind a trusted proxy too. `None`: it comes by no network, and
    /// is taken for one of this machine.
    pub address: Option<IpAddr>,
    /// Whether the way to the client is encrypted.
    pub secure: bool,
    pub certificate: Option<Arc<ClientCertificate>>,
}

/// What a client's certificate says, after its chain was verified against our authorities: a
/// listener that could not verify it gives none (TBMQ's #237).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Common names, the client's own first, then those of the chain that was verified.
    pub common_names: Vec<String>,
}

impl ClientCertificate {
    /// The names in a verified chain of certificates in DER, the client's own first; `None`: there
    /// is no chain, or no name in it.
    pub fn of_chain(chain: &[Vec<u8>]) -> Option<Self> {
        let mut common_names = Vec::new();
        for der in chain {
            let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { continue };
            let names = certificate.subject().iter_common_name();
            common_names.extend(names.filter_map(|cn| cn.as_str().ok()).map(str::to_owned));
        }
        (!common_names.is_empty()).then_some(Self { common_names })
    }
}

/// A CONNECT that asks to be let in.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub peer: &'a Peer,
}

/// Why a client is not let in. The detail is for the administrator, never for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reason: ReasonCode,
    pub detail: String,
}

impl Refused {
    pub(super) fn new(reason: ReasonCode, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    pub(super) fn busy() -> Self {
        Self::new(ReasonCode::ServerBusy, "too many authentications wait")
    }
}

/// What a provider found out.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) provider: &'static str,
    pub(super) client_type: ClientType,
    /// The credential it rests on; changes of it act on the connection.
    pub(super) credential: Option<Arc<str>>,
    pub(super) rules: AuthRules,
    pub(super) username: Option<String>,
    pub(super) cn: Option<String>,
    /// When the proof ends, and the connection with it.
    pub(super) expires_at_ms: Option<u64>,
}

/// What a connection was let in with. Its rights change with the credential; the session asks for
/// them at each publish, the outbox at each copy.
#[derive(Debug)]
pub struct Grant {
    provider: &'static str,
    client_type: ClientType,
    credential: Option<Arc<str>>,
    client_id: Arc<str>,
    username: Option<Arc<str>>,
    cn: Option<Arc<str>>,
    /// 0: never.
    expires_at_ms: AtomicU64,
    /// Bit 0: publishing is restricted; bit 1: receiving is.
    restricted: AtomicU8,
    rights: RwLock<Arc<Rights>>,
    revoked: AtomicBool,
}

const PUBLISH: u8 = 1;
const SUBSCRIBE: u8 = 2;

impl Grant {
    pub(super) fn new(identity: Identity, client_id: &str) -> Result<Arc<Self>, Refused> {
        let grant = Self {
            provider: identity.provider,
            client_type: identity.client_type,
            credential: identity.credential,
            client_id: Arc::from(client_id),
            username: identity.username.map(Arc::from),
            cn: identity.cn.map(Arc::from),
            expires_at_ms: AtomicU64::new(identity.expires_at_ms.unwrap_or(0)),
            restricted: AtomicU8::new(0),
            rights: RwLock::default(),
            revoked: AtomicBool::new(false),
        };
        let refused = |fault| Refused::new(ReasonCode::NotAuthorized, fault);
        grant.set_rules(&identity.rules).map_err(refused)?;
        Ok(Arc::new(grant))
    }

    /// Puts other rules in force. Error: they can't be applied to this client.
    pub(super) fn set_rules(&self, rules: &AuthRules) -> Result<(), String> {
        let who = Who {
            client_id: &self.client_id,
            username: self.username.as_deref(),
            cn: self.cn.as_deref(),
        };
        let rights = Rights::compile(rules, &who)?;
        let publish = if rights.restricts_publish() { PUBLISH } else { 0 };
        let subscribe = if rights.restricts_subscribe() { SUBSCRIBE } else { 0 };
        let mut now = self.rights.write();
        *now = Arc::new(rights);
        self.restricted.store(publish | subscribe, Ordering::Release);
        Ok(())
    }

    fn restricts(&self, side: u8) -> bool {
        self.restricted.load(Ordering::Acquire) & side != 0
    }

    fn rights(&self) -> Arc<Rights> {
        Arc::clone(&self.rights.read())
    }

    pub fn may_publish(&self, topic: &str) -> bool {
        !self.restricts(PUBLISH) || self.rights().may_publish(topic)
    }

    pub fn may_subscribe(&self, filter: &str) -> bool {
        !self.restricts(SUBSCRIBE) || self.rights().may_subscribe(filter)
    }

    pub fn may_receive(&self, topic: &str) -> bool {
        !self.restricts(SUBSCRIBE) || self.rights().may_receive(topic)
    }

    pub(super) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// Whether the connection must end: its credential is gone, or its proof is over.
    pub fn is_over(&self, now_ms: u64) -> bool {
        let expires_at_ms = self.expires_at_ms.load(Ordering::Relaxed);
        self.revoked.load(Ordering::Acquire) || (expires_at_ms != 0 && expires_at_ms <= now_ms)
    }

    pub fn client_type(&self) -> ClientType {
        self.client_type
    }

    pub fn provider(&self) -> &'static str {
        self.provider
    }

    pub fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(super) fn cn(&self) -> Option<&str> {
        self.cn.as_deref()
    }

    pub(super) fn credential(&self) -> Option<&Arc<str>> {
        self.credential.as_ref()
    }
}
