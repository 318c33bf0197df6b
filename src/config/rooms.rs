//! Typed values → each room's `Config`: the only place that knows which key goes where.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::reader::Reader;
use super::{Config, ServiceConfig, doors, kafka};
use crate::limits::{KB, RateWindows};
use crate::session::TotalRate;
use crate::storage::{EmbeddedConfig, Profile, SyncMode};
use crate::{admin, delivery, limits, routing, session, storage, telemetry};

const U32_MAX: u64 = u32::MAX as u64;
/// The largest byte count taken: 1 PiB.
const PIB: u64 = 1 << 50;
/// Watermarks over this are probably the older document's bytes (OUT-1).
const LIKELY_BYTES: usize = 16_384;
/// An MQTT packet can't be larger: four length bytes, and the fixed header.
pub(super) const PACKET_MAX: u64 = 268_435_460;
/// What a log record needs beside its packet.
pub(super) const RECORD_ROOM: u64 = 64 * 1024;

pub(super) fn read(r: &mut Reader<'_>) -> Config {
    let config = Config {
        service: service(r),
        listener: doors::read(r),
        security: super::security::read(r),
        session: session(r),
        routing: routing(r),
        delivery: delivery(r),
        storage: storage(r),
        admin: admin(r),
        telemetry: telemetry(r),
        plan_file: r.text("license.file").map(PathBuf::from),
    };
    relations(r, &config);
    config
}

pub(super) fn millis(r: &mut Reader<'_>, key: &'static str, least: u64, most: u64) -> Duration {
    Duration::from_millis(r.number(key, "ms", least..=most))
}

pub(super) fn seconds(r: &mut Reader<'_>, key: &'static str, least: u64, most: u64) -> Duration {
    Duration::from_secs(r.number(key, "s", least..=most))
}

fn service(r: &mut Reader<'_>) -> ServiceConfig {
    ServiceConfig {
        id: r.text("service.id").map_or_else(host_name, Arc::from),
        worker_threads: r.limit("service.worker-threads", "threads", 1024).map(|n| n as usize),
        drain_timeout: millis(r, "actors.system.disconnect-wait-timeout-ms", 0, 600_000),
    }
}

fn host_name() -> Arc<str> {
    let system = rustix::system::uname();
    match system.nodename().to_str() {
        Ok(name) if !name.is_empty() => name.into(),
        Ok(_) | Err(_) => "sluice".into(),
    }
}

fn session(r: &mut Reader<'_>) -> session::Config {
    session::Config {
        claim_timeout: millis(r, "mqtt.connect.claim-timeout-ms", 1, 600_000),
        pre_connect_packets: r.short("mqtt.pre-connect-queue.max-size", "packets", 0).into(),
        read_ahead_messages: r.size("listener.read_ahead", "messages", 1..=1_000_000),
        read_ahead_bytes: r.size("listener.read_ahead_bytes", "bytes", 1024..=1 << 30),
        inbound_budget_bytes: r.size("listener.inbound_budget_bytes", "bytes", 1 << 20..=1 << 40),
        append_timeout: millis(r, "queue.append-timeout-ms", 1, 3_600_000),
        dispatch_lag_max_bytes: r.number("queue.dispatch-lag.max-bytes", "bytes", 1..=PIB),
        dispatch_lag_max_age: seconds(r, "queue.dispatch-lag.max-seconds", 1, 86_400),
        receive_maximum: r.short("mqtt.max-in-flight-msgs", "messages", 1),
        max_keep_alive_secs: Some(r.short("mqtt.keep-alive.max-keep-alive", "s", 0))
            .filter(|cap| *cap > 0),
        max_topic_segments: Some(r.short("mqtt.topic.max-segments-count", "levels", 0))
            .filter(|cap| *cap > 0),
        topic_alias_max: r.short("mqtt.topic.alias-max", "aliases", 0),
        allow_root_wildcard: r.flag("mqtt.subscription.allow-root-multi-level-wildcard"),
        shared_subscriptions: r.flag("mqtt.shared-subscriptions.enabled"),
        app_shares_without_entity: r.flag("mqtt.shared-subscriptions.app-without-entity"),
        max_subscriptions_per_client: r
            .limit("mqtt.subscription.max-per-client", "subscriptions", U32_MAX)
            .map(|n| n as usize),
        sessions_limit: r.limit("mqtt.sessions-limit", "sessions", U32_MAX),
        application_clients_limit: r.limit("mqtt.application-clients-limit", "clients", U32_MAX),
        max_session_expiry_secs: r
            .limit("mqtt.client-session-expiry.max-expiry-interval", "s", U32_MAX - 1)
            .map(|n| n as u32),
        v3_session_ttl_secs: r
            .limit("mqtt.client-session-expiry.ttl", "s", U32_MAX - 1)
            .map(|n| n as u32),
        v31_max_client_id_chars: r
            .short("mqtt.version-3-1.max-client-id-length", "characters", 23)
            .into(),
        response_info: r.text("mqtt.response-info").map(Arc::from),
        incoming_rate: rate(
            r,
            "mqtt.rate-limits.incoming-publish.enabled",
            "mqtt.rate-limits.incoming-publish.client-config",
        ),
        total_rate: total_rate(r),
        new_sessions_until_ms: None,
    }
}

