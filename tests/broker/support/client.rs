//! A blocking client on a bare socket: it reads only when told to, so it can be as slow, as rude
//! or as broken as a test needs.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use super::harness::Broker;
use super::link::{Link, Transport};
use super::packets::{Connect, Level, hex, wire};
use super::parse::{AckKind, Packet, Publish, parse};
use super::properties::Properties;

/// How long an answer may take before the test fails: long, because a loaded machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) struct Client {
    stream: Link,
    pub(crate) level: Level,
    /// Bytes read and not yet parsed.
    read: Vec<u8>,
    /// Packets that arrived while another one was awaited.
    waiting: VecDeque<Packet>,
    next_id: u16,
    pub(crate) session_present: bool,
    pub(crate) connack: Properties,
}

/// The end of a connection as the client saw it.
#[derive(Debug)]
pub(crate) struct Closed {
    /// What came before the end and was not read yet.
    pub(crate) packets: Vec<Packet>,
}

impl Closed {
    /// The code of a final DISCONNECT, if there was one.
    pub(crate) fn reason(&self) -> Option<u8> {
        match self.packets.last() {
            Some(Packet::Disconnect { code, .. }) => Some(*code),
            Some(_) | None => None,
        }
    }
}

impl Client {
    /// A socket on which nothing was said yet.
    pub(crate) fn open(broker: &Broker, level: Level) -> Client {
        let stream = TcpStream::connect(broker.door()).expect("the broker listens");
        Client::over(stream, level)
    }

    /// A socket to another address of this machine.
    #[allow(dead_code, reason = "the crash tests don't need it")]
    pub(crate) fn open_at(broker: &Broker, address: IpAddr, level: Level) -> Client {
        let to = SocketAddr::new(address, broker.address().port());
        Client::over(TcpStream::connect(to).expect("the broker listens"), level)
    }

