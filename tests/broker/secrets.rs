//! What an operator or a client keeps to himself is shown by nothing that others read: the log at
//! its most talkative, metrics, every answer of the administration, `check-config`.

use std::path::Path;
use std::process::Command;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

use crate::credentials::{now_ms, refused};
use crate::operator::Operator;
use crate::support::{Broker, Client, Connect, Start, free_port};
use crate::web::Web;

const JWT_SECRET: &str = "jwt-secret-0123456789abcdef0123456789abcdef";
/// Base64 of 64 bytes.
const SIGNING_KEY: &str = "c2lnbmluZy1rZXktc2VjcmV0LTAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm\
                           MDEyMzQ1Njc4OWFiY2RlZg==";
/// What opens the key in the tests' data.
const KEY_PASSWORD: &str = "server_key_password";

fn data(name: &str) -> String {
    format!("{}/tests/data/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn settings(web: &Web, credentials: &str) -> Vec<(&'static str, String)> {
    [
        ("SECURITY_ADMIN_PASSWORD", "admin-secret"),
        ("SECURITY_CREDENTIALS_FILE", credentials),
        ("SECURITY_JWT_SIGNING_KEY", SIGNING_KEY),
        ("SECURITY_MQTT_BASIC_ENABLED", "true"),
        ("SECURITY_MQTT_SCRAM_ENABLED", "true"),
        ("SECURITY_MQTT_JWT_ENABLED", "true"),
        ("SECURITY_MQTT_JWT_SECRET", JWT_SECRET),
        ("SECURITY_MQTT_HTTP_ENABLED", "true"),
        ("SECURITY_MQTT_HTTP_URL", &format!("http://127.0.0.1:{}/judge", web.port())),
        ("SECURITY_MQTT_HTTP_USERNAME", "broker"),
        ("SECURITY_MQTT_HTTP_PASSWORD", "service-secret"),
        ("SECURITY_MQTT_HTTP_HEADERS", "X-Key:header-secret"),
        ("LISTENER_SSL_ENABLED", "true"),
        ("LISTENER_SSL_BIND_ADDRESS", "127.0.0.1"),
        ("LISTENER_SSL_BIND_PORT", &free_port().to_string()),
        ("LISTENER_SSL_PEM_CERT", &data("ec.pem")),
        ("LISTENER_SSL_PEM_KEY", &data("ec_encrypted.key")),
        ("LISTENER_SSL_PEM_KEY_PASSWORD", KEY_PASSWORD),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

/// Every GET that the administration has, with what it may want to know.
fn all_answers(operator: &Operator, id: &str) -> (String, usize) {
    let api = operator.get("/v3/api-docs").ok();
    let (mut text, mut answered) = (String::new(), 0);
    for (path, methods) in api["paths"].as_object().unwrap() {
        if methods.get("get").is_none() {
            continue;
        }
        let mut path = path.clone();
        while let Some((from, to)) = path.find('{').zip(path.find('}')) {
            path.replace_range(from..=to, id);
        }
        let query = "clientId=rest&sessionId=&topicName=t&pageSize=100&page=0";
        for path in [path.clone(), format!("{path}?{query}")] {
            let answer = operator.get(&path);
            answered += usize::from(answer.status == 200);
            text.push_str(&answer.text);
        }
    }
    (text, answered)
}

fn with(settings: &[(&'static str, String)]) -> Start {
    settings.iter().fold(Start::new(), |start, (name, value)| start.env(name, value))
}

/// A good and a forged token.
fn tokens() -> (String, String) {
    let claims = json!({ "exp": now_ms() / 1000 + 600 });
    let key = EncodingKey::from_secret(JWT_SECRET.as_bytes()).unwrap();
    let good = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
    let mut forged = good.clone();
    forged.replace_range(good.len() - 6.., "forged");
    (good, forged)
}

/// Everybody comes by, with what is right and what is wrong.
fn visit(broker: &Broker, (token, forged): (&str, &str)) {
    let user = |name: &str, password: &str| Connect::v5(name).user(name).password(password);
    for (name, password) in
        [("from-file", "file-secret"), ("rest", "rest-secret"), ("with-token", token)]
    {
        Client::connect(broker, &user(name, password)).ping();
    }
    for (name, password) in
        [("rest", "wrong-secret"), ("nobody", "strangers-secret"), ("liar", forged)]
    {
        refused(broker, &user(name, password), 0x86);
    }
}

fn checked(settings: &[(&'static str, String)], folder: &Path) -> String {
    let mut check = Command::new(env!("CARGO_BIN_EXE_sluice"));
    check.arg("check-config").envs(settings.to_vec()).current_dir(folder);
    let done = check.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap()
}

/// The line of `text` that has `secret`.
fn line_with<'a>(text: &'a str, secret: &str) -> Option<&'a str> {
    text.lines().find(|line| line.contains(secret))
}

/// SEC-01: nothing that others read has a password, a token's signature, a key or a hash.
#[test]
fn secrets_are_shown_by_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials.yml");
    let text = "credentials:\n- { userName: from-file, password: file-secret }\n";
    std::fs::write(&file, text).unwrap();
    let web = Web::open(|_| (200, json!({ "result": "failure" }).to_string()));
    let settings = settings(&web, file.to_str().unwrap());
    let broker = with(&settings).env("RUST_LOG", "info,sluice=trace").start();
    let operator = Operator::login_as(&broker, "admin", "admin-secret");
    let wrong = json!({ "username": "admin", "password": "wrong-login-secret" });
    Operator::stranger(&broker).post("/api/auth/login", &wrong).refused(401);
    let body = json!({ "userName": "rest", "password": "rest-secret" });
    let id = operator.credential("rest", &body);
    let scram = json!({ "name": "scram", "credentialsType": "SCRAM", "credentialsValue":
        { "userName": "scram", "password": "scram-secret", "algorithm": "SHA-256" } });
    operator.post("/api/mqtt/client/credentials", &scram).ok();
    let (token, forged) = tokens();
    visit(&broker, (&token, &forged));
    let (answers, answered) = all_answers(&operator, &id);
    assert!(answered > 10, "only {answered} answers: {answers}");
    let shown = [
        ("the log", broker.log()),
        ("metrics", broker.scrape()),
        ("REST", answers),
        ("check-config", checked(&settings, folder.path())),
    ];
    assert!(shown[0].1.contains("from-file") && shown[2].1.contains("from-file"), "they talk");
    let kept = [
        "admin-secret",
        "wrong-login-secret",
        "file-secret",
        "rest-secret",
        "scram-secret",
        "wrong-secret",
        "strangers-secret",
        JWT_SECRET,
        SIGNING_KEY,
        "service-secret",
        "header-secret",
        KEY_PASSWORD,
        token.rsplit('.').next().unwrap(),
        forged.rsplit('.').next().unwrap(),
        "$argon2id$",
    ];
    for (whose, text) in &shown {
        for secret in kept {
            assert_eq!(line_with(text, secret), None, "{whose} has {secret}");
        }
    }
}

/// A refusal of bad settings shows none of them either.
#[test]
fn a_refused_start_shows_no_secret() {
    let web = Web::open(|_| (204, String::new()));
    let start = with(&settings(&web, "missing.yml"))
        .env("SECURITY_JWT_SIGNING_KEY", "short-secret")
        .env("SECURITY_MQTT_JWT_SECRET", "sh-secret");
    let Err((status, log)) = start.try_start() else { panic!("it started") };
    assert_eq!(status.code(), Some(2), "{log}");
    assert_eq!(line_with(&log, "-secret"), None);
    assert_eq!(line_with(&log, KEY_PASSWORD), None);
}
