//! Public keys for tokens, from a URL (RFC 7517). They are asked for again and again, and when a
//! token names a key that is not there: whoever issues tokens changes keys without telling us.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, decode_header};
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::http::{Service, ServiceConfig, parted};
use super::jwt::{ED, RSA};
use crate::limits;
use crate::telemetry::Throttle;

static FAILED: Throttle = Throttle::per_minute();

/// A key of the set, and the tokens that it is for.
pub(super) struct SetKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

impl std::fmt::Debug for SetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SetKey").field(&self.id).finish()
    }
}

impl SetKey {
    /// Whether a token with this header may have been signed with it.
    pub(super) fn fits(&self, header: &Header) -> bool {
        let is_meant = header.kid.is_none() || header.kid == self.id;
        is_meant && self.algorithms.contains(&header.alg)
    }

    /// `None`: it is for something else, of a kind that is not taken here, or broken. A shared
    /// secret is not taken: the set is public.
    fn of(jwk: &Jwk) -> Option<Self> {
        if matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption)) {
            return None;
        }
        let kinds: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => RSA,
            AlgorithmParameters::OctetKeyPair(_) => ED,
            AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            _ => return None,
        };
        let named = jwk.common.key_algorithm.map(|named| named.to_string());
        let is_named =
            |kind: &&Algorithm| named.as_ref().is_none_or(|named| *named == format!("{kind:?}"));
        let algorithms: Vec<Algorithm> = kinds.iter().filter(is_named).copied().collect();
        let key = DecodingKey::from_jwk(jwk).ok().filter(|_| !algorithms.is_empty())?;
        Some(Self { id: jwk.common.key_id.clone(), algorithms, key })
    }
}

#[derive(Debug)]
pub(super) struct KeySet {
    service: Service,
    path: String,
    period: Duration,
    keys: RwLock<Arc<Vec<SetKey>>>,
    /// Somebody waits for newer keys.
    wanted: Notify,
    /// How often the set was asked for.
    tries: watch::Sender<u64>,
    last: RwLock<Option<Instant>>,
}

impl KeySet {
    pub(super) fn new(config: &ServiceConfig, period: Duration) -> Result<Self, String> {
        Ok(Self {
            service: Service::new(config)?,
            path: parted(&config.url).1,
            period,
            keys: RwLock::default(),
            wanted: Notify::new(),
            tries: watch::Sender::new(0),
            last: RwLock::default(),
        })
    }

    /// The keys to judge a token with. One that names a key which is not there waits for a newer
    /// set, unless that was just asked for.
    pub(super) async fn keys_for(&self, token: &str) -> Arc<Vec<SetKey>> {
        let keys = Arc::clone(&self.keys.read());
        let Ok(header) = decode_header(token) else { return keys };
        if keys.iter().any(|key| key.fits(&header)) || !self.may_ask() {
            return keys;
        }
        let mut tries = self.tries.subscribe();
        self.wanted.notify_one();
        let patience = Duration::from_millis(limits::AUTHENTICATION_MS);
        // Whether it came or not, what is here now is judged with.
        drop(timeout(patience, tries.changed()).await);
        Arc::clone(&self.keys.read())
    }

    fn may_ask(&self) -> bool {
        let pause = Duration::from_millis(limits::JWKS_REFRESH_MIN_MS);
        self.last.read().is_none_or(|last| last.elapsed() >= pause)
    }

    /// Keeps the set new. Ends with its task.
    pub(super) async fn refresh(&self) {
        let pause = Duration::from_millis(limits::JWKS_REFRESH_MIN_MS);
        loop {
            let taken = self.take().await;
            *self.last.write() = Some(Instant::now());
            self.tries.send_modify(|tries| *tries += 1);
            if let Err(fault) = &taken
                && let Some(unsaid) = FAILED.ready()
            {
                tracing::warn!(fault, unsaid, "the keys for tokens could not be had");
            }
            // The keys of the last good answer stay.
            let next = if taken.is_ok() { self.period } else { pause.min(self.period) };
            drop(timeout(next, self.wanted.notified()).await);
        }
    }

    async fn take(&self) -> Result<(), String> {
        let answer = self.service.ask(Method::GET, &self.path, None).await?;
        if answer.status != 200 {
            return Err(format!("the service answered {}", answer.status));
        }
        let set: JwkSet =
            serde_json::from_slice(&answer.body).map_err(|fault| format!("no set: {fault}"))?;
        if set.keys.len() > limits::JWKS_KEYS {
            return Err(format!("a set of over {} keys", limits::JWKS_KEYS));
        }
        let keys: Vec<SetKey> = set.keys.iter().filter_map(SetKey::of).collect();
        if keys.is_empty() {
            return Err("no key in the set can be used".to_owned());
        }
        *self.keys.write() = Arc::new(keys);
        Ok(())
    }
}
