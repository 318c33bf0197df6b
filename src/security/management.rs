//! What administrators change: credentials, blocks, accounts. Every change is a row that is
//! durable, and acts on connections that are there, before it is answered.

use std::net::IpAddr;
use std::sync::Arc;

use super::Security;
use super::accounts::{Account, Role, Tokens, account_tombstone, signing_key_row};
use super::blocked::{self, Block, BlockType};
use super::credential::{
    Basic, Certificate, ClientType, Credential, Key, Proof, Scram, ScramHash, new_id, random,
};
use super::hashing::Busy;
use super::rules::AuthRules;
use super::settle::put;
use super::unauthorized::UnauthorizedClient;
use crate::limits;
use crate::storage::{Row, Table};
use crate::telemetry::clock;

/// Letters and digits of a password that is made here, those that look alike left out.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz234567893";
const PASSWORD_LETTERS: usize = 20;

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManageError {
    #[error("there is no such thing")]
    NotFound,
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    #[error("wrong user name or password")]
    WrongPassword,
    #[error("too many failed logins; try again in a minute")]
    TooManyLogins,
    #[error("storage refuses")]
    Storage,
    #[error("too much work waits")]
    Busy,
}

impl From<Busy> for ManageError {
    fn from(_: Busy) -> Self {
        ManageError::Busy
    }
}

/// A credential as it is asked for: with passwords as they are, which are not kept.
pub struct Draft {
    /// `None`: a new one.
    pub id: Option<String>,
    pub name: String,
    pub client_type: ClientType,
    pub proof: DraftProof,
}

pub enum DraftProof {
    /// A password that is not given stays what it is; an empty one is none.
    Basic {
        client_id: Option<String>,
        username: Option<String>,
        password: Option<String>,
        rules: AuthRules,
    },
    /// A password that is not given stays what it is.
    Scram {
        username: String,
        hash: ScramHash,
        password: Option<String>,
        rules: AuthRules,
    },
    Certificate(Certificate),
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Draft({:?}, {:?})", self.id, self.name)
    }
}

impl std::fmt::Debug for DraftProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DraftProof")
    }
}

/// The account that was made at the first start; shown once, to whoever started it.
#[derive(Clone, PartialEq, Eq)]
pub struct FirstAdministrator {
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for FirstAdministrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FirstAdministrator({:?})", self.username)
    }
}

// === credentials ===

impl Security {
    pub fn credentials(&self) -> Vec<Arc<Credential>> {
        self.credentials.all()
    }

    pub fn credential(&self, id: &str) -> Option<Arc<Credential>> {
        self.credentials.get(id)
    }

    pub fn credential_by_name(&self, name: &str) -> Option<Arc<Credential>> {
        self.credentials.find_by_name(name)
    }

    pub async fn save_credential(
        &self,
        source: Option<IpAddr>,
        draft: Draft,
    ) -> Result<Arc<Credential>, ManageError> {
        let _turn = self.writes.lock().await;
        let old = match &draft.id {
            Some(id) => Some(self.credentials.get(id).ok_or(ManageError::NotFound)?),
            None => None,
        };
        self.put_draft(source, draft, old).await
    }

    /// Stores a draft; the turn is the caller's.
    pub(super) async fn put_draft(
        &self,
        source: Option<IpAddr>,
        draft: Draft,
        old: Option<Arc<Credential>>,
    ) -> Result<Arc<Credential>, ManageError> {
        let mut credential = Credential {
            id: old.as_ref().map_or_else(new_id, |old| Arc::clone(&old.id)),
            name: draft.name.trim().to_owned(),
            created_ms: old.as_ref().map_or_else(clock::wall_ms, |old| old.created_ms),
            client_type: draft.client_type,
            // Judged as it is before anything is hashed.
            proof: bare_proof(&draft.proof),
        };
        if let Some(fault) = credential.fault() {
            return Err(ManageError::Invalid(fault));
        }
        self.no_other_is_like(&credential)?;
        credential.proof = self.prove(source, draft.proof, old.as_deref()).await?;
        self.put_credential(credential).await
    }

