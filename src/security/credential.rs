//! One credential: who it fits, what proves it, and what it allows. In the tables it is a version
//! byte and JSON, so that an older row is read whatever was added since.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::rules::AuthRules;
use crate::limits;
use crate::storage::StorageError;

const VERSION: u8 = 1;

/// How a client's messages are kept; fixed by what it proved itself with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ClientType {
    #[default]
    Device,
    Application,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// Made by this program: 128 random bits in hexadecimal digits.
    pub id: Arc<str>,
    pub name: String,
    pub created_ms: u64,
    pub client_type: ClientType,
    pub proof: Proof,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    Basic(Basic),
    Scram(Scram),
    Certificate(Certificate),
}

/// TBMQ's `MQTT_BASIC`: at least one of client id and user name, and perhaps a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basic {
    pub client_id: Option<String>,
    pub username: Option<String>,
    /// The hash, in PHC's form. `None`: no password is asked for.
    pub password: Option<String>,
    pub rules: AuthRules,
}

/// TBMQ's `SCRAM`: what RFC 5802 has a server keep; the password can't be had back from it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scram {
    pub username: String,
    pub hash: ScramHash,
    pub salt: Vec<u8>,
    pub iterations: u32,
    pub stored_key: Vec<u8>,
    pub server_key: Vec<u8>,
    pub rules: AuthRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScramHash {
    #[serde(rename = "SHA-256")]
    Sha256,
    #[serde(rename = "SHA-512")]
    Sha512,
}

/// TBMQ's `X_509`: a common name, or an expression for one; which rules hold is chosen by the
/// longest keyword that the name contains (the fields of a JSON object have no order).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    pub cn: String,
    pub is_expression: bool,
    pub rules: Vec<(String, AuthRules)>,
}

impl std::fmt::Debug for Basic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (client_id, username) = (&self.client_id, &self.username);
        write!(f, "Basic({client_id:?}, {username:?})")
    }
}

impl std::fmt::Debug for Scram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scram({:?}, {:?})", self.username, self.hash)
    }
}

/// What a credential is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    ClientId(String),
    Username(String),
    Both { username: String, client_id: String },
    Scram(String, String),
    Cn(String),
    CnExpression(String),
}

impl Credential {
    pub fn key(&self) -> Key {
        match &self.proof {
            Proof::Basic(Basic { client_id, username, .. }) => match (client_id, username) {
                (Some(client_id), Some(username)) => {
                    Key::Both { username: username.clone(), client_id: client_id.clone() }
                }
                (Some(client_id), None) => Key::ClientId(client_id.clone()),
                (None, username) => Key::Username(username.clone().unwrap_or_default()),
            },
            Proof::Scram(scram) => Key::Scram(scram.username.clone(), scram.hash.name().into()),
            Proof::Certificate(certificate) if certificate.is_expression => {
                Key::CnExpression(certificate.cn.clone())
            }
            Proof::Certificate(certificate) => Key::Cn(certificate.cn.clone()),
        }
    }

    /// What is wrong with it; `None`: nothing.
    pub fn fault(&self) -> Option<String> {
        if self.name.trim().is_empty() {
            return Some("name must not be empty".into());
        }
        if self.encode().len() > limits::ENTITY_BYTES {
            return Some(format!("it is larger than {} bytes", limits::ENTITY_BYTES));
        }
        match &self.proof {
            Proof::Basic(basic) => {
                let given = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
                if !given(&basic.client_id) && !given(&basic.username) {
                    return Some("clientId or userName must be given".into());
                }
                basic.rules.fault()
            }
            Proof::Scram(scram) if scram.username.is_empty() => {
                Some("userName must be given".into())
            }
            Proof::Scram(scram) => scram.rules.fault(),
            Proof::Certificate(certificate) => certificate.fault(),
        }
    }

    /// Whether connections made with `old` may stay under this one: only rules and name differ.
    pub fn continues(&self, old: &Self) -> bool {
        let bare = |credential: &Self| {
            let mut bare = credential.clone();
            bare.name = String::new();
            match &mut bare.proof {
                Proof::Basic(basic) => basic.rules = AuthRules::default(),
                Proof::Scram(scram) => scram.rules = AuthRules::default(),
                Proof::Certificate(certificate) => certificate.rules.clear(),
            }
            bare
        };
        bare(self) == bare(old)
    }

