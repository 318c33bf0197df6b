//! TBMQ's keys that have no effect here, so that a TBMQ file starts and its owner is told what
//! became of it; and the nearest known key for one that nobody knows.

/// Why a key has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The thing itself will come with a later version or with the cluster profile.
    NotYet,
    /// It tunes a part that TBMQ has and Sluice doesn't need.
    Never,
}

/// Patterns that end with a dot stand for everything below; the first that fits counts.
const KEYS: &[(&str, Why)] = &[
    ("actors.", Why::Never),
    ("analysis.", Why::NotYet),
    ("app.", Why::Never),
    ("cache.", Why::Never),
    ("database.", Why::Never),
    ("device.connectivity.", Why::NotYet),
    ("historical-data-report.", Why::NotYet),
    ("integrations.", Why::NotYet),
    ("jedis.", Why::Never),
    ("lettuce.", Why::Never),
    ("listener.leak_detector_level", Why::Never),
    ("listener.ssl.config.credentials.keystore.", Why::Never),
    ("listener.ssl.netty.boss_group_thread_count", Why::Never),
    ("listener.ssl.netty.leak_detector_level", Why::Never),
    ("listener.ssl.netty.shutdown_quiet_period", Why::Never),
    ("listener.ssl.netty.worker_group_thread_count", Why::Never),
    ("listener.tcp.netty.boss_group_thread_count", Why::Never),
    ("listener.tcp.netty.leak_detector_level", Why::Never),
    ("listener.tcp.netty.shutdown_quiet_period", Why::Never),
    ("listener.tcp.netty.worker_group_thread_count", Why::Never),
    ("listener.ws.netty.boss_group_thread_count", Why::Never),
    ("listener.ws.netty.leak_detector_level", Why::Never),
    ("listener.ws.netty.shutdown_quiet_period", Why::Never),
    ("listener.ws.netty.worker_group_thread_count", Why::Never),
    ("listener.wss.netty.boss_group_thread_count", Why::Never),
    ("listener.wss.netty.leak_detector_level", Why::Never),
    ("listener.wss.netty.shutdown_quiet_period", Why::Never),
    ("listener.wss.netty.worker_group_thread_count", Why::Never),
    ("listener.wss.config.credentials.keystore.", Why::Never),
    ("logging.", Why::Never),
    ("management.", Why::Never),
    ("mqtt.blocked-client.", Why::Never),
    ("mqtt.buffered-delivery.", Why::Never),
    ("mqtt.buffered-msg-count", Why::Never),
    ("mqtt.client-session-expiry.cron", Why::Never),
    ("mqtt.client-session-expiry.zone", Why::Never),
    ("mqtt.connect.threads", Why::Never),
    ("mqtt.dropped-msg.", Why::NotYet),
    ("mqtt.flow-control.timeout", Why::Never),
    ("mqtt.handler.", Why::Never),
    ("mqtt.keep-alive.monitoring-delay-ms", Why::Never),
    ("mqtt.msg-subscriptions-parallel-processing", Why::Never),
    ("mqtt.persistent-session.app.", Why::NotYet),
    ("mqtt.persistent-session.device.persisted-messages.buffered-msg-count", Why::Never),
    ("mqtt.persistent-session.device.persisted-messages.write-and-flush", Why::Never),
    ("mqtt.rate-limits.batch-size", Why::Never),
    ("mqtt.rate-limits.period-ms", Why::Never),
    ("mqtt.rate-limits.threads-count", Why::Never),
    ("mqtt.retain-msg-trie.", Why::Never),
    ("mqtt.subscription-trie.", Why::Never),
    ("mqtt.write-and-flush", Why::Never),
    ("queue.application-persisted-msg.", Why::NotYet),
    ("queue.application-removed-event.", Why::Never),
    ("queue.basic-downlink-msg.", Why::Never),
    ("queue.blocked-client.", Why::Never),
    ("queue.client-session-event-response.", Why::Never),
    ("queue.client-session-event.", Why::Never),
    ("queue.client-session.", Why::Never),
    ("queue.client-subscriptions.", Why::Never),
    ("queue.device-persisted-msg.", Why::Never),
    ("queue.disconnect-client-command.", Why::Never),
    ("queue.historical-data-total.", Why::Never),
    ("queue.integration-uplink-notifications.", Why::NotYet),
    ("queue.integration-uplink.", Why::NotYet),
    ("queue.internode-notifications.", Why::Never),
    ("queue.kafka.application-removed-event.", Why::NotYet),
    ("queue.kafka.consumer-properties-per-topic.", Why::NotYet),
    ("queue.kafka.home-page.", Why::NotYet),
    ("queue.kafka.integration", Why::NotYet),
    ("queue.kafka.", Why::Never),
    ("queue.msg-all.", Why::Never),
    ("queue.persisted-downlink-msg.", Why::Never),
    ("queue.retained-msg.", Why::Never),
    ("redis.", Why::Never),
    ("security.", Why::Never),
    ("server.forward_headers_strategy", Why::Never),
    ("server.http2.", Why::Never),
    ("server.log_controller_error_stack_trace", Why::Never),
    ("server.shutdown", Why::Never),
    ("server.ssl.credentials.keystore.", Why::Never),
    ("service.type", Why::Never),
    ("spring.", Why::Never),
    ("springdoc.", Why::NotYet),
    ("sql.", Why::Never),
    ("stats.", Why::Never),
    ("swagger.", Why::NotYet),
];

