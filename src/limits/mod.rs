//! Room 0: every bound that no setting changes, in one place, and the relations between them,
//! which the compiler checks. Each constant says what happens when it is reached. Bounds that an
//! operator sets stand in `config/sluice.yml`; their built-in values are compared with the
//! `DEFAULT_` constants here by a test, so that the sum below stays true.
//!
//! # What one connection may hold (built-in settings)
//!
//! | what | bytes | constant |
//! |---|---|---|
//! | un-appended inbound packets, partial frame included | 262 144 | [`DEFAULT_READ_AHEAD_BYTES`] |
//! | one packet larger than that, at most | 65 536 | [`DEFAULT_MAX_PACKET_BYTES`] |
//! | packets before CONNACK (they are inside the read-ahead) | 0 | [`DEFAULT_PRE_CONNECT_PACKETS`] |
//! | outbound bytes, delayed messages included | 1 310 720 | [`DEFAULT_WRITE_BUFFER_HIGH_BYTES`] |
//! | the packet that passed the high mark | 65 536 | [`DEFAULT_MAX_PACKET_BYTES`] |
//! | control lane (acks, PINGRESP, DISCONNECT) | 65 536 | [`CONTROL_LANE_BYTES`] |
//! | one page of its durable queue | 262 144 | [`QUEUE_PAGE_BYTES`] |
//! | topic aliases, both ways, 10 of 65 535 | 1 310 700 | [`TOPIC_ALIAS_BYTES`] |
//! | **worst case** | **3 342 316** | [`CONNECTION_WORST_CASE_BYTES`] |
//!
//! Over TLS come up to 64 KiB of records on their way out and 34 KiB of one on its way in (rustls'
//! own bounds); over WebSocket a head.
//!
//! It is a worst case, not a price: an idle connection gives its buffers back and costs at most
//! 3 KiB. All connections together hold at most `listener.inbound_budget_bytes` on the way in.
//!
//! # Rates
//!
//! [`RateWindows`] are limits by time as an operator writes them, [`RateTable`] holds them for each
//! client or address by itself. What comes in: settings, keys, sizes. What goes out: yes or no.
//! Every room may call it. Never: a message, or a decision about what a refusal looks like.

mod rate_table;
mod windows;

pub use rate_table::{RateKey, RateTable};
pub use windows::{RateWindow, RateWindows, Unit, WINDOWS_MAX};

/// Bytes in a KB, as TBMQ's settings count them.
pub const KB: usize = 1024;

// === settings whose built-in value other bounds rely on ===

/// Messages a connection is read ahead of the log (IN-4). Full: the socket is not read.
pub const DEFAULT_READ_AHEAD_MESSAGES: usize = 1000;
/// Bytes a connection is read ahead of the log (IN-4). Full: the socket is not read.
pub const DEFAULT_READ_AHEAD_BYTES: usize = 262_144;
/// Un-appended publishes of all connections together (IN-4). Full: readers wait in turn.
pub const DEFAULT_INBOUND_BUDGET_BYTES: usize = 256 * KB * KB;
/// Queued bytes over which a connection is not writable (OUT-1). Full: QoS 0 copies are skipped,
/// queued ones stay in storage.
pub const DEFAULT_WRITE_BUFFER_HIGH_BYTES: usize = 1280 * KB;
/// Queued bytes under which it is writable again (OUT-1).
pub const DEFAULT_WRITE_BUFFER_LOW_BYTES: usize = 640 * KB;
/// Largest packet taken from a client. Larger: DISCONNECT 0x95 to a v5 client, and the end.
pub const DEFAULT_MAX_PACKET_BYTES: usize = 65_536;
/// QoS 1 and 2 messages that wait for credit in memory (RM-2). Full: counted as `Inflight window
/// exceeded`.
pub const DEFAULT_DELAYED_MESSAGES: usize = 1000;
/// Packets a client may send before its CONNACK. Full: the connection is closed (MET-3).
pub const DEFAULT_PRE_CONNECT_PACKETS: usize = 1000;
/// Messages in flight to us, our Receive Maximum (RM-1). More: DISCONNECT 0x93.
pub const DEFAULT_RECEIVE_MAXIMUM: usize = 1000;
/// How long a connection may take until its CONNECT is complete (KAL-04). Longer: closed.
pub const DEFAULT_CONNECT_TIMEOUT_MS: u64 = 10_000;
/// How long a CONNECT waits for its claim to be durable. Longer: refused with 0x88 (v3: 3).
pub const DEFAULT_CLAIM_TIMEOUT_MS: u64 = 5_000;
/// How long a publisher waits for the log (IN-7). Longer: answered, or closed when in doubt.
pub const DEFAULT_APPEND_TIMEOUT_MS: u64 = 30_000;
/// Messages of a DEVICE client's durable queue (DEV-5). Full: the oldest go first, counted.
pub const DEFAULT_QUEUE_MESSAGES: usize = 10_000;
/// Messages that wait for a shared group are given to one member so many at a time.
pub const GROUP_WINDOW: usize = 1000;
/// Aliases per connection and direction. More: 0x94 from a client; none given by us.
pub const DEFAULT_TOPIC_ALIASES: usize = 10;

