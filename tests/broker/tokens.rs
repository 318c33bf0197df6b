//! Clients that prove themselves by tokens with public keys: from a file, and from a set of keys
//! that changes.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::credentials::{now_ms, refused};
use crate::support::{Broker, Client, Connect, Packet, Start};
use crate::web::Web;

/// Somebody who issues tokens.
struct Issuer {
    key: KeyPair,
    algorithm: Algorithm,
    id: Option<&'static str>,
}

impl Issuer {
    fn new(algorithm: Algorithm, id: Option<&'static str>) -> Issuer {
        let kind = match algorithm {
            Algorithm::ES256 => &PKCS_ECDSA_P256_SHA256,
            Algorithm::ES384 => &PKCS_ECDSA_P384_SHA384,
            Algorithm::EdDSA => &PKCS_ED25519,
            // Nothing here makes RSA keys quickly.
            _ => return Issuer { key: KeyPair::from_pem(RSA_KEY).unwrap(), algorithm, id },
        };
        Issuer { key: KeyPair::generate_for(kind).unwrap(), algorithm, id }
    }

    fn signer(&self) -> EncodingKey {
        let pem = self.key.serialize_pem();
        match self.algorithm {
            Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_pem(pem.as_bytes()),
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()),
            _ => EncodingKey::from_rsa_pem(RSA_KEY.as_bytes()),
        }
        .unwrap()
    }

    fn token(&self, claims: &Value) -> String {
        let header = Header { kid: self.id.map(str::to_owned), ..Header::new(self.algorithm) };
        jsonwebtoken::encode(&header, claims, &self.signer()).unwrap()
    }

    fn public(&self) -> Jwk {
        if self.algorithm == Algorithm::EdDSA {
            let x = URL_SAFE_NO_PAD.encode(self.key.public_key_raw());
            let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.id });
            return serde_json::from_value(jwk).unwrap();
        }
        let mut jwk = Jwk::from_encoding_key(&self.signer(), self.algorithm).unwrap();
        jwk.common.key_id = self.id.map(str::to_owned);
        jwk
    }
}

const RSA_KEY: &str = include_str!("../data/tls/rsa_pkcs8.key");
const ALL: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

fn start() -> Start {
    Start::new()
        .env("SECURITY_MQTT_JWT_ENABLED", true)
        .env("SECURITY_MQTT_JWT_CLIENT_ID_CLAIM", "sub")
}

fn with(token: String) -> Connect {
    Connect::v5("c").user("any").password(token)
}

fn in_seconds(seconds: u64) -> u64 {
    now_ms() / 1000 + seconds
}

fn lets_in(broker: &Broker, token: String) -> bool {
    let mut client = Client::open(broker, crate::support::Level::V5);
    client.send(&with(token).bytes());
    matches!(client.recv(), Packet::Connack { code: 0, .. })
}

/// A token of each kind of key lets in by the public key in PEM, and by no other: neither somebody
/// else's key of the kind, nor the public key itself taken for a shared secret.
#[test]
fn tokens_with_public_keys_are_judged_by_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("public.pem");
    let claims = json!({ "sub": "c", "exp": in_seconds(600) });
    for algorithm in ALL {
        let issuer = Issuer::new(algorithm, None);
        std::fs::write(&file, issuer.key.public_key_pem()).unwrap();
        let broker = start().env("SECURITY_MQTT_JWT_PUBLIC_KEY_FILE", file.display()).start();
        Client::connect(&broker, &with(issuer.token(&claims))).disconnect();
        refused(&broker, &with(issuer.token(&json!({ "sub": "d" }))), 0x86);
        refused(&broker, &with(issuer.token(&json!({ "sub": "c", "exp": 1 }))), 0x86);
        let others = ALL.map(|other| Issuer::new(other, None));
        // One RSA key stands for all kinds of it.
        let is_other = |other: &&Issuer| other.key.public_key_pem() != issuer.key.public_key_pem();
        for other in others.iter().filter(is_other) {
            refused(&broker, &with(other.token(&claims)), 0x86);
        }
        let confused = EncodingKey::from_secret(issuer.key.public_key_pem().as_bytes()).unwrap();
        let header = Header::new(Algorithm::HS256);
        let forged = jsonwebtoken::encode(&header, &claims, &confused).unwrap();
        refused(&broker, &with(forged), 0x86);
        let good = issuer.token(&claims);
        let body = good.split('.').nth(1).unwrap();
        // {"alg":"none"}
        refused(&broker, &with(format!("eyJhbGciOiJub25lIn0.{body}.")), 0x86);
    }
}