    fn no_other_is_like(&self, credential: &Credential) -> Result<(), ManageError> {
        let other = |found: Option<Arc<Credential>>| found.filter(|one| one.id != credential.id);
        let conflict = |what: &str| Err(ManageError::Conflict(what.to_owned()));
        if other(self.credentials.find(&credential.key())).is_some() {
            return conflict("another credential is for the same client");
        }
        if other(self.credentials.find_by_name(&credential.name)).is_some() {
            return conflict("another credential has the same name");
        }
        let expression = matches!(credential.key(), Key::CnExpression(_));
        if expression && self.credentials.expressions() >= limits::CN_EXPRESSIONS {
            return conflict("there are too many credentials with an expression");
        }
        Ok(())
    }

    async fn prove(
        &self,
        source: Option<IpAddr>,
        draft: DraftProof,
        old: Option<&Credential>,
    ) -> Result<Proof, ManageError> {
        match draft {
            DraftProof::Certificate(certificate) => Ok(Proof::Certificate(certificate)),
            DraftProof::Basic { client_id, username, password, rules } => {
                let kept = match old.map(|old| &old.proof) {
                    Some(Proof::Basic(basic)) => basic.password.clone(),
                    Some(Proof::Scram(_) | Proof::Certificate(_)) | None => None,
                };
                let password = match password {
                    None => kept,
                    Some(password) if password.is_empty() => None,
                    Some(password) => Some(self.hash(source, &password).await?),
                };
                let given = |text: Option<String>| text.filter(|text| !text.is_empty());
                let (client_id, username) = (given(client_id), given(username));
                Ok(Proof::Basic(Basic { client_id, username, password, rules }))
            }
            DraftProof::Scram { username, hash, password, rules } => {
                let kept = match old.map(|old| &old.proof) {
                    Some(Proof::Scram(scram)) => Some(scram.clone()),
                    Some(Proof::Basic(_) | Proof::Certificate(_)) | None => None,
                };
                let same = kept.filter(|kept| kept.hash == hash && kept.username == username);
                match (password.filter(|password| !password.is_empty()), same) {
                    (Some(password), _) => {
                        fits(&password)?;
                        let make = move || Scram::of_password(&username, hash, &password, rules);
                        Ok(Proof::Scram(self.pool.run(source, make).await?))
                    }
                    (None, Some(kept)) => Ok(Proof::Scram(Scram { rules, ..kept })),
                    (None, None) => Err(ManageError::Invalid("password must be given".into())),
                }
            }
        }
    }

    async fn hash(&self, source: Option<IpAddr>, password: &str) -> Result<String, ManageError> {
        fits(password)?;
        Ok(self.pool.hash(source, password.as_bytes()).await?)
    }

    async fn put_credential(&self, new: Credential) -> Result<Arc<Credential>, ManageError> {
        let key = Credential::row_key(&new.id);
        let row = Row { table: Table::Credentials, key, value: Some(new.encode()) };
        self.store(vec![row]).await?;
        self.act().await;
        Ok(Arc::new(new))
    }

    async fn store(&self, rows: Vec<Row>) -> Result<(), ManageError> {
        if put(&*self.tables, rows).await { Ok(()) } else { Err(ManageError::Storage) }
    }

    pub async fn delete_credential(&self, id: &str) -> Result<(), ManageError> {
        let _turn = self.writes.lock().await;
        self.credentials.get(id).ok_or(ManageError::NotFound)?;
        let key = Credential::row_key(id);
        self.store(vec![Row { table: Table::Credentials, key, value: None }]).await?;
        self.act().await;
        Ok(())
    }

    /// Changes a basic credential's password, for whoever knows the one before.
    pub async fn change_credential_password(
        &self,
        source: Option<IpAddr>,
        id: &str,
        current: Option<&str>,
        new: &str,
    ) -> Result<Arc<Credential>, ManageError> {
        let _turn = self.writes.lock().await;
        let old = self.credentials.get(id).ok_or(ManageError::NotFound)?;
        let mut changed = (*old).clone();
        let Proof::Basic(basic) = &mut changed.proof else {
            return Err(ManageError::Invalid("only a MQTT_BASIC credential has a password".into()));
        };
        if let Some(hash) = &basic.password {
            let given = current.unwrap_or_default().as_bytes();
            if !self.pool.verify(source, hash, given).await? {
                return Err(ManageError::Invalid("the current password is another one".into()));
            }
        }
        basic.password = Some(self.hash(source, new).await?);
        self.put_credential(changed).await
    }
}

