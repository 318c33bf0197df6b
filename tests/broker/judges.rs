//! Clients that a service of the operator's judges, over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::authority::Authority;
use crate::credentials::refused;
use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, Packet, Start};
use crate::web::{Asked, Web};

/// A broker that asks this service, behind its own credentials.
fn asking(url: &str) -> Start {
    operator::start_basic()
        .env("SECURITY_MQTT_HTTP_ENABLED", true)
        .env("SECURITY_MQTT_HTTP_URL", url)
        .env("SECURITY_MQTT_HTTP_CACHE_TTL_MS", 0)
        .allow_log("the service that judges clients failed")
}

fn url(web: &Web) -> String {
    format!("http://127.0.0.1:{}/judge", web.port())
}

/// Lets in `good`, with rules; has no opinion on `else`; refuses the others.
fn opinion(asked: &Asked) -> (u16, String) {
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let rules = json!({ "pubAuthRulePatterns": ["mine/.*"] });
    match body["username"].as_str() {
        Some("good") if body["password"] == "p-secret" => {
            (200, json!({ "result": "success", "authRules": rules }).to_string())
        }
        Some("short") => (200, json!({ "result": "success", "expiresInSeconds": 2 }).to_string()),
        Some("else") => (200, json!({ "result": "skipped" }).to_string()),
        Some("lost") => (404, "nobody".to_owned()),
        Some("plain") => (204, String::new()),
        Some("huge") => (200, "x".repeat(100 * 1024)),
        _ => (200, json!({ "result": "failure" }).to_string()),
    }
}

fn user(name: &str) -> Connect {
    Connect::v5(format!("id of \"{name}\"")).user(name).password("p-secret")
}

/// The service is asked with all that a client says of itself, and what it answers holds: rules,
/// the end of the connection, refusal; what it skips, others judge. Nothing of it is in the log.
#[test]
fn a_service_judges_clients() {
    let web = Web::open(opinion);
    let broker = asking(&url(&web))
        .env("SECURITY_MQTT_HTTP_USERNAME", "broker")
        .env("SECURITY_MQTT_HTTP_PASSWORD", "service-secret")
        .env("SECURITY_MQTT_HTTP_HEADERS", "X-Tenant:blue")
        .env("SECURITY_MQTT_AUTH_ORDER", "http,basic")
        .start();
    let operator = Operator::login(&broker);
    operator.credential("else", &json!({ "userName": "else", "password": "p-secret" }));
    let mut client = Client::connect(&broker, &user("good"));
    assert_eq!(client.publish("mine/t", "m", 1), 0);
    assert_eq!(client.publish("yours/t", "m", 1), 0x87);
    let asked = web.asked().remove(0);
    assert_eq!(asked.line, "POST /judge HTTP/1.1");
    assert_eq!(asked.header("content-type"), Some("application/json"));
    assert_eq!(asked.header("authorization"), Some("Basic YnJva2VyOnNlcnZpY2Utc2VjcmV0"));
    assert_eq!(asked.header("x-tenant"), Some("blue"));
    let body: Value = serde_json::from_str(&asked.body).unwrap();
    let expected = json!({ "clientId": "id of \"good\"", "username": "good",
        "password": "p-secret", "commonName": null, "ipAddress": "127.0.0.1" });
    assert_eq!(body, expected);
    Client::connect(&broker, &user("else")).disconnect();
    Client::connect(&broker, &user("plain")).disconnect();
    refused(&broker, &user("lost"), 0x86);
    refused(&broker, &user("bad"), 0x86);
    refused(&broker, &user("good").password("p"), 0x86);
    refused(&broker, &user("huge"), 0x88);
    refused(&broker, &user("x").password([0xFF, 0xFE]), 0x86);
    Client::connect(&broker, &user("short")).expect_refusal(&[0x87]);
    // The answer that was too large cost its connection.
    assert!(web.connections() <= 2, "{} connections", web.connections());
    let session = operator.get("/api/client-session?clientId=id%20of%20%22good%22").ok();
    assert_eq!(session["authProvider"], "HTTP");
    let shown = [broker.log(), broker.scrape()].join("\n");
    assert!(!shown.contains("p-secret") && !shown.contains("service-secret"), "{shown}");
    let counted = r#"authentications_total{provider="HTTP",result="success"} 3"#;
    assert!(shown.contains(counted), "{shown}");
}

/// Who is blocked is refused before anybody is asked about him.
#[test]
fn nobody_is_asked_about_a_blocked_client() {
    let web = Web::open(|_| (200, String::new()));
    let broker = asking(&url(&web)).start();
    let block = json!({ "type": "USERNAME", "value": "blocked" });
    Operator::login(&broker).post("/api/blockedClient", &block).ok();
    refused(&broker, &user("blocked"), 0x8A);
    Client::connect(&broker, &user("other")).disconnect();
    let asked: Vec<String> = web.asked().into_iter().map(|asked| asked.body).collect();
    assert!(asked.len() == 1 && !asked[0].contains("blocked"), "{asked:?}");
}