/// The connection of a token with a public key ends when the token does.
#[test]
fn the_connection_ends_with_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let (file, issuer) = (folder.path().join("public.pem"), Issuer::new(Algorithm::EdDSA, None));
    std::fs::write(&file, issuer.key.public_key_pem()).unwrap();
    let broker = start().env("SECURITY_MQTT_JWT_PUBLIC_KEY_FILE", file.display()).start();
    let exp = in_seconds(2);
    let mut client =
        Client::connect(&broker, &with(issuer.token(&json!({ "sub": "c", "exp": exp }))));
    client.ping();
    client.expect_refusal(&[0x87]);
    assert!(now_ms() / 1000 >= exp, "it ended before its token");
}

/// Keys come from a URL; a token that names a new one waits for the new set; what left the
/// set counts no more; a set that can't be had or used leaves the old one.
#[test]
fn a_set_of_keys_is_followed() {
    let kinds = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    let first: Vec<Issuer> = kinds.iter().map(|kind| Issuer::new(*kind, Some("first"))).collect();
    let of = |issuers: &[Issuer]| {
        let keys = issuers.iter().map(Issuer::public).collect();
        serde_json::to_string(&JwkSet { keys }).unwrap()
    };
    let answer = Arc::new(Mutex::new((200, of(&first))));
    let told = Arc::clone(&answer);
    let web = Web::open(move |_| told.lock().clone());
    let broker = start()
        .env("SECURITY_MQTT_JWT_JWKS_URL", format!("http://127.0.0.1:{}/keys", web.port()))
        .env("SECURITY_MQTT_JWT_JWKS_REFRESH_MS", 1000)
        .allow_log("the keys for tokens could not be had")
        .start();
    let claims = json!({ "sub": "c", "exp": in_seconds(600) });
    for issuer in &first {
        Client::connect(&broker, &with(issuer.token(&claims))).disconnect();
    }
    let stranger = Issuer::new(Algorithm::ES256, Some("first"));
    refused(&broker, &with(stranger.token(&claims)), 0x86);
    let second = [Issuer::new(Algorithm::ES256, Some("second"))];
    *answer.lock() = (200, of(&second));
    broker.eventually("the new key", |broker| lets_in(broker, second[0].token(&claims)));
    for issuer in &first {
        refused(&broker, &with(issuer.token(&claims)), 0x86);
    }
    let secret = json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "kid": "x", "alg": "HS256" }] });
    for bad in [(500, String::new()), (200, "nonsense".into()), (200, secret.to_string())] {
        let before = web.asked().len();
        *answer.lock() = bad;
        broker.eventually("it was asked for", |_| web.asked().len() > before + 1);
        assert!(lets_in(&broker, second[0].token(&claims)));
    }
    let header = Header { kid: Some("x".into()), ..Header::new(Algorithm::HS256) };
    let key = EncodingKey::from_secret(b"secret").unwrap();
    refused(&broker, &with(jsonwebtoken::encode(&header, &claims, &key).unwrap()), 0x86);
}

