//! Who is let in: basic authentication, tokens, SCRAM, anonymous clients, blocked clients.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, Level, Packet, Start, prop, wire};

/// CONNECT is answered with this code and the end of the connection.
#[track_caller]
pub(crate) fn refused(broker: &Broker, connect: &Connect, code: u8) {
    let mut client = Client::open(broker, connect.level);
    client.send(&connect.bytes());
    match client.recv() {
        Packet::Connack { code: answered, session_present, .. } => {
            assert_eq!((answered, session_present), (code, false));
        }
        other => panic!("CONNECT was answered with {other:?}"),
    }
    client.expect_close();
}

/// With basic authentication on, unknown clients get 0x86, or 0x87 if they said nothing (v3: 4
/// and 5), known ones come in by client id, user name, or both, and what they
/// were refused for stands in the list of the administrator, without the password.
#[test]
fn basic_authentication_lets_in_who_has_a_credential() {
    let broker = operator::start_basic().start();
    let operator = Operator::login(&broker);
    operator.credential("by name", &json!({ "userName": "u", "password": "p-secret" }));
    operator.credential("by id", &json!({ "clientId": "free" }));
    operator.credential("both", &json!({ "userName": "v", "clientId": "c", "password": "q" }));
    for level in [Level::V311, Level::V5] {
        let v5 = level.is_v5();
        let connect = |id: &str| Connect::new(level, id);
        refused(&broker, &connect("x"), if v5 { 0x87 } else { 5 });
        let bad = if v5 { 0x86 } else { 4 };
        refused(&broker, &connect("x").user("u").password("wrong-guess"), bad);
        refused(&broker, &connect("x").user("nobody").password("wrong-guess"), bad);
        refused(&broker, &connect("d").user("v").password("q"), bad);
        refused(&broker, &connect("x").user("u"), bad);
        for good in [
            connect("x").user("u").password("p-secret"),
            connect("free"),
            connect("free").user("anything").password("anything"),
            connect("c").user("v").password("q"),
        ] {
            Client::connect(&broker, &good).disconnect();
        }
    }
    let unauthorized = operator.get("/api/unauthorized/client?pageSize=10").ok();
    let of = |id: &str| {
        let all = unauthorized["data"].as_array().unwrap();
        all.iter().find(|one| one["clientId"] == id).cloned().unwrap_or_default()
    };
    assert_eq!(of("d")["username"], "v");
    assert_eq!(of("d")["passwordProvided"], true);
    assert_eq!(of("x")["ipAddress"], "127.0.0.1");
    let all = [unauthorized.to_string(), broker.log(), broker.scrape()].join("\n");
    assert!(!all.contains("wrong-guess") && !all.contains("p-secret"), "{all}");
    operator.delete("/api/unauthorized/client?clientId=d").ok();
    operator.get("/api/unauthorized/client?clientId=d").refused(404);
    operator.delete("/api/unauthorized/client").ok();
    let empty = operator.get("/api/unauthorized/client").ok();
    assert_eq!(empty["totalElements"], 0);
}

/// Credentials outlive a kill; so do a password's change and a deletion.
#[test]
fn credentials_survive_a_kill() {
    let mut broker = operator::start_basic().start();
    let operator = Operator::login(&broker);
    let kept = operator.credential("kept", &json!({ "userName": "u", "password": "old" }));
    let gone = operator.credential("gone", &json!({ "userName": "w", "password": "p" }));
    let body = json!({ "currentPassword": "not it", "newPassword": "new" });
    operator.post(&format!("/api/mqtt/client/credentials/{kept}"), &body).refused(400);
    let body = json!({ "currentPassword": "old", "newPassword": "new" });
    operator.post(&format!("/api/mqtt/client/credentials/{kept}"), &body).ok();
    operator.delete(&format!("/api/mqtt/client/credentials/{gone}")).ok();
    broker.kill_and_restart();
    let connect = |user, password| Connect::v5("c").user(user).password(password);
    Client::connect(&broker, &connect("u", "new")).disconnect();
    refused(&broker, &connect("u", "old"), 0x86);
    refused(&broker, &connect("w", "p"), 0x86);
    let operator = Operator::login(&broker);
    let totals = operator.get("/api/mqtt/client/credentials/info").ok();
    assert_eq!(totals["totalCount"], 1);
}

