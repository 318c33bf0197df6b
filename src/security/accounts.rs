//! Who administers: accounts with a role, their logins, and the tokens that these give. Accounts
//! and the key that signs tokens are rows of the settings table; the key is made at the first
//! start, so no two installations share one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::config::AccountsConfig;
use super::credential::{decode, encode, random};
use crate::limits;
use crate::storage::{Follower, Position, Row, StorageError, Table};
use crate::telemetry::{clock, metrics};

const ACCOUNT: &str = "account/";
const SIGNING_KEY: &str = "signing-key";

/// What an account may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Role {
    /// Everything.
    Administrator,
    /// Everything that changes nothing.
    Viewer,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub username: String,
    pub(super) password: String,
    pub role: Role,
    pub created_ms: u64,
    /// Another number with each password: older tokens are worth nothing then.
    pub(super) revision: u64,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Account({:?}, {:?})", self.username, self.role)
    }
}

/// An access token, and one to get the next with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub token: String,
    pub refresh_token: String,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    iss: String,
    iat: u64,
    exp: u64,
    role: Role,
    revision: u64,
    /// Whether it only serves to get another one.
    refresh: bool,
}

/// Accounts in force, as a follower of the settings table.
#[derive(Default)]
pub(super) struct Accounts {
    accounts: RwLock<BTreeMap<String, Arc<Account>>>,
    signing_key: RwLock<Option<Arc<[u8]>>>,
    suspects: Mutex<HashMap<Suspect, (u32, u64), ahash::RandomState>>,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").finish_non_exhaustive()
    }
}

/// Whose failed logins are counted: an account's, and an address's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Suspect {
    Account(String),
    Address(Option<IpAddr>),
}

impl Account {
    pub(super) fn new(username: &str, password: String, role: Role, created_ms: u64) -> Self {
        let revision = u64::from_le_bytes(random());
        Self { username: username.to_owned(), password, role, created_ms, revision }
    }

    pub(super) fn row(&self) -> Row {
        Row { table: Table::Settings, key: account_key(&self.username), value: Some(encode(self)) }
    }
}

fn account_key(username: &str) -> Bytes {
    Bytes::from(format!("{ACCOUNT}{username}").into_bytes())
}

pub(super) fn account_tombstone(username: &str) -> Row {
    Row { table: Table::Settings, key: account_key(username), value: None }
}

pub(super) fn signing_key_row(key: &[u8]) -> Row {
    let key_bytes = key.to_vec();
    let key = Bytes::from_static(SIGNING_KEY.as_bytes());
    Row { table: Table::Settings, key, value: Some(encode(&key_bytes)) }
}

