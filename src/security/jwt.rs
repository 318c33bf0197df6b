//! JSON Web Tokens in the password field. A token is judged by the kind of key that it was made
//! for, and no other: a public key is never a shared secret.

use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::config::{JwtConfig, ProviderName};
use super::credential::ClientType;
use super::identity::Identity;
use super::key_set::SetKey;
use super::rules::AuthRules;
use crate::limits;
use crate::telemetry::clock;

/// A shared secret must have as many bytes as the shortest hash.
const SECRET_BYTES: usize = 32;

/// How many keys one token is tried with: each costs a check of a signature.
const KEYS_TRIED: usize = 4;

const SHARED: &[Algorithm] = &[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
pub(super) const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
pub(super) const EC: &[Algorithm] = &[Algorithm::ES256, Algorithm::ES384];
pub(super) const ED: &[Algorithm] = &[Algorithm::EdDSA];

pub(super) struct JwtKeys {
    config: JwtConfig,
    keys: Vec<(&'static [Algorithm], DecodingKey)>,
}

impl std::fmt::Debug for JwtKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let algorithms = self.keys.iter().map(|(algorithms, _)| algorithms);
        f.debug_list().entries(algorithms).finish()
    }
}

impl JwtKeys {
    pub(super) fn new(config: &JwtConfig) -> Result<Self, String> {
        let mut keys = Vec::new();
        if let Some(secret) = &config.secret {
            if secret.len() < SECRET_BYTES {
                return Err(format!("the JWT secret is shorter than {SECRET_BYTES} bytes"));
            }
            let key = DecodingKey::from_secret(secret.as_bytes());
            keys.push((SHARED, key.map_err(|fault| format!("the JWT secret: {fault}"))?));
        }
        if let Some(path) = &config.public_key_file {
            let file = path.display();
            let pem = std::fs::read(path).map_err(|fault| format!("{file}: {fault}"))?;
            keys.push(public_key(&pem).ok_or_else(|| {
                format!("{file} holds no public key of RSA, EC or Ed25519 in PEM")
            })?);
        }
        if keys.is_empty() && config.key_set.is_none() {
            return Err("JWT is on, but there is neither a secret nor a public key".into());
        }
        Ok(Self { config: config.clone(), keys })
    }

    /// Whether there is a key in the settings for such a token.
    pub(super) fn are_for(&self, token: &str) -> bool {
        let header = decode_header(token);
        header.is_ok_and(|header| self.keys.iter().any(|(kinds, _)| kinds.contains(&header.alg)))
    }

    /// Who the token's bearer is. The work of a signature: not for a network thread.
    pub(super) fn judge(
        &self,
        set: &[SetKey],
        token: &str,
        client_id: &str,
        username: Option<&str>,
    ) -> Result<Identity, String> {
        let header = decode_header(token).map_err(|fault| format!("JWT: {fault}"))?;
        let claims = self.verified(set, token, &header)?;
        let equal = |claim: &Option<Arc<str>>, value: Option<&str>| match claim {
            Some(claim) => claims.get(&**claim).and_then(Value::as_str) == value,
            None => true,
        };
        if !equal(&self.config.client_id_claim, Some(client_id)) {
            return Err("JWT: it is for another client id".into());
        }
        if self.config.username_claim.is_some()
            && (username.is_none() || !equal(&self.config.username_claim, username))
        {
            return Err("JWT: it is for another user name".into());
        }
        let seconds = claims.get("exp").and_then(Value::as_f64);
        let expires_at_ms = seconds.map(|seconds| (seconds * 1000.0).max(1.0) as u64);
        if expires_at_ms.is_some_and(|end_ms| end_ms <= clock::wall_ms()) {
            // To the moment, where the library thinks in seconds.
            return Err("JWT: it is over".into());
        }
        let rules = self.rules(&claims)?;
        if let Some(fault) = rules.fault() {
            return Err(format!("JWT: {fault}"));
        }
        Ok(Identity {
            provider: ProviderName::Jwt.text(),
            client_type: self.client_type(&claims),
            credential: None,
            rules,
            username: username.map(str::to_owned),
            cn: None,
            expires_at_ms,
        })
    }

    /// The claims, if a key of ours made the signature: those of the settings, then those of the
    /// set that may be meant.
    fn verified(
        &self,
        set: &[SetKey],
        token: &str,
        header: &Header,
    ) -> Result<Map<String, Value>, String> {
        let own = self.keys.iter().filter(|(algorithms, _)| algorithms.contains(&header.alg));
        let own = own.map(|(_, key)| key);
        let of_set = set.iter().filter(|key| key.fits(header)).map(|key| &key.key);
        let validation = self.validation(header.alg);
        let mut fault = format!("JWT: no key for algorithm {:?}", header.alg);
        for key in own.chain(of_set).take(KEYS_TRIED) {
            match decode::<Map<String, Value>>(token, key, &validation) {
                Ok(decoded) => return Ok(decoded.claims),
                Err(error) => fault = format!("JWT: {error}"),
            }
        }
        Err(fault)
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.leeway = 0;
        validation.validate_nbf = true;
        if let Some(issuer) = &self.config.issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        match &self.config.audience {
            Some(audience) => {
                validation.set_audience(&[audience]);
                validation.required_spec_claims.insert("aud".to_owned());
            }
            None => validation.validate_aud = false,
        }
        validation
    }

