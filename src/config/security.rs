//! The section `security`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::reader::Reader;
use super::rooms::{millis, seconds};
use crate::limits::KB;
use crate::security::{
    AccountsConfig, Anonymous, Config, HashingConfig, HttpConfig, JwtConfig, ProviderName,
    ServiceConfig,
};
use crate::telemetry::Door;

const KEY_SET_TIMEOUT: Duration = Duration::from_secs(5);
const KEY_SET_BYTES: usize = 256 * KB;
const ANONYMOUS_AT: [(Door, &str); 5] = [
    (Door::Tcp, "listener.tcp.allow_anonymous"),
    (Door::Ssl, "listener.ssl.allow_anonymous"),
    (Door::Ws, "listener.ws.allow_anonymous"),
    (Door::Wss, "listener.wss.allow_anonymous"),
    (Door::Unix, "listener.unix.allow_anonymous"),
];
const YEAR_S: u64 = 365 * 24 * 3600;
/// As many bytes as the hash that signs.
const SIGNING_KEY_BYTES: usize = 64;

pub(super) fn read(r: &mut Reader<'_>) -> Config {
    let form = "loopback, true or false";
    let anonymous = r.read("security.allow-anonymous", form.into(), anonymous_of);
    let form = "loopback, true, false or empty";
    let mut own = |key| {
        let parse =
            |text: &str| if text.is_empty() { Some(None) } else { anonymous_of(text).map(Some) };
        r.read(key, form.into(), parse)
    };
    let at = ANONYMOUS_AT.into_iter().filter_map(|(door, key)| Some((door, own(key)?)));
    let anonymous_at = at.collect();
    let kept_min = r.number("mqtt.blocked-client.cleanup.ttl", "min", 0..=5_256_000);
    let config = Config {
        order: order(r),
        scram: r.flag("security.mqtt.scram.enabled"),
        anonymous,
        anonymous_at,
        credentials_file: path(r, "security.credentials-file"),
        jwt: jwt(r),
        http: http(r),
        hashing: HashingConfig {
            threads: r.size("security.password-hashing.threads", "threads", 0..=64),
            memory_kib: r.number("security.password-hashing.memory-kib", "KiB", 8..=1_048_576)
                as u32,
            iterations: r.number("security.password-hashing.iterations", "passes", 1..=100) as u32,
        },
        accounts: accounts(r),
        unauthorized: r.flag("security.unauth-clients.enabled"),
        blocked_kept: Duration::from_secs(kept_min * 60),
    };
    let jwt = &config.jwt;
    if config.order.contains(&ProviderName::Jwt)
        && jwt.secret.is_none()
        && jwt.public_key_file.is_none()
        && jwt.key_set.is_none()
    {
        let keys = ["security.mqtt.jwt.enabled"];
        r.contradiction(
            &keys,
            "wanted security.mqtt.jwt.secret, public-key-file or jwks-url as well",
        );
    } else if config.order.contains(&ProviderName::Http) && config.http.service.url.is_empty() {
        r.contradiction(&["security.mqtt.http.enabled"], "wanted security.mqtt.http.url as well");
    } else {
        for fault in crate::security::faults(&config) {
            r.fault(fault);
        }
    }
    config
}

fn anonymous_of(text: &str) -> Option<Anonymous> {
    match text.to_ascii_lowercase().as_str() {
        "loopback" => Some(Anonymous::Loopback),
        "true" => Some(Anonymous::Allowed),
        "false" => Some(Anonymous::Refused),
        _ => None,
    }
}

fn order(r: &mut Reader<'_>) -> Vec<ProviderName> {
    let providers = [
        (ProviderName::Basic, r.flag("security.mqtt.basic.enabled")),
        (ProviderName::X509, r.flag("security.mqtt.ssl.enabled")),
        (ProviderName::Jwt, r.flag("security.mqtt.jwt.enabled")),
        (ProviderName::Http, r.flag("security.mqtt.http.enabled")),
    ];
    let order = r.order("security.mqtt.auth-order", &["basic", "x509", "jwt", "http"]);
    for (number, (provider, is_on)) in providers.iter().enumerate() {
        if *is_on && !order.contains(&number) {
            let provider = provider.text();
            r.warnings.push(format!("{provider} is on, but not in security.mqtt.auth-order"));
        }
    }
    let is_on = |number: &usize| providers[*number].1;
    order.into_iter().filter(is_on).map(|number| providers[number].0).collect()
}

