//! Sessions over the faulty backend: what a refused, doubtful or overtaken append must not cost.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use super::{Arrival, Config, Handles, Peer, Sessions};
use crate::delivery;
use crate::mqtt::{ClientId, Delivery, QoS};
use crate::routing::{self, GroupQueues, Parts};
use crate::security::{self, Security};
use crate::storage::once;
use crate::storage::{
    DirectCopy, Faults, LogConsumer, Memory, MemoryConfig, NodeId, PublishLog, QueueKey,
};
use crate::telemetry::{Door, task};

const PUBLISH: u8 = 0x34;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;

pub(super) fn config(inbound_budget_bytes: usize) -> Config {
    Config {
        claim_timeout: Duration::from_secs(5),
        pre_connect_packets: 100,
        read_ahead_messages: 100,
        read_ahead_bytes: 1 << 16,
        inbound_budget_bytes,
        append_timeout: Duration::from_secs(5),
        dispatch_lag_max_bytes: 1 << 30,
        dispatch_lag_max_age: Duration::from_secs(60),
        receive_maximum: 100,
        max_keep_alive_secs: None,
        max_topic_segments: None,
        topic_alias_max: 0,
        allow_root_wildcard: true,
        shared_subscriptions: true,
        app_shares_without_entity: true,
        max_subscriptions_per_client: None,
        sessions_limit: None,
        application_clients_limit: None,
        max_session_expiry_secs: None,
        v3_session_ttl_secs: None,
        v31_max_client_id_chars: 23,
        response_info: None,
        incoming_rate: None,
        total_rate: crate::session::TotalRate::default(),
        new_sessions_until_ms: None,
    }
}

fn delivery() -> delivery::Config {
    delivery::Config {
        write_buffer_high_bytes: 1 << 16,
        write_buffer_low_bytes: 1 << 15,
        v3_receive_maximum: 100,
        delayed_messages: 100,
        delayed_ttl: Duration::from_secs(60),
        topic_alias_max: 0,
        topic_alias_min_bytes: 0,
        outgoing_rate: None,
    }
}

/// A node over the memory backend.
pub(super) struct Node {
    memory: Memory,
    pub(super) sessions: Sessions,
    dispatcher: JoinHandle<()>,
}

impl Node {
    pub(super) fn new(inbound_budget_bytes: usize) -> Self {
        Self::with(config(inbound_budget_bytes))
    }

    fn with(config: Config) -> Self {
        Self::on(Memory::new(MemoryConfig::default()), config, Duration::ZERO)
    }

    /// What a crash leaves, started again on a storage that is well.
    pub(super) fn crash(mut self, will_grace: Duration) -> Self {
        self.dispatcher.abort();
        self.well();
        let memory = Memory::new(MemoryConfig::default());
        let memory = std::mem::replace(&mut self.memory, memory).crash();
        Self::on(memory, config(1 << 20), will_grace)
    }

    /// An orderly end, and started again.
    pub(super) fn restart(mut self) -> Self {
        self.dispatcher.abort();
        let memory = Memory::new(MemoryConfig::default());
        let memory = std::mem::replace(&mut self.memory, memory).restart();
        Self::on(memory, config(1 << 20), Duration::ZERO)
    }

    fn on(memory: Memory, config: Config, will_grace: Duration) -> Self {
        Self::over(memory, config, will_grace, |log| log)
    }

    /// `wrap`: somebody who looks at what goes into the log.
    pub(super) fn over(
        memory: Memory,
        config: Config,
        will_grace: Duration,
        wrap: impl FnOnce(Arc<dyn PublishLog>) -> Arc<dyn PublishLog>,
    ) -> Self {
        let mut stores = memory.stores();
        stores.log = wrap(stores.log);
        let parts = Parts::bare(&stores);
        let security = Security::new(security::Config::default(), Arc::clone(&stores.tables));
        let sessions = Sessions::new(Handles {
            config,
            delivery: Arc::new(delivery()),
            node: NodeId(Arc::from("n")),
            log: Arc::clone(&stores.log),
            tables: Arc::clone(&stores.tables),
            queues: Arc::clone(&stores.queues),
            slots: Arc::clone(&parts.slots),
            subscriptions: Arc::clone(&parts.subscriptions),
            retained: Arc::clone(&parts.retained),
            judge: Arc::clone(&parts.judge),
            progress: Arc::clone(&parts.progress),
            security: security.expect("no key is needed"),
            limits: Arc::clone(&parts.limits),
            retained_expiry_period: Duration::from_secs(60),
            peers: None,
            groups: GroupQueues::new(parts.clone()),
        });
        sessions.load(will_grace).expect("the store loads");
        let consumer: Box<dyn LogConsumer> = stores.log.consumer(0).1;
        let dispatcher = task::spawn("dispatcher", routing::run(consumer, parts, Vec::new()));
        Self { memory, sessions, dispatcher }
    }

