//! The administration of any node sees, and acts on, the sessions of all (CLU-08).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::nodes::{nodes_with, payloads};
use crate::operator::{Operator, PASSWORD};
use crate::support::{Broker, Client, Connect, Will};

const ADMIN: [(&str, &str); 1] = [("SECURITY_ADMIN_PASSWORD", PASSWORD)];

/// Every session as this node tells of it, but for what only its own node knows.
fn sessions(operator: &Operator) -> BTreeMap<String, Value> {
    let page = operator.get("/api/client-session?pageSize=1000").ok();
    assert_eq!(page["totalElements"], page["data"].as_array().unwrap().len());
    let by_name = |session: &Value| {
        let mut session = session.clone();
        session.as_object_mut().unwrap().remove("lag");
        // Each connection's node looks at its clock once more than the log does.
        session.as_object_mut().unwrap().remove("connectedAt");
        (session["clientId"].as_str().unwrap().to_owned(), session)
    };
    page["data"].as_array().unwrap().iter().map(by_name).collect()
}

fn operators(nodes: &[Broker]) -> Vec<Operator> {
    nodes.iter().map(Operator::login).collect()
}

/// CLU-08: the lists and totals of sessions and subscriptions are those of the cluster, whichever
/// node is asked, also while clients come, go and move.
#[test]
fn every_node_lists_the_sessions_of_all() {
    let Some(nodes) = nodes_with(3, &ADMIN, &[]) else { return };
    let operators = operators(&nodes);
    let mut clients = BTreeMap::new();
    for round in 0..3 {
        for number in 0..24 {
            let name = format!("c{number}");
            let connect = Connect::v5(&name);
            let connect = if number % 2 == 0 { connect.persistent() } else { connect };
            let mut client = Client::connect(&nodes[(number + round) % 3], &connect);
            client.subscribe(format!("t/{number}"), 1);
            // The connection before, on another node, was taken over.
            drop(clients.remove(&name));
            match (number + round) % 4 {
                0 => client.disconnect(),
                1 => client.reset(),
                _ => drop(clients.insert(name, client)),
            }
        }
    }
    clients.values_mut().for_each(Client::ping);
    let connected = clients.len() as u64;
    // The others were reset or said goodbye; those that outlive that are there.
    let away = (0..24).filter(|number| number % 2 == 0 && (number + 2) % 4 < 2).count() as u64;
    for (node, operator) in nodes.iter().zip(&operators) {
        node.eventually("the lists are true", |_| {
            let totals = operator.get("/api/client-session/info").ok();
            let all = operator.get("/api/subscription/all?pageSize=1000").ok();
            let true_totals = totals["connectedCount"] == connected
                && totals["disconnectedCount"] == away
                && all["totalElements"] == connected + away;
            true_totals && sessions(operator) == sessions(&operators[0])
        });
        let one = operator.get("/api/client-session?clientId=c2").ok();
        assert_eq!(one["subscriptions"][0]["topicFilter"], "t/2", "{one}");
    }
    for session in sessions(&operators[0]).values() {
        let is_there = session["connectionState"] == "CONNECTED";
        assert_eq!(is_there, clients.contains_key(session["clientId"].as_str().unwrap()));
        assert_eq!(session["subscriptionsCount"], 1, "{session}");
        assert_eq!(session["clientIpAdr"].is_string(), is_there, "{session}");
    }
}

/// A connection is ended, and a session removed, by any node: with 0x98, the Will goes out, and
/// nothing is left; also when the session's node has died.
#[test]
fn any_node_ends_sessions_of_others() {
    let Some(mut nodes) = nodes_with(2, &ADMIN, &["a node was silent"]) else { return };
    let operators = operators(&nodes);
    let mut watcher = Client::connect(&nodes[0], &Connect::v5("watcher"));
    watcher.subscribe("w", 1);
    let connect = Connect::v5("client").persistent().will(Will::new("w", "cut").qos(1));
    let mut client = Client::connect(&nodes[1], &connect);
    client.subscribe("t", 1);
    let order = |what: &str| format!("/api/client-session/{what}?clientId=client");
    let known =
        |name: &str| operators[0].get(&format!("/api/client-session?clientId={name}")).status;
    nodes[0].eventually("the other node's session is known", |_| known("client") == 200);
    assert_eq!(operators[0].delete(&format!("{}&sessionId=1", order("disconnect"))).status, 404);
    assert_eq!(operators[0].delete(&order("disconnect")).status, 200);
    client.expect_refusal(&[0x98]);
    assert_eq!(payloads(&mut watcher, 1), ["cut"]);
    assert_eq!(operators[0].delete(&order("disconnect")).status, 404, "it has no connection");
    let mut client = Client::connect(&nodes[1], &connect);
    assert!(client.session_present);
    assert_eq!(operators[0].delete(&order("remove")).status, 200);
    client.expect_refusal(&[0x98]);
    assert_eq!(payloads(&mut watcher, 1), ["cut"]);
    assert_eq!(known("client"), 404);
    let client = Client::connect(&nodes[1], &connect);
    assert!(!client.session_present);
    client.disconnect();
    nodes[0].eventually("the other node's session is known", |_| known("client") == 200);
    assert_eq!(operators[0].delete(&order("remove")).status, 200, "away, on the other node");
    assert_eq!(known("client"), 404);
    drop(Client::connect(&nodes[1], &Connect::v5("orphan").persistent()));
    nodes[0].eventually("the other node's session is known", |_| known("orphan") == 200);
    nodes[1].kill();
    nodes[0].eventually("the session of a dead node can be removed", |_| {
        operators[0].delete("/api/client-session/remove?clientId=orphan").status == 200
    });
    assert_eq!(known("orphan"), 404);
}