    /// A socket with a receive buffer so small that the broker soon can't write to it.
    pub(crate) fn open_narrow(broker: &Broker, level: Level) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&SocketAddr::from(broker.door()).into()).expect("the broker listens");
        Client::over(socket.into(), level)
    }

    fn over(stream: TcpStream, level: Level) -> Client {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client::on(Link::over(stream, Transport::chosen()), level)
    }

    /// A client on a connection that stands.
    pub(crate) fn on(stream: Link, level: Level) -> Client {
        Client {
            stream,
            level,
            read: Vec::new(),
            waiting: VecDeque::new(),
            next_id: 0,
            session_present: false,
            connack: Properties::default(),
        }
    }

    /// Connects, and insists on being let in.
    #[track_caller]
    pub(crate) fn connect(broker: &Broker, connect: &Connect) -> Client {
        Client::open(broker, connect.level).say_hello(connect)
    }

    #[track_caller]
    pub(crate) fn say_hello(mut self, connect: &Connect) -> Client {
        self.send(&connect.bytes());
        match self.recv() {
            Packet::Connack { session_present, code: 0, properties } => {
                self.session_present = session_present;
                self.connack = properties;
            }
            other => panic!("CONNECT was answered with {other:?}"),
        }
        self
    }

    // --- sending

    #[track_caller]
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection is open");
        self.stream.flush().expect("the connection is open");
    }

    /// Sends what the broker may well not read any more.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok() && self.stream.flush().is_ok()
    }

    /// Sends a chunk so many times, or until the broker doesn't read for this long; returns how
    /// many bytes left.
    pub(crate) fn send_until_stuck(&mut self, chunk: &[u8], times: usize, wait: Duration) -> usize {
        self.stream.socket().set_write_timeout(Some(wait)).unwrap();
        let mut sent = 0;
        'all: for _ in 0..times {
            let mut rest = chunk;
            while !rest.is_empty() {
                match self.stream.write(rest) {
                    Ok(length) => (sent, rest) = (sent + length, &rest[length..]),
                    Err(_) => break 'all,
                }
            }
        }
        self.stream.socket().set_write_timeout(Some(PATIENCE)).unwrap();
        sent
    }

    #[track_caller]
    pub(crate) fn send_hex(&mut self, digits: &str) {
        self.send(&hex(digits));
    }

    pub(crate) fn fresh_id(&mut self) -> u16 {
        self.next_id = self.next_id % u16::MAX + 1;
        self.next_id
    }

    /// Publishes and, at QoS 1 and 2, sees the exchange through; returns the acknowledgement's
    /// reason code.
    #[track_caller]
    pub(crate) fn publish(
        &mut self,
        topic: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
        qos: u8,
    ) -> u8 {
        self.publish_with(topic, payload, qos << 1, &[])
    }

    #[track_caller]
    pub(crate) fn retain(&mut self, topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> u8 {
        self.publish_with(topic, payload, 1 << 1 | 1, &[])
    }

    #[track_caller]
    pub(crate) fn publish_with(
        &mut self,
        topic: impl AsRef<[u8]>,
        payload: impl AsRef<[u8]>,
        flags: u8,
        properties: &[u8],
    ) -> u8 {
        let id = if flags & 6 == 0 { 0 } else { self.fresh_id() };
        self.send(&wire::publish(self.level, flags, topic, id, properties, payload));
        match flags >> 1 & 3 {
            0 => 0,
            1 => self.acknowledged(AckKind::Puback, id),
            _ => {
                let code = self.acknowledged(AckKind::Pubrec, id);
                if code < 0x80 {
                    self.send(&wire::ack(6, id));
                    self.acknowledged(AckKind::Pubcomp, id);
                }
                code
            }
        }
    }

    /// Waits for one acknowledgement; what else arrives meanwhile is kept.
    #[track_caller]
    pub(crate) fn acknowledged(&mut self, kind: AckKind, id: u16) -> u8 {
        let wanted = |packet: &Packet| match packet {
            Packet::Ack { kind: other, id: other_id, .. } => (*other, *other_id) == (kind, id),
            _ => false,
        };
        match self.wait_for(wanted) {
            Packet::Ack { code, .. } => code,
            other => unreachable!("{other:?} was not asked for"),
        }
    }

    /// Waits for the acknowledgements of all these ids; each must be a success.
    #[track_caller]
    pub(crate) fn acknowledged_all(&mut self, kind: AckKind, ids: impl IntoIterator<Item = u16>) {
        for id in ids {
            let code = self.acknowledged(kind, id);
            assert!(code < 0x80, "{kind:?} {id} with code {code:#x}");
        }
    }

    /// Subscribes to one filter and returns SUBACK's code.
    #[track_caller]
    pub(crate) fn subscribe(&mut self, filter: impl AsRef<[u8]>, options: u8) -> u8 {
        self.subscribe_with(&[(filter.as_ref(), options)], &[])[0]
    }

    /// Subscribes to several filters; there is one code for each.
    #[track_caller]
    pub(crate) fn subscribe_with(&mut self, filters: &[(&[u8], u8)], properties: &[u8]) -> Vec<u8> {
        let id = self.fresh_id();
        self.send(&wire::subscribe(self.level, id, properties, filters));
        let wanted = |packet: &Packet| matches!(packet, Packet::Suback { .. });
        match self.wait_for(wanted) {
            Packet::Suback { id: answered, codes, .. } => {
                assert_eq!(answered, id, "SUBACK's packet identifier");
                assert_eq!(codes.len(), filters.len(), "one code a filter");
                codes
            }
            other => unreachable!("{other:?} was not asked for"),
        }
    }

    /// Unsubscribes; the codes are empty on the older levels.
    #[track_caller]
    pub(crate) fn unsubscribe(&mut self, filters: &[&[u8]]) -> Vec<u8> {
        let id = self.fresh_id();
        self.send(&wire::unsubscribe(self.level, id, filters));
        let wanted = |packet: &Packet| matches!(packet, Packet::Unsuback { .. });
        match self.wait_for(wanted) {
            Packet::Unsuback { id: answered, codes, .. } => {
                assert_eq!(answered, id, "UNSUBACK's packet identifier");
                codes
            }
            other => unreachable!("{other:?} was not asked for"),
        }
    }

    /// PINGREQ and its answer: everything that was sent before has been read by the broker.
    #[track_caller]
    pub(crate) fn ping(&mut self) {
        self.send(&wire::PINGREQ);
        self.wait_for(|packet| *packet == Packet::Pingresp);
    }

    // --- receiving

    /// The next packet, whatever it is.
    #[track_caller]
    pub(crate) fn recv(&mut self) -> Packet {
        match self.recv_or_end(PATIENCE) {
            Ok(Some(packet)) => packet,
            Ok(None) => panic!("no packet before the patience ended"),
            Err(end) => panic!("the broker closed: {end}"),
        }
    }

    /// The next packet, if one comes in this time and the connection lives.
    #[track_caller]
    pub(crate) fn recv_within(&mut self, time: Duration) -> Option<Packet> {
        if let Some(packet) = self.waiting.pop_front() {
            return Some(packet);
        }
        self.read_packet(Instant::now() + time).ok().flatten()
    }

    /// The next packet, none in this time, or how the connection ended.
    #[allow(dead_code, reason = "the crash tests need it")]
    #[track_caller]
    pub(crate) fn recv_or_end(&mut self, time: Duration) -> Result<Option<Packet>, String> {
        match self.waiting.pop_front() {
            Some(packet) => Ok(Some(packet)),
            None => self.read_packet(Instant::now() + time),
        }
    }

    /// The next packet that fits; the others wait for their turn.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, wanted: impl Fn(&Packet) -> bool) -> Packet {
        if let Some(at) = self.waiting.iter().position(&wanted) {
            return self.waiting.remove(at).expect("the position was just found");
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.read_packet(deadline) {
                Ok(Some(packet)) if wanted(&packet) => return packet,
                Ok(Some(packet)) => self.waiting.push_back(packet),
                Ok(None) => panic!("no answer; meanwhile came {:?}", self.waiting),
                Err(end) => panic!("the broker closed: {end}; before came {:?}", self.waiting),
            }
        }
    }

    /// The next PUBLISH, without acknowledging it.
    #[track_caller]
    pub(crate) fn expect_publish(&mut self) -> Publish {
        match self.wait_for(|packet| matches!(packet, Packet::Publish(_))) {
            Packet::Publish(publish) => publish,
            other => unreachable!("{other:?} was not asked for"),
        }
    }

    /// The next PUBLISH, seen through to its last acknowledgement.
    #[track_caller]
    pub(crate) fn take(&mut self) -> Publish {
        let publish = self.expect_publish();
        self.accept(&publish);
        publish
    }

    /// Like `take`, if one comes in this time. A PUBREL whose PUBCOMP was lost with the connection
    /// before, or by a crash, is answered once more.
    #[track_caller]
    pub(crate) fn take_within(&mut self, time: Duration) -> Option<Publish> {
        loop {
            match self.recv_within(time)? {
                Packet::Publish(publish) => {
                    self.accept(&publish);
                    return Some(publish);
                }
                Packet::Ack { kind: AckKind::Pubrel, id, .. } => self.send(&wire::ack(7, id)),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Takes what comes until this long nothing came.
    #[track_caller]
    pub(crate) fn drain(&mut self, quiet: Duration) -> Vec<Publish> {
        std::iter::from_fn(|| self.take_within(quiet)).collect()
    }

    #[track_caller]
    fn accept(&mut self, publish: &Publish) {
        match publish.qos {
            0 => {}
            1 => self.send(&wire::ack(4, publish.id)),
            _ => {
                self.send(&wire::ack(5, publish.id));
                assert_eq!(self.acknowledged(AckKind::Pubrel, publish.id), 0, "PUBREL's code");
                self.send(&wire::ack(7, publish.id));
            }
        }
    }

    /// Nothing comes for this long, and the connection stays.
    #[track_caller]
    pub(crate) fn expect_silence(&mut self, time: Duration) {
        assert!(self.waiting.is_empty(), "already here: {:?}", self.waiting);
        match self.read_packet(Instant::now() + time) {
            Ok(None) => {}
            Ok(Some(packet)) => panic!("expected silence, got {packet:?}"),
            Err(end) => panic!("expected silence, but the broker closed: {end}"),
        }
    }

    /// The broker ends the connection; returns what it said before.
    #[track_caller]
    pub(crate) fn expect_close(&mut self) -> Closed {
        self.expect_close_within(PATIENCE)
    }

    #[track_caller]
    pub(crate) fn expect_close_within(&mut self, time: Duration) -> Closed {
        let deadline = Instant::now() + time;
        let mut packets: Vec<Packet> = self.waiting.drain(..).collect();
        loop {
            match self.read_packet(deadline) {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => panic!("the broker keeps the connection open; it sent {packets:?}"),
                Err(_) => return Closed { packets },
            }
        }
    }

    /// The broker ends the connection: on level 5 with a DISCONNECT of one of these codes, on the
    /// older levels (CON-13) without a word.
    #[track_caller]
    pub(crate) fn expect_refusal(&mut self, codes: &[u8]) {
        let closed = self.expect_close();
        if self.level.is_v5() {
            let reason = closed.reason();
            let fits = reason.is_some_and(|code| codes.contains(&code));
            assert!(fits, "expected DISCONNECT {codes:02x?}, got {closed:?}");
        } else {
            assert!(closed.packets.is_empty(), "expected a bare close, got {closed:?}");
        }
    }

    /// A CONNECT is refused: by a bare close or by a CONNACK with one of these codes and a close.
    #[track_caller]
    pub(crate) fn expect_connect_refused(&mut self, codes: &[u8]) {
        let closed = self.expect_close();
        match closed.packets.as_slice() {
            [] => {}
            [Packet::Connack { code, .. }] if codes.contains(code) => {}
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    /// Exactly these bytes, and then the end.
    #[track_caller]
    pub(crate) fn expect_bytes_then_close(&mut self, bytes: &[u8]) {
        let mut got = std::mem::take(&mut self.read);
        self.stream.socket().set_read_timeout(Some(PATIENCE)).unwrap();
        match self.stream.read_to_end(&mut got) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => {
                panic!("the broker keeps the connection open ({error}); it sent {got:02x?}")
            }
        }
        assert_eq!(got, bytes, "the broker's last bytes");
    }

    /// A packet, none before the deadline, or the end of the connection.
    #[track_caller]
    fn read_packet(&mut self, deadline: Instant) -> Result<Option<Packet>, String> {
        loop {
            match parse(self.level, &self.read) {
                Ok(Some((packet, length))) => {
                    self.read.drain(..length);
                    return Ok(Some(packet));
                }
                Ok(None) => {}
                Err(fault) => panic!("the broker sent a malformed packet: {fault}"),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.socket().set_read_timeout(Some(left)).unwrap();
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(self.end("end of stream")),
                Ok(length) => self.read.extend_from_slice(&chunk[..length]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                        return Err(self.end("reset"));
                    }
                    _ => panic!("reading failed: {error}"),
                },
            }
        }
    }

    fn end(&self, how: &str) -> String {
        assert!(self.read.is_empty(), "the broker closed inside a packet: {:02x?}", self.read);
        how.to_owned()
    }

    // --- leaving

    /// A goodbye, after which the broker closes; back when it has.
    #[track_caller]
    pub(crate) fn disconnect(mut self) {
        self.send(&wire::DISCONNECT);
        let closed = self.expect_close();
        let only_publishes = |packet: &Packet| matches!(packet, Packet::Publish(_));
        assert!(closed.packets.iter().all(only_publishes), "after DISCONNECT came {closed:?}");
    }

    /// The connection breaks without a goodbye: the peer sees a reset. Like any breaking connection
    /// it may take with it what was sent last, such as an acknowledgement: `ping` first where a
    /// test rests on its arrival.
    pub(crate) fn reset(self) {
        SockRef::from(self.stream.socket()).set_linger(Some(Duration::ZERO)).unwrap();
    }
}
