//! A Kafka that stands still: publishers wait for it, in bounds, and can be let go of. One that
//! refuses a message: it is given up for whom it was meant.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rustix::process::Signal;
use serde_json::json;
use sluice::storage::{Applications, KafkaConfig, KafkaSettings};

use crate::operator::{Operator, PASSWORD};
use crate::services::{Services, services};
use crate::support::{AckKind, Broker, Client, Connect, Level, Packet, Start, wire};

/// A Kafka of its own: others must not stand still with it.
struct Kafka(Services);

impl Kafka {
    fn node(&self, action: &str) {
        let folder = self.0.settings().into_iter().find(|(name, _)| name == "SERVICES_DIR");
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/services");
        let mut command = Command::new(script);
        command.args(["node", action, "kafka1", "--dir", &folder.unwrap().1]);
        assert!(command.status().unwrap().success(), "{action}");
    }
}

fn start(kafka: &Kafka, append_timeout: Duration) -> Broker {
    let mut start = Start::new()
        .env("QUEUE_APPEND_TIMEOUT_MS", append_timeout.as_millis())
        .env("ACTORS_SYSTEM_DISCONNECT_WAIT_TIMEOUT_MS", 1000)
        .env("TB_KAFKA_ADMIN_COMMAND_TIMEOUT_SEC", 2);
    for (name, value) in kafka.0.settings() {
        start = start.env(&name, value);
    }
    // Kafka's client says what it misses.
    for word in ["Kafka", "kafka", "log", "storage", "stop", "append", "commit"] {
        start = start.allow_log(word);
    }
    start.start()
}

/// Sends it, and does not wait for the answer.
fn publish(client: &mut Client, id: u16, payload: &str) {
    client.send(&wire::publish(Level::V5, 2, "t", id, &[], payload));
}

/// What came before the connection ended; never an acknowledgement.
fn expect_the_end_without_an_answer(client: &mut Client) {
    loop {
        match client.recv_or_end(Duration::from_secs(30)) {
            Ok(Some(Packet::Disconnect { .. })) => {}
            Ok(Some(packet)) => panic!("an answer that nobody can give: {packet:?}"),
            Ok(None) => panic!("held for longer than the log may take"),
            Err(_) => return,
        }
    }
}