    /// The rules for a client with this common name.
    pub fn rules(&self, cn: Option<&str>) -> AuthRules {
        match &self.proof {
            Proof::Basic(basic) => basic.rules.clone(),
            Proof::Scram(scram) => scram.rules.clone(),
            Proof::Certificate(certificate) => certificate.rules_for(cn.unwrap_or_default()),
        }
    }

    pub(super) fn row_key(id: &str) -> Bytes {
        Bytes::copy_from_slice(id.as_bytes())
    }

    pub(super) fn encode(&self) -> Bytes {
        encode(self)
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, StorageError> {
        decode(value, "credential")
    }
}

impl Certificate {
    fn fault(&self) -> Option<String> {
        if self.cn.is_empty() || self.cn.len() > limits::RULE_BYTES {
            return Some(format!("certCnPattern must have 1 to {} bytes", limits::RULE_BYTES));
        }
        if self.is_expression
            && let Err(fault) = whole_match(&self.cn)
        {
            return Some(fault);
        }
        if self.rules.len() > limits::RULES_PER_LIST {
            return Some(format!("authRulesMapping has over {} entries", limits::RULES_PER_LIST));
        }
        self.rules.iter().find_map(|(_, rules)| rules.fault())
    }

    /// A mapping without an entry that fits allows nothing; no mapping at all allows everything.
    fn rules_for(&self, cn: &str) -> AuthRules {
        let fits = self.rules.iter().filter(|(keyword, _)| cn.contains(keyword.as_str()));
        let fits = fits.max_by_key(|(keyword, _)| keyword.len());
        match fits {
            Some((_, rules)) => rules.clone(),
            None if self.rules.is_empty() => AuthRules::default(),
            None => AuthRules { rules: Some(Vec::new()), ..AuthRules::default() },
        }
    }
}

/// An expression that has to match a whole text; its cost is bounded.
pub(super) fn whole_match(text: &str) -> Result<regex::Regex, String> {
    if text.len() > limits::RULE_BYTES {
        return Err(format!("an expression is longer than {} bytes", limits::RULE_BYTES));
    }
    let build = |text: &str| {
        regex::RegexBuilder::new(text)
            .size_limit(limits::EXPRESSIONS_BYTES)
            .dfa_size_limit(limits::EXPRESSIONS_BYTES)
            .nest_limit(limits::EXPRESSION_NESTING + 2)
            .build()
            .map_err(|fault| format!("{text:?} is no expression that is taken here: {fault}"))
    };
    // By itself first: a bracket too many must not close the one that is put around it.
    build(text)?;
    build(&format!("^(?:{text})$"))
}

impl ScramHash {
    /// As TBMQ and RFC 7677 write it.
    pub fn name(self) -> &'static str {
        match self {
            ScramHash::Sha256 => "SHA-256",
            ScramHash::Sha512 => "SHA-512",
        }
    }

    /// The authentication method of MQTT 5.
    pub fn method(self) -> &'static str {
        match self {
            ScramHash::Sha256 => "SCRAM-SHA-256",
            ScramHash::Sha512 => "SCRAM-SHA-512",
        }
    }

    pub fn of_method(method: &str) -> Option<Self> {
        [ScramHash::Sha256, ScramHash::Sha512].into_iter().find(|hash| hash.method() == method)
    }
}

/// 128 random bits in hexadecimal digits.
pub(super) fn new_id() -> Arc<str> {
    Arc::from(format!("{:032x}", u128::from_le_bytes(random::<16>())))
}

/// Bytes that nobody can guess. Without the system's random numbers nothing secret can be made.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random numbers to every process");
    bytes
}

/// A row's value: the version, then JSON.
pub(super) fn encode(value: &impl Serialize) -> Bytes {
    let mut bytes = vec![VERSION];
    // Writing into memory fails for no type that rows are made of.
    bytes.extend(serde_json::to_vec(value).unwrap_or_default());
    Bytes::from(bytes)
}

pub(super) fn decode<'a, T: Deserialize<'a>>(
    value: &'a [u8],
    what: &str,
) -> Result<T, StorageError> {
    match value.split_first() {
        Some((&VERSION, json)) => serde_json::from_slice(json)
            .map_err(|error| StorageError::Damaged(format!("a {what} row: {error}"))),
        Some((version, _)) => {
            Err(StorageError::Damaged(format!("a {what} row of unknown version {version}")))
        }
        None => Err(StorageError::Damaged(format!("a {what} row is empty"))),
    }
}