// === bounds without a setting ===

/// A DEVICE queue's limit may not be larger: its packet ids would run out (DEV-5). A larger value
/// stops the start.
pub const QUEUE_MESSAGES_MAX: usize = 65_535;
/// Body of the log batch that one read becomes. Full: the batch is appended and the next begun.
pub const BATCH_BYTES: usize = 256 * KB;
/// Messages in one log batch. Full: as above.
pub const BATCH_MESSAGES: usize = 1024;
/// One read from a socket. More waits in the kernel.
pub const READ_CHUNK_BYTES: usize = 64 * KB;
/// First bytes of a connection that must hold the CONNECT's fixed header. The rest is judged
/// against the packet limit before a byte of it is stored (CON-07).
pub const FIXED_HEADER_BYTES: usize = 5;
/// Acks, PINGRESP and DISCONNECT waiting for one connection (OUT-4). Full: its reader is held, so
/// that no further packet can ask for an answer.
pub const CONTROL_LANE_BYTES: usize = 64 * KB;
/// Buffers handed to one vectored write. More go with the next.
pub const WRITE_VECTOR_SLICES: usize = 64;
/// Unsent bytes the kernel may hold before it calls a socket writable (OUT-1).
pub const NOTSENT_LOWAT_BYTES: usize = 128 * KB;
/// Messages in one page read from a durable queue. More come with the next page.
pub const QUEUE_PAGE_MESSAGES: usize = 128;
/// Bytes in one page read from a durable queue, or one message if it is larger.
pub const QUEUE_PAGE_BYTES: usize = 256 * KB;
/// Messages in one step of a retained replay. More come with the next step.
pub const RETAINED_PAGE_MESSAGES: usize = 256;
/// Filters in one SUBSCRIBE or UNSUBSCRIBE (PAR-05). More: DISCONNECT 0x97 (v3: closed).
pub const FILTERS_PER_PACKET: usize = 4096;
/// Events waiting for one session task. Full: the sender drops the news and sets a "look again"
/// mark; it never waits.
pub const SESSION_EVENTS: usize = 64;
/// Items one dispatcher takes from the log at once. More come with the next take.
pub const DISPATCH_BATCHES: usize = 256;
/// Topic bytes behind the aliases of one connection, both directions, at the built-in maximum.
pub const TOPIC_ALIAS_BYTES: usize = 2 * DEFAULT_TOPIC_ALIASES * 65_535;
/// Connections in the kernel's accept queue. Full: the peer's SYN is not answered and it retries.
pub const LISTEN_BACKLOG: u32 = 4096;
/// A connection on its way to CONNECT is left so long before a newer one may take its place
/// (`listener.max_handshakes`). Until then newer ones wait in the kernel's accept queue.
pub const HANDSHAKE_GRACE_MS: u64 = 1_000;
/// A PROXY header of version 2, behind its length. Longer: closed.
pub const PROXY_HEADER_BYTES: usize = 4 * KB;
/// The head of a WebSocket upgrade request. Longer: 431.
pub const UPGRADE_HEAD_BYTES: usize = 8 * KB;
/// Header lines of a WebSocket upgrade request. More: 431.
pub const UPGRADE_HEADERS: usize = 64;
/// One WebSocket frame of a client, or the packet limit if that is larger. Longer: close code
/// 1009. (Frames are taken as they come and never held; packets have their own limit.)
pub const WS_FRAME_BYTES: usize = 1024 * KB;
/// One WebSocket frame of ours. More goes with the next.
pub const WS_FRAME_OUT_BYTES: usize = 64 * KB;
/// HTTP connections at once. More wait in the kernel's accept queue.
pub const ADMIN_CONNECTIONS: usize = 64;
/// An HTTP connection that moves no byte for so long is closed, so idle ones can't fill the bound.
pub const ADMIN_IDLE_MS: u64 = 30_000;
/// At a stop, how long HTTP replies under way get. Then they are cut.
pub const ADMIN_STOP_MS: u64 = 2_000;
/// Body of an HTTP request. Larger: 413.
pub const ADMIN_BODY_BYTES: usize = 64 * KB;

