//! Redis's settings, under TBMQ's keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::reader::Reader;
use crate::storage::{RedisAddress, RedisKind, RedisSettings, RedisTls, Secret};

/// Queues' own bounds are other keys': the caller fills them in.
pub(super) fn read(r: &mut Reader<'_>) -> RedisSettings {
    let kind = kind(r);
    let defaults = RedisSettings::default();
    let own = r.flag("redis.standalone.useDefaultClientConfig");
    let client_name = r.text("redis.standalone.clientName").map(str::to_owned);
    let mut timeout = |key| Duration::from_millis(r.number(key, "ms", 10..=600_000));
    let connect_timeout = timeout("redis.standalone.connectTimeout");
    let read_timeout = timeout("redis.standalone.readTimeout");
    RedisSettings {
        kind,
        db: r.short("redis.db", "database", 0),
        username: r.text("redis.username").map(str::to_owned),
        password: r.text("redis.password").map(Secret::new),
        tls: tls(r),
        client_name: if own { None } else { client_name },
        connect_timeout: if own { defaults.connect_timeout } else { connect_timeout },
        read_timeout: if own { defaults.read_timeout } else { read_timeout },
        replica_lag: Duration::from_millis(r.number("redis.replica-lag-ms", "ms", 0..=86_400_000)),
        prefix: Arc::from(r.key_prefix("cache.cache-prefix")),
        ..defaults
    }
}

fn kind(r: &mut Reader<'_>) -> RedisKind {
    let chosen = r.choice("redis.connection.type", &["standalone", "sentinel", "cluster"]);
    let host = r.text("redis.standalone.host").unwrap_or("localhost").to_owned();
    let port = r.short("redis.standalone.port", "port", 1);
    let nodes = addresses(r, "redis.cluster.nodes");
    let max_redirects = r.size("redis.cluster.maxRedirects", "redirections", 1..=100);
    let master = r.text("redis.sentinel.master").unwrap_or_default().to_owned();
    let sentinels = addresses(r, "redis.sentinel.sentinels");
    let password = r.text("redis.sentinel.password").map(Secret::new);
    match chosen {
        0 => RedisKind::Standalone(RedisAddress { host, port }),
        1 => {
            if master.is_empty() || sentinels.is_empty() {
                let keys =
                    ["redis.connection.type", "redis.sentinel.master", "redis.sentinel.sentinels"];
                r.contradiction(&keys, "wanted the master's name and at least one Sentinel");
            }
            RedisKind::Sentinel { master, sentinels, password }
        }
        _ => {
            if nodes.is_empty() {
                let keys = ["redis.connection.type", "redis.cluster.nodes"];
                r.contradiction(&keys, "wanted at least one node");
            }
            RedisKind::Cluster { nodes, max_redirects }
        }
    }
}

fn addresses(r: &mut Reader<'_>, key: &'static str) -> Vec<RedisAddress> {
    r.hosts(key).into_iter().map(|(host, port)| RedisAddress { host, port }).collect()
}

