use std::io::Write as _;
use std::time::Duration;

use tempfile::NamedTempFile;

use super::*;
use crate::limits;
use crate::routing::Policy;
use crate::storage::{KafkaConfig, Profile, SyncMode};

const TBMQ: &str = include_str!("testdata/tbmq.yml");

fn try_load(yaml: &str, env: &[(&str, &str)]) -> Result<Loaded, Faults> {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(yaml.as_bytes()).unwrap();
    load(Some(file.path()), &|name| {
        env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

fn good(yaml: &str, env: &[(&str, &str)]) -> Loaded {
    try_load(yaml, env).unwrap_or_else(|faults| panic!("{faults}"))
}

fn faults(yaml: &str, env: &[(&str, &str)]) -> Vec<String> {
    match try_load(yaml, env) {
        Ok(_) => panic!("accepted:\n{yaml}"),
        Err(faults) => faults.0.iter().map(ToString::to_string).collect(),
    }
}

/// One fault, which names all of `parts`.
fn fault(yaml: &str, env: &[(&str, &str)], parts: &[&str]) {
    let found = faults(yaml, env);
    assert_eq!(found.len(), 1, "{found:?}");
    for part in parts {
        assert!(found[0].contains(part), "{part:?} is not in {:?}", found[0]);
    }
}

#[test]
fn without_file_and_environment_the_built_in_values_hold() {
    let loaded = load(None, &|_| None).unwrap();
    assert_eq!(loaded.warnings, [""; 0]);
    assert_eq!(loaded.changed, []);
    let Config { listener, session, delivery, storage, admin, .. } = loaded.config;
    assert_eq!(listener.ws.unwrap().bind.to_string(), "0.0.0.0:8084");
    assert_eq!((listener.ssl, listener.wss, listener.unix), (None, None, None));
    let tcp = listener.tcp.unwrap();
    assert_eq!(tcp.bind.to_string(), "0.0.0.0:1883");
    assert_eq!(tcp.max_packet_bytes, limits::DEFAULT_MAX_PACKET_BYTES);
    assert_eq!(admin.bind.to_string(), "0.0.0.0:8083");
    assert_eq!(session.read_ahead_messages, limits::DEFAULT_READ_AHEAD_MESSAGES);
    assert_eq!(session.read_ahead_bytes, limits::DEFAULT_READ_AHEAD_BYTES);
    assert_eq!(session.inbound_budget_bytes, limits::DEFAULT_INBOUND_BUDGET_BYTES);
    assert_eq!(session.pre_connect_packets, limits::DEFAULT_PRE_CONNECT_PACKETS);
    assert_eq!(usize::from(session.receive_maximum), limits::DEFAULT_RECEIVE_MAXIMUM);
    assert_eq!(usize::from(session.topic_alias_max), limits::DEFAULT_TOPIC_ALIASES);
    let ms = Duration::from_millis;
    assert_eq!(listener.connect_timeout, ms(limits::DEFAULT_CONNECT_TIMEOUT_MS));
    assert_eq!(session.claim_timeout, ms(limits::DEFAULT_CLAIM_TIMEOUT_MS));
    assert_eq!(session.append_timeout, ms(limits::DEFAULT_APPEND_TIMEOUT_MS));
    assert_eq!(delivery.write_buffer_high_bytes, limits::DEFAULT_WRITE_BUFFER_HIGH_BYTES);
    assert_eq!(delivery.write_buffer_low_bytes, limits::DEFAULT_WRITE_BUFFER_LOW_BYTES);
    assert_eq!(delivery.delayed_messages, limits::DEFAULT_DELAYED_MESSAGES);
    assert_eq!(storage.device_queue_messages, limits::DEFAULT_QUEUE_MESSAGES);
    assert_eq!(storage.embedded.sync, SyncMode::Always);
    assert_eq!(session.incoming_rate, None);
    assert_eq!(session.max_subscriptions_per_client, None, "0 means no limit (QTA-03)");
}

#[test]
fn file_and_environment_go_before_what_is_built_in() {
    let yaml = "listener:\n  tcp:\n    bind_port: 2883\nserver.port: \"${MY_PORT:9000}\"\n";
    let env = [("MY_PORT", "9001"), ("STORAGE_EMBEDDED_SYNC", "never"), ("TB_SERVICE_ID", "n1")];
    let loaded = good(yaml, &env);
    assert_eq!(loaded.config.listener.tcp.unwrap().bind.port(), 2883);
    assert_eq!(loaded.config.admin.bind.port(), 9001);
    assert_eq!(loaded.config.storage.embedded.sync, SyncMode::Never);
    assert_eq!(&*loaded.config.service.id, "n1");
    let changed: Vec<String> = loaded.changed.iter().map(|changed| changed.key.clone()).collect();
    let keys = ["listener.tcp.bind_port", "server.port", "service.id", "storage.embedded.sync"];
    assert_eq!(changed, keys);
    assert_eq!(loaded.changed[1].origin, Origin::Env("MY_PORT".into()));
    assert_eq!(loaded.warnings, [""; 0]);
}

#[test]
fn an_unset_service_id_is_the_host_name() {
    assert!(!load(None, &|_| None).unwrap().config.service.id.is_empty());
}

#[test]
fn a_variable_that_a_fixed_value_overrules_is_named() {
    let loaded = good("server:\n  port: 9000\n", &[("HTTP_BIND_PORT", "9001")]);
    assert_eq!(loaded.config.admin.bind.port(), 9000);
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("HTTP_BIND_PORT"), "{:?}", loaded.warnings);
}

/// A real TBMQ file starts; what has no effect is named, each key once, in one warning.
#[test]
fn a_tbmq_file_starts_with_one_warning() {
    let loaded = good(TBMQ, &[]);
    assert_eq!(loaded.warnings.len(), 1, "{:#?}", loaded.warnings);
    let warning = &loaded.warnings[0];
    for key in [
        "redis.pool_config.maxIdle",
        "actors.system.throughput",
        "listener.ws.netty.worker_group_thread_count",
        "spring.mvc.cors.mappings.[/api/**].allowed-origin-patterns",
        "sql.ts.batch_size",
        "queue.kafka.default.producer.acks",
        "mqtt.connect.threads",
    ] {
        let times = warning.split([' ', ',', ';']).filter(|word| *word == key).count();
        assert_eq!(times, 1, "{key}: {warning}");
    }
    for ours in ["mqtt.max-in-flight-msgs", "listener.tcp.bind_port"] {
        assert!(!warning.contains(ours), "{ours}: {warning}");
    }
    let changed: Vec<&str> = loaded.changed.iter().map(|changed| changed.key.as_str()).collect();
    let differ = [
        "management.endpoint.health.show-details",
        "management.health.diskspace.enabled",
        "queue.kafka.admin.config",
        "queue.kafka.client-session.additional-consumer-config",
        "queue.kafka.client-session.topic-properties",
        "queue.kafka.msg-all.additional-consumer-config",
        "queue.kafka.msg-all.topic-properties",
        "queue.kafka.retained-msg.additional-consumer-config",
        "queue.kafka.retained-msg.topic-properties",
        "server.ssl.credentials.pem.key_password",
    ];
    assert_eq!(changed, differ, "everything else has TBMQ's default");
    let moved = good(TBMQ, &[("LISTENER_TCP_BIND_PORT", "2883")]);
    assert_eq!(moved.config.listener.tcp.unwrap().bind.port(), 2883);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    fault(
        "mqtt:\n  max-inflight-msgs: 5\n",
        &[],
        &["mqtt.max-inflight-msgs", "mqtt.max-in-flight-msgs"],
    );
    fault("lisener:\n  read_ahead: 5\n", &[], &["lisener.read_ahead", "listener.read_ahead"]);
    fault("server:\n  ports: 5\n", &[], &["server.ports", "is server.port"]);
    fault("stats:\n  enable: true\n", &[], &["stats.enable:", "is stats.enabled"]);
    fault("mqtt: 5\n", &[], &["mqtt: unknown"]);
}

#[test]
fn a_section_whose_keys_are_commented_out_is_no_fault() {
    assert_eq!(good("listener:\n  tcp:\n  # bind_port: 1\nredis:\n", &[]).changed, []);
}

#[test]
fn all_faults_are_reported_together() {
    let yaml = "mqtt:\n  nonsense-key: 1\n  max-in-flight-msgs: 0\n\
                listener:\n  write_buffer_low_water_mark: 2000\n  read_ahead: many\n";
    let found = faults(yaml, &[("HTTP_BIND_PORT", "99999"), ("STATS_ENABLED", "maybe")]);
    assert_eq!(found.len(), 6, "{found:#?}");
    let whole = found.join("\n");
    for part in [
        "nonsense-key",
        "mqtt.max-in-flight-msgs = \"0\"",
        "wanted messages, 1 to 65535",
        "listener.read_ahead = \"many\"",
        "listener.write_buffer_low_water_mark = \"2000\"",
        "server.port = \"99999\" (from environment variable HTTP_BIND_PORT): wanted port, 0 to",
        "stats.enabled = \"maybe\" (from environment variable STATS_ENABLED): wanted true or false",
    ] {
        assert!(whole.contains(part), "{part:?} is not in\n{whole}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let missing = load(Some("/nowhere/sluice.yml".as_ref()), &|_| None).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/sluice.yml"), "{missing}");
    assert!(faults("a: [", &[])[0].contains("line"), "the place in the file is told");
}

/// OUT-1: a low mark over the high one, or 0, stops the start.
#[test]
fn watermarks_must_make_sense() {
    let marks = |high: &str, low: &str| {
        format!(
            "listener:\n  write_buffer_high_water_mark: {high}\n  \
             write_buffer_low_water_mark: {low}\n"
        )
    };
    fault(&marks("640", "641"), &[], &["high_water_mark", "low_water_mark", "\"641\""]);
    fault(&marks("1280", "0"), &[], &["low_water_mark = \"0\"", "KB, 1 to"]);
    let equal = good(&marks("640", "640"), &[]).config.delivery;
    assert_eq!(equal.write_buffer_high_bytes, equal.write_buffer_low_bytes);
}

/// OUT-1: what looks like the older document's bytes is taken as KB, with a warning.
#[test]
fn a_watermark_that_looks_like_bytes_is_taken_as_kb_and_warned_of() {
    let env = [
        ("NETTY_WRITE_BUFFER_HIGH_WATER_MARK", "65536"),
        ("NETTY_WRITE_BUFFER_LOW_WATER_MARK", "16384"),
    ];
    let loaded = good("", &env);
    assert_eq!(loaded.config.delivery.write_buffer_high_bytes, 65_536 * 1024);
    assert_eq!(loaded.config.delivery.write_buffer_low_bytes, 16_384 * 1024);
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("write_buffer_high_water_mark = 65536"));
    assert!(loaded.warnings[0].contains("write 64"));
}

/// LIM-3: the key, the value and the form wanted; checked even while the limit is off.
#[test]
fn a_bad_rate_limit_stops_the_start() {
    for bad in ["10", "a:1", "0:1", "10:0"] {
        let env = [("MQTT_INCOMING_RATE_LIMITS_CLIENT_CONFIG", bad)];
        let parts = ["mqtt.rate-limits.incoming-publish.client-config", bad, "messages:seconds"];
        fault("", &env, &parts);
    }
}

#[test]
fn short_and_long_rate_limit_keys_are_read() {
    let tail = "rate-limits:\n    incoming-publish:\n      enabled: true\n      \
                client-config: \"5:1\"\n";
    let short = good(&tail.replace("\n    ", "\n  ").replace("\n      ", "\n    "), &[]);
    let long = good(&format!("mqtt:\n  {tail}"), &[]);
    assert_eq!(short.config, long.config);
    let rate = long.config.session.incoming_rate.unwrap();
    assert_eq!(rate.windows()[0].limit, 5);
    let twice = "rate-limits.total.enabled: true\nmqtt.rate-limits.total.enabled: true\n";
    fault(twice, &[], &["mqtt.rate-limits.total.enabled", "also as rate-limits.total.enabled"]);
}

/// APP-3, SHR-4
#[test]
fn the_retention_of_application_logs_is_read_out_of_kafkas_words() {
    let name = "TB_KAFKA_APP_PERSISTED_MSG_TOPIC_PROPERTIES";
    let kept = |text: &str| good("", &[(name, text)]).config.storage.application;
    let default = good("", &[]).config.storage.application;
    assert_eq!(default.bytes, Some(1_048_576_000));
    assert_eq!(default.life, Some(Duration::from_secs(604_800)));
    let given = kept("retention.ms:-1;retention.bytes:5;segment.bytes:7");
    assert_eq!((given.bytes, given.life), (Some(5), None));
    fault("", &[(name, "retention.ms:week")], &["retention.ms", "tbmq.msg.app", "week"]);
    let name = "TB_KAFKA_APP_PERSISTED_MSG_SHARED_TOPIC_PROPERTIES";
    let both = good("", &[(name, "retention.ms:5000;retention.bytes:6")]).config.storage;
    let of_groups = both.application_shared;
    assert_eq!((of_groups.bytes, of_groups.life), (Some(6), Some(Duration::from_secs(5))));
    assert_eq!(both.application, default, "those of clients are others");
    fault("", &[(name, "retention.bytes:x")], &["retention.bytes", "tbmq.msg.app.shared"]);
}

/// SHR-1
#[test]
fn policies_of_groups_are_known_in_any_case_and_with_dashes() {
    let name = "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE";
    let policy = |text: &str| good("", &[(name, text)]).config.routing.shared_policy;
    assert_eq!(good("", &[]).config.routing.shared_policy, Policy::RoundRobin);
    assert_eq!(policy("least-inflight"), Policy::LeastInflight);
    assert_eq!(policy("Hash_Client"), Policy::HashClient);
    fault("", &[(name, "RANDOM")], &["processing-type", name, "STICKY"]);
}

/// QUO-6, QUO-7
#[test]
fn the_quota_has_a_block_and_a_tick() {
    let loaded = good("", &[("MQTT_TOTAL_RATE_LIMITS_ENABLED", "true")]);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let total = loaded.config.session.total_rate;
    assert!(total.windows.is_some());
    assert_eq!(total.block_size, None);
    assert_eq!(total.lease_return, Some(Duration::from_secs(1)));
}

/// DEV-5
#[test]
fn a_queue_limit_over_the_packet_ids_stops_the_start() {
    let name = "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT";
    fault("", &[(name, "65536")], &["persisted-messages.limit", name, "1 to 65535"]);
    assert_eq!(good("", &[(name, "65535")]).config.storage.device_queue_messages, 65_535);
}

#[test]
fn values_that_contradict_each_other_stop_the_start() {
    let none = "listener: {tcp: {enabled: false}, ws: {enabled: false}}\n";
    fault(none, &[], &["listener.tcp.enabled", "wanted a listener"]);
    good("listener.tcp.enabled: false\n", &[]);
    fault("listener.ws.bind_port: 1883\n", &[], &["listener.tcp.bind_port", "listener.ws.bind"]);
    fault("listener.ws.netty.sub_protocols: ''\n", &[], &["listener.ws.netty.sub_protocols"]);
    fault("server.port: 1883\n", &[], &["listener.tcp.bind_port", "server.port"]);
    good("server.port: 0\nlistener.tcp.bind_port: 0\n", &[]);
    let apart = "server: {port: 1883, address: 127.0.0.2}\nlistener.tcp.bind_address: 127.0.0.1\n";
    good(apart, &[]);
    fault(
        "listener.inbound_budget_bytes: 1048576\nlistener.read_ahead_bytes: 2000000\n",
        &[],
        &["read_ahead_bytes", "inbound_budget_bytes"],
    );
    fault("listener.tcp.netty.max_payload_size: 100000000\n", &[], &["segment-bytes"]);
    fault("storage.type: file\n", &[], &["storage.type", "wanted embedded or cluster"]);
    fault("mqtt.shared-subscriptions.processing-type: RANDOM\n", &[], &["wanted ROUND_ROBIN"]);
}

/// CLU: TBMQ's words for Kafka, semicolons in values included.
#[test]
fn kafka_is_reached_with_tbmqs_words() {
    let env = [
        ("STORAGE_TYPE", "cluster"),
        ("TB_KAFKA_SERVERS", "k1:9092,k2:9093"),
        ("TB_KAFKA_PREFIX", "prod."),
        ("TB_KAFKA_DEFAULT_PRODUCER_CONSUMER_CONFIG", "a.b:c:d ; e:f\\;g;"),
        ("TB_KAFKA_CLIENT_SESSION_TOPIC_PROPERTIES", "partitions:3;replication.factor:2"),
    ];
    let storage = good("", &env).config.storage;
    assert_eq!(storage.profile, Profile::Cluster);
    let kafka = storage.kafka;
    assert_eq!((&*kafka.servers, &*kafka.prefix), ("k1:9092,k2:9093", "prod."));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(kafka.common, [pair("a.b", "c:d"), pair("e", "f;g")]);
    let sessions = kafka.topics.sessions;
    assert_eq!(sessions.properties, [pair("partitions", "3"), pair("replication.factor", "2")]);
    assert_eq!(load(None, &|_| None).unwrap().config.storage.kafka, KafkaConfig::default());
    for (name, bad) in [
        ("TB_KAFKA_SERVERS", "k1"),
        ("TB_KAFKA_SERVERS", ""),
        ("TB_KAFKA_PREFIX", "a/b"),
        ("TB_KAFKA_ADMIN_CONFIG", "no value"),
    ] {
        fault("", &[(name, bad)], &[name, "wanted"]);
    }
}

/// PAR-07, QTA-03: every number at 0, 1, its ends, beyond them and far beyond is either good or
/// refused with the form wanted; words and signs are refused.
#[test]
fn every_number_is_defined_or_refused() {
    let loaded = load(None, &|_| None).unwrap();
    let mut numbers = 0;
    for (key, raw) in load::built_in() {
        let built_in = placeholder::resolve(&raw, &|_| None).unwrap().text;
        if built_in.is_empty() || !built_in.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        numbers += 1;
        for value in
            ["-1", "1.5", "1e3", "many", "\"\"", "true", "'99999999999999999999999'", "[1, 2]"]
        {
            let found = faults(&format!("{key}: {value}\n"), &[]);
            assert!(
                found.iter().any(|fault| fault.contains(&key) && fault.contains(" to ")),
                "{key} = {value}: {found:?}"
            );
        }
        for value in ["0", "1", "65535", "65536", "4294967295", "18446744073709551615"] {
            if let Err(faults) = try_load(&format!("{key}: {value}\n"), &[]) {
                let text = faults.to_string();
                assert!(text.contains(&key), "{key} = {value}: {text}");
            }
        }
        assert_eq!(good(&format!("{key}: {built_in}\n"), &[]).config, loaded.config);
    }
    assert!(numbers > 30, "{numbers}");
}

#[test]
fn addresses_may_be_v6_or_localhost() {
    let env = [("HTTP_BIND_ADDRESS", "localhost"), ("LISTENER_TCP_BIND_ADDRESS", "[::]")];
    let config = good("", &env).config;
    assert_eq!(config.admin.bind.to_string(), "127.0.0.1:8083");
    assert_eq!(config.listener.tcp.unwrap().bind.to_string(), "[::]:1883");
    fault("", &[("HTTP_BIND_ADDRESS", "somewhere")], &["server.address", "IP address"]);
}

#[test]
fn exposed_endpoints_are_chosen_by_name() {
    let exposed = |names: &str| {
        let admin = good("", &[("METRICS_ENDPOINTS_EXPOSE", names)]).config.admin;
        [admin.health, admin.info, admin.prometheus]
    };
    assert_eq!(exposed("health"), [true, false, false]);
    assert_eq!(exposed("*"), [true; 3]);
    assert_eq!(exposed(""), [false; 3]);
    fault("", &[("METRICS_ENDPOINTS_EXPOSE", "health,beans")], &["exposure.include", "or *"]);
}