    fn refuse(&self) {
        self.memory.set_faults(Faults { not_stored: 1000, ..Faults::default() });
    }

    fn slow(&self, delay: Duration) {
        self.memory.set_faults(Faults { delay, ..Faults::default() });
    }

    /// Rows are stored, messages are not.
    pub(super) fn refuse_messages(&self) {
        self.memory.set_faults(Faults { no_messages: true, ..Faults::default() });
    }

    pub(super) fn well(&self) {
        self.memory.set_faults(Faults::default());
    }

    /// A persistent client; level 4 or 5.
    pub(super) async fn connect(&self, level: u8, id: u8) -> Client {
        let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', level, 0, 0, 0];
        if level == 5 {
            body.extend([5, 0x11, 0, 0, 1, 0]);
        }
        body.extend([0, 1, id]);
        self.connect_by(level, &body).await
    }

    /// The body is that of CONNECT.
    pub(super) async fn connect_by(&self, level: u8, body: &[u8]) -> Client {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(theirs);
        let sessions = self.sessions.clone();
        let peer = Peer { door: Door::Tcp, address: None, tls: None };
        let connect_by = tokio::time::Instant::now() + Duration::from_secs(10);
        let arrival = Arrival::of(peer, 1 << 16, connect_by);
        task::spawn("connection", async move { sessions.serve(read, write, arrival).await });
        let mut client = Client { stream: ours, level };
        client.send(0x10, body).await;
        let connack = client.expect(0x20).await;
        assert_eq!(connack[1], 0, "CONNACK's code");
        client
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.dispatcher.abort();
    }
}

pub(super) struct Client {
    pub(super) stream: DuplexStream,
    level: u8,
}

impl Client {
    pub(super) async fn send(&mut self, first: u8, body: &[u8]) {
        let mut bytes = vec![first, u8::try_from(body.len()).expect("a short packet")];
        bytes.extend(body);
        self.stream.write_all(&bytes).await.expect("the connection is open");
    }

    /// QoS 2 on topic `t`.
    async fn publish(&mut self, dup: bool, id: u8, payload: &[u8]) {
        let mut body = vec![0, 1, b't', 0, id];
        body.extend((self.level == 5).then_some(0));
        body.extend(payload);
        self.send(PUBLISH | u8::from(dup) << 3, &body).await;
    }

    pub(super) async fn subscribe(&mut self) {
        let mut body = vec![0, 1];
        body.extend((self.level == 5).then_some(0));
        body.extend([0, 1, b't', 1]);
        self.send(0x82, &body).await;
        self.expect(0x90).await;
    }

    /// The next packet; `None`: the connection has ended.
    async fn recv(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.stream.read_u8().await.ok()?;
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = self.stream.read_u8().await.ok()?;
            length |= usize::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.ok()?;
        Some((first, body))
    }

    pub(super) async fn expect(&mut self, first: u8) -> Vec<u8> {
        let packet = tokio::time::timeout(Duration::from_secs(30), self.recv()).await;
        let (got, body) = packet.expect("an answer in time").expect("the connection is open");
        assert_eq!(got, first, "a packet of the type {first:#x}; its body is {body:02x?}");
        body
    }

    async fn expect_end(&mut self) {
        let end = async { while self.recv().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), end).await.expect("the connection ends");
    }

    /// From PUBREC to PUBCOMP.
    async fn see_through(&mut self, id: u8) {
        assert_eq!(self.expect(PUBREC).await[..2], [0, id]);
        self.send(PUBREL, &[0, id]).await;
        assert_eq!(self.expect(PUBCOMP).await, [0, id]);
    }

    /// A QoS 1 delivery's last byte, acknowledged.
    pub(super) async fn take(&mut self) -> u8 {
        let body = self.expect(0x32).await;
        self.send(0x40, &body[3..5]).await;
        *body.last().expect("a payload")
    }

    pub(super) async fn expect_silence(&mut self) {
        let silence = tokio::time::timeout(Duration::from_millis(200), self.recv()).await;
        assert!(silence.is_err(), "{silence:?}");
    }
}