/// A credential that is deleted, or whose password is changed, ends the connections that rest on
/// it with 0x87 (v3: closed), and no others.
#[test]
fn a_credential_that_goes_takes_its_connections_with_it() {
    let broker = operator::start_basic().start();
    let operator = Operator::login(&broker);
    let first = operator.credential("first", &json!({ "userName": "a", "password": "p" }));
    let second = operator.credential("second", &json!({ "userName": "b", "password": "p" }));
    let connect = |level, id, user| Connect::new(level, id).user(user).password("p");
    let mut of_first = Client::connect(&broker, &connect(Level::V5, "1", "a"));
    let mut old_of_first = Client::connect(&broker, &connect(Level::V311, "2", "a"));
    let mut of_second = Client::connect(&broker, &connect(Level::V5, "3", "b"));
    operator.delete(&format!("/api/mqtt/client/credentials/{first}")).ok();
    of_first.expect_refusal(&[0x87]);
    old_of_first.expect_refusal(&[]);
    of_second.ping();
    operator.change(&second, "another name", &json!({ "userName": "b" }));
    of_second.ping();
    operator.change(&second, "another name", &json!({ "userName": "b", "password": "q" }));
    of_second.expect_refusal(&[0x87]);
}

/// The start-up file is in force at each start; a fault in it stops the start with its name.
#[test]
fn a_file_of_credentials_is_in_force_at_the_start() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("credentials.yml");
    let file = "credentials:\n\
                - userName: sensor\n\
                \x20 password: hush-one\n\
                \x20 authRules:\n\
                \x20   rules:\n\
                \x20   - { action: allow, filter: 'dev/${clientId}/#' }\n\
                - name: app\n\
                \x20 clientType: APPLICATION\n\
                \x20 clientId: app-1\n";
    std::fs::write(&path, file).unwrap();
    let start = operator::start_basic().env("SECURITY_CREDENTIALS_FILE", path.display());
    let mut broker = start.clone().start();
    let sensor = |password| Connect::v5("s1").user("sensor").password(password);
    let mut client = Client::connect(&broker, &sensor("hush-one"));
    assert_eq!(client.publish("dev/s1/t", "m", 1), 0);
    assert_eq!(client.publish("dev/s2/t", "m", 1), 0x87);
    Client::connect(&broker, &Connect::v5("app-1")).disconnect();
    let operator = Operator::login(&broker);
    let totals = operator.get("/api/mqtt/client/credentials/info").ok();
    assert_eq!(totals["applicationCredentialsCount"], 1);
    std::fs::write(&path, file.replace("hush-one", "hush-two")).unwrap();
    broker.restart();
    refused(&broker, &sensor("hush-one"), 0x86);
    Client::connect(&broker, &sensor("hush-two")).disconnect();
    let operator = Operator::login(&broker);
    assert_eq!(operator.get("/api/mqtt/client/credentials/info").ok()["totalCount"], 2);
    std::fs::write(&path, file.replace("userName: sensor", "userNam: sensor")).unwrap();
    let refused = start.allow_log("credentials.yml").try_start();
    let (status, log) = refused.err().expect("the file is faulty");
    assert!(!status.success() && log.contains("credentials.yml") && log.contains("userNam"));
    assert!(!log.contains("hush"), "no password in the log: {log}");
}

// --- anonymous clients

/// An address of this machine that is not a loopback one, if it has one.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: it only chooses the address that would be used.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

/// A first start lets in this machine's clients and says so; others only when it was said.
#[test]
fn anonymous_access_is_for_this_machine_until_it_is_said_otherwise() {
    let everywhere = || Start::new().env("LISTENER_TCP_BIND_ADDRESS", "0.0.0.0");
    let near = everywhere().allow_log("ANONYMOUS ACCESS").allow_log("of another machine").start();
    near.eventually("it is said", |near| near.log().contains("SECURITY_ALLOW_ANONYMOUS"));
    Client::connect(&near, &Connect::v5("near").user("any").password("thing")).disconnect();
    let open = everywhere().env("SECURITY_ALLOW_ANONYMOUS", "true");
    let open = open.allow_log("ANONYMOUS ACCESS").start();
    let closed = Start::new().env("SECURITY_ALLOW_ANONYMOUS", "false");
    let closed = closed.allow_log("no client can come in").start();
    refused(&closed, &Connect::v5("near"), 0x87);
    if let Some(address) = own_address() {
        let far = |broker: &Broker| Client::open_at(broker, address, Level::V5);
        let mut refused = far(&near);
        refused.send(&Connect::v5("far").bytes());
        assert!(matches!(refused.recv(), Packet::Connack { code: 0x87, .. }));
        refused.expect_close();
        far(&open).say_hello(&Connect::v5("far")).disconnect();
    }
}

