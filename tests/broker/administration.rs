//! The administration by REST: logins and roles, lists in pages, sessions, retained messages.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::authority::Authority;
use crate::operator::{self, Operator, PASSWORD};
use crate::support::{Broker, Client, Connect, Level, Start, free_port};

/// Without a token nothing is shown or changed; health and metrics stay open.
#[test]
fn the_administration_needs_a_login() {
    let broker = operator::start().start();
    let mut stranger = Operator::stranger(&broker);
    let document = stranger.get("/v3/api-docs").ok();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 20, "{document}");
    for token in [None, Some("x".to_owned()), Some("eyJhbGciOiJub25lIn0.e30.".to_owned())] {
        stranger.token = token;
        for (path, methods) in paths {
            let path = path.replace("{id}", "x").replace("{username}", "x");
            for method in methods.as_object().unwrap().keys() {
                if path == "/api/auth/login" || path == "/api/auth/token" {
                    continue;
                }
                let answer = stranger.ask(&method.to_uppercase(), &path, None);
                assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text);
            }
        }
    }
    for open in ["/actuator/health", "/actuator/info", "/actuator/prometheus"] {
        assert_eq!(stranger.get(open).status, 200, "{open}");
    }
}

/// The first start makes an administrator and prints its password once, on standard output and
/// not again; the key that signs tokens is made then, too, and stays.
#[test]
fn the_first_start_makes_an_administrator() {
    let mut broker = Broker::start();
    let printed = |log: &str| {
        let line = log.lines().find_map(|line| line.trim().strip_prefix("password "));
        line.map(|password| password.trim().to_owned())
    };
    broker.eventually("the password", |broker| printed(&broker.log()).is_some());
    let password = printed(&broker.log()).unwrap();
    let operator = Operator::login_as(&broker, "admin", &password);
    let me = operator.get("/api/auth/user").ok();
    assert_eq!((&me["username"], &me["role"]), (&json!("admin"), &json!("ADMINISTRATOR")));
    broker.kill_and_restart();
    assert_eq!(broker.log().matches("password ").count(), 1, "shown once");
    let again = Operator { token: operator.token, ..Operator::stranger(&broker) };
    again.get("/api/auth/user").ok();
    let other = Broker::start();
    let elsewhere = Operator { token: again.token, ..Operator::stranger(&other) };
    elsewhere.get("/api/auth/user").refused(401);
}

/// A viewer sees everything and changes nothing; a password's change makes earlier tokens
/// worthless; the last administrator can't go.
#[test]
fn roles_and_passwords_hold() {
    let broker = operator::start().start();
    let admin = Operator::login(&broker);
    let viewer = json!({ "username": "v", "password": "look", "role": "VIEWER" });
    admin.post("/api/admin", &viewer).ok();
    let viewer = Operator::login_as(&broker, "v", "look");
    viewer.get("/api/client-session").ok();
    viewer.get("/api/mqtt/client/credentials").ok();
    let credential = json!({ "name": "n", "credentialsValue": { "userName": "u" } });
    viewer.post("/api/mqtt/client/credentials", &credential).refused(403);
    viewer.delete("/api/client-session/remove?clientId=x").refused(403);
    viewer.get("/api/admin").refused(403);
    let change = json!({ "currentPassword": "look", "newPassword": "other" });
    let tokens = viewer.post("/api/auth/changePassword", &change).ok();
    viewer.get("/api/auth/user").refused(401);
    let refresh = json!({ "refreshToken": tokens["refreshToken"] });
    let renewed = viewer.post("/api/auth/token", &refresh).ok();
    let access = json!({ "refreshToken": renewed["token"] });
    viewer.post("/api/auth/token", &access).refused(401);
    let token = renewed["token"].as_str().map(str::to_owned);
    let viewer = Operator { token, ..Operator::stranger(&broker) };
    viewer.get("/api/auth/user").ok();
    admin.delete("/api/admin/v").ok();
    viewer.get("/api/auth/user").refused(401);
    admin.delete("/api/admin/admin").refused(409);
    let demoted = json!({ "username": "admin", "password": "x", "role": "VIEWER" });
    admin.post("/api/admin", &demoted).refused(409);
    let listed = admin.get("/api/admin").ok();
    assert_eq!(listed["totalElements"], 1);
    assert!(!listed.to_string().contains("argon2"), "{listed}");
}

/// Passwords can't be tried without end: 429, for the account and for the address.
#[test]
fn login_attempts_are_limited() {
    let broker = operator::start().start();
    let stranger = Operator::stranger(&broker);
    let try_with = |username: &str, password: &str| {
        let body = json!({ "username": username, "password": password });
        stranger.post("/api/auth/login", &body).status
    };
    for attempt in 0..10 {
        assert_eq!(try_with("admin", &format!("guess {attempt}")), 401);
    }
    assert_eq!(try_with("admin", PASSWORD), 429, "not even the right one is looked at");
    assert_eq!(try_with("somebody else", "guess"), 429, "the address has tried too often");
    assert!(broker.metric("adminLoginsRefused_total").unwrap() >= 2.0);
    assert!(!broker.log().contains("guess"));
}

