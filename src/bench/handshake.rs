//! Everything that is encoded or decoded once per connection, with `mqttbytes`.

use bytes::{Bytes, BytesMut};
use mqttbytes::{QoS, v4, v5};

use super::frame::Template;
use super::plan::{Plan, Role, Version};

/// Largest handshake answer taken from a broker.
const ANSWER_MAX: usize = 256 * 1024;
const SESSION_EXPIRY_SECS: u32 = 3600;
/// The packet id of our only SUBSCRIBE.
const SUBSCRIBE_ID: u16 = 1;

fn qos(level: u8) -> QoS {
    match level {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

fn encoded(write: impl FnOnce(&mut BytesMut) -> Result<usize, mqttbytes::Error>) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    // The arguments are checked before (topic, sizes, packet id), so that this can't fail; an
    // empty frame would make the broker close, which is reported.
    if write(&mut bytes).is_err() {
        bytes.clear();
    }
    bytes.to_vec()
}

/// CONNECT of one connection; `clean` also removes a session that is there.
pub(super) fn connect(plan: &Plan, role: Role, clean: bool) -> Vec<u8> {
    let client_id = plan.client_id(role);
    let personal = |text: &String| plan.personal(role, text);
    let user = plan.args.username.as_ref().map(personal);
    let password = plan.args.password.as_ref().map(personal).unwrap_or_default();
    match plan.version {
        Version::V4 => {
            let mut packet = v4::Connect::new(client_id);
            packet.keep_alive = plan.args.keep_alive;
            packet.clean_session = clean;
            packet.login = user.map(|username| v4::Login { username, password });
            encoded(|out| packet.write(out))
        }
        Version::V5 => {
            let mut packet = v5::Connect::new(client_id);
            packet.keep_alive = plan.args.keep_alive;
            packet.clean_session = clean;
            packet.login = user.map(|username| v5::Login { username, password });
            if !clean {
                packet.properties = Some(v5::ConnectProperties {
                    session_expiry_interval: Some(SESSION_EXPIRY_SECS),
                    receive_maximum: None,
                    max_packet_size: None,
                    topic_alias_max: None,
                    request_response_info: None,
                    request_problem_info: None,
                    user_properties: Vec::new(),
                    authentication_method: None,
                    authentication_data: None,
                });
            }
            encoded(|out| packet.write(out))
        }
    }
}

pub(super) fn subscribe(plan: &Plan, filter: &str) -> Vec<u8> {
    let level = qos(plan.args.qos);
    match plan.version {
        Version::V4 => {
            let mut packet = v4::Subscribe::new(filter, level);
            packet.pkid = SUBSCRIBE_ID;
            encoded(|out| packet.write(out))
        }
        Version::V5 => {
            let mut packet = v5::Subscribe::new(filter, level);
            packet.pkid = SUBSCRIBE_ID;
            encoded(|out| packet.write(out))
        }
    }
}

/// The frame that one publisher sends again and again.
pub(super) fn template(plan: &Plan, publisher: u32) -> Template {
    let topic = plan.topic(publisher);
    let payload = Bytes::from(noise(plan.args.payload as usize));
    let (topic_bytes, payload_bytes) = (topic.len(), payload.len());
    let level = qos(plan.args.qos);
    let pkid = u16::from(plan.args.qos > 0);
    let bytes = match plan.version {
        Version::V4 => {
            let packet = v4::Publish { pkid, ..v4::Publish::from_bytes(topic, level, payload) };
            encoded(|out| packet.write(out))
        }
        Version::V5 => {
            let packet = v5::Publish { pkid, ..v5::Publish::from_bytes(topic, level, payload) };
            encoded(|out| packet.write(out))
        }
    };
    Template::new(bytes, topic_bytes, payload_bytes)
}

/// Bytes that don't compress, so that a broker which compresses gains nothing from our
/// uniformity.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// What a CONNACK grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) receive_maximum: u16,
    /// Where the broker replaces our Keep Alive.
    pub(super) keep_alive: Option<u16>,
}

/// What a CONNACK grants, or why there is no connection.
pub(super) fn connack(version: Version, whole: &[u8]) -> Result<Grant, String> {
    let plain = Grant { receive_maximum: u16::MAX, keep_alive: None };
    let mut bytes = BytesMut::from(whole);
    match version {
        Version::V4 => match v4::read(&mut bytes, ANSWER_MAX) {
            Ok(v4::Packet::ConnAck(ack)) if ack.code == v4::ConnectReturnCode::Success => Ok(plain),
            answer => Err(format!("refused: {answer:?}")),
        },
        Version::V5 => match v5::read(&mut bytes, ANSWER_MAX) {
            Ok(v5::Packet::ConnAck(ack)) if ack.code == v5::ConnectReturnCode::Success => {
                Ok(ack.properties.map_or(plain, |all| Grant {
                    receive_maximum: all.receive_max.unwrap_or(u16::MAX),
                    keep_alive: all.server_keep_alive,
                }))
            }
            answer => Err(format!("refused: {answer:?}")),
        },
    }
}

