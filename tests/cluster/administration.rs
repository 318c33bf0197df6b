//! The administration of any node sees, and acts on, the sessions of all (CLU-08).

use std::collections::BTreeMap;

use serde_json::{Value, json};

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

/// SHR-4: an entity is made, changed and deleted at any node, and holds at all; so does the view of
/// groups, with members wherever they are connected.
#[test]
fn entities_of_shared_subscriptions_hold_at_every_node() {
    let all = "MQTT_SHARED_SUBSCRIPTIONS_APP_WITHOUT_ENTITY";
    let env = [ADMIN[0], ("SECURITY_MQTT_BASIC_ENABLED", "true"), (all, "false")];
    let Some(nodes) = nodes_with(2, &env, &[]) else { return };
    let operators = operators(&nodes);
    let value = json!({ "userName": "app" });
    let body = json!({ "name": "app", "clientType": "APPLICATION", "credentialsValue": value });
    let credential = operators[0].post("/api/mqtt/client/credentials", &body).ok();
    let path = format!("/api/mqtt/client/credentials/{}", credential["id"].as_str().unwrap());
    nodes[1].eventually("the credential is known", |_| operators[1].get(&path).status == 200);
    let connect = |node: usize| {
        let id = format!("member{node}");
        Client::connect(&nodes[node], &Connect::v5(id).user("app").persistent())
    };
    let mut members = [connect(0), connect(1)];
    assert_eq!(members.each_mut().map(|one| one.subscribe("$share/g/t", 1)), [0x8F, 0x8F]);
    let subs = "/api/app/shared/subs";
    let body = json!({ "name": "n", "topicFilter": "$share/g/t", "partitions": 3,
        "processingType": "STICKY" });
    let made = operators[0].post(subs, &body).ok();
    let one = format!("{subs}/{}", made["id"].as_str().unwrap());
    nodes[1].eventually("the entity is known", |_| operators[1].get(&one).body == made);
    operators[1].post(subs, &body).refused(409);
    assert_eq!(members.each_mut().map(|one| one.subscribe("$share/g/t", 1)), [1, 1]);
    let members_of = |operator: &Operator| {
        let groups = operator.get("/api/subscription").ok();
        let group = &groups["data"][0];
        let there = group["members"].as_array().cloned().unwrap_or_default();
        let connected = there.iter().filter(|one| one["connected"] == true).count();
        (there.len(), connected, group["processingType"].clone(), group["entityId"].clone())
    };
    for (node, operator) in nodes.iter().zip(&operators) {
        let wanted = (2, 2, json!("STICKY"), made["id"].clone());
        node.eventually("the group is known", |_| members_of(operator) == wanted);
        operator.delete(&one).refused(409);
    }
    members.iter_mut().for_each(|one| drop(one.unsubscribe(&[b"$share/g/t"])));
    nodes[1].eventually("nobody rests on it", |_| operators[1].delete(&one).status == 200);
    nodes[0].eventually("it is gone everywhere", |_| operators[0].get(&one).status == 404);
}
