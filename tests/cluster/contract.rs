//! The whole contract, unchanged, on the cluster profile: a real Kafka for log and tables, a real
//! Redis for queues and the token bucket, logs of APPLICATION clients and groups on both. A crash
//! drops all clients without a word.

use std::time::Duration;

use sluice::storage::contract::{Backend, Factory, Options, suite};
use sluice::storage::{
    Applications, BoxFuture, Kafka, KafkaConfig, KafkaSettings, Redis, RedisSettings, Stores,
    Window,
};

use crate::services::services;

struct OnServices;

struct ClusterBackend {
    kafka_settings: KafkaSettings,
    redis_settings: RedisSettings,
    open: Option<(Kafka, Redis, Applications)>,
}

impl ClusterBackend {
    async fn reopen(&mut self, orderly: bool) {
        if let Some((kafka, redis, applications)) = self.open.take() {
            if orderly {
                applications.stop(Duration::from_secs(15)).await.unwrap();
                redis.stop(Duration::from_secs(15)).await.unwrap();
            } else {
                // At once: what was told last may not reach it any more.
                drop(redis);
                tokio::task::spawn_blocking(move || drop(applications)).await.unwrap();
            }
            let end = move || {
                if orderly {
                    kafka.stop().unwrap();
                }
                drop(kafka);
            };
            tokio::task::spawn_blocking(end).await.unwrap();
        }
        let settings = self.kafka_settings.clone();
        let kafka = tokio::task::spawn_blocking(move || Kafka::open(settings));
        let redis = Redis::connect(self.redis_settings.clone()).await;
        let (kafka, redis) = (kafka.await.unwrap().unwrap(), redis.unwrap());
        let (settings, places, others) =
            (self.kafka_settings.clone(), redis.places(), redis.queues());
        let runtime = tokio::runtime::Handle::current();
        let open = move || Applications::open(settings, places, others, runtime);
        let applications = tokio::task::spawn_blocking(open).await.unwrap().unwrap();
        self.open = Some((kafka, redis, applications));
    }
}

impl Backend for ClusterBackend {
    fn stores(&self) -> Stores {
        let (kafka, redis, applications) = self.open.as_ref().unwrap();
        Stores {
            log: kafka.log(),
            tables: kafka.tables(),
            queues: applications.queues(),
            bucket: redis.bucket(),
            device_bucket: redis.bucket(),
            peers: None,
        }
    }

    fn crash(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen(false))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen(true))
    }
}

impl Factory for OnServices {
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>> {
        Box::pin(async move {
            let services = services().expect("a case makes nothing before it is ready");
            let prefix = services.prefix();
            let window = Window { capacity: options.tokens, period: Duration::from_secs(3600) };
            let redis_settings = RedisSettings {
                kind: services.redis(),
                prefix: prefix.as_str().into(),
                queue_limit: options.queue_limit,
                queue_ttl: Duration::from_millis(options.queue_ttl_ms),
                bucket: vec![window],
                ..RedisSettings::default()
            };
            let kafka_settings = KafkaSettings::new(KafkaConfig {
                servers: services.kafka().to_owned(),
                prefix,
                ..KafkaConfig::default()
            });
            let mut backend = ClusterBackend { kafka_settings, redis_settings, open: None };
            backend.reopen(true).await;
            Box::new(backend) as Box<dyn Backend>
        })
    }

    fn is_ready(&self) -> bool {
        services().is_some()
    }

    fn seeds(&self) -> u64 {
        1
    }
}

suite!(OnServices);