/// The windows are read, and their form checked, whether they are switched on or not (LIM-3).
fn rate(r: &mut Reader<'_>, enabled: &'static str, windows: &'static str) -> Option<RateWindows> {
    let enabled = r.flag(enabled);
    let windows = r.rate(windows);
    enabled.then_some(windows)
}

fn total_rate(r: &mut Reader<'_>) -> TotalRate {
    let enabled = r.flag("mqtt.rate-limits.total.enabled");
    let windows = r.counts("mqtt.rate-limits.total.config", "messages");
    let block_size = r.limit("mqtt.rate-limits.total.block-size", "tokens", U32_MAX);
    let lease_return = r
        .limit("mqtt.rate-limits.total.lease-return-ms", "ms", 3_600_000)
        .map(Duration::from_millis);
    TotalRate { windows: enabled.then_some(windows), block_size, lease_return }
}

fn routing(r: &mut Reader<'_>) -> routing::Config {
    let policies = routing::Policy::NAMES.map(|(name, _)| name).join(", ");
    routing::Config {
        shared_policy: r.read(
            "mqtt.shared-subscriptions.processing-type",
            policies,
            routing::Policy::parse,
        ),
        shared_app_leave: r.flag("mqtt.shared-subscriptions.app-leave-when-non-writable"),
        shared_skip_non_writable: r.flag("mqtt.shared-subscriptions.skip-non-writable"),
        retained_expiry_period: millis(
            r,
            "mqtt.retain-msg.expiry-processing-period-ms",
            100,
            86_400_000,
        ),
        retained_max_count: r.limit("mqtt.retain-msg.max-count", "messages", PIB),
        retained_max_bytes: r.limit("mqtt.retain-msg.max-bytes", "bytes", PIB),
        device_persisted_rate: {
            let enabled = r.flag("mqtt.rate-limits.device-persisted-messages.enabled");
            let key = "mqtt.rate-limits.device-persisted-messages.config";
            let windows = r.counts(key, "messages");
            enabled.then_some(windows)
        },
    }
}

fn delivery(r: &mut Reader<'_>) -> delivery::Config {
    if !r.flag("mqtt.flow-control.enabled") {
        r.warnings.push(
            "mqtt.flow-control.enabled is false: a client's Receive Maximum is honoured all the \
             same"
                .into(),
        );
    }
    delivery::Config {
        write_buffer_high_bytes: watermark(r, "listener.write_buffer_high_water_mark"),
        write_buffer_low_bytes: watermark(r, "listener.write_buffer_low_water_mark"),
        v3_receive_maximum: r.short("mqtt.flow-control.mqtt3x-receive-max", "messages", 1),
        delayed_messages: r.short("mqtt.flow-control.delayed-queue-max-size", "messages", 0).into(),
        delayed_ttl: seconds(r, "mqtt.flow-control.ttl", 1, U32_MAX),
        topic_alias_max: r.short("mqtt.topic.alias-max", "aliases", 0),
        topic_alias_min_bytes: r
            .short("mqtt.topic.min-length-for-alias-replacement", "bytes", 0)
            .into(),
        outgoing_rate: rate(
            r,
            "mqtt.rate-limits.outgoing-publish.enabled",
            "mqtt.rate-limits.outgoing-publish.client-config",
        ),
    }
}

