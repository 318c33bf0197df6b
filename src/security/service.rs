//! The provider that asks a service of the operator's over HTTP. A service that is slow or away
//! costs the clients that it would judge, each for a bounded time, and nobody else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use hyper::Method;
use hyper::header::HeaderValue;
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::Sha256;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::config::{HttpConfig, ProviderName};
use super::credential::{ClientType, random};
use super::hashing::Busy;
use super::http::{Answer, Service};
use super::identity::{Attempt, Identity};
use super::providers::Verdict;
use super::request::Texts;
use super::rules::AuthRules;
use crate::limits;
use crate::telemetry::{Throttle, clock};

static AWAY: Throttle = Throttle::per_minute();

pub(super) struct Judge {
    service: Service,
    texts: Texts,
    permits: Semaphore,
    waiting: Mutex<Waiting>,
    /// What was answered lately, under a mark of all that was asked.
    known: Mutex<HashMap<[u8; 32], (Instant, Said), ahash::RandomState>>,
    known_for: Duration,
    pepper: [u8; 32],
    health: Mutex<Health>,
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judge").field("service", &self.service).finish_non_exhaustive()
    }
}

/// Who waits for an answer, by address.
#[derive(Default)]
struct Waiting {
    all: usize,
    by: HashMap<Option<IpAddr>, usize, ahash::RandomState>,
}

/// Held by one that waits.
struct Turn<'a>(&'a Judge, Option<IpAddr>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.all -= 1;
        if let Some(count) = waiting.by.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                waiting.by.remove(&self.1);
            }
        }
    }
}

/// Whether the service is worth a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// So many requests failed one after another.
    Up(u32),
    /// It is not asked before.
    Down(Instant),
    /// One request finds out.
    Tried,
}

/// Held by a request; one that is dropped without an answer leaves the next to find out.
struct Trial<'a>(&'a Judge);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        let mut health = self.0.health.lock();
        if *health == Health::Tried {
            *health = Health::Down(Instant::now());
        }
    }
}

/// The answer as JSON; fields that nobody knows are left alone.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    result: String,
    client_type: Option<String>,
    #[serde(default)]
    auth_rules: AuthRules,
    /// Beyond TBMQ: after so long the connection ends.
    expires_in_seconds: Option<u64>,
}

/// What an answer comes to.
#[derive(Clone, Debug)]
enum Said {
    Success { client_type: ClientType, rules: AuthRules, expires_at_ms: Option<u64> },
    Failure(String),
    Skipped(String),
}

impl Judge {
    pub(super) fn new(config: &HttpConfig) -> Result<Self, String> {
        let texts = Texts::new(config)?;
        Ok(Self {
            service: Service::new(&config.service)?,
            texts,
            permits: Semaphore::new(config.max_parallel),
            waiting: Mutex::default(),
            known: Mutex::default(),
            known_for: config.remembered,
            pepper: random(),
            health: Mutex::new(Health::Up(0)),
        })
    }

    pub(super) async fn ask(&self, attempt: &Attempt<'_>) -> Result<Verdict, Busy> {
        let mark = self.mark(attempt);
        if let Some(said) = self.remembered(&mark) {
            return Ok(verdict(said, attempt));
        }
        let Some((method, path, body)) = self.texts.fill(attempt) else {
            return Ok(Verdict::Skipped(
                "the service takes texts, and the password is none".into(),
            ));
        };
        let turn = self.wait(attempt.peer.address).ok_or(Busy)?;
        let patience = Duration::from_millis(limits::AUTHENTICATION_MS);
        let permit = timeout(patience, self.permits.acquire()).await;
        // The semaphore is never closed.
        let Ok(Ok(_permit)) = permit else { return Err(Busy) };
        if !self.is_worth_a_try() {
            return Ok(Verdict::Unavailable("the service does not answer".into()));
        }
        let trial = Trial(self);
        let answered = self.answer(method, &path, body).await;
        drop((trial, turn));
        Ok(match answered {
            Ok(answer) => {
                let said = judged(&answer);
                self.remember(mark, &said);
                verdict(said, attempt)
            }
            Err(fault) => Verdict::Unavailable(format!("the service: {fault}")),
        })
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<(HeaderValue, Vec<u8>)>,
    ) -> Result<Answer, String> {
        let answered = self.service.ask(method, path, body).await;
        let mut health = self.health.lock();
        match &answered {
            Ok(_) => *health = Health::Up(0),
            Err(fault) => {
                let rest = || {
                    let rest = Duration::from_millis(limits::SERVICE_REST_MS);
                    Health::Down(Instant::now() + rest)
                };
                *health = match *health {
                    Health::Up(failed) if failed + 1 < limits::SERVICE_FAILURES => {
                        Health::Up(failed + 1)
                    }
                    Health::Up(_) | Health::Down(_) | Health::Tried => rest(),
                };
                if let Some(unsaid) = AWAY.ready() {
                    tracing::warn!(fault, unsaid, "the service that judges clients failed");
                }
            }
        }
        answered
    }

    /// No: it failed again and again, and it is not yet time for another try.
    fn is_worth_a_try(&self) -> bool {
        let mut health = self.health.lock();
        match *health {
            Health::Up(_) => true,
            Health::Down(until) if until <= Instant::now() => {
                *health = Health::Tried;
                true
            }
            Health::Down(_) | Health::Tried => false,
        }
    }