/// A password that the operator gives holds at the next start: the way back in.
#[test]
fn a_given_password_is_in_force_at_each_start() {
    let folder = tempfile::TempDir::new().unwrap();
    let on_folder = |password: &str| {
        Start::new()
            .env("STORAGE_EMBEDDED_PATH", folder.path().join("d").display())
            .env("SECURITY_ADMIN_PASSWORD", password)
    };
    on_folder("first").start().stop();
    let broker = on_folder("second").start();
    Operator::login_as(&broker, "admin", "second");
    let body = json!({ "username": "admin", "password": "first" });
    Operator::stranger(&broker).post("/api/auth/login", &body).refused(401);
}

/// Credentials are made, found, listed in pages, changed and deleted; no answer holds a secret.
#[test]
fn credentials_are_kept_by_rest() {
    let broker = operator::start().start();
    let operator = Operator::login(&broker);
    let path = "/api/mqtt/client/credentials";
    // TBMQ's form: the value is JSON in a text.
    let text = json!({ "userName": "u0", "password": "hush-hush" }).to_string();
    let tbmq = json!({ "name": "n0", "clientType": "APPLICATION",
        "credentialsType": "MQTT_BASIC", "credentialsValue": text });
    let first = operator.post(path, &tbmq).ok();
    assert_eq!(first["credentialsId"], "username|u0");
    assert_eq!(
        (&first["clientType"], &first["hasPassword"]),
        (&json!("APPLICATION"), &json!(true))
    );
    for number in 1..25 {
        let value = json!({ "clientId": format!("c{number}"), "password": "hush-hush" });
        operator.credential(&format!("n{number}"), &value);
    }
    let pages = |query: &str| operator.get(&format!("{path}?{query}")).ok();
    let page = pages("pageSize=10&page=2&sortProperty=name&sortOrder=DESC");
    let names = |page: &Value| -> Vec<String> {
        let all = page["data"].as_array().unwrap();
        all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&page), ["n12", "n11", "n10", "n1", "n0"]);
    let counted = (&page["totalElements"], &page["totalPages"], &page["hasNext"]);
    assert_eq!(counted, (&json!(25), &json!(3), &json!(false)));
    assert_eq!(
        names(&pages("textSearch=N2&sortProperty=name")),
        ["n2", "n20", "n21", "n22", "n23", "n24"]
    );
    let v2 = "/api/v2/mqtt/client/credentials?clientTypeList=APPLICATION";
    assert_eq!(names(&operator.get(v2).ok()), ["n0"]);
    assert_eq!(operator.get(&format!("{path}?name=n7")).ok()["credentialsId"], "client_id|c7");
    let id = first["id"].as_str().unwrap();
    let one = operator.get(&format!("{path}/{id}")).ok();
    let shown = [pages("pageSize=1000"), one, first.clone()].map(|v| v.to_string()).concat();
    assert!(!shown.contains("hush") && !shown.contains("argon2"), "{shown}");
    for bad in ["pageSize=0", "pageSize=1001", "sortProperty=x", "sortOrder=x", "page=x"] {
        operator.get(&format!("{path}?{bad}")).refused(400);
    }
    operator.get(&format!("{path}?pageSize=1000&page=100")).refused(400);
    operator
        .post(path, &json!({ "name": "n1", "credentialsValue": { "userName": "w" } }))
        .refused(409);
    operator
        .post(path, &json!({ "name": "w", "credentialsValue": { "userName": "u0" } }))
        .refused(409);
    operator.post(path, &json!({ "name": "w", "credentialsValue": {} })).refused(400);
    operator
        .post(path, &json!({ "name": "", "credentialsValue": { "userName": "w" } }))
        .refused(400);
    operator
        .post(path, &json!({ "id": "0", "name": "w", "credentialsValue": { "userName": "w" } }))
        .refused(404);
    operator.delete(&format!("{path}/{id}")).ok();
    operator.get(&format!("{path}/{id}")).refused(404);
    operator.delete(&format!("{path}/{id}")).refused(404);
    let certificate = json!({ "certCnPattern": "dev-.*", "certCnIsRegex": true,
        "authRulesMapping": { "dev": { "pubAuthRulePatterns": ["${cn}/.*"] } } });
    let body = json!({ "name": "x", "credentialsType": "X_509", "credentialsValue": certificate });
    assert_eq!(operator.post(path, &body).ok()["credentialsId"], "ssl|dev-.*");
}