fn watermark(r: &mut Reader<'_>, key: &'static str) -> usize {
    let kb = r.size(key, "KB", 1..=4_194_304);
    if kb > LIKELY_BYTES {
        r.warnings.push(format!(
            "{key} = {kb} is used as {kb} KB; if bytes were meant, write {}",
            (kb / KB).max(1)
        ));
    }
    kb * KB
}

fn storage(r: &mut Reader<'_>) -> storage::Config {
    let profile = match r.choice("storage.type", &["embedded", "cluster"]) {
        0 => Profile::Embedded,
        _ => Profile::Cluster,
    };
    let sync = match r.choice("storage.embedded.sync", &["always", "never"]) {
        0 => SyncMode::Always,
        _ => SyncMode::Never,
    };
    let redis = super::redis::read(r);
    let kafka = kafka::read(r);
    storage::Config {
        application: kafka::retention(r, &kafka.topics.application),
        application_shared: kafka::retention(r, &kafka.topics.application_shared),
        profile,
        kafka,
        redis,
        embedded: EmbeddedConfig {
            path: r.folder("storage.embedded.path").into(),
            sync,
            segment_bytes: r.number("storage.embedded.segment-bytes", "bytes", 1 << 20..=1 << 32),
            checkpoint_period: millis(r, "storage.embedded.checkpoint-interval-ms", 10, 600_000),
            min_free_bytes: r.number("storage.embedded.min-free-bytes", "bytes", 0..=PIB),
        },
        device_queue_messages: r.size(
            "mqtt.persistent-session.device.persisted-messages.limit",
            "messages",
            1..=limits::QUEUE_MESSAGES_MAX as u64,
        ),
        device_message_ttl: seconds(
            r,
            "mqtt.persistent-session.device.persisted-messages.ttl",
            1,
            U32_MAX,
        ),
    }
}

fn admin(r: &mut Reader<'_>) -> admin::Config {
    let [health, info, prometheus] =
        r.names("management.endpoints.web.exposure.include", ["health", "info", "prometheus"]);
    let details = ["never", "when-authorized", "always"];
    let address = r.address("server.address");
    admin::Config {
        tls: doors::https(r),
        bind: SocketAddr::new(address, r.short("server.port", "port", 0)),
        health,
        info,
        prometheus,
        health_details: r.choice("management.endpoint.health.show-details", &details) == 2,
        health_disk: r.flag("management.health.diskspace.enabled"),
    }
}

fn telemetry(r: &mut Reader<'_>) -> telemetry::Config {
    let enabled = r.flag("stats.enabled");
    let period = millis(r, "stats.print-interval-ms", 1000, 86_400_000);
    let ledger = r.flag("mqtt.dropped-msg.enabled");
    telemetry::Config { stats_period: enabled.then_some(period), ledger }
}

/// What must hold between values that are each right by themselves.
fn relations(r: &mut Reader<'_>, config: &Config) {
    if config.delivery.write_buffer_low_bytes > config.delivery.write_buffer_high_bytes {
        let marks =
            ["listener.write_buffer_low_water_mark", "listener.write_buffer_high_water_mark"];
        r.contradiction(&marks, "wanted a low mark that is not above the high one");
    }
    if config.session.read_ahead_bytes > config.session.inbound_budget_bytes {
        let budgets = ["listener.read_ahead_bytes", "listener.inbound_budget_bytes"];
        r.contradiction(&budgets, "wanted a node's budget that holds one connection's");
    }
    let segment_bytes = match config.storage.profile {
        Profile::Embedded => config.storage.embedded.segment_bytes,
        Profile::Cluster => u64::MAX,
    };
    doors::relations(
        r,
        &config.listener,
        config.admin.bind,
        config.session.inbound_budget_bytes,
        segment_bytes,
    );
}
