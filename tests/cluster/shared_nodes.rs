//! Shared groups over several nodes: what waits, what comes back, and what a dead node leaves
//! (SHR-1 … SHR-5, docs/decisions/010).

use std::time::Duration;

use crate::nodes::{nodes, nodes_with};
use crate::shared_rooms::{Got, publish};
use crate::support::{AckKind, Broker, Client, Connect, prop, wire};

const QUIET: Duration = Duration::from_millis(300);
/// What is still on its way when a member's client has gone is given back a little later.
const LIMIT: (&str, &str) = ("MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT", "30000");

fn member(id: &str) -> Connect {
    Connect::v5(id).persistent()
}

fn away(broker: &Broker, id: &str, qos: u8) {
    let mut client = Client::connect(broker, &member(id));
    assert_eq!(client.subscribe("$share/g/+/x", qos), qos);
    client.disconnect();
}

/// SHR-01, SHR-3, TBMQ #329, #290: what waits for a group goes to members on every node, whoever
/// decides for it, in each publisher's order.
#[test]
fn a_backlog_goes_to_members_of_every_node() {
    const BEFORE: usize = 1500;
    let Some(nodes) = nodes_with(3, &[LIMIT], &[]) else { return };
    for (id, node) in ["a", "b", "c"].iter().zip(&nodes) {
        away(node, id, 1);
    }
    let mut p = Client::connect(&nodes[0], &Connect::v5("p"));
    let mut q = Client::connect(&nodes[1], &Connect::v5("q"));
    publish(&mut p, "p/x", 1, 0..BEFORE);
    publish(&mut q, "q/x", 1, 0..BEFORE);
    // Each comes back to another node than it left.
    let mut members: Vec<Client> = ["a", "b", "c"]
        .iter()
        .zip([1, 2, 0])
        .map(|(id, at)| Client::connect(&nodes[at], &member(id).with(prop::receive_maximum(50))))
        .collect();
    let mut got = Got::default();
    got.collect(&mut members, BEFORE);
    publish(&mut p, "p/x", 1, BEFORE..BEFORE + 200);
    publish(&mut q, "q/x", 1, BEFORE..BEFORE + 200);
    got.collect(&mut members, 2 * (BEFORE + 200));
    got.once();
    got.in_order();
    for at in 0..3 {
        assert!(got.of_member(at) > 0, "member {at} got nothing");
    }
}

/// SHR-05, SHR-06, SHR-5: a member that goes, and one whose session ends, on whatever node that is.
#[test]
fn what_a_member_leaves_goes_to_members_of_other_nodes() {
    for clean_start in [false, true] {
        let Some(nodes) = nodes(2, &[]) else { return };
        let mut a = Client::connect(&nodes[0], &member("a").with(prop::receive_maximum(6)));
        a.subscribe("$share/g/+/x", 2);
        let mut publisher = Client::connect(&nodes[1], &Connect::v5("p"));
        publish(&mut publisher, "one/x", 1, 0..2);
        publish(&mut publisher, "two/x", 2, 0..4);
        publish(&mut publisher, "one/x", 1, 2..20);
        let sent: Vec<_> = (0..6).map(|_| a.expect_publish()).collect();
        let begun = sent.iter().find(|one| one.qos == 2).unwrap();
        a.send(&wire::ack(5, begun.id));
        a.acknowledged(AckKind::Pubrel, begun.id);
        let mut members = [Client::connect(&nodes[1], &member("b"))];
        members[0].subscribe("$share/g/+/x", 2);
        a.reset();
        let mut got = Got::default();
        got.collect(&mut members, 18);
        got.once();
        if clean_start {
            // The session moves to the other node with its end.
            drop(Client::connect(&nodes[1], &Connect::v5("a")));
            got.collect(&mut members, 20);
            got.once();
        } else {
            let mut a = Client::connect(&nodes[1], &member("a"));
            a.acknowledged(AckKind::Pubrel, begun.id);
            a.send(&wire::ack(7, begun.id));
            for _ in 0..5 {
                assert!(a.take().dup);
            }
            a.expect_silence(QUIET);
        }
        members[0].expect_silence(QUIET);
    }
}

/// SHR-1, QOS-08, INV-2: a node that decides for a group, and empties its room, is killed. Nothing
/// is lost, and nothing comes twice at QoS 2, neither to members with a queue nor without one.
#[test]
fn a_killed_decider_costs_no_message_and_repeats_none() {
    const BEFORE: usize = 900;
    let Some(mut nodes) = nodes_with(3, &[LIMIT], &["silent for too long"]) else { return };
    for id in ["a", "b"] {
        away(&nodes[1], id, 2);
    }
    let mut p = Client::connect(&nodes[1], &Connect::v5("p"));
    publish(&mut p, "p/x", 2, 0..BEFORE);
    // Groups of other names: one of them is decided for by each node.
    let groups: Vec<String> = (0..8).map(|n| format!("$share/live{n}/p/x")).collect();
    let mut plain = Client::connect(&nodes[2], &Connect::v5("plain"));
    for group in &groups {
        assert_eq!(plain.subscribe(group, 2), 2);
    }
    let narrow = |id: &str| member(id).with(prop::receive_maximum(5));
    let mut members =
        vec![Client::connect(&nodes[1], &narrow("a")), Client::connect(&nodes[2], &narrow("b"))];
    let mut got = Got::default();
    got.collect(&mut members, BEFORE / 10);
    publish(&mut p, "p/x", 2, BEFORE..BEFORE + 40);
    nodes[0].kill();
    publish(&mut p, "p/x", 2, BEFORE + 40..BEFORE + 80);
    got.collect(&mut members, BEFORE + 80);
    got.once();
    got.in_order();
    let mut live = Got::default();
    let mut plain = [plain];
    let total = 80 * groups.len();
    live.collect_copies(&mut plain, total);
    plain[0].expect_silence(QUIET);
    let times: Vec<usize> = live.all.values().copied().collect();
    assert!(times.iter().all(|times| *times == groups.len()), "{times:?}");
}

/// SHR-5, TKO-04, TKO-06: members whose sessions go from node to node while their old connections
/// stand lose nothing of what is theirs or the group's.
#[test]
fn members_that_other_nodes_take_over_lose_nothing() {
    const BEFORE: usize = 600;
    let Some(nodes) = nodes(2, &[]) else { return };
    away(&nodes[0], "a", 1);
    away(&nodes[1], "b", 2);
    let mut publisher = Client::connect(&nodes[0], &Connect::v5("p"));
    publish(&mut publisher, "p/x", 2, 0..BEFORE);
    let narrow = |at: usize, id: &str| {
        Client::connect(&nodes[at % 2], &member(id).with(prop::receive_maximum(20)))
    };
    let mut members = vec![narrow(1, "a"), narrow(0, "b")];
    let mut got = Got::default();
    for round in 0..8 {
        let from = BEFORE + round * 20;
        let some = from.min(got.all.len() + 60);
        got.collect(&mut members, some);
        publish(&mut publisher, "p/x", 2, from..from + 20);
        let (who, id) = (round % 2, ["a", "b"][round % 2]);
        let new = narrow(round / 2 + who, id);
        assert!(new.session_present, "round {round}");
        let mut old = std::mem::replace(&mut members[who], new);
        old.expect_close();
    }
    got.collect(&mut members, BEFORE + 8 * 20);
}