/// Sessions and subscriptions are listed, shown, disconnected and removed; what is removed is gone
/// for good, over a kill.
#[test]
fn sessions_are_seen_and_ended() {
    let mut broker = operator::start().start();
    let operator = Operator::login(&broker);
    let mut live = Client::connect(&broker, &Connect::v5("live").persistent().keep_alive(60));
    live.subscribe("a/+", 1);
    live.subscribe("b", 2);
    let mut away = Client::connect(&broker, &Connect::v5("away").persistent());
    away.subscribe("c", 1);
    away.disconnect();
    broker.await_metric("connectedSessions", 1.0);
    let shown = operator.get("/api/client-session?clientId=live").ok();
    assert_eq!(shown["connectionState"], "CONNECTED");
    assert_eq!(shown["subscriptions"].as_array().unwrap().len(), 2);
    assert_eq!((&shown["keepAliveSeconds"], &shown["mqttVersion"]), (&json!(60), &json!(5)));
    operator.get("/api/client-session?clientId=nobody").refused(404);
    let ids = |query: &str| -> Vec<String> {
        let page = operator.get(query).ok();
        let all = page["data"].as_array().unwrap();
        all.iter().map(|one| one["clientId"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("/api/client-session?pageSize=10"), ["away", "live"]);
    assert_eq!(ids("/api/client-session?textSearch=LIV"), ["live"]);
    assert_eq!(ids("/api/v2/client-session?connectedStatusList=DISCONNECTED"), ["away"]);
    let totals = operator.get("/api/client-session/info").ok();
    assert_eq!((&totals["connectedCount"], &totals["totalCount"]), (&json!(1), &json!(2)));
    let of_live = operator.get("/api/subscription?clientId=live").ok();
    assert_eq!(of_live.as_array().unwrap().len(), 2);
    let filters =
        operator.get("/api/subscription/all?sortProperty=topicFilter&sortOrder=DESC").ok();
    assert_eq!(filters["data"][0]["topicFilter"], "c");
    assert_eq!(filters["totalElements"], 3);
    let path = "/api/client-session/disconnect?clientId=live";
    operator.delete(&format!("{path}&sessionId=1")).refused(404);
    let session = shown["sessionId"].as_str().unwrap();
    operator.delete(&format!("{path}&sessionId={session}")).ok();
    live.expect_refusal(&[0x98]);
    broker.await_metric("connectedSessions", 0.0);
    operator.delete(path).refused(404);
    assert_eq!(ids("/api/client-session"), ["away", "live"], "the session stays");
    operator.delete("/api/client-session/remove?clientId=away").ok();
    operator.delete("/api/client-session/remove?clientId=away").refused(404);
    let mut back = Client::connect(&broker, &Connect::v5("live").persistent());
    assert!(back.session_present);
    operator.delete("/api/client-session/remove?clientId=live").ok();
    back.expect_refusal(&[0x98]);
    broker.eventually("no session", |_| ids("/api/client-session").is_empty());
    broker.kill_and_restart();
    for id in ["live", "away"] {
        let client = Client::connect(&broker, &Connect::v5(id).persistent());
        assert!(!client.session_present, "{id}");
    }
}

/// Retained messages are listed, shown with their payload, and deleted for everybody.
#[test]
fn retained_messages_are_seen_and_deleted() {
    let mut broker = operator::start().start();
    let operator = Operator::login(&broker);
    let mut client = Client::connect(&broker, &Connect::v5("c"));
    for topic in ["a/1", "a/2", "b"] {
        client.retain(topic, format!("of {topic}"));
    }
    let page = operator.get("/api/retained-msg?topicFilter=a/%23&sortOrder=DESC").ok();
    assert_eq!((&page["totalElements"], &page["data"][0]["topicName"]), (&json!(2), &json!("a/2")));
    let one = operator.get("/api/retained-msg?topicName=a/1").ok();
    assert_eq!((&one["payload"], &one["qos"]), (&json!("b2YgYS8x"), &json!(1)));
    operator.get("/api/retained-msg?topicFilter=a/%23/b").refused(400);
    operator.delete("/api/retained-msg?topicName=a/1").ok();
    operator.delete("/api/retained-msg?topicName=a/1").refused(404);
    client.subscribe("#", 1);
    let mut left = vec![client.take().topic(), client.take().topic()];
    left.sort();
    assert_eq!(left, ["a/2", "b"]);
    broker.kill_and_restart();
    Operator::login(&broker).get("/api/retained-msg?topicName=a/1").refused(404);
}

/// Bodies and connections are bounded, and what is no JSON is answered, not dropped.
#[test]
fn odd_requests_are_answered() {
    let broker = operator::start().start();
    let operator = Operator::login(&broker);
    let path = "/api/mqtt/client/credentials";
    for odd in ["", "{", "[]", "null", "{\"name\":1}"] {
        let status = operator.ask("POST", path, Some(odd)).status;
        assert!([400, 415, 422].contains(&status), "{odd}: {status}");
    }
    let large = json!({ "name": "x".repeat(80_000), "credentialsValue": {} });
    assert_eq!(operator.post(path, &large).status, 413);
    assert_eq!(operator.ask("PUT", path, None).status, 405);
    assert_eq!(operator.get("/api/nothing").status, 404);
    let text = json!({ "name": "x", "credentialsValue": "{ no json" });
    operator.post(path, &text).refused(400);
}

/// Status and body of a request over TLS; none: the handshake failed.
fn encrypted_request(
    authority: &Authority,
    port: u16,
    [method, path, token, body]: [&str; 4],
) -> Option<(u16, String)> {
    let mut link = authority.link(port, None)?;
    let length = body.len();
    write!(
        link,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut text = String::new();
    link.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an HTTP answer");
    Some((head[9..12].parse::<u16>().unwrap(), body.to_owned()))
}

/// `sluice health` for a node whose HTTPS shows this certificate.
fn health_command(authority: &Authority, port: u16, pem: &str) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_sluice"))
        .arg("health")
        .env_clear()
        .env("HTTP_BIND_ADDRESS", "127.0.0.1")
        .env("HTTP_BIND_PORT", port.to_string())
        .env("SSL_ENABLED", "true")
        .env("SSL_PEM_CERT", authority.path(pem))
        .env("SSL_PEM_KEY", authority.path("server_key.pem"))
        .output()
        .unwrap()
}

/// Over HTTPS the administration answers as ever, and to plain HTTP not at all; certificates of all
/// doors are read again by order of an administrator, and a bad one keeps the old.
#[test]
fn the_administration_speaks_https_and_reads_certificates_again() {
    let (authority, port) = (Authority::new(), free_port());
    let papers = |start: Start, prefix: &str| {
        start
            .env(&format!("{prefix}_PEM_CERT"), authority.path("server.pem").display())
            .env(&format!("{prefix}_PEM_KEY"), authority.path("server_key.pem").display())
    };
    let start = papers(papers(operator::start(), "SSL"), "LISTENER_SSL")
        .env("SSL_ENABLED", true)
        .env("LISTENER_SSL_ENABLED", true)
        .env("LISTENER_SSL_BIND_ADDRESS", "127.0.0.1")
        .env("LISTENER_SSL_BIND_PORT", port)
        .env("LISTENER_CERTIFICATES_RELOAD_PERIOD_MS", 86_400_000)
        .allow_log("what was loaded before stays in use");
    let broker = start.start();
    let https = broker.http_address().port();
    let ask = |authority: &Authority, method: &str, path: &str, token: &str, body: &str| {
        encrypted_request(authority, https, [method, path, token, body])
    };
    assert_eq!(ask(&authority, "GET", "/actuator/health", "", "").unwrap().0, 200);
    let probe = |pem: &str| health_command(&authority, https, pem);
    let probed = probe("server.pem");
    assert!(probed.status.success(), "{probed:?}");
    assert!(!probe("ca.pem").status.success(), "that is no certificate of this door");
    let login = json!({ "username": "admin", "password": PASSWORD }).to_string();
    let (status, body) = ask(&authority, "POST", "/api/auth/login", "", &login).unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    let token = body["token"].as_str().unwrap();
    assert_eq!(status, 200);
    let mut plain = TcpStream::connect(broker.http_address()).unwrap();
    plain.write_all(b"GET /actuator/health HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _reset = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    let mut before = Client::on(authority.link(port, None).unwrap(), Level::V5)
        .say_hello(&Connect::v5("before"));
    let reload = "/api/certificates/reload";
    assert_eq!(ask(&authority, "POST", reload, "", "").unwrap().0, 401);
    let next = Authority::new();
    for name in ["server.pem", "server_key.pem"] {
        let text = std::fs::read_to_string(next.path(name)).unwrap();
        authority.write(name, &text);
    }
    assert_eq!(ask(&authority, "POST", reload, token, "").unwrap().0, 200);
    for door in [https, port] {
        assert!(authority.link(door, None).is_none() && next.link(door, None).is_some());
    }
    authority.write("server_key.pem", "nonsense");
    let (status, body) = ask(&next, "POST", reload, token, "").unwrap();
    assert_eq!(status, 400);
    for key in
        ["server.ssl.credentials.pem.key_file", "listener.ssl.config.credentials.pem.key_file"]
    {
        assert!(body.contains(key), "{body}");
    }
    assert!(next.link(https, None).is_some() && next.link(port, None).is_some());
    before.ping();
}
