//! How many sessions there may be, over all nodes (QTA-05).

use std::time::Instant;

use serde_json::json;

use crate::nodes::nodes_with;
use crate::operator::{self, Operator};
use crate::support::{Broker, Client, Connect, Level, PATIENCE, Packet};

/// A client that asks for a place, or has one.
struct Guest {
    name: String,
    outlives: bool,
    node: usize,
    client: Client,
}

/// By turns of the nodes: one of MQTT 5 and one of MQTT 3.1.1 whose sessions end with their
/// connections, and between them one whose session outlives it.
fn come(nodes: &[Broker], name: &str, at: usize) -> Guest {
    let (name, kind, node) = (format!("{name}/{at}"), at / nodes.len() % 3, at % nodes.len());
    let connect = match kind {
        0 => Connect::v5(&name),
        1 => Connect::v5(&name).persistent(),
        _ => Connect::v311(&name),
    };
    let mut client = Client::open(&nodes[node], connect.level);
    client.send(&connect.bytes());
    Guest { name, outlives: kind == 1, node, client }
}

/// Those of a rush that were let in; the others were told why not.
fn let_in(rush: Vec<Guest>) -> Vec<Guest> {
    let mut inside = Vec::new();
    for mut guest in rush {
        match guest.client.recv() {
            Packet::Connack { code: 0, .. } => inside.push(guest),
            Packet::Connack { code, .. } => {
                assert_eq!(code, if guest.client.level == Level::V5 { 0x97 } else { 3 });
                guest.client.expect_close();
            }
            other => panic!("CONNECT was answered with {other:?}"),
        }
    }
    inside
}

fn rush(nodes: &[Broker], name: &str, count: usize) -> Vec<Guest> {
    let_in((0..count).map(|at| come(nodes, name, at)).collect())
}

/// Guests come until `room` of them are in, and then nobody any more.
fn fill(nodes: &[Broker], name: &str, room: usize) -> Vec<Guest> {
    let (deadline, mut inside) = (Instant::now() + PATIENCE, Vec::new());
    let mut tries = 0;
    while inside.len() < room {
        assert!(Instant::now() < deadline, "{name}: {} of {room} came in", inside.len());
        inside.extend(let_in(vec![come(nodes, name, tries)]));
        tries += 1;
    }
    let more = rush(nodes, &format!("beyond {name}"), 9).len();
    assert_eq!(more, 0, "{name}: too many beyond {room}");
    inside
}

/// QTA-05: `mqtt.sessions-limit` counts the sessions of all nodes, to the last one, however many
/// clients come at once and to which node. Who has a session always gets in; what ends makes room
/// on every node; the sessions of a node that died keep their places as long as they live.
#[test]
fn the_limit_of_sessions_is_that_of_all_nodes() {
    let limit = [("MQTT_SESSIONS_LIMIT", "12")];
    let Some(mut nodes) = nodes_with(3, &limit, &["a node was silent"]) else { return };
    let mut inside = rush(&nodes, "first", 60);
    assert_eq!(inside.len(), 12);
    fill(&nodes, "none", 0);
    // Whoever stays away finds its session again, on any node.
    for guest in inside.iter_mut().filter(|guest| guest.outlives) {
        guest.node = (guest.node + 1) % 3;
        let connect = Connect::v5(&guest.name).persistent();
        guest.client = Client::connect(&nodes[guest.node], &connect);
        assert!(guest.client.session_present);
    }
    fill(&nodes, "none still", 0);
    let ending: Vec<Guest> = inside.extract_if(.., |guest| !guest.outlives).collect();
    let room = ending.len();
    ending.into_iter().for_each(|guest| guest.client.disconnect());
    inside.extend(fill(&nodes, "after some ended", room));
    let dead = 2;
    nodes[dead].kill();
    fill(&nodes[..dead], "a node is dead", 0);
    let ended = inside.iter().filter(|guest| guest.node == dead && !guest.outlives).count();
    inside.extend(fill(&nodes[..dead], "it is taken for dead", ended));
    nodes[dead].start_again();
    fill(&nodes, "it is back", 0);
}

/// The same for persistent APPLICATION clients and `mqtt.application-clients-limit`.
#[test]
fn the_limit_of_applications_is_that_of_all_nodes() {
    let settings = [
        ("MQTT_APPLICATION_CLIENTS_LIMIT", "3"),
        ("SECURITY_ADMIN_PASSWORD", operator::PASSWORD),
        ("SECURITY_MQTT_BASIC_ENABLED", "true"),
    ];
    let Some(nodes) = nodes_with(2, &settings, &[]) else { return };
    let value = json!({ "userName": "app" });
    let body = json!({ "name": "app", "clientType": "APPLICATION", "credentialsValue": value });
    Operator::login(&nodes[0]).post("/api/mqtt/client/credentials", &body).ok();
    let other = Operator::login(&nodes[1]);
    nodes[1].eventually("the credential is known to every node", |_| {
        other.get("/api/mqtt/client/credentials?pageSize=10").ok()["totalElements"] == 1
    });
    let come = |at: usize| {
        let (name, node) = (format!("app {at}"), at % 2);
        let connect = Connect::v5(&name).user("app").persistent();
        let mut client = Client::open(&nodes[node], Level::V5);
        client.send(&connect.bytes());
        Guest { name, outlives: true, node, client }
    };
    let mut inside = let_in((0..20).map(come).collect());
    assert_eq!(inside.len(), 3);
    // One that does not outlive its connection is no such client.
    Client::connect(&nodes[1], &Connect::v5("passing").user("app")).disconnect();
    let first = inside.remove(0);
    drop(first.client);
    assert!(let_in(vec![come(20), come(21)]).is_empty(), "it is away, and there");
    let clean = Connect::v5(&first.name).user("app");
    Client::connect(&nodes[1 - first.node], &clean).disconnect();
    let (deadline, mut tries) = (Instant::now() + PATIENCE, 22);
    while let_in(vec![come(tries)]).is_empty() {
        assert!(Instant::now() < deadline, "its place was never free");
        tries += 1;
    }
    assert!(let_in(vec![come(50), come(51)]).is_empty(), "one too many");
}