/// The QoS that a SUBACK grants, or why there is no subscription.
pub(super) fn suback(version: Version, whole: &[u8]) -> Result<u8, String> {
    let mut bytes = BytesMut::from(whole);
    match version {
        Version::V4 => match v4::read(&mut bytes, ANSWER_MAX) {
            Ok(v4::Packet::SubAck(ack)) => match ack.return_codes.first() {
                Some(v4::SubscribeReasonCode::Success(granted)) => Ok(*granted as u8),
                refusal => Err(format!("subscription refused: {refusal:?}")),
            },
            answer => Err(format!("no SUBACK: {answer:?}")),
        },
        Version::V5 => match v5::read(&mut bytes, ANSWER_MAX) {
            Ok(v5::Packet::SubAck(ack)) => match ack.return_codes.first() {
                Some(v5::SubscribeReasonCode::QoS0) => Ok(0),
                Some(v5::SubscribeReasonCode::QoS1) => Ok(1),
                Some(v5::SubscribeReasonCode::QoS2) => Ok(2),
                refusal => Err(format!("subscription refused: {refusal:?}")),
            },
            answer => Err(format!("no SUBACK: {answer:?}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::BenchArgs;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(words: &[&str]) -> Plan {
        let words = std::iter::once("bench").chain(words.iter().copied());
        Plan::new(Line::try_parse_from(words).unwrap().bench, 42).unwrap()
    }

    #[test]
    fn a_persistent_subscriber_asks_for_its_session_in_the_words_of_its_version() {
        let four = plan(&["--persistent", "--username", "u", "--password", "p"]);
        let bytes = connect(&four, Role::Subscriber(1), false);
        let decoded = v4::read(&mut BytesMut::from(&bytes[..]), 1000).unwrap();
        let v4::Packet::Connect(packet) = decoded else { panic!("{decoded:?}") };
        assert!(!packet.clean_session && packet.login.is_some());
        let five = plan(&["--persistent", "--v", "5"]);
        let bytes = connect(&five, Role::Subscriber(1), false);
        let decoded = v5::read(&mut BytesMut::from(&bytes[..]), 1000).unwrap();
        let v5::Packet::Connect(packet) = decoded else { panic!("{decoded:?}") };
        let expiry = packet.properties.and_then(|all| all.session_expiry_interval);
        assert_eq!(expiry, Some(SESSION_EXPIRY_SECS));
        assert!(five.keeps_session(Role::Subscriber(0)));
        assert!(!five.keeps_session(Role::Publisher(0)));
    }

    #[test]
    fn answers_say_what_is_granted_and_why_not() {
        assert_eq!(connack(Version::V4, &[0x20, 2, 0, 0]).unwrap().receive_maximum, u16::MAX);
        assert!(connack(Version::V4, &[0x20, 2, 0, 5]).unwrap_err().contains("NotAuthorized"));
        let five = [0x20, 9, 0, 0, 6, 0x21, 0, 20, 0x13, 0, 30];
        let grant = Grant { receive_maximum: 20, keep_alive: Some(30) };
        assert_eq!(connack(Version::V5, &five), Ok(grant));
        assert_eq!(suback(Version::V4, &[0x90, 3, 0, 1, 1]), Ok(1));
        assert!(suback(Version::V4, &[0x90, 3, 0, 1, 0x80]).is_err());
        assert_eq!(suback(Version::V5, &[0x90, 4, 0, 1, 0, 2]), Ok(2));
        assert!(suback(Version::V5, &[0x90, 4, 0, 1, 0, 0x87]).is_err());
    }

    #[test]
    fn roles_are_dealt_to_threads_without_gap_or_overlap() {
        let plan = plan(&["fan-in", "--clients", "7", "--threads", "3"]);
        let mut all: Vec<Role> = (0..3).flat_map(|thread| plan.roles(thread)).collect();
        all.sort_by_key(|role| format!("{role:?}"));
        let mut want: Vec<Role> = (0..7).map(Role::Publisher).collect();
        want.push(Role::Subscriber(0));
        assert_eq!(all, want);
        assert_eq!((plan.connections(), plan.copies(), plan.sources(0)), (8, 1, (0, 7)));
    }
}
