//! The metric catalogue: every series there is, as statics that any room may write.
//!
//! What comes in: `metrics::NAME.inc()` and its like. What goes out: [`render`], the text of
//! `/actuator/prometheus`. Names are TBMQ's where TBMQ has the thing. Never: a label whose values
//! come from traffic (MEM-05): the number of series is fixed when the program is built.
//!
//! A value that a room would have to keep up only to be read (the size of a table) is set by a
//! hook that runs before each reading: see [`before_scrape`].

mod cells;
mod export;
mod process;

pub use cells::{Counter, Gauge, Level, Timer};
pub use export::{CONTENT_TYPE, ScrapeHook, before_scrape, render};

/// One series: its family's name and help, its labels, and where its value is.
struct Series {
    name: &'static str,
    labels: &'static [(&'static str, &'static str)],
    help: &'static str,
    source: Source,
}

enum Source {
    Counter(&'static Counter),
    Gauge(&'static Gauge),
    Level(&'static Level),
    Timer(&'static Timer),
    /// A count kept elsewhere, read when asked for.
    ReadCounter(fn() -> Option<f64>),
    /// A value kept elsewhere, read when asked for.
    ReadGauge(fn() -> Option<f64>),
}

macro_rules! catalogue {
    ($($cell:ident $ident:ident = $name:literal $([$($label:literal = $value:literal),+])?,
       $help:literal;)+) => {
        $(#[doc = $help] pub static $ident: $cell = $cell::new();)+

        /// Series of one family stand together.
        static WRITTEN: &[Series] = &[$(Series {
            name: $name,
            labels: &[$($(($label, $value)),+)?],
            help: $help,
            source: Source::$cell(&$ident),
        }),+];
    };
}

catalogue! {
    Counter CONNECTION_ACCEPTED = "connectionAccepted_total",
        "Connections that got CONNACK 0.";
    Counter CONNECTION_REFUSED = "connectionRefused_total",
        "Connections refused: by CONNACK, or before it for want of a permit or a CONNECT.";
    Counter CONNECTION_ERROR = "connectionError_total",
        "Connections ended by a malformed packet, a protocol error or a socket error.";
    Counter CLIENT_DISCONNECTS = "clientDisconnects_total",
        "Sessions' connections that ended, for any reason.";
    Level CONNECTED_SESSIONS = "connectedSessions",
        "Clients connected to this node.";
    Level CONNECTED_SSL_SESSIONS = "connectedSslSessions",
        "Clients connected to this node over TLS.";
    Gauge ALL_CLIENT_SESSIONS = "allClientSessions",
        "Sessions that exist, connected or not.";
    Gauge SUBSCRIPTIONS = "subscriptions",
        "Subscriptions of all sessions.";
    Gauge RETAINED_MESSAGES = "retainedMessages",
        "Retained messages.";
    Gauge RETAINED_BYTES = "retainedMessagesBytes",
        "Bytes of topics, payloads and properties of all retained messages.";
    Level LAST_WILL_CLIENTS = "lastWillClients",
        "Clients of this node that left a Will.";
    Level NON_WRITABLE_CLIENTS = "nonWritableClients",
        "Connections whose queued bytes passed the high mark and not yet fell below the low one.";
    Gauge TRIE_SIZE = "subscriptionTopicTrieSize",
        "Subscriptions in the trie that messages are matched against.";
    Gauge TRIE_NODES = "subscriptionTrieNodes",
        "Nodes of the subscription trie.";
    Gauge RETAIN_TRIE_SIZE = "retainMsgTrieSize",
        "Retained messages in the trie that new subscriptions are matched against.";

    Counter BASIC_SUCCESS =
        "authentications_total" ["provider" = "MQTT_BASIC", "result" = "success"],
        "What the providers said about clients that asked to be let in.";
    Counter BASIC_FAILURE =
        "authentications_total" ["provider" = "MQTT_BASIC", "result" = "failure"],
        "What the providers said about clients that asked to be let in.";
    Counter BASIC_SKIPPED =
        "authentications_total" ["provider" = "MQTT_BASIC", "result" = "skipped"],
        "What the providers said about clients that asked to be let in.";
    Counter X509_SUCCESS = "authentications_total" ["provider" = "X_509", "result" = "success"],
        "What the providers said about clients that asked to be let in.";
    Counter X509_FAILURE = "authentications_total" ["provider" = "X_509", "result" = "failure"],
        "What the providers said about clients that asked to be let in.";
    Counter X509_SKIPPED = "authentications_total" ["provider" = "X_509", "result" = "skipped"],
        "What the providers said about clients that asked to be let in.";
    Counter JWT_SUCCESS = "authentications_total" ["provider" = "JWT", "result" = "success"],
        "What the providers said about clients that asked to be let in.";
    Counter JWT_FAILURE = "authentications_total" ["provider" = "JWT", "result" = "failure"],
        "What the providers said about clients that asked to be let in.";
    Counter JWT_SKIPPED = "authentications_total" ["provider" = "JWT", "result" = "skipped"],
        "What the providers said about clients that asked to be let in.";
    Counter HTTP_SUCCESS = "authentications_total" ["provider" = "HTTP", "result" = "success"],
        "What the providers said about clients that asked to be let in.";
    Counter HTTP_FAILURE = "authentications_total" ["provider" = "HTTP", "result" = "failure"],
        "What the providers said about clients that asked to be let in.";
    Counter HTTP_SKIPPED = "authentications_total" ["provider" = "HTTP", "result" = "skipped"],
        "What the providers said about clients that asked to be let in.";
    Counter SCRAM_SUCCESS = "authentications_total" ["provider" = "SCRAM", "result" = "success"],
        "What the providers said about clients that asked to be let in.";
    Counter SCRAM_FAILURE = "authentications_total" ["provider" = "SCRAM", "result" = "failure"],
        "What the providers said about clients that asked to be let in.";
    Counter AUTHENTICATION_BUSY = "authenticationsBusy_total",
        "Authentications that were refused because too many waited, or for too long.";
    Counter BLOCKED_REFUSED = "blockedClients_refused_total",
        "Connections refused or ended because the client is blocked.";
    Counter AUTHORIZATION_PUBLISH = "authorizationDenied_total" ["operation" = "publish"],
        "PUBLISHes, Wills, filters and copies that the rules of a client denied.";
    Counter AUTHORIZATION_SUBSCRIBE = "authorizationDenied_total" ["operation" = "subscribe"],
        "PUBLISHes, Wills, filters and copies that the rules of a client denied.";
    Counter AUTHORIZATION_DELIVER = "authorizationDenied_total" ["operation" = "deliver"],
        "PUBLISHes, Wills, filters and copies that the rules of a client denied.";
    Gauge CREDENTIALS = "mqttClientCredentials",
        "Credentials of MQTT clients.";
    Gauge UNAUTHORIZED_CLIENTS = "unauthorizedClients",
        "Refused clients that this node remembers.";
    Counter LOGINS_REFUSED = "adminLoginsRefused_total",
        "Logins to the administration that were refused.";

    Counter PUBLISHED_TOTAL = "incomingPublishMsg_published_total" ["statsName" = "totalMsgs"],
        "PUBLISHes and Wills handed to the publish log, by how that ended.";
    Counter PUBLISHED_SUCCESSFUL =
        "incomingPublishMsg_published_total" ["statsName" = "successfulMsgs"],
        "PUBLISHes and Wills handed to the publish log, by how that ended.";
    Counter PUBLISHED_FAILED = "incomingPublishMsg_published_total" ["statsName" = "failedMsgs"],
        "PUBLISHes and Wills handed to the publish log, by how that ended.";
    Counter CONSUMED_TOTAL =
        "incomingPublishMsg_consumed_total" ["consumerId" = "0", "statsName" = "totalMsgs"],
        "Messages taken from the publish log and routed, by how that ended.";
    Counter CONSUMED_SUCCESSFUL =
        "incomingPublishMsg_consumed_total" ["consumerId" = "0", "statsName" = "successfulMsgs"],
        "Messages taken from the publish log and routed, by how that ended.";
    Timer CONSUMED_PACK_TIME =
        "incomingPublishMsg_consumed_pack_processing_time_seconds" ["consumerId" = "0"],
        "Time to route one batch taken from the publish log.";
    Counter DEVICE_TOTAL = "deviceProcessor_total" ["consumerId" = "0", "statsName" = "totalMsgs"],
        "Copies appended to durable queues of DEVICE clients, by how that ended.";
    Counter DEVICE_SUCCESSFUL =
        "deviceProcessor_total" ["consumerId" = "0", "statsName" = "successfulMsgs"],
        "Copies appended to durable queues of DEVICE clients, by how that ended.";
    Counter DEVICE_FAILED =
        "deviceProcessor_total" ["consumerId" = "0", "statsName" = "failedMsgs"],
        "Copies appended to durable queues of DEVICE clients, by how that ended.";
    Timer DEVICE_PACK_TIME = "deviceProcessor_pack_processing_time_seconds" ["consumerId" = "0"],
        "Time to append one batch of copies to durable queues.";

    Level ACTIVE_APP_PROCESSORS = "activeAppProcessors",
        "Persistent APPLICATION clients connected to this node.";
    Level ACTIVE_SHARED_APP_PROCESSORS = "activeSharedAppProcessors",
        "Memberships in shared groups of persistent APPLICATION clients connected to this node.";
    Counter APP_PUBLISHED = "appProcessor_total" ["statsName" = "successfulPublishMsgs"],
        "Messages of persistent APPLICATION clients that are done with, of all together.";
    Counter APP_RELEASED = "appProcessor_total" ["statsName" = "successfulPubRelMsgs"],
        "Messages of persistent APPLICATION clients that are done with, of all together.";

    Timer APP_PUBACK = "appProcessor_latency_seconds" ["packetType" = "puback"],
        "Time until a persistent APPLICATION client answers, of one exchange at a time of each.";
    Timer APP_PUBREC = "appProcessor_latency_seconds" ["packetType" = "pubrec"],
        "Time until a persistent APPLICATION client answers, of one exchange at a time of each.";
    Timer APP_PUBCOMP = "appProcessor_latency_seconds" ["packetType" = "pubcomp"],
        "Time until a persistent APPLICATION client answers, of one exchange at a time of each.";

    Timer DELIVERY = "delivery_seconds",
        "Time from the first byte in an outbox to all that is with it in the kernel; \
         every eighth is timed, and stands for eight.";
    Timer NOT_PERSISTENT_PROCESSING = "notPersistentMessagesProcessing_seconds",
        "Time to offer one batch of copies to outboxes, and to collect those that go into queues.";
    Timer PERSISTENT_PROCESSING = "persistentMessagesProcessing_seconds",
        "Time to read one page of a durable queue.";
    Timer SUBSCRIPTION_LOOKUP = "subscriptionLookup_seconds",
        "Time to match one batch against the subscription trie.";
    Timer RETAINED_LOOKUP = "retainedMsgLookup_seconds",
        "Time to find one page of retained messages for a filter.";
    Counter DELIVERED_QOS0 = "deliveredMsgs_total" ["qos" = "0"],
        "PUBLISHes sent to clients, resends included, by the QoS they were sent with.";
    Counter DELIVERED_QOS1 = "deliveredMsgs_total" ["qos" = "1"],
        "PUBLISHes sent to clients, resends included, by the QoS they were sent with.";
    Counter DELIVERED_QOS2 = "deliveredMsgs_total" ["qos" = "2"],
        "PUBLISHes sent to clients, resends included, by the QoS they were sent with.";
    Gauge REDIS_MASTERS_AWAY = "redisMastersAway",
        "Redis masters that do not answer.";
    Counter REDIS_MASTER_CHANGES = "redisMasterChanges_total",
        "Redis masters that took another's place; each time the log is read again.";
    Counter REDIS_REPLICA_LATE = "redisReplicaLate_total",
        "Waits of half a second in which no Redis replica took a mark that must survive.";
    Counter RECEIVED_BYTES = "receivedBytes_total",
        "Bytes read from MQTT connections.";
    Counter SENT_BYTES = "sentBytes_total",
        "Bytes written to MQTT connections.";

    Counter FLOW_DROPS_OVERFLOW = "flowControl_total" ["statsName" = "dropsOverflow"],
        "What happened to messages that waited for credit in memory, and to odd acks.";
    Counter FLOW_DROPS_TTL = "flowControl_total" ["statsName" = "dropsTtl"],
        "What happened to messages that waited for credit in memory, and to odd acks.";
    Counter FLOW_UNKNOWN_ACKS = "flowControl_total" ["statsName" = "unknownAcks"],
        "What happened to messages that waited for credit in memory, and to odd acks.";
    Level INFLIGHT = "flowControl_inflightCount",
        "QoS 1 and 2 messages sent and not yet acknowledged.";
    Level DELAYED = "flowControl_delayedQueueSize",
        "QoS 1 and 2 messages that wait for credit in memory.";

    Counter TAKEOVERS = "sessionTakeovers_total",
        "Connections ended because their client id connected again.";
    Counter SESSIONS_EXPIRED = "sessionsExpired_total",
        "Sessions that ended because their expiry interval passed.";
    Counter WILLS_PUBLISHED = "publishedWills_total",
        "Wills handed to the publish log.";
    Level HELD_READERS = "heldReaders",
        "Connections that are not read now, because the log is behind or a budget is used up.";
    Gauge INBOUND_BUDGET_USED = "inboundBudgetUsedBytes",
        "Bytes of PUBLISHes that were read and are not yet in the log.";
    Counter LOG_APPENDED_BYTES = "publishLogAppendedBytes_total",
        "Bytes appended to the publish log.";
    Timer LOG_SYNC = "publishLogSync_seconds",
        "Time of one group commit, write and sync; on Kafka, until one batch is confirmed.";
    Gauge QUEUE_BACKLOG_BYTES = "queueBacklogBytes",
        "Bytes of copies that wait for queues that refuse them; at 64 MiB dispatch waits.";
    Gauge LOG_LAG_BYTES = "publishLogLagBytes",
        "Bytes in the publish log that wait for dispatch.";
    Gauge LOG_LAG_MS = "publishLogLagMs",
        "Age in milliseconds of the oldest record that waits for dispatch.";
    Counter QUOTA_DEGRADED = "throughputQuotaDegraded_total" ["cause" = "redis"],
        "Decisions of the throughput quota that were made while its bucket was away.";
    Counter LIMITED_INCOMING = "rateLimited_total" ["limit" = "incoming"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter LIMITED_OUTGOING = "rateLimited_total" ["limit" = "outgoing"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter LIMITED_DEVICE = "rateLimited_total" ["limit" = "device"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter LIMITED_TOTAL = "rateLimited_total" ["limit" = "total"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter LIMITED_CONNECTIONS = "rateLimited_total" ["limit" = "connections"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter LIMITED_APPLICATIONS = "rateLimited_total" ["limit" = "applications"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter LIMITED_SESSIONS = "rateLimited_total" ["limit" = "sessions"],
        "What a limit refused, by limit: messages, copies of one, connections, sessions.";
    Counter TASK_PANICS = "taskPanics_total",
        "Tasks of this process that panicked. Any value but 0 is a defect.";
}

/// What is counted elsewhere.
static READ: &[Series] = &process::SERIES;

#[cfg(test)]
mod tests;