/// IN-7, IN-2, IN-5: a publisher that is held for a Kafka that does not answer is let go of in
/// time, and is not told that its message is stored; others are let go of when they end
/// themselves. When Kafka goes on, so does the broker, by itself: what it acknowledged is there,
/// once and in order.
#[test]
fn a_kafka_that_hangs_gets_no_acknowledgement_out_of_it() {
    if services().is_none() {
        return;
    }
    let kafka = Kafka(Services::start(&[]).unwrap());
    let broker = start(&kafka, Duration::from_secs(2));
    let mut subscriber = Client::connect(&broker, &Connect::v5("s"));
    subscriber.subscribe("t", 1);
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publisher.publish("t", "before", 1);
    assert_eq!(subscriber.take().payload(), "before");
    let mut waits = Client::connect(&broker, &Connect::v5("waits"));
    let mut leaves = Client::connect(&broker, &Connect::v5("leaves"));
    kafka.node("stop");
    publish(&mut publisher, 100, "in doubt");
    publish(&mut waits, 100, "in doubt");
    publish(&mut leaves, 100, "in doubt");
    // Whoever waits for the log is still written to.
    waits.ping();
    leaves.reset();
    expect_the_end_without_an_answer(&mut publisher);
    expect_the_end_without_an_answer(&mut waits);
    broker.await_metric("connectedSessions", 1.0);
    kafka.node("cont");
    // A claim is a record of the log, too: it is refused until Kafka is well.
    let mut publisher = loop {
        let mut client = Client::open(&broker, Level::V5);
        client.send(&Connect::v5("p").bytes());
        match client.recv_or_end(Duration::from_secs(30)) {
            Ok(Some(Packet::Connack { code: 0, .. })) => break client,
            Ok(Some(_)) | Err(_) => std::thread::sleep(Duration::from_millis(100)),
            Ok(None) => panic!("no word to a CONNECT"),
        }
    };
    (0..10).for_each(|number| _ = publisher.publish("t", number.to_string(), 1));
    let mut got = Vec::new();
    while got.len() < 10 {
        let payload = subscriber.take().payload();
        if payload != "in doubt" {
            got.push(payload);
        }
    }
    assert_eq!(got, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
}

/// INV-5: what waits for a Kafka that does not answer costs memory, in bounds, and no processor:
/// its client library asks its socket in a loop whether an overdue record may follow others.
#[test]
fn a_kafka_that_hangs_costs_no_processor() {
    const CLIENTS: u16 = 12;
    const TICKS_A_SECOND: u64 = 100;
    if services().is_none() {
        return;
    }
    let kafka = Kafka(Services::start(&[]).unwrap());
    let broker = start(&kafka, Duration::from_secs(600));
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|number| Client::connect(&broker, &Connect::v5(format!("p{number}"))))
        .collect();
    clients[0].publish("t", "before", 1);
    kafka.node("stop");
    for round in 1..4 {
        // Records of all of them are on their way; those of the next round can't follow.
        clients.iter_mut().for_each(|client| publish(client, round, "in doubt"));
        clients.iter_mut().for_each(Client::ping);
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = broker.cpu_ticks();
    std::thread::sleep(Duration::from_secs(2));
    let used = broker.cpu_ticks() - before;
    kafka.node("cont");
    assert!(used < TICKS_A_SECOND, "{used} ticks in two seconds");
    for client in &mut clients {
        client.acknowledged_all(AckKind::Puback, 1..4);
    }
}

/// IN-7: a stop does not wait for publishers that Kafka keeps waiting.
#[test]
fn a_stop_lets_go_of_who_waits_for_kafka() {
    if services().is_none() {
        return;
    }
    let kafka = Kafka(Services::start(&[]).unwrap());
    let mut broker = start(&kafka, Duration::from_secs(600));
    let mut publisher = Client::connect(&broker, &Connect::v5("p"));
    publisher.publish("t", "before", 1);
    kafka.node("stop");
    publish(&mut publisher, 100, "in doubt");
    publisher.ping();
    broker.signal(Signal::TERM);
    expect_the_end_without_an_answer(&mut publisher);
    // It may say by its status that something was left undone; it does not wait for ever.
    broker.await_exit();
    kafka.node("cont");
}

/// The topics of APPLICATION sessions.
fn application_topics(servers: &str, prefix: &str) -> Vec<String> {
    let (servers, prefix) = (servers.to_owned(), prefix.to_owned());
    let config = KafkaConfig { servers, prefix, ..KafkaConfig::default() };
    let group = Applications::group(&KafkaSettings::new(config)).unwrap();
    group.into_iter().map(|(topic, _)| topic).collect()
}

/// What an administrator of Kafka may do at any time.
fn limit_records(servers: &str, topic: &str, bytes: &str) {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("max.message.bytes", bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(admin.alter_configs([&change], &AdminOptions::new())).unwrap();
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// IN-9, INV-7: a message that is too large for the topic of one client's log is given up for that
/// client after a few tries, and counted; what was published with it reaches that client, and the
/// large one reaches the others: the partition goes on.
#[test]
fn a_message_that_one_log_refuses_is_given_up_for_its_client() {
    const PREFIX: &str = "refuses.";
    let Some(services) = services() else { return };
    let broker = Start::new()
        .env("TB_KAFKA_PREFIX", PREFIX)
        .env("CACHE_PREFIX", PREFIX)
        .env("SECURITY_ADMIN_PASSWORD", PASSWORD)
        .env("SECURITY_MQTT_BASIC_ENABLED", "true")
        .allow_log("it is given up")
        .start();
    let operator = Operator::login(&broker);
    operator.credential("dev", &json!({ "userName": "dev" }));
    let value = json!({ "userName": "app" });
    let body = json!({ "name": "app", "clientType": "APPLICATION", "credentialsValue": value });
    operator.post("/api/mqtt/client/credentials", &body).ok();
    let mut client = Client::connect(&broker, &Connect::v5("a").user("app").persistent());
    client.subscribe("t", 1);
    let mut other = Client::connect(&broker, &Connect::v5("d").user("dev").persistent());
    other.subscribe("t", 1);
    for topic in application_topics(services.kafka(), PREFIX) {
        limit_records(services.kafka(), &topic, "4096");
    }
    let mut publisher = Client::connect(&broker, &Connect::v5("p").user("dev"));
    let payload = |number: usize| match number % 10 {
        5 => format!("{number} {}", "x".repeat(20_000)),
        _ => number.to_string(),
    };
    let ids: Vec<u16> = (0..30).map(|_| publisher.fresh_id()).collect();
    let packet =
        |(number, id): (usize, &u16)| wire::publish(Level::V5, 2, "t", *id, &[], payload(number));
    let packets: Vec<u8> = ids.iter().enumerate().flat_map(packet).collect();
    publisher.send(&packets);
    publisher.acknowledged_all(AckKind::Puback, ids);
    for number in 0..30 {
        assert_eq!(other.take().payload(), payload(number));
    }
    for number in (0..30).filter(|number| number % 10 != 5) {
        assert_eq!(client.take().payload(), payload(number));
    }
    publisher.publish("t", "after", 1);
    assert_eq!(client.take().payload(), "after");
    client.ping();
    broker.eventually("the loss is counted", |broker| broker.dropped("Delivery failed") == 3);
}