/// Placeholders in the URL and the body are filled, and stay values; the answer for the same proof
/// is remembered, and for no other.
#[test]
fn templates_are_filled_and_answers_remembered() {
    let web = Web::open(|asked| match asked.line.contains("no") {
        true => (200, json!({ "result": "failure" }).to_string()),
        false => (200, String::new()),
    });
    let broker = asking(&(url(&web) + "/$${username}?id=$${clientId}"))
        .env("SECURITY_MQTT_HTTP_METHOD", "GET")
        .env("SECURITY_MQTT_HTTP_CACHE_TTL_MS", 600_000)
        .start();
    let connect = |user: &str, password: &str| Connect::v5("a/b&c").user(user).password(password);
    for _ in 0..3 {
        Client::connect(&broker, &connect("u", "p")).disconnect();
        refused(&broker, &connect("no", "p"), 0x86);
    }
    Client::connect(&broker, &connect("u", "q")).disconnect();
    let lines: Vec<String> = web.asked().into_iter().map(|asked| asked.line).collect();
    let line = |user: &str| format!("GET /judge/{user}?id=a%2Fb%26c HTTP/1.1");
    assert_eq!(lines, [line("u"), line("no"), line("u")]);
}

/// Over TLS the service must be the one that is meant, and is shown our certificate.
#[test]
fn the_service_is_asked_over_tls() {
    let authority = Authority::new();
    let device = authority.device("the broker", 5);
    let cert = authority.write("own.pem", &device.pem);
    let key = authority.write("own_key.pem", &device.key.serialize_pem());
    let web = Web::encrypted(&authority, opinion);
    let start = asking(&format!("https://localhost:{}/judge", web.port()))
        .env("SECURITY_MQTT_HTTP_CERT_FILE", cert.display())
        .env("SECURITY_MQTT_HTTP_KEY_FILE", key.display());
    let start_with = |ca: &std::path::Path| {
        start.clone().env("SECURITY_MQTT_HTTP_CA_FILE", ca.display()).start()
    };
    let broker = start_with(&authority.path("ca.pem"));
    Client::connect(&broker, &user("good")).disconnect();
    refused(&broker, &user("bad"), 0x86);
    let stranger = Authority::new();
    let broker = start_with(&stranger.path("ca.pem"));
    refused(&broker, &user("good"), 0x88);
    let Err((status, log)) = start.env("SECURITY_MQTT_HTTP_CA_FILE", "missing.pem").try_start()
    else {
        panic!("it started")
    };
    assert!(status.code() == Some(2) && log.contains("security.mqtt.http: missing.pem"), "{log}");
}

/// A service that says nothing is asked by as many as may ask at once. Others wait, and those that
/// it need not judge come in and work as ever.
#[test]
fn a_slow_service_holds_nobody_else() {
    let (go_on, at_once, most) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let slow = {
        let (go_on, at_once, most) = (Arc::clone(&go_on), Arc::clone(&at_once), Arc::clone(&most));
        move |_: &Asked| {
            most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            while !go_on.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            at_once.fetch_sub(1, Ordering::SeqCst);
            (204, String::new())
        }
    };
    let web = Web::open(slow);
    let broker = asking(&url(&web))
        .env("SECURITY_MQTT_HTTP_MAX_PARALLEL_REQUESTS", 2)
        .env("SECURITY_MQTT_HTTP_READ_TIMEOUT_MS", 60_000)
        .start();
    Operator::login(&broker).credential("own", &json!({ "userName": "own" }));
    let own = || Client::connect(&broker, &Connect::v5("own").user("own"));
    let mut canary = own();
    canary.subscribe("t", 1);
    let mut waiting: Vec<Client> = (0..8)
        .map(|number| {
            let connect = Connect::v5(format!("w{number}")).user("w");
            let mut client = Client::open(&broker, connect.level);
            client.send(&connect.bytes());
            client
        })
        .collect();
    broker.eventually("two are asked", |_| at_once.load(Ordering::SeqCst) == 2);
    for _ in 0..20 {
        canary.publish("t", "m", 1);
        canary.take();
    }
    let mut second = Client::connect(&broker, &Connect::v5("second").user("own"));
    second.ping();
    go_on.store(true, Ordering::SeqCst);
    for client in &mut waiting {
        assert!(matches!(client.recv(), Packet::Connack { code: 0, .. }));
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

/// A service that is away costs its clients a refusal that says so, at once after some tries; when
/// it is back, they come in.
#[test]
fn a_dead_service_is_tried_again() {
    let gone = Web::open(opinion);
    let port = gone.port();
    let broker = asking(&url(&gone)).start();
    Operator::login(&broker).credential("own", &json!({ "userName": "own" }));
    Client::connect(&broker, &user("good")).disconnect();
    drop(gone);
    for _ in 0..20 {
        refused(&broker, &user("good"), 0x88);
    }
    assert!(broker.log().contains("the service that judges clients failed"));
    Client::connect(&broker, &Connect::v5("own").user("own")).disconnect();
    let _back = Web::open_at(port, opinion);
    broker.eventually("it is asked again", |broker| is_let_in(broker, &user("good")));
}

fn is_let_in(broker: &Broker, connect: &Connect) -> bool {
    let mut client = Client::open(broker, connect.level);
    client.send(&connect.bytes());
    matches!(client.recv(), Packet::Connack { code: 0, .. })
}