/// Keys whose values are shown to nobody, besides all that end with `password`.
pub(super) const SECRETS: &[&str] = &[
    "queue.kafka.admin.config",
    "queue.kafka.default.config",
    "queue.kafka.default.consumer.config",
    "queue.kafka.default.producer.config",
    "security.jwt.signing-key",
    "security.jwt.tokenSigningKey",
    "security.mqtt.http.body",
    "security.mqtt.http.headers",
    "security.mqtt.jwt.secret",
];
/// What is shown instead.
pub(super) const SECRET: &str = "(secret)";

pub(super) fn why(key: &str) -> Option<Why> {
    let fits = |pattern: &str| {
        if pattern.ends_with('.') { key.starts_with(pattern) } else { key == pattern }
    };
    KEYS.iter().find(|(pattern, _)| fits(pattern)).map(|(_, why)| *why)
}

/// So near to a key of ours that it is a slip, even where TBMQ has a tree of other keys.
const SLIP: usize = 2;

/// The key of ours that `key` was probably meant to be, although it stands in a tree of TBMQ's.
pub(super) fn slip<'a>(key: &str, ours: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let exact = KEYS.iter().any(|(pattern, _)| *pattern == key);
    if exact {
        return None;
    }
    ours.map(|known| (distance(key, known), known))
        .filter(|(distance, _)| *distance <= SLIP)
        .min()
        .map(|(_, known)| known)
}

/// The known key with the least edit distance.
pub(super) fn nearest<'a>(key: &str, ours: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let theirs = KEYS.iter().map(|(pattern, _)| *pattern).filter(|key| !key.ends_with('.'));
    ours.chain(theirs).min_by_key(|known| distance(key, known))
}

/// Levenshtein's, over bytes. A key of more than 200 bytes is judged by its first 200.
fn distance(a: &str, b: &str) -> usize {
    let cut = |text: &str| text.bytes().take(200).collect::<Vec<u8>>();
    let (a, b) = (cut(a), cut(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_levenshteins() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_tree_covers_what_is_below_it_and_no_more() {
        assert_eq!(why("redis.pool_config.maxIdle"), Some(Why::Never));
        assert_eq!(why("sql.ts.batch_size"), Some(Why::Never));
        assert_eq!(why("redistribution.x"), None);
        assert_eq!(why("mqtt.connect.threads"), Some(Why::Never));
        assert_eq!(why("mqtt.connect.thread"), None);
    }
}
