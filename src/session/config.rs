//! What an operator decides about sessions: handshake, admission, keep alive, expiry.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::RateWindows;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// From CONNECT to its durable claim. Longer: 0x88 (v3: 3).
    pub claim_timeout: Duration,
    /// Packets before CONNACK. More: closed, counted as `Quota exceeded` (MET-3).
    pub pre_connect_packets: usize,
    /// Messages read ahead of the log (IN-4). Full: the socket is not read.
    pub read_ahead_messages: usize,
    /// Bytes read ahead of the log, or one packet if it is larger (IN-4).
    pub read_ahead_bytes: usize,
    /// Un-appended publishes of the whole node (IN-4). Full: readers wait in turn.
    pub inbound_budget_bytes: usize,
    /// How long a publisher is held for the log (IN-7).
    pub append_timeout: Duration,
    /// Publishers are held while so many bytes wait for dispatch (IN-8).
    pub dispatch_lag_max_bytes: u64,
    /// Publishers are held while the oldest record that waits for dispatch is so old (IN-8).
    pub dispatch_lag_max_age: Duration,
    /// Our Receive Maximum (RM-1). A client that passes it is sent 0x93.
    pub receive_maximum: u16,
    /// Server Keep Alive for v5 clients that ask for more, or for none; `None`: no cap.
    pub max_keep_alive_secs: Option<u16>,
    /// Levels in a topic name or filter; `None`: no limit.
    pub max_topic_segments: Option<u16>,
    /// Topic Alias Maximum that we announce; 0: no aliases are taken.
    pub topic_alias_max: u16,
    /// May a client subscribe to `#`?
    pub allow_root_wildcard: bool,
    /// May clients share subscriptions? `false`: CONNACK says so, and a v5 client that tries is
    /// disconnected with 0x9E (v3: 0x80 in its SUBACK).
    pub shared_subscriptions: bool,
    /// May an APPLICATION client share a subscription that has no entity? `false`: 0x8F (v3: 0x80)
    /// in its SUBACK.
    pub app_shares_without_entity: bool,
    /// Subscriptions a client may have; `None`: no limit. More: 0x97 in its SUBACK.
    pub max_subscriptions_per_client: Option<usize>,
    /// Sessions, connected or not; `None`: no limit. More: CONNACK 0x97 (v3: 3).
    pub sessions_limit: Option<u64>,
    /// Persistent APPLICATION clients; `None`: no limit. More: CONNACK 0x97 (v3: 3).
    pub application_clients_limit: Option<u64>,
    /// Cap of a v5 Session Expiry Interval; `None`: no cap.
    pub max_session_expiry_secs: Option<u32>,
    /// Life of an idle v3 persistent session; `None`: for ever.
    pub v3_session_ttl_secs: Option<u32>,
    /// Longest client id of an MQTT 3.1 client, in characters. Longer: CONNACK 2.
    pub v31_max_client_id_chars: usize,
    /// Response Information for v5 clients that ask for it; `None`: none is sent.
    pub response_info: Option<Arc<str>>,
    /// Publishes of one client (LIM-1); `None`: not limited.
    pub incoming_rate: Option<RateWindows>,
    /// The cluster's budget (QUO-1).
    pub total_rate: TotalRate,
    /// Milliseconds of wall clock from which on no new session is taken, for want of a plan:
    /// CONNACK 0x97 (v3: 3); `None`: always.
    pub new_sessions_until_ms: Option<u64>,
}

/// The throughput quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TotalRate {
    /// `None`: not limited.
    pub windows: Option<RateWindows>,
    /// Tokens per draw; `None`: a tenth of the sustained rate, at least 1 (QUO-6).
    pub block_size: Option<u64>,
    /// How often unused tokens go back; `None`: never (QUO-7).
    pub lease_return: Option<Duration>,
}