// === security ===

/// Entries of one list of rules. More: the credential is refused.
pub const RULES_PER_LIST: usize = 128;
/// Bytes of one rule. Longer: the credential is refused.
pub const RULE_BYTES: usize = 1024;
/// Compiled bytes of one list of expressions, and of its cache a thread. More: the credential is
/// refused, or the client for whom it grew so large.
pub const EXPRESSIONS_BYTES: usize = 1024 * KB;
/// Brackets inside brackets of an expression. More: the credential is refused.
pub const EXPRESSION_NESTING: u32 = 32;
/// Passwords and keys that wait to be worked on. Full: the address with most of them loses its
/// newest, which is answered 0x89 (v3: 3).
pub const HASHING_QUEUE: usize = 4096;
/// How long one of them may wait. Longer: answered 0x89 (v3: 3).
pub const AUTHENTICATION_MS: u64 = 10_000;
/// Clients that wait for the service that judges them, half of them of one address. More: answered
/// 0x89 (v3: 3).
pub const SERVICE_QUEUE: usize = 4096;
/// Requests to a service that fail one after another before it gets a rest.
pub const SERVICE_FAILURES: u32 = 3;
/// How long a service that failed is not asked: its clients are answered 0x88 (v3: 3) at once.
pub const SERVICE_REST_MS: u64 = 1000;
/// Keys in a set of keys for tokens. More: the set is not taken.
pub const JWKS_KEYS: usize = 64;
/// A set of keys is not asked for more often, whatever tokens say.
pub const JWKS_REFRESH_MIN_MS: u64 = 5000;
/// Password checks remembered. Full: all are forgotten, and made again.
pub const PASSWORDS_REMEMBERED: usize = 10_000;
/// How long a password check is remembered (TBMQ's cache).
pub const PASSWORD_REMEMBERED_MS: u64 = 60_000;
/// Longest password taken. Longer: it is wrong.
pub const PASSWORD_BYTES: usize = 4096;
/// Text of a credential, a block or an account in the tables. Larger: refused.
pub const ENTITY_BYTES: usize = 64 * KB;
/// Blocked clients of kind REGEX, each of which is tried at every CONNECT. More: refused.
pub const BLOCKED_EXPRESSIONS: usize = 1024;
/// Blocked clients in all. More: refused.
pub const BLOCKED_CLIENTS: usize = 1_000_000;
/// Unauthorized clients remembered. Full: the one that was refused longest ago goes.
pub const UNAUTHORIZED_CLIENTS: usize = 10_000;
/// How long an unauthorized client is remembered (TBMQ: three days).
pub const UNAUTHORIZED_MS: u64 = 3 * 24 * 3600 * 1000;
/// Administrators and viewers. More: refused.
pub const ACCOUNTS: usize = 1000;
/// Failed logins of one account or one address in [`LOGIN_WINDOW_MS`]. More: 429 until it is over.
pub const LOGIN_FAILURES: u32 = 10;
/// See [`LOGIN_FAILURES`].
pub const LOGIN_WINDOW_MS: u64 = 60_000;
/// Accounts and addresses whose failed logins are counted. Full: those that are over go, and if
/// none is, the login is refused with 429.
pub const LOGIN_SUSPECTS: usize = 10_000;
/// Credentials with an expression for the common name, each tried at a TLS client's CONNECT. More:
/// refused.
pub const CN_EXPRESSIONS: usize = 1024;
/// Entries of one page of a REST list. More: 400.
pub const PAGE_ENTRIES: usize = 1000;
/// How far into a sorted REST list a page may reach. Further: 400; a filter makes it shorter.
pub const PAGE_REACH: usize = 100_000;
/// REST lists made at once. More wait.
pub const LISTS_AT_ONCE: usize = 2;

