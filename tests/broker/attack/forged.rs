//! Tokens and certificates that nobody trusted has made.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rustls::ClientConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;

use crate::support::{Random, roots_of};

/// A token that lets nobody in.
pub(super) fn token(random: &mut Random) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = json!({ "sub": "admin", "exp": 4_000_000_000_u64 });
    let signed = |secret: &str, algorithm| {
        let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
        jsonwebtoken::encode(&Header::new(algorithm), &claims, &key).unwrap()
    };
    let other = signed("another secret of more than 32 bytes", Algorithm::HS256);
    let body = other.split('.').nth(1).unwrap().to_owned();
    let head = |algorithm: &str| part(&format!("{{\"alg\":\"{algorithm}\"}}"));
    match random.below(8) {
        0 => other,
        1 => signed("secret", Algorithm::HS512),
        2 => format!("{}.{body}.", head("none")),
        3 => format!("{}.{body}.{}", head("RS256"), "A".repeat(344)),
        4 => format!("{}.{}.x", head("HS256"), part(&"[".repeat(20_000))),
        5 => format!("{}.{body}.{}", part(&"{\"alg\":".repeat(2000)), part("x")),
        6 => "..".to_owned(),
        _ => format!("{}.{body}.", head(&format!("HS{}", random.next()))),
    }
}

/// A client that shows a certificate which it has signed itself.
pub(super) fn client(trusts: &str) -> Arc<ClientConfig> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let builder = roots_of(trusts);
    Arc::new(builder.with_client_auth_cert(vec![made.cert.der().clone()], key).unwrap())
}
