//! The keys of Kafka, in TBMQ's words.

use std::time::Duration;

use super::reader::Reader;
use crate::storage::{KafkaConfig, Retention, TopicConfig, Topics};

/// The four keys of one topic.
struct Keys {
    topic: &'static str,
    properties: &'static str,
    consumer: &'static str,
    producer: &'static str,
}

macro_rules! keys {
    ($name:literal) => {
        Keys {
            topic: concat!("queue.kafka.", $name, ".topic"),
            properties: concat!("queue.kafka.", $name, ".topic-properties"),
            consumer: concat!("queue.kafka.", $name, ".additional-consumer-config"),
            producer: concat!("queue.kafka.", $name, ".additional-producer-config"),
        }
    };
}

pub(super) fn read(r: &mut Reader<'_>) -> KafkaConfig {
    KafkaConfig {
        servers: r.servers("queue.kafka.bootstrap.servers"),
        prefix: r.topic("queue.kafka.kafka-prefix"),
        common: r.pairs("queue.kafka.default.config"),
        consumer: r.pairs("queue.kafka.default.consumer.config"),
        producer: r.pairs("queue.kafka.default.producer.config"),
        admin: r.pairs("queue.kafka.admin.config"),
        command_timeout: Duration::from_secs(r.number(
            "queue.kafka.admin.command-timeout",
            "s",
            1..=3600,
        )),
        topics: Topics {
            log: topic(r, &keys!("msg-all")),
            retained: topic(r, &keys!("retained-msg")),
            sessions: topic(r, &keys!("client-session")),
            subscriptions: topic(r, &keys!("client-subscriptions")),
            credentials: topic(r, &keys!("client-credentials")),
            blocked: topic(r, &keys!("blocked-client")),
            settings: topic(r, &keys!("settings")),
            state: topic(r, &keys!("state")),
            application: topic(r, &keys!("app-persisted-msg")),
            // Clients of Kafka are those of APPLICATION clients' logs.
            application_shared: TopicConfig {
                name: r.topic("queue.kafka.app-persisted-msg-shared.topic"),
                properties: r.pairs("queue.kafka.app-persisted-msg-shared.topic-properties"),
                ..TopicConfig::default()
            },
        },
    }
}

/// What the topic's settings say of retention, which embedded storage keeps to as well (APP-3).
pub(super) fn retention(r: &mut Reader<'_>, topic: &TopicConfig) -> Retention {
    let mut number = |name: &str| {
        let (_, text) = topic.properties.iter().rev().find(|(key, _)| key == name)?;
        match text.parse::<i64>() {
            Ok(number) => u64::try_from(number).ok(),
            Err(_) => {
                let text = format!("{name} of {}: {text:?} is no whole number", topic.name);
                r.fault(text);
                None
            }
        }
    };
    let (bytes, life) = (number("retention.bytes"), number("retention.ms"));
    Retention { bytes, life: life.map(Duration::from_millis) }
}

fn topic(r: &mut Reader<'_>, keys: &Keys) -> TopicConfig {
    TopicConfig {
        name: r.topic(keys.topic),
        properties: r.pairs(keys.properties),
        consumer: r.pairs(keys.consumer),
        producer: r.pairs(keys.producer),
    }
}
