//! CON-14: what the broker sends is exactly as the specification draws it. The parser runs over
//! the traffic of every test in this binary; here it sees one of each packet, and shows its teeth.

use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, hex, parse, prop, wire};

/// CON-14, MQTT-2.1.3-1, MQTT-3.2.2-1: one of every server packet, on every level, is exact to
/// the byte.
#[test]
fn every_server_packet_is_exact() {
    let broker = Broker::start();
    for level in Level::ALL {
        let v5 = level.is_v5();
        let mut client = Client::open(&broker, level);
        client.send(&Connect::new(level, format!("exact-{level:?}")).bytes());
        let Packet::Connack { session_present: false, code: 0, .. } = client.recv() else {
            panic!("no CONNACK");
        };
        assert_eq!(client.subscribe_with(&[(b"t/#", 2), (b"u", 0)], &[]), [2, 0]);
        for qos in 0..3 {
            assert!(client.publish("t/a", [qos], qos) < 0x80);
            let got = client.take();
            assert_eq!(
                (got.qos, got.dup, got.retain, got.topic()),
                (qos, false, false, "t/a".into())
            );
            assert_eq!(got.payload, [qos]);
        }
        let codes = client.unsubscribe(&[b"u", b"never"]);
        assert_eq!(codes, if v5 { vec![0x00, 0x11] } else { vec![] });
        client.ping();
        client.send(&wire::ack(6, 999));
        let code = client.acknowledged(AckKind::Pubcomp, 999);
        assert_eq!(code, if v5 { 0x92 } else { 0 }, "PUBREL of an unknown id");
        let _newer = Client::connect(&broker, &Connect::new(level, format!("exact-{level:?}")));
        client.expect_refusal(&[0x8E]);
    }
}

/// CON-14: the short forms, byte for byte, on level 4, where nothing is optional.
#[test]
fn level_4_answers_are_the_bytes_of_the_specification() {
    let broker = Broker::start();
    let mut client = Client::open(&broker, Level::V311);
    client.send(&Connect::v311("bytes").bytes());
    client.send(&wire::subscribe(Level::V311, 10, &[], &[(b"a", 0), (b"b", 1), (b"c", 2)]));
    client.send(&wire::publish(Level::V311, 2, "x", 7, &[], "m"));
    client.send(&wire::publish(Level::V311, 4, "x", 8, &[], "m"));
    client.send(&wire::ack(6, 8));
    client.send(&wire::unsubscribe(Level::V311, 11, &[b"a"]));
    client.send(&wire::PINGREQ);
    client.ping();
    client.send(&wire::DISCONNECT);
    let closed = client.expect_close();
    let has = |wanted: &Packet| closed.packets.contains(wanted);
    let ack = |kind, id| Packet::Ack { kind, id, code: 0, properties: Default::default() };
    assert_eq!(closed.packets.len(), 7, "{closed:?}");
    assert!(has(&ack(AckKind::Puback, 7)), "{closed:?}");
    assert!(has(&ack(AckKind::Pubrec, 8)), "{closed:?}");
    assert!(has(&ack(AckKind::Pubcomp, 8)), "{closed:?}");
    assert!(has(&Packet::Pingresp), "{closed:?}");
    let suback = Packet::Suback { id: 10, codes: vec![0, 1, 2], properties: Default::default() };
    let unsuback = Packet::Unsuback { id: 11, codes: vec![], properties: Default::default() };
    assert!(has(&suback) && has(&unsuback), "{closed:?}");
}

/// CON-14: the parser that judges the broker refuses what a strict client would refuse.
#[test]
fn the_judge_refuses_loose_packets() {
    let v4 = [
        "21020000",
        "20020200",
        "20020006",
        "2003000000",
        "20020101",
        "36050001610001",
        "38030001 61",
        "30050003612b62",
        "3003000100",
        "32050001610000",
        "41020001",
        "40020000",
        "4003000100",
        "60020001",
        "9003000103",
        "9002 0001",
        "b0 03 0001 00",
        "d100",
        "d00100",
        "e000",
        "f000",
        "0000",
        "10 00",
        "80 00",
        "30ffffffff01",
        "b0 82 00 0001",
    ];
    for bytes in v4 {
        let verdict = parse(Level::V311, &hex(bytes));
        assert!(verdict.is_err(), "{bytes}: {verdict:?}");
    }
    let v5 = [
        "2003000001",
        "20020000",
        "2003008b00",
        "200600 00 03 21 00 00",
        "20 05 00 00 02 24 02",
        "2009 0000 06 2100 0121 0001",
        "200500 00 02 17 01",
        "30 08 0001 61 03 23 0000 6d",
        "40 03 0001 01",
        "6203 0001 80",
        "90 04 0001 00 11",
        "e001 04",
        "e001 00 00 00 ff",
        "b0 04 0001 00 01",
        "3004 0000 00 6d",
    ];
    for bytes in v5 {
        let verdict = parse(Level::V5, &hex(bytes));
        let whole = matches!(verdict, Ok(Some((_, length))) if length == hex(bytes).len());
        assert!(!whole, "{bytes}: {verdict:?}");
    }
}

/// CON-14: and it takes what is right.
#[test]
fn the_judge_takes_exact_packets() {
    let v4 =
        ["20020100", "20020005", "9006000a00010280", "b002000a", "d000", "62020001", "300300016 1"];
    for bytes in v4 {
        let verdict = parse(Level::V311, &hex(bytes));
        assert!(matches!(verdict, Ok(Some(_))), "{bytes}: {verdict:?}");
    }
    let v5 = [
        "2003000000",
        "300c000161060b010b020b036869",
        "900b000a041f00017200029ea1",
        "e0018b",
        "e000",
        "4003000710",
        "40020007",
        "e0028e00",
        "20060000 03 21 0001",
    ];
    for bytes in v5 {
        let verdict = parse(Level::V5, &hex(bytes));
        assert!(matches!(verdict, Ok(Some(_))), "{bytes}: {verdict:?}");
    }
    assert_eq!(parse(Level::V5, &hex("2003 00")), Ok(None));
    assert_eq!(parse(Level::V5, &[]), Ok(None));
    assert_eq!(prop::subscription_id(300), hex("0b ac02"));
}