/// While no set was ever had, clients are told that this may change; then a first one is taken.
#[test]
fn a_set_that_is_not_there_yet_is_waited_for() {
    let gone = Web::open(|_| (200, String::new()));
    let (port, issuer) = (gone.port(), Issuer::new(Algorithm::ES256, Some("k")));
    drop(gone);
    let broker = start()
        .env("SECURITY_MQTT_JWT_JWKS_URL", format!("http://127.0.0.1:{port}/keys"))
        .env("SECURITY_MQTT_JWT_JWKS_REFRESH_MS", 1000)
        .allow_log("the keys for tokens could not be had")
        .start();
    let claims = json!({ "sub": "c", "exp": in_seconds(600) });
    refused(&broker, &with(issuer.token(&claims)), 0x88);
    let set = serde_json::to_string(&JwkSet { keys: vec![issuer.public()] }).unwrap();
    let _web = Web::open_at(port, move |_| (200, set.clone()));
    broker.eventually("the first set", |broker| lets_in(broker, issuer.token(&claims)));
}

/// Over TLS keys come only from the server that is meant, which is shown who asks; what anybody
/// else gives is no set, also when it takes the place of one that was had.
#[test]
fn a_set_over_tls_comes_from_the_right_server_only() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (good, forged) =
        (Issuer::new(Algorithm::ES256, Some("k")), Issuer::new(Algorithm::ES256, Some("new")));
    let set =
        |issuer: &Issuer| serde_json::to_string(&JwkSet { keys: vec![issuer.public()] }).unwrap();
    let claims = json!({ "sub": "c", "exp": in_seconds(600) });
    let device = ours.device("the broker", 5);
    let start = start()
        .env("SECURITY_MQTT_JWT_JWKS_REFRESH_MS", 1000)
        .env("SECURITY_MQTT_JWT_JWKS_CA_FILE", ours.path("ca.pem").display())
        .env("SECURITY_MQTT_JWT_JWKS_CERT_FILE", ours.write("own.pem", &device.pem).display())
        .env(
            "SECURITY_MQTT_JWT_JWKS_KEY_FILE",
            ours.write("own_key.pem", &device.key.serialize_pem()).display(),
        )
        .env("SECURITY_MQTT_JWT_JWKS_USERNAME", "broker")
        .env("SECURITY_MQTT_JWT_JWKS_PASSWORD", "service-secret")
        .env("SECURITY_MQTT_JWT_JWKS_HEADERS", "X-Tenant:blue")
        .allow_log("the keys for tokens could not be had");
    let first = set(&good);
    let web = Web::encrypted(&ours, move |_| (200, first.clone()));
    let port = web.port();
    let url = format!("https://localhost:{port}/keys");
    let broker = start.clone().env("SECURITY_MQTT_JWT_JWKS_URL", &url).start();
    Client::connect(&broker, &with(good.token(&claims))).disconnect();
    let asked = web.asked().remove(0);
    assert_eq!(asked.line, "GET /keys HTTP/1.1");
    assert_eq!(asked.header("authorization"), Some("Basic YnJva2VyOnNlcnZpY2Utc2VjcmV0"));
    assert_eq!(asked.header("x-tenant"), Some("blue"));
    drop(web);
    // Somebody else at its address: his certificate is another authority's.
    let second = set(&forged);
    let web = Web::encrypted_at(port, &theirs, move |_| (200, second.clone()));
    broker.eventually("the other one was tried", |_| web.connections() > 1);
    refused(&broker, &with(forged.token(&claims)), 0x86);
    Client::connect(&broker, &with(good.token(&claims))).disconnect();
    assert!(web.asked().is_empty(), "nobody asked him anything");
    assert!(!broker.log().contains("service-secret"), "{}", broker.log());
    // A start on it: no set was ever had. And one that trusts nobody we know of.
    let broker = start.clone().env("SECURITY_MQTT_JWT_JWKS_URL", &url).start();
    refused(&broker, &with(forged.token(&claims)), 0x88);
    let why = |broker: &Broker| broker.log().contains("invalid peer certificate");
    broker.eventually("the log says why", why);
    let missing = start.env("SECURITY_MQTT_JWT_JWKS_URL", &url);
    let missing = missing.env("SECURITY_MQTT_JWT_JWKS_CA_FILE", "missing.pem");
    let Err((status, log)) = missing.try_start() else { panic!("it started") };
    assert!(status.code() == Some(2) && log.contains("jwks-url: missing.pem"), "{log}");
}