fn fits(password: &str) -> Result<(), ManageError> {
    let fault = "a password must have 1 to 4096 bytes";
    let fits = !password.is_empty() && password.len() <= limits::PASSWORD_BYTES;
    if fits { Ok(()) } else { Err(ManageError::Invalid(fault.into())) }
}

/// The draft without what has to be hashed.
fn bare_proof(draft: &DraftProof) -> Proof {
    match draft {
        DraftProof::Certificate(certificate) => Proof::Certificate(certificate.clone()),
        DraftProof::Basic { client_id, username, rules, .. } => {
            let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            let (client_id, username) = (given(client_id), given(username));
            Proof::Basic(Basic { client_id, username, password: None, rules: rules.clone() })
        }
        DraftProof::Scram { username, hash, rules, .. } => Proof::Scram(Scram {
            username: username.clone(),
            hash: *hash,
            salt: Vec::new(),
            iterations: 0,
            stored_key: Vec::new(),
            server_key: Vec::new(),
            rules: rules.clone(),
        }),
    }
}

// === blocked and unauthorized clients ===

impl Security {
    pub fn blocks(&self) -> Vec<Arc<Block>> {
        self.blocked.all()
    }

    pub async fn block(&self, block: Block) -> Result<(), ManageError> {
        let _turn = self.writes.lock().await;
        if let Some(fault) = block.fault() {
            return Err(ManageError::Invalid(fault));
        }
        if let Some(full) = self.blocked.full(&block) {
            return Err(ManageError::Conflict(full.to_owned()));
        }
        self.store(vec![block.row()]).await?;
        self.look_again();
        Ok(())
    }

    /// Takes all blocks of this kind and value away.
    pub async fn unblock(&self, kind: BlockType, value: &str) -> Result<(), ManageError> {
        let _turn = self.writes.lock().await;
        let found = self.blocked.find_value(kind, value);
        if found.is_empty() {
            return Err(ManageError::NotFound);
        }
        self.store(found.iter().map(|block| blocked::tombstone(&block.id())).collect()).await
    }

    pub fn unauthorized_clients(&self) -> Vec<Arc<UnauthorizedClient>> {
        self.unauthorized.all()
    }

    pub fn unauthorized_client(&self, client_id: &str) -> Option<Arc<UnauthorizedClient>> {
        self.unauthorized.get(client_id)
    }

    pub fn forget_unauthorized(&self, client_id: &str) -> bool {
        self.unauthorized.remove(client_id)
    }

    pub fn forget_all_unauthorized(&self) {
        self.unauthorized.clear();
    }
}

// === accounts ===

impl Security {
    pub async fn login(
        &self,
        address: Option<IpAddr>,
        username: &str,
        password: &str,
    ) -> Result<Tokens, ManageError> {
        let account = self.prove_account(address, username, password).await?;
        self.accounts.tokens(&self.config.accounts, &account).ok_or(ManageError::Storage)
    }

    async fn prove_account(
        &self,
        address: Option<IpAddr>,
        username: &str,
        password: &str,
    ) -> Result<Arc<Account>, ManageError> {
        if !self.accounts.may_try(username, address, clock::wall_ms()) {
            return Err(ManageError::TooManyLogins);
        }
        let Some(account) = self.accounts.get(username) else {
            self.pool.pretend(address, password.as_bytes()).await?;
            return Err(ManageError::WrongPassword);
        };
        if !self.pool.verify(address, &account.password, password.as_bytes()).await? {
            return Err(ManageError::WrongPassword);
        }
        self.accounts.succeeded(username, address);
        Ok(account)
    }

    pub fn refresh(&self, token: &str) -> Option<Tokens> {
        let account = self.accounts.of_token(&self.config.accounts, token, true)?;
        self.accounts.tokens(&self.config.accounts, &account)
    }