    /// A place among those that wait, unless all are taken, or too many by this address.
    fn wait(&self, address: Option<IpAddr>) -> Option<Turn<'_>> {
        let mut waiting = self.waiting.lock();
        let own = waiting.by.get(&address).copied().unwrap_or(0);
        let full = waiting.all >= limits::SERVICE_QUEUE;
        if full || (address.is_some() && own >= limits::SERVICE_QUEUE / 2) {
            return None;
        }
        waiting.all += 1;
        *waiting.by.entry(address).or_default() += 1;
        Some(Turn(self, address))
    }

    fn mark(&self, attempt: &Attempt<'_>) -> [u8; 32] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.pepper);
        let mut mac = mac.expect("HMAC takes keys of any length");
        let address = attempt.peer.address.map(|address| address.to_string());
        let parts = [
            Some(attempt.client_id.as_bytes()),
            attempt.username.map(str::as_bytes),
            attempt.password,
            attempt.cn().map(str::as_bytes),
            address.as_deref().map(str::as_bytes),
        ];
        for part in parts {
            mac.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            mac.update(part.unwrap_or_default());
        }
        mac.finalize().into_bytes().into()
    }

    fn remembered(&self, mark: &[u8; 32]) -> Option<Said> {
        let known = self.known.lock();
        let (since, said) = known.get(mark)?;
        (since.elapsed() < self.known_for).then(|| said.clone())
    }

    fn remember(&self, mark: [u8; 32], said: &Said) {
        if self.known_for.is_zero() || matches!(said, Said::Skipped(_)) {
            return;
        }
        let mut known = self.known.lock();
        if known.len() >= limits::PASSWORDS_REMEMBERED {
            known.clear();
        }
        known.insert(mark, (Instant::now(), said.clone()));
    }
}

/// As TBMQ: what is no success of HTTP says nothing, an empty success lets in. Beyond it: an answer
/// that can't be read lets nobody in.
fn judged(answer: &Answer) -> Said {
    if !(200..300).contains(&answer.status) {
        return Said::Skipped(format!("the service answered {}", answer.status));
    }
    if answer.body.is_empty() {
        let (client_type, rules) = (ClientType::Device, AuthRules::default());
        return Said::Success { client_type, rules, expires_at_ms: None };
    }
    let Ok(reply) = serde_json::from_slice::<Reply>(&answer.body) else {
        return Said::Failure("the service's answer can't be read".into());
    };
    match reply.result.to_ascii_lowercase().as_str() {
        "success" => reply.success(),
        "failure" => Said::Failure("the service says no".into()),
        "skipped" => Said::Skipped("the service skips it".into()),
        _ => Said::Failure("the service's answer has no result that is known".into()),
    }
}

impl Reply {
    fn success(self) -> Said {
        if let Some(fault) = self.auth_rules.fault() {
            return Said::Failure(format!("the service's rules: {fault}"));
        }
        let is_application = |text: &str| text.eq_ignore_ascii_case("APPLICATION");
        let client_type = match self.client_type.as_deref() {
            Some(text) if is_application(text) => ClientType::Application,
            Some(_) | None => ClientType::Device,
        };
        let lasts = self.expires_in_seconds.map(|seconds| seconds.saturating_mul(1000));
        let expires_at_ms = lasts.map(|ms| clock::wall_ms().saturating_add(ms).max(1));
        Said::Success { client_type, rules: self.auth_rules, expires_at_ms }
    }
}

fn verdict(said: Said, attempt: &Attempt<'_>) -> Verdict {
    match said {
        Said::Failure(why) => Verdict::Failure(why),
        Said::Skipped(why) => Verdict::Skipped(why),
        Said::Success { client_type, rules, expires_at_ms } => {
            if expires_at_ms.is_some_and(|end_ms| end_ms <= clock::wall_ms()) {
                return Verdict::Failure("what the service allowed is over".into());
            }
            let identity = Identity {
                provider: ProviderName::Http.text(),
                client_type,
                credential: None,
                rules,
                username: attempt.username.map(str::to_owned),
                cn: attempt.cn().map(str::to_owned),
                expires_at_ms,
            };
            Verdict::Success(Box::new(identity), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, body: &str) -> Said {
        judged(&Answer { status, body: hyper::body::Bytes::copy_from_slice(body.as_bytes()) })
    }

    #[test]
    fn answers_come_to_what_tbmq_makes_of_them() {
        assert!(matches!(said(204, ""), Said::Success { client_type: ClientType::Device, .. }));
        for body in [r#"{"result":"success"}"#, r#"{"result":"SUCCESS","other":1}"#] {
            assert!(matches!(said(200, body), Said::Success { .. }), "{body}");
        }
        let full = r#"{"result":"success","clientType":"APPLICATION","expiresInSeconds":5,
            "authRules":{"pubAuthRulePatterns":["a/.*"],"subAuthRulePatterns":[]}}"#;
        let Said::Success { client_type, rules, expires_at_ms } = said(200, full) else {
            panic!("a success");
        };
        assert_eq!(client_type, ClientType::Application);
        assert_eq!(rules.publish, Some(vec!["a/.*".to_owned()]));
        assert_eq!(rules.subscribe, Some(Vec::new()));
        assert!(expires_at_ms.is_some_and(|end_ms| end_ms > clock::wall_ms()));
        for (status, body) in [(401, ""), (500, r#"{"result":"success"}"#), (302, "")] {
            assert!(matches!(said(status, body), Said::Skipped(_)), "{status}");
        }
        assert!(matches!(said(200, r#"{"result":"skipped"}"#), Said::Skipped(_)));
        let bad = [
            r#"{"result":"failure"}"#,
            r#"{"result":"yes"}"#,
            "{}",
            "yes",
            "<html>",
            r#"{"result":"success","authRules":{"pubAuthRulePatterns":["("]}}"#,
            r#"{"result":"success","authRules":{"typo":[]}}"#,
            r#"{"result":"success","expiresInSeconds":-1}"#,
        ];
        for body in bad {
            assert!(matches!(said(200, body), Said::Failure(_)), "{body}");
        }
    }
}
