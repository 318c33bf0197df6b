//! Authentication in steps (MQTT 5 section 4.12): SCRAM, at CONNECT and again while connected.

use std::sync::Arc;

use super::Security;
use super::credential::{Credential, Key, Proof, ScramHash};
use super::identity::{Attempt, Grant, Identity, Refused};
use super::scram::{Exchange, First};
use crate::mqtt::ReasonCode;
use crate::telemetry::metrics;

/// An exchange that has begun; its method stays the same to its end.
#[derive(Debug)]
pub struct Step {
    exchange: Exchange,
}

impl Step {
    /// What the client is sent with its first step.
    pub fn challenge(&self) -> &[u8] {
        self.exchange.challenge()
    }
}

impl Security {
    /// Begins what a client asks for by an authentication method.
    pub fn begin(
        &self,
        method: &str,
        data: Option<&[u8]>,
        attempt: &Attempt<'_>,
    ) -> Result<Step, Refused> {
        let hash = ScramHash::of_method(method).filter(|_| self.config.scram);
        let Some(hash) = hash else {
            let detail = "an authentication method that is not on here";
            return Err(Refused::new(ReasonCode::BadAuthenticationMethod, detail));
        };
        self.not_blocked(attempt)?;
        let Some(first) = data.and_then(First::parse) else {
            return Err(self.failed(attempt, "SCRAM: the first message is none"));
        };
        if self.is_blocked(attempt.client_id, Some(&first.username), attempt.peer.address) {
            return Err(Refused::new(ReasonCode::Banned, "the client is blocked"));
        }
        let key = Key::Scram(first.username.clone(), hash.name().into());
        let credential = self.credentials.find(&key);
        let exchange = Exchange::begin(hash, &first, credential, &self.scram_secret);
        Ok(Step { exchange })
    }

    /// The client's last word: what it is let in with, and the data that proves us to it. A client
    /// that is connected, by `earlier`, goes on with that, and must be the same user.
    pub fn finish(
        &self,
        step: &Step,
        data: Option<&[u8]>,
        attempt: &Attempt<'_>,
        earlier: Option<&Arc<Grant>>,
    ) -> Result<(Arc<Grant>, Vec<u8>), Refused> {
        let finished = step.exchange.finish(data.unwrap_or_default());
        let (credential, data) = finished.map_err(|why| self.failed(attempt, &why))?;
        let username = &step.exchange.username;
        if earlier.is_some_and(|grant| grant.username() != Some(username)) {
            return Err(self.failed(attempt, "SCRAM: another user than at CONNECT"));
        }
        let grant = match earlier {
            Some(grant) => Arc::clone(grant),
            None => {
                let identity = identity(&credential, username, attempt);
                self.grant(identity, attempt.client_id, Some(credential))?
            }
        };
        metrics::SCRAM_SUCCESS.inc();
        Ok((grant, data))
    }

    fn failed(&self, attempt: &Attempt<'_>, why: &str) -> Refused {
        metrics::SCRAM_FAILURE.inc();
        let refused = Refused::new(ReasonCode::NotAuthorized, why);
        self.note_refusal(attempt, &refused);
        refused
    }
}

fn identity(credential: &Credential, username: &str, attempt: &Attempt<'_>) -> Identity {
    let rules = match &credential.proof {
        Proof::Scram(scram) => scram.rules.clone(),
        Proof::Basic(_) | Proof::Certificate(_) => credential.rules(None),
    };
    Identity {
        provider: "SCRAM",
        client_type: credential.client_type,
        credential: Some(Arc::clone(&credential.id)),
        rules,
        username: Some(username.to_owned()),
        cn: attempt.cn().map(str::to_owned),
        expires_at_ms: None,
    }
}