impl Accounts {
    pub(super) fn set(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), StorageError> {
        let key = String::from_utf8_lossy(key);
        if key == SIGNING_KEY {
            let decoded = value.map(|value| decode::<Vec<u8>>(value, "signing key")).transpose()?;
            *self.signing_key.write() = decoded.map(Arc::from);
        } else if let Some(username) = key.strip_prefix(ACCOUNT) {
            let account = value.map(|value| decode::<Account>(value, "account")).transpose()?;
            let mut accounts = self.accounts.write();
            match account {
                Some(account) => drop(accounts.insert(username.to_owned(), Arc::new(account))),
                None => drop(accounts.remove(username)),
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, username: &str) -> Option<Arc<Account>> {
        self.accounts.read().get(username).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Account>> {
        self.accounts.read().values().cloned().collect()
    }

    pub(super) fn has_key(&self) -> bool {
        self.signing_key.read().is_some()
    }

    fn key(&self, config: &AccountsConfig) -> Option<Arc<[u8]>> {
        config.signing_key.clone().or_else(|| self.signing_key.read().clone())
    }

    pub(super) fn tokens(&self, config: &AccountsConfig, account: &Account) -> Option<Tokens> {
        let key = EncodingKey::from_secret(&self.key(config)?).ok()?;
        let now = clock::wall_ms() / 1000;
        let make = |refresh: bool| {
            let life = if refresh { config.refresh_life } else { config.token_life };
            let claims = Claims {
                sub: account.username.clone(),
                iss: config.issuer.to_string(),
                iat: now,
                exp: now + life.as_secs(),
                role: account.role,
                revision: account.revision,
                refresh,
            };
            jsonwebtoken::encode(&Header::new(Algorithm::HS512), &claims, &key).ok()
        };
        Some(Tokens { token: make(false)?, refresh_token: make(true)? })
    }

    /// Whose token it is; none if it is forged or over, or if the account is another one now.
    pub(super) fn of_token(
        &self,
        config: &AccountsConfig,
        token: &str,
        refresh: bool,
    ) -> Option<Arc<Account>> {
        let key = DecodingKey::from_secret(&self.key(config)?).ok()?;
        let mut validation = Validation::new(Algorithm::HS512);
        validation.leeway = 0;
        validation.set_issuer(&[&config.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "sub"]);
        let claims = jsonwebtoken::decode::<Claims>(token, &key, &validation).ok()?.claims;
        let account = self.get(&claims.sub)?;
        (claims.refresh == refresh && claims.revision == account.revision).then_some(account)
    }

    /// `false`: so many logins of this account or from this address failed that no further one is
    /// looked at for now. Who logs in is counted as failed until [`Self::succeeded`].
    pub(super) fn may_try(&self, username: &str, address: Option<IpAddr>, now_ms: u64) -> bool {
        let mut suspects = self.suspects.lock();
        let fresh = |since_ms: u64| now_ms < since_ms.saturating_add(limits::LOGIN_WINDOW_MS);
        let both = [Suspect::Account(username.to_owned()), Suspect::Address(address)];
        let over = |suspect: &Suspect| {
            let seen = suspects.get(suspect).filter(|(_, since_ms)| fresh(*since_ms));
            seen.is_some_and(|(failures, _)| *failures >= limits::LOGIN_FAILURES)
        };
        if both.iter().any(over) {
            metrics::LOGINS_REFUSED.inc();
            return false;
        }
        if suspects.len() + both.len() > limits::LOGIN_SUSPECTS {
            suspects.retain(|_, (_, since_ms)| fresh(*since_ms));
            if suspects.len() + both.len() > limits::LOGIN_SUSPECTS {
                metrics::LOGINS_REFUSED.inc();
                return false;
            }
        }
        for suspect in both {
            let (failures, since_ms) = suspects.entry(suspect).or_insert((0, now_ms));
            if !fresh(*since_ms) {
                (*failures, *since_ms) = (0, now_ms);
            }
            *failures += 1;
        }
        true
    }

    pub(super) fn succeeded(&self, username: &str, address: Option<IpAddr>) {
        let mut suspects = self.suspects.lock();
        suspects.remove(&Suspect::Account(username.to_owned()));
        if let Some((failures, _)) = suspects.get_mut(&Suspect::Address(address)) {
            *failures = failures.saturating_sub(1);
        }
    }
}

impl Follower for Accounts {
    fn apply(&self, _position: Position, row: &Row) {
        if let Err(error) = self.set(&row.key, row.value.as_deref()) {
            tracing::error!(%error, "a row of the settings was not understood");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn config() -> AccountsConfig {
        AccountsConfig {
            username: "admin".into(),
            password: None,
            signing_key: None,
            issuer: "us".into(),
            token_life: Duration::from_secs(60),
            refresh_life: Duration::from_secs(600),
        }
    }

    fn with(account: &Account) -> Accounts {
        let accounts = Accounts::default();
        for row in [signing_key_row(&[7; 64]), account.row()] {
            accounts.set(&row.key, row.value.as_deref()).expect("a good row");
        }
        accounts
    }

    #[test]
    fn a_token_is_worth_what_its_account_is_now() {
        let config = config();
        let account = Account::new("a", "hash".into(), Role::Viewer, 1);
        let accounts = with(&account);
        let tokens = accounts.tokens(&config, &account).expect("there is a key");
        let of = |token: &str, refresh| accounts.of_token(&config, token, refresh);
        assert_eq!(of(&tokens.token, false).expect("it is good").role, Role::Viewer);
        assert!(of(&tokens.refresh_token, true).is_some());
        assert!(of(&tokens.token, true).is_none() && of(&tokens.refresh_token, false).is_none());
        let forged = with(&account);
        let key = signing_key_row(&[8; 64]);
        forged.set(&key.key, key.value.as_deref()).expect("a good row");
        assert!(forged.of_token(&config, &tokens.token, false).is_none());
        let changed = Account::new("a", "other".into(), Role::Viewer, 1).row();
        accounts.set(&changed.key, changed.value.as_deref()).expect("a good row");
        assert!(of(&tokens.token, false).is_none(), "the password was changed");
        let gone = account_tombstone("a");
        accounts.set(&gone.key, None).expect("a good row");
        assert!(of(&tokens.token, false).is_none() && accounts.all().is_empty());
    }

    #[test]
    fn logins_are_limited_by_account_and_by_address() {
        let accounts = Accounts::default();
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        for number in 0..limits::LOGIN_FAILURES as u8 {
            assert!(accounts.may_try("a", address(number), 1000));
        }
        assert!(!accounts.may_try("a", address(99), 1000));
        assert!(accounts.may_try("b", address(1), 1000), "the address failed only once");
        accounts.succeeded("b", address(1));
        for number in 0..limits::LOGIN_FAILURES - 1 {
            assert!(accounts.may_try(&number.to_string(), address(1), 1000), "{number}");
        }
        assert!(!accounts.may_try("c", address(1), 1000));
        assert!(accounts.may_try("a", address(1), 1000 + limits::LOGIN_WINDOW_MS));
    }
}