fn path(r: &mut Reader<'_>, key: &'static str) -> Option<PathBuf> {
    r.text(key).map(PathBuf::from)
}

fn jwt(r: &mut Reader<'_>) -> JwtConfig {
    JwtConfig {
        secret: r.secret("security.mqtt.jwt.secret").map(Arc::from),
        public_key_file: path(r, "security.mqtt.jwt.public-key-file"),
        key_set: key_set(r),
        key_set_period: millis(r, "security.mqtt.jwt.jwks-refresh-ms", 1000, 86_400_000),
        issuer: r.text("security.mqtt.jwt.issuer").map(Arc::from),
        audience: r.text("security.mqtt.jwt.audience").map(Arc::from),
        client_id_claim: r.text("security.mqtt.jwt.client-id-claim").map(Arc::from),
        username_claim: r.text("security.mqtt.jwt.username-claim").map(Arc::from),
        client_type_claim: r.text("security.mqtt.jwt.client-type-claim").map(Arc::from),
        publish_claim: r.text("security.mqtt.jwt.pub-rules-claim").map(Arc::from),
        subscribe_claim: r.text("security.mqtt.jwt.sub-rules-claim").map(Arc::from),
    }
}

fn key_set(r: &mut Reader<'_>) -> Option<ServiceConfig> {
    let url = r.text("security.mqtt.jwt.jwks-url");
    let ca_file = path(r, "security.mqtt.jwt.jwks-ca-file");
    let cert_file = path(r, "security.mqtt.jwt.jwks-cert-file");
    let key_file = path(r, "security.mqtt.jwt.jwks-key-file");
    let username = r.text("security.mqtt.jwt.jwks-username");
    let password = r.secret("security.mqtt.jwt.jwks-password").unwrap_or_default();
    let headers = r.pairs("security.mqtt.jwt.jwks-headers");
    url.map(|url| ServiceConfig {
        url: url.to_owned(),
        ca_file,
        identity: cert_file.zip(key_file),
        basic: username.map(|username| (username.to_owned(), password.to_owned())),
        headers,
        timeout: KEY_SET_TIMEOUT,
        max_answer_bytes: KEY_SET_BYTES,
        ..ServiceConfig::default()
    })
}

fn http(r: &mut Reader<'_>) -> HttpConfig {
    let text = |r: &mut Reader<'_>, key| r.text(key).unwrap_or_default().to_owned();
    let username = r.text("security.mqtt.http.username");
    let password = r.secret("security.mqtt.http.password").unwrap_or_default();
    let cert_file = path(r, "security.mqtt.http.cert-file");
    let key_file = path(r, "security.mqtt.http.key-file");
    let max_parallel = r.size("security.mqtt.http.max-parallel-requests", "requests", 1..=10_000);
    let answer_kb = r.size("security.mqtt.http.max-response-size-kb", "KB", 1..=1024);
    HttpConfig {
        post: r.choice("security.mqtt.http.method", &["POST", "GET"]) == 0,
        body: r.text("security.mqtt.http.body").map(str::to_owned),
        content_type: text(r, "security.mqtt.http.content-type"),
        max_parallel,
        remembered: millis(r, "security.mqtt.http.cache-ttl-ms", 0, 86_400_000),
        service: ServiceConfig {
            url: text(r, "security.mqtt.http.url"),
            basic: username.map(|username| (username.to_owned(), password.to_owned())),
            headers: r.pairs("security.mqtt.http.headers"),
            ca_file: path(r, "security.mqtt.http.ca-file"),
            identity: cert_file.zip(key_file),
            timeout: millis(r, "security.mqtt.http.read-timeout-ms", 10, 60_000),
            max_answer_bytes: answer_kb * KB,
            idle: max_parallel,
        },
    }
}

fn accounts(r: &mut Reader<'_>) -> AccountsConfig {
    let signing_key = r.secret_bytes("security.jwt.signing-key", SIGNING_KEY_BYTES);
    AccountsConfig {
        username: r.text("security.admin.username").unwrap_or("admin").into(),
        password: r.secret("security.admin.password").map(Arc::from),
        signing_key: signing_key.map(Arc::from),
        token_life: seconds(r, "security.jwt.tokenExpirationTime", 60, YEAR_S),
        refresh_life: seconds(r, "security.jwt.refreshTokenExpTime", 60, YEAR_S),
    }
}