    fn client_type(&self, claims: &Map<String, Value>) -> ClientType {
        let claim = self.config.client_type_claim.as_deref().and_then(|name| claims.get(name));
        match claim.and_then(Value::as_str) {
            Some(text) if text.eq_ignore_ascii_case("APPLICATION") => ClientType::Application,
            Some(_) | None => ClientType::Device,
        }
    }

    /// A claim that is not there allows everything; one that is no list of texts is a fault.
    fn rules(&self, claims: &Map<String, Value>) -> Result<AuthRules, String> {
        let list = |claim: &Option<Arc<str>>| {
            let Some(value) = claim.as_deref().and_then(|name| claims.get(name)) else {
                return Ok(None);
            };
            let texts = value.as_array().filter(|list| list.len() <= limits::RULES_PER_LIST);
            let texts = texts.map(|list| list.iter().map(|v| v.as_str().map(str::to_owned)));
            let texts = texts.and_then(|texts| texts.collect::<Option<Vec<String>>>());
            texts.map(Some).ok_or("JWT: a claim of rules is no list of texts, or too long a one")
        };
        let publish = list(&self.config.publish_claim)?;
        let subscribe = list(&self.config.subscribe_claim)?;
        Ok(AuthRules { publish, subscribe, rules: None })
    }
}

fn public_key(pem: &[u8]) -> Option<(&'static [Algorithm], DecodingKey)> {
    let rsa = DecodingKey::from_rsa_pem(pem).map(|key| (RSA, key));
    let ec = || DecodingKey::from_ec_pem(pem).map(|key| (EC, key));
    let ed = || DecodingKey::from_ed_pem(pem).map(|key| (ED, key));
    rsa.or_else(|_| ec()).or_else(|_| ed()).ok()
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn keys(config: JwtConfig) -> JwtKeys {
        JwtKeys::new(&JwtConfig { secret: Some(SECRET.into()), ..config }).expect("a good key")
    }

    fn token(secret: &str, algorithm: Algorithm, claims: &Value) -> String {
        let key = EncodingKey::from_secret(secret.as_bytes()).expect("a good key");
        encode(&Header::new(algorithm), claims, &key).expect("it can be signed")
    }

    fn in_seconds(seconds: i64) -> i64 {
        (clock::wall_ms() / 1000) as i64 + seconds
    }

    #[test]
    fn a_good_token_gives_its_rights_and_its_end() {
        let keys = keys(JwtConfig {
            client_id_claim: Some("sub".into()),
            username_claim: Some("name".into()),
            client_type_claim: Some("type".into()),
            publish_claim: Some("pub".into()),
            subscribe_claim: Some("sub_rules".into()),
            issuer: Some("us".into()),
            audience: Some("mqtt".into()),
            ..JwtConfig::default()
        });
        let exp = in_seconds(60);
        let good = json!({"sub": "c", "name": "u", "type": "application", "pub": ["a/.*"],
            "exp": exp, "iss": "us", "aud": ["mqtt"]});
        let judge = |claims: &Value| {
            keys.judge(&[], &token(SECRET, Algorithm::HS512, claims), "c", Some("u"))
        };
        let identity = judge(&good).expect("it is good");
        assert_eq!(identity.client_type, ClientType::Application);
        assert_eq!(identity.rules.publish, Some(vec!["a/.*".to_owned()]));
        assert_eq!(identity.rules.subscribe, None);
        assert_eq!(identity.expires_at_ms, Some(exp as u64 * 1000));
        let changes = [
            ("sub", json!("d")),
            ("name", json!("v")),
            ("exp", json!(in_seconds(-1))),
            ("exp", json!("tomorrow")),
            ("nbf", json!(in_seconds(60))),
            ("iss", json!("them")),
            ("aud", json!("http")),
            ("pub", json!("a/.*")),
            ("pub", json!(["("])),
            ("pub", json!([1])),
        ];
        for (claim, value) in changes {
            let mut bad = good.clone();
            bad[claim] = value;
            assert!(judge(&bad).is_err(), "{bad}");
        }
        for claim in ["sub", "name", "iss", "aud"] {
            let mut bad = good.clone();
            bad.as_object_mut().expect("an object").remove(claim);
            assert!(judge(&bad).is_err(), "without {claim}");
        }
    }

    #[test]
    fn a_forged_token_is_refused() {
        let keys = keys(JwtConfig::default());
        let claims = json!({"exp": in_seconds(60)});
        let good = token(SECRET, Algorithm::HS256, &claims);
        assert!(keys.judge(&[], &good, "c", None).is_ok());
        let other = "x123456789abcdef0123456789abcdef";
        assert!(keys.judge(&[], &token(other, Algorithm::HS256, &claims), "c", None).is_err());
        let body = good.split('.').nth(1).expect("three parts");
        // {"alg":"none"} and {"alg":"RS256"}, without and with the old signature.
        for head in ["eyJhbGciOiJub25lIn0", "eyJhbGciOiJSUzI1NiJ9"] {
            let signature = good.rsplit('.').next().expect("three parts");
            for end in ["", signature] {
                assert!(keys.judge(&[], &format!("{head}.{body}.{end}"), "c", None).is_err());
            }
        }
        for junk in ["..", "a.b.c", "\u{0}.\u{0}.\u{0}"] {
            assert!(keys.judge(&[], junk, "c", None).is_err());
        }
        let short = JwtConfig { secret: Some("short".into()), ..JwtConfig::default() };
        assert!(JwtKeys::new(&short).is_err() && JwtKeys::new(&JwtConfig::default()).is_err());
    }
}
