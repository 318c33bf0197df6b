//! The providers that are asked in turn: basic, X.509, JWT, HTTP. Each says success, failure or
//! skipped.

use std::sync::Arc;

use super::Security;
use super::config::ProviderName;
use super::credential::{Credential, Key, Proof};
use super::hashing::Busy;
use super::identity::{Attempt, Identity};
use crate::telemetry::metrics::{self, Counter};

#[derive(Debug)]
pub(super) enum Verdict {
    /// The client is let in; with what it rests on, if that is one of our credentials.
    Success(Box<Identity>, Option<Arc<Credential>>),
    /// The client is refused; nobody else is asked.
    Failure(String),
    /// It is not this provider's to judge.
    Skipped(String),
    /// Who could judge it is away: as skipped, and it may come again.
    Unavailable(String),
}

impl Security {
    pub(super) async fn ask(
        &self,
        provider: ProviderName,
        attempt: &Attempt<'_>,
    ) -> Result<Verdict, Busy> {
        let verdict = match provider {
            ProviderName::Basic => self.basic(attempt).await?,
            ProviderName::X509 => self.x509(attempt),
            ProviderName::Jwt => self.jwt(attempt).await?,
            ProviderName::Http => match &self.service {
                Some(service) => service.ask(attempt).await.inspect_err(|Busy| {
                    metrics::AUTHENTICATION_BUSY.inc();
                })?,
                None => Verdict::Skipped("no service for HTTP".into()),
            },
        };
        let [success, failure, skipped] = counters(provider);
        let counter = match verdict {
            Verdict::Success(..) => success,
            Verdict::Failure(_) => failure,
            Verdict::Skipped(_) | Verdict::Unavailable(_) => skipped,
        };
        counter.inc();
        Ok(verdict)
    }

    /// A credential of both client id and user name goes before one of the user name, and that
    /// before one of the client id; the first whose password is right lets the client in. Skipped
    /// where there is none.
    async fn basic(&self, attempt: &Attempt<'_>) -> Result<Verdict, Busy> {
        let client_id = attempt.client_id.to_owned();
        let username = attempt.username.map(str::to_owned);
        let keys = [
            username.clone().map(|username| Key::Both { username, client_id: client_id.clone() }),
            username.map(Key::Username),
            Some(Key::ClientId(client_id)),
        ];
        let source = attempt.peer.address;
        let mut known = false;
        for key in keys.into_iter().flatten() {
            let Some(credential) = self.credentials.find(&key) else { continue };
            let Proof::Basic(basic) = &credential.proof else { continue };
            known = true;
            let right = match (&basic.password, attempt.password) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(hash), Some(password)) => self.pool.verify(source, hash, password).await?,
            };
            if right {
                let identity = Identity {
                    provider: ProviderName::Basic.text(),
                    client_type: credential.client_type,
                    credential: Some(Arc::clone(&credential.id)),
                    rules: basic.rules.clone(),
                    username: attempt.username.map(str::to_owned),
                    cn: attempt.cn().map(str::to_owned),
                    expires_at_ms: None,
                };
                return Ok(Verdict::Success(Box::new(identity), Some(credential)));
            }
        }
        if known {
            return Ok(Verdict::Failure("the password is not the credential's".into()));
        }
        // Who asks can't tell an unknown name from a wrong password by the time that it takes.
        if let Some(password) = attempt.password.filter(|_| attempt.username.is_some()) {
            self.pool.pretend(source, password).await?;
        }
        Ok(Verdict::Skipped("no credential for this client id or user name".into()))
    }

    /// By the common names of the chain that the listener verified, the client's own first.
    fn x509(&self, attempt: &Attempt<'_>) -> Verdict {
        let Some(certificate) = &attempt.peer.certificate else {
            return Verdict::Skipped("no verified client certificate".into());
        };
        for cn in &certificate.common_names {
            let exact = self.credentials.find(&Key::Cn(cn.clone()));
            let Some(credential) = exact.or_else(|| self.credentials.find_expression(cn)) else {
                continue;
            };
            let identity = Identity {
                provider: ProviderName::X509.text(),
                client_type: credential.client_type,
                credential: Some(Arc::clone(&credential.id)),
                rules: credential.rules(Some(cn)),
                username: attempt.username.map(str::to_owned),
                cn: Some(cn.clone()),
                expires_at_ms: None,
            };
            return Verdict::Success(Box::new(identity), Some(credential));
        }
        Verdict::Skipped("no credential for the certificate's common name".into())
    }

    async fn jwt(&self, attempt: &Attempt<'_>) -> Result<Verdict, Busy> {
        let Some(keys) = &self.jwt else {
            return Ok(Verdict::Skipped("no key for JWT".into()));
        };
        let token = attempt.password.and_then(|password| std::str::from_utf8(password).ok());
        let Some(token) = token.filter(|token| token.split('.').count() == 3) else {
            return Ok(Verdict::Skipped("the password is no JWT".into()));
        };
        let set = match &self.key_set {
            Some(set) => set.keys_for(token).await,
            None => Arc::default(),
        };
        let is_away = self.key_set.is_some() && set.is_empty() && !keys.are_for(token);
        let (keys, token) = (Arc::clone(keys), token.to_owned());
        let (client_id, username) =
            (attempt.client_id.to_owned(), attempt.username.map(str::to_owned));
        let judge = move || keys.judge(&set, &token, &client_id, username.as_deref());
        let judged = self.pool.run(attempt.peer.address, judge).await?;
        Ok(match judged {
            Ok(mut identity) => {
                identity.cn = attempt.cn().map(str::to_owned);
                Verdict::Success(Box::new(identity), None)
            }
            // Its key may come with the set.
            Err(fault) if is_away => Verdict::Unavailable(fault),
            Err(fault) => Verdict::Failure(fault),
        })
    }
}

fn counters(provider: ProviderName) -> [&'static Counter; 3] {
    use metrics as m;
    match provider {
        ProviderName::Basic => [&m::BASIC_SUCCESS, &m::BASIC_FAILURE, &m::BASIC_SKIPPED],
        ProviderName::X509 => [&m::X509_SUCCESS, &m::X509_FAILURE, &m::X509_SKIPPED],
        ProviderName::Jwt => [&m::JWT_SUCCESS, &m::JWT_FAILURE, &m::JWT_SKIPPED],
        ProviderName::Http => [&m::HTTP_SUCCESS, &m::HTTP_FAILURE, &m::HTTP_SKIPPED],
    }
}

impl Attempt<'_> {
    pub(super) fn cn(&self) -> Option<&str> {
        let certificate = self.peer.certificate.as_ref()?;
        certificate.common_names.first().map(String::as_str)
    }
}