/// QOS-01, IN-2: a QoS 2 message that was not stored is not answered as a repeat when it is sent
/// again: on level 4 the connection ended, on level 5 the client was told.
#[tokio::test(start_paused = true)]
async fn what_was_not_stored_is_no_repeat() {
    for level in [4, 5] {
        let node = Node::new(1 << 20);
        let mut subscriber = node.connect(5, b's').await;
        subscriber.subscribe().await;
        let mut client = node.connect(level, b'p').await;
        node.refuse();
        client.publish(false, 7, b"m").await;
        if level == 4 {
            client.expect_end().await;
        } else {
            assert_eq!(client.expect(PUBREC).await, [0, 7, 0x80]);
        }
        node.well();
        let mut client = node.connect(level, b'p').await;
        client.publish(true, 7, b"m").await;
        client.see_through(7).await;
        assert_eq!(subscriber.take().await, b'm', "level {level}");
        subscriber.expect_silence().await;
    }
}

/// QOS-01: a release that was not stored is recorded when it comes again, so that the id is free
/// for the next message.
#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_stored_is_recorded_again() {
    for level in [4, 5] {
        let node = Node::new(1 << 20);
        let mut subscriber = node.connect(5, b's').await;
        subscriber.subscribe().await;
        let mut client = node.connect(level, b'p').await;
        client.publish(false, 7, b"1").await;
        client.expect(PUBREC).await;
        node.refuse();
        client.send(PUBREL, &[0, 7]).await;
        client.expect_end().await;
        node.well();
        let mut client = node.connect(level, b'p').await;
        client.send(PUBREL, &[0, 7]).await;
        assert_eq!(client.expect(PUBCOMP).await, [0, 7]);
        client.publish(false, 7, b"2").await;
        client.see_through(7).await;
        assert_eq!(subscriber.take().await, b'1');
        assert_eq!(subscriber.take().await, b'2', "level {level}");
        subscriber.expect_silence().await;
    }
}

/// TKO-02, TKO-04: a message that waited for the node's budget when its connection was taken over
/// is not answered as a repeat on the new one, and is delivered once.
#[tokio::test(start_paused = true)]
async fn what_a_takeover_cut_off_before_the_log_is_no_repeat() {
    let node = Node::new(1024);
    let mut subscriber = node.connect(5, b's').await;
    subscriber.subscribe().await;
    let mut hog = node.connect(5, b'h').await;
    let mut client = node.connect(5, b'p').await;
    node.slow(Duration::from_millis(500));
    // Larger than what would leave room for another one.
    for id in 1..=9 {
        hog.publish(false, id, &[b'h'; 100]).await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    client.publish(false, 7, b"m").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut again = node.connect(5, b'p').await;
    client.expect_end().await;
    again.publish(true, 7, b"m").await;
    again.see_through(7).await;
    let mut got: Vec<u8> = Vec::new();
    for _ in 0..10 {
        got.push(subscriber.take().await);
    }
    got.sort_unstable();
    assert_eq!(got, b"hhhhhhhhhm");
    subscriber.expect_silence().await;
}

/// INV-3, IN-2: an answer that needs no append keeps its place behind those that wait for the log.
#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_overtake_an_acknowledgement() {
    let node = Node::new(1 << 20);
    let mut client = node.connect(5, b'p').await;
    node.slow(Duration::from_secs(2));
    client.publish(false, 7, b"m").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Clients may not publish below `$`, which is known without the log.
    client.send(PUBLISH, &[0, 2, b'$', b'x', 0, 8, 0, b'm']).await;
    assert_eq!(client.expect(PUBREC).await[..2], [0, 7], "the first packet's answer");
    assert_eq!(client.expect(PUBREC).await, [0, 8, 0x90]);
}

/// TKO-02: once a claim is on its way to the log, the connection before it appends nothing: no late
/// publish comes behind the claim, and none makes the id of the resend known.
#[tokio::test(start_paused = true)]
async fn nothing_of_the_old_connection_comes_behind_a_claim() {
    let node = Node::new(1 << 20);
    let mut subscriber = node.connect(5, b's').await;
    subscriber.subscribe().await;
    let mut old = node.connect(5, b'p').await;
    node.slow(Duration::from_secs(2));
    let late = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        old.publish(false, 7, b"l").await;
    };
    let (mut new, ()) = tokio::join!(node.connect(5, b'p'), late);
    old.expect_end().await;
    subscriber.expect_silence().await;
    new.publish(true, 7, b"m").await;
    new.see_through(7).await;
    assert_eq!(subscriber.take().await, b'm');
    subscriber.expect_silence().await;
}