/// The sum of the table above.
pub const CONNECTION_WORST_CASE_BYTES: usize = DEFAULT_READ_AHEAD_BYTES
    + DEFAULT_MAX_PACKET_BYTES
    + DEFAULT_WRITE_BUFFER_HIGH_BYTES
    + DEFAULT_MAX_PACKET_BYTES
    + CONTROL_LANE_BYTES
    + QUEUE_PAGE_BYTES
    + TOPIC_ALIAS_BYTES;

// === relations ===

// A connection becomes writable again before it is empty, or it would idle between bursts.
const _: () = assert!(0 < DEFAULT_WRITE_BUFFER_LOW_BYTES);
const _: () = assert!(DEFAULT_WRITE_BUFFER_LOW_BYTES < DEFAULT_WRITE_BUFFER_HIGH_BYTES);
// What one read may bring fits into what may be read ahead, and one batch takes one read.
const _: () = assert!(READ_CHUNK_BYTES <= DEFAULT_READ_AHEAD_BYTES);
const _: () = assert!(READ_CHUNK_BYTES <= BATCH_BYTES);
const _: () = assert!(DEFAULT_READ_AHEAD_BYTES <= BATCH_BYTES);
const _: () = assert!(DEFAULT_READ_AHEAD_MESSAGES <= BATCH_MESSAGES);
// A client that uses our whole Receive Maximum isn't held by the read-ahead for it.
const _: () = assert!(DEFAULT_RECEIVE_MAXIMUM <= DEFAULT_READ_AHEAD_MESSAGES);
const _: () = assert!(DEFAULT_RECEIVE_MAXIMUM <= 65_535);
// Many connections can be read ahead at once before the node's budget holds any of them.
const _: () = assert!(DEFAULT_INBOUND_BUDGET_BYTES >= 64 * DEFAULT_READ_AHEAD_BYTES);
// The longest answer to one packet (SUBACK: a byte a filter, and its head) fits into the lane.
const _: () = assert!(FILTERS_PER_PACKET + 64 < CONTROL_LANE_BYTES);
// The acks of everything a client may have in flight fit, too: 4 bytes each in the short form.
const _: () = assert!(4 * DEFAULT_RECEIVE_MAXIMUM < CONTROL_LANE_BYTES);
// Pages fit into what a connection may buffer, or reading one would itself pass the high mark.
const _: () = assert!(QUEUE_PAGE_BYTES < DEFAULT_WRITE_BUFFER_LOW_BYTES);
const _: () = assert!(QUEUE_PAGE_MESSAGES <= DEFAULT_QUEUE_MESSAGES);
const _: () = assert!(DEFAULT_QUEUE_MESSAGES <= QUEUE_MESSAGES_MAX);
// The kernel's share stays small beside the marks, or they would not mean what they say.
const _: () = assert!(NOTSENT_LOWAT_BYTES < DEFAULT_WRITE_BUFFER_LOW_BYTES);
// A claim is answered before the client's own patience and the append's end.
const _: () = assert!(DEFAULT_CLAIM_TIMEOUT_MS < DEFAULT_CONNECT_TIMEOUT_MS);
const _: () = assert!(DEFAULT_CLAIM_TIMEOUT_MS < DEFAULT_APPEND_TIMEOUT_MS);
// The table in the module's head.
const _: () = assert!(CONNECTION_WORST_CASE_BYTES == 3_342_316);

/// Messages of a log that were read and wait for their consumer, on Kafka; more stay in Kafka.
pub const FEED_BYTES: usize = 32 << 20;
pub const FEED_MESSAGES: usize = 262_144;
/// Copies for queues that refuse them for now; with more, routing waits for the queues.
pub const BACKLOG_BYTES: usize = 64 << 20;
/// Copies for sessions of other nodes that may not be in their queues yet, on Kafka; more go into
/// those queues from here.
pub const KEPT_FOR_OTHERS_BYTES: usize = 256 << 20;
