//! The start-up file of credentials: YAML, put in force at each start. An entry replaces the
//! credential that is for the same client; what was made by REST stays.

use std::path::Path;

use serde::Deserialize;

use super::credential::{ClientType, Credential, Key, Proof, ScramHash};
use super::management::{Draft, DraftProof};
use super::rules::AuthRules;
use super::{Security, SecurityError};
use crate::limits::ENTITY_BYTES;

/// A larger file is not read: it could not be put in force within a start.
const FILE_BYTES: u64 = 1024 * ENTITY_BYTES as u64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    credentials: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Entry {
    name: Option<String>,
    #[serde(default)]
    client_type: ClientType,
    #[serde(default)]
    credentials_type: Kind,
    client_id: Option<String>,
    user_name: Option<String>,
    password: Option<String>,
    #[serde(default)]
    auth_rules: AuthRules,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum Kind {
    #[default]
    #[serde(rename = "MQTT_BASIC")]
    Basic,
    #[serde(rename = "SCRAM_SHA_256")]
    Scram256,
    #[serde(rename = "SCRAM_SHA_512")]
    Scram512,
}

impl Security {
    pub(super) async fn take_credentials_file(&self) -> Result<(), SecurityError> {
        let Some(path) = &self.config.credentials_file else { return Ok(()) };
        let fault = |what: String| SecurityError(format!("{}: {what}", path.display()));
        let entries = read(path).map_err(&fault)?;
        let _turn = self.writes.lock().await;
        let (mut same, all) = (0, entries.len());
        for (number, entry) in entries.into_iter().enumerate() {
            let key = entry.key();
            let old = self.credentials.find(&key);
            if let Some(old) = &old
                && self.is_same(&entry, old).await
            {
                same += 1;
                continue;
            }
            let stored = self.put_draft(None, entry.draft(), old).await;
            stored.map_err(|error| fault(format!("entry {}: {error}", number + 1)))?;
        }
        tracing::info!(credentials = all, unchanged = same, "the credentials file is in force");
        Ok(())
    }

    /// Nothing is hashed again, and no connection ended, for an entry that is as it was.
    async fn is_same(&self, entry: &Entry, old: &Credential) -> bool {
        if old.client_type != entry.client_type || old.name != entry.name() {
            return false;
        }
        match (&old.proof, &entry.password) {
            (Proof::Basic(basic), _) if basic.rules != entry.auth_rules => false,
            (Proof::Basic(basic), None) => basic.password.is_none(),
            (Proof::Basic(basic), Some(password)) => match &basic.password {
                Some(hash) => {
                    let right = self.pool.verify(None, hash, password.as_bytes()).await;
                    right.unwrap_or(false)
                }
                None => password.is_empty(),
            },
            (Proof::Scram(_) | Proof::Certificate(_), _) => false,
        }
    }
}

fn read(path: &Path) -> Result<Vec<Entry>, String> {
    let size = std::fs::metadata(path).map_err(|fault| fault.to_string())?.len();
    if size > FILE_BYTES {
        return Err(format!("it is larger than {FILE_BYTES} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|fault| fault.to_string())?;
    let file: File = serde_yaml_ng::from_str(&text).map_err(|fault| fault.to_string())?;
    Ok(file.credentials)
}

impl Entry {
    fn key(&self) -> Key {
        let username = self.user_name.clone().unwrap_or_default();
        match (self.credentials_type.hash(), self.client_id.clone(), self.user_name.clone()) {
            (Some(hash), _, _) => Key::Scram(username, hash.name().into()),
            (None, Some(client_id), Some(username)) => Key::Both { username, client_id },
            (None, Some(client_id), None) => Key::ClientId(client_id),
            (None, None, _) => Key::Username(username),
        }
    }

    fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| {
            let names = [&self.user_name, &self.client_id].into_iter().flatten();
            names.cloned().collect::<Vec<String>>().join("@")
        })
    }

    fn draft(self) -> Draft {
        let name = self.name();
        let proof = match self.credentials_type.hash() {
            Some(hash) => DraftProof::Scram {
                username: self.user_name.unwrap_or_default(),
                hash,
                password: self.password,
                rules: self.auth_rules,
            },
            None => DraftProof::Basic {
                client_id: self.client_id,
                username: self.user_name,
                password: Some(self.password.unwrap_or_default()),
                rules: self.auth_rules,
            },
        };
        Draft { id: None, name, client_type: self.client_type, proof }
    }
}

impl Kind {
    fn hash(self) -> Option<ScramHash> {
        match self {
            Kind::Basic => None,
            Kind::Scram256 => Some(ScramHash::Sha256),
            Kind::Scram512 => Some(ScramHash::Sha512),
        }
    }
}