fn tls(r: &mut Reader<'_>) -> Option<RedisTls> {
    let enabled = r.flag("redis.ssl.enabled");
    let mut file = |key| r.text(key).map(PathBuf::from);
    let ca = file("redis.ssl.credentials.cert_file");
    let certificate = file("redis.ssl.credentials.user_cert_file");
    let key = file("redis.ssl.credentials.user_key_file");
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            let keys =
                ["redis.ssl.credentials.user_cert_file", "redis.ssl.credentials.user_key_file"];
            r.contradiction(&keys, "wanted both of them, or neither");
            None
        }
    };
    enabled.then_some(RedisTls { ca, client })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::{Loaded, load};

    fn with(env: &[(&str, &str)]) -> Result<Loaded, crate::config::Faults> {
        let env: BTreeMap<&str, &str> = env.iter().copied().collect();
        load(None, &|name: &str| env.get(name).map(|value| (*value).to_owned()))
    }

    fn settings(env: &[(&str, &str)]) -> RedisSettings {
        with(env).unwrap().config.storage.redis
    }

    fn at(host: &str, port: u16) -> RedisAddress {
        RedisAddress { host: host.into(), port }
    }

    #[test]
    fn every_kind_is_reached_by_tbmqs_variables() {
        assert_eq!(settings(&[]).kind, RedisKind::Standalone(at("localhost", 6379)));
        let env = [("REDIS_HOST", "::1"), ("REDIS_PORT", "7"), ("REDIS_DB", "3")];
        let read = settings(&env);
        assert_eq!((read.kind, read.db), (RedisKind::Standalone(at("::1", 7)), 3));
        let env = [
            ("REDIS_CONNECTION_TYPE", "sentinel"),
            ("REDIS_MASTER", "mymaster"),
            ("REDIS_SENTINELS", "a:1, [::1]:2"),
            ("REDIS_SENTINEL_PASSWORD", "p"),
        ];
        let sentinels = vec![at("a", 1), at("::1", 2)];
        let password = Some(Secret::new("p"));
        let kind = RedisKind::Sentinel { master: "mymaster".into(), sentinels, password };
        assert_eq!(settings(&env).kind, kind);
        let env = [("REDIS_CONNECTION_TYPE", "cluster"), ("REDIS_NODES", "a:1,b:2")];
        let kind = RedisKind::Cluster { nodes: vec![at("a", 1), at("b", 2)], max_redirects: 12 };
        assert_eq!(settings(&env).kind, kind);
    }

    #[test]
    fn timeouts_are_those_of_the_client_until_it_is_configured() {
        let env = [("REDIS_CLIENT_READ_TIMEOUT", "900"), ("REDIS_CLIENT_NAME", "n")];
        let read = settings(&env);
        let defaults = RedisSettings::default();
        assert_eq!((read.read_timeout, read.client_name), (defaults.read_timeout, None));
        let env = [env[0], env[1], ("REDIS_USE_DEFAULT_CLIENT_CONFIG", "false")];
        let read = settings(&env);
        assert_eq!(read.read_timeout, Duration::from_millis(900));
        assert_eq!(read.client_name.as_deref(), Some("n"));
    }

    #[test]
    fn tls_and_who_we_are() {
        let env = [
            ("REDIS_SSL_ENABLED", "true"),
            ("REDIS_SSL_CERT_FILE", "ca.pem"),
            ("REDIS_SSL_USER_CERT_FILE", "me.pem"),
            ("REDIS_SSL_USER_KEY_FILE", "me.key"),
            ("REDIS_USERNAME", "u"),
            ("REDIS_PASSWORD", "s3cret"),
            ("CACHE_PREFIX", "mine:"),
        ];
        let loaded = with(&env).unwrap();
        let read = &loaded.config.storage.redis;
        let client = Some(("me.pem".into(), "me.key".into()));
        assert_eq!(read.tls, Some(RedisTls { ca: Some("ca.pem".into()), client }));
        assert_eq!((read.username.as_deref(), &*read.prefix), (Some("u"), "mine:"));
        assert!(!format!("{loaded:?}").contains("s3cret"), "a password is printed nowhere");
        assert!(loaded.changed.iter().any(|changed| changed.key == "redis.password"));
    }

    /// LIM-3's way: everything that is wrong, in one go.
    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let env = [
            ("REDIS_CONNECTION_TYPE", "cluster"),
            ("REDIS_SENTINELS", "a"),
            ("REDIS_PORT", "0"),
            ("REDIS_SSL_USER_KEY_FILE", "me.key"),
            ("CACHE_PREFIX", "{mine}"),
        ];
        let faults = with(&env).unwrap_err().to_string();
        for key in [
            "redis.sentinel.sentinels",
            "redis.standalone.port",
            "redis.cluster.nodes",
            "redis.ssl.credentials.user_cert_file",
            "cache.cache-prefix",
        ] {
            assert!(faults.contains(key), "{key}: {faults}");
        }
        let env = [("REDIS_CONNECTION_TYPE", "sentinel")];
        assert!(with(&env).unwrap_err().to_string().contains("redis.sentinel.master"));
    }
}
