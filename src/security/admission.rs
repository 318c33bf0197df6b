//! The way of a CONNECT: blocked? then the providers in their order, or nobody is asked and the
//! rules for anonymous clients hold.

use std::net::IpAddr;
use std::sync::Arc;

use super::Security;
use super::config::Anonymous;
use super::credential::Credential;
use super::identity::{Attempt, Grant, Identity, Peer, Refused};
use super::providers::Verdict;
use crate::mqtt::ReasonCode;
use crate::telemetry::{Throttle, clock, metrics};

static REFUSALS: Throttle = Throttle::per_minute();
static STRANGERS: Throttle = Throttle::per_minute();

impl Security {
    /// Lets a client in, or tells why not. `None`: it is anonymous, and nothing is denied to it.
    pub async fn admit(&self, attempt: &Attempt<'_>) -> Result<Option<Arc<Grant>>, Refused> {
        self.not_blocked(attempt)?;
        let admitted = self.ask_all(attempt).await;
        if let Err(refused) = &admitted {
            self.note_refusal(attempt, refused);
        }
        admitted
    }

    pub(super) fn not_blocked(&self, attempt: &Attempt<'_>) -> Result<(), Refused> {
        let Attempt { client_id, username, peer, .. } = attempt;
        if !self.is_blocked(client_id, *username, peer.address) {
            return Ok(());
        }
        tracing::debug!(client = client_id, "refused: it is blocked");
        Err(Refused::new(ReasonCode::Banned, "the client is blocked"))
    }

    /// Whether a block keeps such a client out.
    pub fn is_blocked(
        &self,
        client_id: &str,
        username: Option<&str>,
        address: Option<IpAddr>,
    ) -> bool {
        let found = self.blocked.find(client_id, username, address, clock::wall_ms());
        if found.is_some() {
            metrics::BLOCKED_REFUSED.inc();
        }
        found.is_some()
    }

    async fn ask_all(&self, attempt: &Attempt<'_>) -> Result<Option<Arc<Grant>>, Refused> {
        let bare = attempt.username.is_none()
            && attempt.password.is_none()
            && attempt.peer.certificate.is_none();
        if self.config.order.is_empty() && !self.config.scram {
            return self.stranger(attempt.peer).map(|()| None);
        }
        if bare && self.config.anonymous_by(attempt.peer.door) == Anonymous::Allowed {
            return Ok(None);
        }
        let (mut said, mut away) = (Vec::new(), false);
        for provider in &self.config.order {
            let verdict = self.ask(*provider, attempt).await.map_err(|_| Refused::busy())?;
            match verdict {
                Verdict::Success(identity, credential) => {
                    return self.grant(*identity, attempt.client_id, credential).map(Some);
                }
                Verdict::Failure(why) => {
                    said.push(format!("{}: {why}", provider.text()));
                    away = false;
                    break;
                }
                Verdict::Unavailable(why) => {
                    away = true;
                    said.push(format!("{}: {why}", provider.text()));
                }
                Verdict::Skipped(why) => said.push(format!("{}: {why}", provider.text())),
            }
        }
        let named = attempt.username.is_some() || attempt.password.is_some();
        let reason = match (away, named) {
            // Who might be let in later is not told that its proof is wrong.
            (true, _) => ReasonCode::ServerUnavailable,
            (false, true) => ReasonCode::BadUserNameOrPassword,
            (false, false) => ReasonCode::NotAuthorized,
        };
        if said.is_empty() {
            said.push("no provider is on but SCRAM, and it was not asked for".into());
        }
        Err(Refused::new(reason, said.join("; ")))
    }

    /// Nothing proves anything here: only who is near may come in, unless it was said otherwise.
    fn stranger(&self, peer: &Peer) -> Result<(), Refused> {
        let near = peer.address.is_none_or(|address| address.to_canonical().is_loopback());
        let refused = |why: &str| Err(Refused::new(ReasonCode::NotAuthorized, why));
        match self.config.anonymous_by(peer.door) {
            Anonymous::Allowed => Ok(()),
            Anonymous::Loopback if near => Ok(()),
            Anonymous::Refused => refused("no provider is on, and anonymous clients are refused"),
            Anonymous::Loopback => {
                if STRANGERS.ready().is_some() {
                    tracing::warn!(
                        "a client of another machine was refused: switch a provider on \
                         (SECURITY_MQTT_BASIC_ENABLED=true) or let everybody in \
                         (SECURITY_ALLOW_ANONYMOUS=true)"
                    );
                }
                refused("no provider is on: only clients of this machine are let in")
            }
        }
    }

    pub(super) fn grant(
        &self,
        identity: Identity,
        client_id: &str,
        credential: Option<Arc<Credential>>,
    ) -> Result<Arc<Grant>, Refused> {
        let grant = Grant::new(identity, client_id)?;
        if let Some(credential) = &credential {
            self.credentials.watch(&grant, credential);
        }
        Ok(grant)
    }

    pub(super) fn note_refusal(&self, attempt: &Attempt<'_>, refused: &Refused) {
        if self.config.unauthorized {
            self.unauthorized.note(attempt, &refused.detail, clock::wall_ms());
        }
        let (client, detail) = (attempt.client_id, &refused.detail);
        if let Some(unsaid) = REFUSALS.ready() {
            tracing::info!(client, detail, unsaid, "a client was refused");
        } else {
            tracing::debug!(client, detail, "a client was refused");
        }
    }
}