/// IN-8: while dispatch lags behind, publishers are held; when it has caught up, they go on.
#[tokio::test(start_paused = true)]
async fn publishers_are_held_while_dispatch_lags() {
    let node = Node::with(Config { dispatch_lag_max_bytes: 200, ..config(1 << 20) });
    let sweeps = node.sessions.start();
    let mut client = node.connect(5, b'p').await;
    node.dispatcher.abort();
    for id in 1..=5 {
        client.publish(false, id, &[b'm'; 100]).await;
        client.expect(PUBREC).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // What had been waited for when it began to lag is read; nothing behind it.
    client.publish(false, 6, b"m").await;
    client.expect(PUBREC).await;
    client.publish(false, 7, b"m").await;
    client.expect_silence().await;
    sweeps.iter().for_each(tokio::task::JoinHandle::abort);
    node.sessions.context.set_lagging(false);
    assert_eq!(client.expect(PUBREC).await[..2], [0, 7]);
}

/// IN-5, INV-10: a connection that is not read, because dispatch lags, still gets its acks and
/// deliveries; what it sent meanwhile is dealt with afterwards.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_read_still_sends() {
    let node = Node::new(1 << 20);
    let mut client = node.connect(5, b'c').await;
    client.subscribe().await;
    let mut other = node.connect(5, b'p').await;
    node.sessions.context.set_lagging(true);
    client.publish(false, 1, b"1").await;
    let mut kinds = [client.recv().await, client.recv().await].map(|got| got.expect("open").0);
    kinds.sort_unstable();
    assert_eq!(kinds, [0x32, PUBREC], "its own message, and the answer");
    client.send(0xC0, &[]).await;
    other.publish(false, 1, b"2").await;
    assert_eq!(client.expect(0x32).await.last(), Some(&b'2'));
    client.expect_silence().await;
    node.sessions.context.set_lagging(false);
    client.expect(0xD0).await;
}

/// SUB-06, MQTT-3.8.4-1: a SUBSCRIBE or UNSUBSCRIBE that can't be stored is answered with an error
/// and changes nothing.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_was_not_stored_is_refused() {
    let node = Node::new(1 << 20);
    let mut client = node.connect(5, b's').await;
    let mut publisher = node.connect(5, b'p').await;
    node.refuse();
    client.send(0x82, &[0, 1, 0, 0, 1, b't', 1]).await;
    assert_eq!(client.expect(0x90).await, [0, 1, 0, 0x80]);
    node.well();
    publisher.publish(false, 1, b"1").await;
    publisher.see_through(1).await;
    client.expect_silence().await;
    client.subscribe().await;
    node.refuse();
    client.send(0xA2, &[0, 2, 0, 0, 1, b't']).await;
    assert_eq!(client.expect(0xB0).await, [0, 2, 0, 0x80]);
    node.well();
    publisher.publish(false, 2, b"2").await;
    publisher.see_through(2).await;
    assert_eq!(client.take().await, b'2', "it is subscribed still");
}

/// OUT-2: a retained copy on its way into a queue is dropped when a newer value was stored before
/// it.
#[tokio::test(start_paused = true)]
async fn a_retained_copy_that_was_overtaken_is_not_given() {
    let node = Node::new(1 << 20);
    let mut subscriber = node.connect(5, b's').await;
    subscriber.subscribe().await;
    let mut publisher = node.connect(5, b'p').await;
    let context = &node.sessions.context;
    let mut values = Vec::new();
    for id in [1, 2] {
        publisher.send(PUBLISH | 1, &[0, 1, b't', 0, id, 0, id]).await;
        publisher.see_through(id).await;
        assert_eq!(subscriber.take().await, id);
        values.push(context.retained.get("t").expect("a value in force"));
    }
    let client_id = ClientId::new("s");
    let mut locked = context.registry.lock(&client_id).await;
    let incarnation = locked.session().as_ref().expect("it is connected").incarnation;
    drop(locked);
    // As a cursor would that read the first value before the second was stored.
    for value in &values {
        let delivery = Delivery { qos: QoS::AtLeastOnce, retain: true };
        let none = Arc::from([]);
        let copy = DirectCopy { delivery, subscription_ids: none, origin: None, taken: None };
        let copies = Arc::from([copy]);
        let (to, batch) = (QueueKey::Client(client_id.clone()), Arc::clone(value.batch()));
        let (sink, mut settled) = once();
        context.log.append_direct(to, incarnation, batch, copies, sink, 0);
        settled.outcome().await;
    }
    let retained = subscriber.expect(0x33).await;
    assert_eq!(retained.last(), Some(&2), "the older value came behind the newer one");
    subscriber.expect_silence().await;
}
