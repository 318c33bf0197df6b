//! Clients that prove themselves by a certificate: real TLS, real chains, real lists of what was
//! revoked.

use std::io::{Read, Write};

use serde_json::{Value, json};

use crate::authority::{Authority, Paper};
use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, Level, Start, free_port};

/// A broker that asks for certificates, its TLS port, and its administrator. The broker ends first:
/// it keeps an eye on the authority's files.
struct House {
    broker: Broker,
    authority: Authority,
    operator: Operator,
    port: u16,
}

impl House {
    fn open(wants: &str, more: impl FnOnce(Start, &Authority) -> Start) -> House {
        let (authority, port) = (Authority::new(), free_port());
        let start = operator::start()
            .env("SECURITY_MQTT_SSL_ENABLED", true)
            .env("LISTENER_SSL_ENABLED", true)
            .env("LISTENER_SSL_BIND_ADDRESS", "127.0.0.1")
            .env("LISTENER_SSL_BIND_PORT", port)
            .env("LISTENER_SSL_PEM_CERT", authority.path("server.pem").display())
            .env("LISTENER_SSL_PEM_KEY", authority.path("server_key.pem").display())
            .env("LISTENER_SSL_PEM_CA", authority.path("ca.pem").display())
            .env("LISTENER_SSL_CLIENT_AUTH", wants)
            .env("LISTENER_CERTIFICATES_RELOAD_PERIOD_MS", 50);
        let broker = more(start, &authority).start();
        let operator = Operator::login(&broker);
        House { broker, authority, operator, port }
    }

    fn credential(&self, name: &str, value: &Value) -> String {
        let body = json!({ "name": name, "credentialsType": "X_509", "credentialsValue": value });
        let saved = self.operator.post("/api/mqtt/client/credentials", &body).ok();
        saved["id"].as_str().unwrap().to_owned()
    }

    /// The code in the CONNACK; none: it did not come so far.
    fn answer(&self, paper: Option<&Paper>, connect: &Connect) -> Option<u8> {
        let mut link = self.authority.link(self.port, paper)?;
        link.write_all(&connect.bytes()).ok()?;
        let mut answer = [0; 4];
        link.read_exact(&mut answer).ok()?;
        assert_eq!(answer[0], 0x20, "CONNACK");
        Some(answer[3])
    }

    fn enter(&self, paper: &Paper, connect: &Connect) -> Client {
        let link = self.authority.link(self.port, Some(paper)).expect("a handshake");
        Client::on(link, connect.level).say_hello(connect)
    }
}

fn allow(filter: &str) -> Value {
    json!({ "rules": [{ "action": "allow", "filter": filter }] })
}

/// A device comes in by the common name of its certificate, exactly or by an expression that fits
/// the whole name, with the rules of its credential and the placeholder `${cn}`; who has none of
/// that is refused, with a certificate and without.
#[test]
fn a_certificates_common_name_lets_its_client_in() {
    let house = House::open("requested", |start, _| start);
    house.credential(
        "pump",
        &json!({ "certCnPattern": "pump-1", "authRulesMapping": { "pump": allow("d/${cn}/#") } }),
    );
    house.credential(
        "valves",
        &json!({ "certCnPattern": "valve-[0-9]+", "certCnIsRegex": true,
            "authRulesMapping": { "valve-1": allow("one"), "valve": allow("others") } }),
    );
    let device = |cn: &str| house.authority.device(cn, 7);
    let (pump, one, two) = (device("pump-1"), device("valve-1"), device("valve-2"));
    let mut client = house.enter(&pump, &Connect::v5("p"));
    assert_eq!(client.publish("d/pump-1/t", "m", 1), 0);
    assert_eq!(client.publish("d/pump-2/t", "m", 1), 0x87);
    for (paper, own, other) in [(&one, "one", "others"), (&two, "others", "one")] {
        let mut client = house.enter(paper, &Connect::v5("v"));
        assert_eq!(client.publish(own, "m", 1), 0);
        assert_eq!(client.publish(other, "m", 1), 0x87);
    }
    let connect = Connect::v5("x");
    for cn in ["pump-11", "pump", "Pump-1", "valve-1x", "xvalve-1", "valve-"] {
        assert_eq!(house.answer(Some(&device(cn)), &connect), Some(0x87), "{cn}");
    }
    assert_eq!(house.answer(None, &connect), Some(0x87), "no certificate is no proof");
    let named = Connect::v5("pump-1").user("pump-1").password("pump-1");
    assert_eq!(house.answer(None, &named), Some(0x86), "nor is a name");
    let shown = house.operator.get("/api/client-session?clientId=p").ok();
    assert_eq!(shown["authProvider"], "X_509", "{shown}");
}

/// TBMQ's #237: only what leads from the client's certificate to our authority counts. Another
/// device's certificate, which everybody may have seen, lets nobody in who shows it behind its own.
#[test]
fn only_names_of_the_verified_chain_count() {
    let house = House::open("required", |start, _| start);
    house.credential("victim", &json!({ "certCnPattern": "victim" }));
    house.credential("line", &json!({ "certCnPattern": "line-7" }));
    let (victim, thief) = (house.authority.device("victim", 7), house.authority.device("thief", 8));
    let connect = Connect::v5("c");
    assert_eq!(house.answer(Some(&thief.behind(&victim.pem)), &connect), Some(0x87));
    let other = Authority::new();
    let forged = other.device("victim", 7);
    assert_eq!(house.answer(Some(&forged), &connect), None, "signed by somebody else");
    let forged = other.intermediate("line-7");
    assert_eq!(house.answer(Some(&thief.behind(&forged.pem())), &connect), Some(0x87));
    // An authority in between has its own credential, which all that it signed may use.
    let line = house.authority.intermediate("line-7");
    assert_eq!(house.answer(Some(&line.device("robot", 9)), &connect), Some(0));
    assert_eq!(house.answer(Some(&thief.behind(&line.pem())), &connect), Some(0x87));
    let robot = line.device("robot", 9);
    assert_eq!(house.answer(Some(&robot.behind(&victim.pem)), &connect), Some(0), "by its line");
    house.credential("robot", &json!({ "certCnPattern": "robot" }));
    house.enter(&robot, &connect).disconnect();
}

/// What the list of an authority revokes does not come in, from the moment on at which the list
/// changes, by itself or by order; connections that are there stay; a credential's end ends them.
#[test]
fn revoked_certificates_stay_outside() {
    let house = House::open("required", |start, authority| {
        let list = authority.write("crl.pem", &authority.revocations(&[]));
        start.env("LISTENER_SSL_PEM_CRL", list.display())
    });
    let id = house.credential("all", &json!({ "certCnPattern": ".*", "certCnIsRegex": true }));
    let (lost, kept) = (house.authority.device("lost", 7), house.authority.device("kept", 8));
    let mut before = house.enter(&lost, &Connect::v5("lost"));
    house.authority.write("crl.pem", &house.authority.revocations(&[&lost]));
    house.broker.eventually("it is revoked", |_| {
        house.answer(Some(&lost), &Connect::v5("again")).is_none()
    });
    before.ping();
    house.enter(&kept, &Connect::v5("kept")).disconnect();
    assert!(house.broker.metric("listenerHandshakeFailures_total").unwrap() >= 1.0);
    house.operator.delete(&format!("/api/mqtt/client/credentials/{id}")).ok();
    before.expect_refusal(&[0x87]);
    assert_eq!(house.answer(Some(&kept), &Connect::new(Level::V311, "c")), Some(5));
}