    /// Whose access token it is.
    pub fn account_of(&self, token: &str) -> Option<Arc<Account>> {
        self.accounts.of_token(&self.config.accounts, token, false)
    }

    pub fn accounts(&self) -> Vec<Arc<Account>> {
        self.accounts.all()
    }

    pub async fn change_own_password(
        &self,
        address: Option<IpAddr>,
        username: &str,
        current: &str,
        new: &str,
    ) -> Result<Tokens, ManageError> {
        let account = self.prove_account(address, username, current).await?;
        let account = self.put_account(address, username, new, account.role).await?;
        self.accounts.tokens(&self.config.accounts, &account).ok_or(ManageError::Storage)
    }

    /// Makes an account, or gives one another password or role.
    pub async fn put_account(
        &self,
        source: Option<IpAddr>,
        username: &str,
        password: &str,
        role: Role,
    ) -> Result<Account, ManageError> {
        let _turn = self.writes.lock().await;
        let username = username.trim();
        let long = username.len() > limits::RULE_BYTES;
        if username.is_empty() || long || username.contains(char::is_control) {
            return Err(ManageError::Invalid("an account needs a plain user name".into()));
        }
        let old = self.accounts.get(username);
        if old.is_none() && self.accounts.all().len() >= limits::ACCOUNTS {
            return Err(ManageError::Conflict("there are too many accounts".into()));
        }
        if role != Role::Administrator {
            self.another_administrator(username)?;
        }
        let hash = self.hash(source, password).await?;
        let created_ms = old.map_or_else(clock::wall_ms, |old| old.created_ms);
        let account = Account::new(username, hash, role, created_ms);
        self.store(vec![account.row()]).await?;
        Ok(account)
    }

    pub async fn delete_account(&self, username: &str) -> Result<(), ManageError> {
        let _turn = self.writes.lock().await;
        self.accounts.get(username).ok_or(ManageError::NotFound)?;
        self.another_administrator(username)?;
        self.store(vec![account_tombstone(username)]).await
    }

    /// The last administrator stays one.
    fn another_administrator(&self, username: &str) -> Result<(), ManageError> {
        let all = self.accounts.all();
        let is_one = |account: &&Arc<Account>| account.role == Role::Administrator;
        let was_one = all.iter().filter(is_one).any(|account| account.username == username);
        if was_one && all.iter().filter(is_one).count() == 1 {
            return Err(ManageError::Conflict("it is the last administrator".into()));
        }
        Ok(())
    }

    /// What must be there before the first login: the key, an administrator; and the credentials
    /// of the start-up file. What was made, for whoever started the program.
    pub async fn prepare(&self) -> Result<Option<FirstAdministrator>, super::SecurityError> {
        let fault = |error: ManageError| super::SecurityError(error.to_string());
        if self.config.accounts.signing_key.is_none() && !self.accounts.has_key() {
            self.store(vec![signing_key_row(&random::<64>())]).await.map_err(fault)?;
        }
        let made = self.first_administrator().await.map_err(fault)?;
        self.take_credentials_file().await?;
        Ok(made)
    }

    /// A password that the operator gives holds at every start, which is also the way back in for
    /// who has lost it.
    async fn first_administrator(&self) -> Result<Option<FirstAdministrator>, ManageError> {
        let accounts = &self.config.accounts;
        let username = accounts.username.to_string();
        let role = Role::Administrator;
        if let Some(password) = &accounts.password {
            let same = match self.accounts.get(&username) {
                Some(known) if known.role == role => {
                    self.pool.verify(None, &known.password, password.as_bytes()).await?
                }
                Some(_) | None => false,
            };
            if !same {
                self.put_account(None, &username, password, role).await?;
                tracing::info!(account = username, "the administrator has the given password");
            }
            return Ok(None);
        }
        if self.accounts.all().iter().any(|account| account.role == role) {
            return Ok(None);
        }
        let password = made_password();
        self.put_account(None, &username, &password, role).await?;
        Ok(Some(FirstAdministrator { username, password }))
    }
}

/// Five bits a letter: 100 in all.
fn made_password() -> String {
    let letter = |byte: u8| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]);
    random::<PASSWORD_LETTERS>().into_iter().map(letter).collect()
}