/// With a provider on, who brings nothing is let in only if that was said; who brings something
/// wrong, never.
#[test]
fn with_a_provider_only_silent_clients_can_be_anonymous() {
    let start = operator::start_basic().env("SECURITY_ALLOW_ANONYMOUS", "true");
    let broker = start.start();
    Client::connect(&broker, &Connect::v5("silent")).disconnect();
    refused(&broker, &Connect::v5("c").user("u").password("p"), 0x86);
}

// --- blocked clients

/// A block by id, user name, address or expression acts before any provider, on connected
/// clients too, until it is lifted or ends; it outlives a kill.
#[test]
fn a_blocked_client_is_kept_out() {
    let mut broker = operator::start_basic().start();
    let operator = Operator::login(&broker);
    operator.credential("all", &json!({ "userName": "u", "password": "p" }));
    operator.credential("other", &json!({ "userName": "bad-1", "password": "p" }));
    let connect = |id| Connect::v5(id).user("u").password("p");
    let mut connected = Client::connect(&broker, &connect("victim"));
    let mut other = Client::connect(&broker, &connect("other"));
    let block = |body: &Value| operator.post("/api/blockedClient", body).ok();
    block(&json!({ "type": "CLIENT_ID", "value": "victim", "description": "why" }));
    connected.expect_refusal(&[0x98]);
    other.ping();
    refused(&broker, &connect("victim"), 0x8A);
    refused(&broker, &Connect::v311("victim"), 5);
    block(&json!({ "type": "REGEX", "value": "bad-.*", "regexMatchTarget": "BY_USERNAME" }));
    refused(&broker, &Connect::v5("x").user("bad-1").password("p"), 0x8A);
    let listed = operator.get("/api/blockedClient?sortProperty=value&pageSize=1").ok();
    assert_eq!(
        (&listed["totalElements"], &listed["data"][0]["value"]),
        (&json!(2), &json!("bad-.*"))
    );
    assert_eq!(listed["hasNext"], true);
    broker.kill_and_restart();
    let operator = Operator::login(&broker);
    refused(&broker, &connect("victim"), 0x8A);
    operator.delete("/api/blockedClient?type=CLIENT_ID&value=victim").ok();
    operator.delete("/api/blockedClient?type=CLIENT_ID&value=victim").refused(404);
    Client::connect(&broker, &connect("victim")).disconnect();
    let mut all = Client::connect(&broker, &connect("all"));
    let soon = now_ms() + 1500;
    let by_address = json!({ "type": "IP_ADDRESS", "value": "127.0.0.1", "expirationTime": soon });
    operator.post("/api/blockedClient", &by_address).ok();
    all.expect_refusal(&[0x98]);
    broker.eventually("the block's end", |broker| {
        let mut client = Client::open(broker, Level::V5);
        client.send(&connect("again").bytes());
        matches!(client.recv(), Packet::Connack { code: 0, .. })
    });
    for bad in [
        json!({ "type": "IP_ADDRESS", "value": "127.0.0" }),
        json!({ "type": "REGEX", "value": "a" }),
        json!({ "type": "REGEX", "value": "(", "regexMatchTarget": "BY_CLIENT_ID" }),
        json!({ "type": "NOBODY", "value": "a" }),
    ] {
        let answer = operator.post("/api/blockedClient", &bad);
        assert!([400, 422].contains(&answer.status), "{}", answer.text);
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

// --- tokens

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn token(claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

/// A token lets in whom it is for, with its rights, until it ends; then the connection ends, too.
#[test]
fn a_token_is_worth_what_it_says_until_it_ends() {
    let broker = Start::new()
        .env("SECURITY_MQTT_JWT_ENABLED", "true")
        .env("SECURITY_MQTT_JWT_SECRET", SECRET)
        .env("SECURITY_MQTT_JWT_CLIENT_ID_CLAIM", "sub")
        .env("SECURITY_MQTT_JWT_PUB_RULES_CLAIM", "pub")
        .start();
    let connect = |claims: &Value| Connect::v5("c").user("any").password(token(claims));
    let exp = now_ms() / 1000 + 3;
    let good = json!({ "sub": "c", "exp": exp, "pub": ["mine/.*"] });
    let mut client = Client::connect(&broker, &connect(&good));
    assert_eq!(client.publish("mine/t", "m", 1), 0);
    assert_eq!(client.publish("yours/t", "m", 1), 0x87);
    client.expect_refusal(&[0x87]);
    assert!(now_ms() / 1000 >= exp, "it ended before its token");
    refused(&broker, &connect(&good), 0x86);
    refused(&broker, &connect(&json!({ "sub": "d", "exp": exp + 60 })), 0x86);
    let forged = token(&json!({ "sub": "c" })) + "x";
    refused(&broker, &Connect::v5("c").user("any").password(forged), 0x86);
    refused(&broker, &Connect::v5("c").user("any").password("no token"), 0x86);
    refused(&broker, &Connect::v5("c"), 0x87);
    let shown = [broker.log(), broker.scrape()].join("\n");
    assert!(!shown.contains("eyJ") && !shown.contains(SECRET), "{shown}");
}

/// The providers are asked in the order of the setting: a failure of the first is the end, what
/// it skips the next may judge.
#[test]
fn providers_are_asked_in_their_order() {
    let both = |order: &str| {
        operator::start_basic()
            .env("SECURITY_MQTT_JWT_ENABLED", "true")
            .env("SECURITY_MQTT_JWT_SECRET", SECRET)
            .env("SECURITY_MQTT_AUTH_ORDER", order)
            .start()
    };
    let with_token = Connect::v5("c").user("u").password(token(&json!({})));
    for (order, lets_in) in [("basic,jwt", false), ("jwt,basic", true)] {
        let broker = both(order);
        Operator::login(&broker).credential("u", &json!({ "userName": "u", "password": "p" }));
        Client::connect(&broker, &Connect::v5("c").user("u").password("p")).disconnect();
        match lets_in {
            true => Client::connect(&broker, &with_token).disconnect(),
            false => refused(&broker, &with_token, 0x86),
        }
        let unknown = Connect::v5("c").user("nobody").password(token(&json!({})));
        Client::connect(&broker, &unknown).disconnect();
    }
}

// --- SCRAM

fn hmac(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

/// The client's side of SCRAM-SHA-256: its last message, and what the server must answer.
fn scram_final(first_bare: &str, server_first: &str, password: &str) -> (String, String) {
    let field = |name: &str| {
        let parts = server_first.split(',');
        parts.filter_map(|part| part.strip_prefix(name)).next().unwrap().to_owned()
    };
    let salt = STANDARD.decode(field("s=")).unwrap();
    let rounds = field("i=").parse().unwrap();
    let salted = pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.as_bytes(), &salt, rounds);
    let client_key = hmac(&salted, b"Client Key");
    let stored = Sha256::digest(&client_key);
    let without_proof = format!("c=biws,r={}", field("r="));
    let said = format!("{first_bare},{server_first},{without_proof}");
    let signature = hmac(&stored, said.as_bytes());
    let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
    let server = hmac(&hmac(&salted, b"Server Key"), said.as_bytes());
    let proof = STANDARD.encode(proof);
    (format!("{without_proof},p={proof}"), format!("v={}", STANDARD.encode(server)))
}

fn auth(code: u8, method: &str, data: &str) -> Vec<u8> {
    let properties = [prop::text(0x15, method), prop::text(0x16, data)].concat();
    wire::frame(0xF0, &wire::all(&[&[code], &wire::block(Level::V5, &properties)]))
}

const METHOD: &str = "SCRAM-SHA-256";
const FIRST: &str = "n=scram-user,r=clientnonce";

/// The server's challenge, from the AUTH with code 0x18.
#[track_caller]
fn challenge(client: &mut Client) -> String {
    match client.recv() {
        Packet::Auth { code: 0x18, properties } => {
            assert_eq!(properties.bytes(0x15), Some(METHOD.as_bytes()));
            String::from_utf8(properties.bytes(0x16).unwrap().to_vec()).unwrap()
        }
        other => panic!("expected a challenge, got {other:?}"),
    }
}

/// Client and server prove to each other that they know the password, at CONNECT and again while
/// connected; a wrong proof, another user or another method end it.
#[test]
fn scram_proves_both_sides_and_can_be_done_again() {
    let broker = operator::start().env("SECURITY_MQTT_SCRAM_ENABLED", "true").start();
    let operator = Operator::login(&broker);
    for name in ["scram-user", "second-user"] {
        let value = json!({ "userName": name, "password": "pencil", "algorithm": "SHA-256",
            "authRules": { "subAuthRulePatterns": ["ok/.*"] } });
        let body = json!({ "name": name, "credentialsType": "SCRAM", "credentialsValue": value });
        operator.post("/api/mqtt/client/credentials", &body).ok();
    }
    let first = |bare: &str| {
        let data = format!("n,,{bare}");
        Connect::v5("c").with(prop::text(0x15, METHOD)).with(prop::text(0x16, data))
    };
    let mut client = Client::open(&broker, Level::V5);
    client.send(&first(FIRST).bytes());
    let server_first = challenge(&mut client);
    let (last, expected) = scram_final(FIRST, &server_first, "pencil");
    client.send(&auth(0x18, METHOD, &last));
    match client.recv() {
        Packet::Connack { code: 0, properties, .. } => {
            assert_eq!(properties.bytes(0x15), Some(METHOD.as_bytes()));
            assert_eq!(properties.bytes(0x16), Some(expected.as_bytes()));
        }
        other => panic!("CONNECT was answered with {other:?}"),
    }
    assert_eq!(client.subscribe("ok/t", 1), 1);
    assert_eq!(client.subscribe("no/t", 1), 0x87);
    // Again, while connected; messages flow meanwhile.
    client.send(&auth(0x19, METHOD, &format!("n,,{FIRST}")));
    let server_first = challenge(&mut client);
    assert_eq!(client.publish("ok/t", "m", 1), 0);
    assert_eq!(client.take().topic(), "ok/t");
    let (last, expected) = scram_final(FIRST, &server_first, "pencil");
    client.send(&auth(0x18, METHOD, &last));
    match client.recv() {
        Packet::Auth { code: 0, properties } => {
            assert_eq!(properties.bytes(0x16), Some(expected.as_bytes()));
        }
        other => panic!("AUTH was answered with {other:?}"),
    }
    // Another user, although with the right password.
    let other = "n=second-user,r=clientnonce";
    client.send(&auth(0x19, METHOD, &format!("n,,{other}")));
    let server_first = challenge(&mut client);
    client.send(&auth(0x18, METHOD, &scram_final(other, &server_first, "pencil").0));
    client.expect_refusal(&[0x87]);
    // A wrong password, an unknown user: told only at the end.
    for (bare, password) in [(FIRST, "pencils"), ("n=nobody,r=clientnonce", "pencil")] {
        let mut client = Client::open(&broker, Level::V5);
        client.send(&first(bare).bytes());
        let server_first = challenge(&mut client);
        client.send(&auth(0x18, METHOD, &scram_final(bare, &server_first, password).0));
        assert!(matches!(client.recv(), Packet::Connack { code: 0x87, .. }));
        client.expect_close();
    }
    let other_method = Connect::v5("c").with(prop::text(0x15, "GS2-KRB5"));
    refused(&broker, &other_method, 0x8C);
    refused(&broker, &Connect::v5("c").user("scram-user").password("pencil"), 0x86);
}

/// An exchange that a client leaves in the middle costs nobody anything, and ends in time.
#[test]
fn a_client_that_never_answers_the_challenge_is_let_go() {
    let broker = operator::start().env("SECURITY_MQTT_SCRAM_ENABLED", "true").start();
    let connect = Connect::v5("c")
        .with(prop::text(0x15, METHOD))
        .with(prop::text(0x16, format!("n,,{FIRST}")));
    let mut waits = Client::open(&broker, Level::V5);
    waits.send(&connect.bytes());
    challenge(&mut waits);
    let mut says_else = Client::open(&broker, Level::V5);
    says_else.send(&connect.bytes());
    challenge(&mut says_else);
    says_else.send(&wire::PINGREQ);
    assert!(matches!(says_else.recv(), Packet::Connack { code: 0x82, .. }));
    says_else.expect_close();
    let closed = waits.expect_close_within(Duration::from_secs(30));
    assert!(matches!(closed.packets[..], [Packet::Connack { code: 0x87, .. }]), "{closed:?}");
}
