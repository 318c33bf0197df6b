//! The whole contract, unchanged, on the cluster profile: a real Kafka for log and tables, a real
//! Redis for queues and the token bucket. A crash drops both clients without a word.

use std::time::Duration;

use sluice::storage::contract::{Backend, Factory, Options};
use sluice::storage::{
    BoxFuture, Kafka, KafkaConfig, KafkaSettings, Redis, RedisSettings, Stores, Window,
};

use crate::services::services;

struct OnServices;

struct ClusterBackend {
    kafka_settings: KafkaSettings,
    redis_settings: RedisSettings,
    open: Option<(Kafka, Redis)>,
}

impl ClusterBackend {
    async fn reopen(&mut self, orderly: bool) {
        if let Some((kafka, redis)) = self.open.take() {
            if orderly {
                redis.stop(Duration::from_secs(15)).await.unwrap();
            } else {
                drop(redis);
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
        self.open = Some((kafka.await.unwrap().unwrap(), redis.unwrap()));
    }
}

impl Backend for ClusterBackend {
    fn stores(&self) -> Stores {
        let (kafka, redis) = self.open.as_ref().unwrap();
        Stores {
            log: kafka.log(),
            tables: kafka.tables(),
            queues: redis.queues(),
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
            let services = services().expect("a skipped case makes nothing");
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

    fn seeds(&self) -> u64 {
        1
    }
}

macro_rules! cases {
    ($($case:ident)*) => {$(
        #[tokio::test]
        async fn $case() {
            if services().is_some() {
                sluice::storage::contract::$case(&OnServices).await;
            }
        }
    )*};
}

cases! {
    a_cancelled_next_loses_nothing
    a_consumer_goes_on_behind_its_commit
    a_crash_is_not_forgotten_by_an_orderly_restart
    a_new_incarnation_empties_the_queue
    a_put_is_applied_before_it_settles
    a_queue_lost_in_a_crash_is_filled_again_by_the_replay
    a_second_consumer_of_a_partition_panics
    a_source_is_taken_once
    acks_forget_in_any_order
    an_ack_survives_an_orderly_restart
    an_exact_cursor_spares_the_dup_flag
    appends_settle_and_are_consumed_in_order
    calls_for_another_incarnation_change_nothing
    commit_and_state_are_a_pair_after_a_crash
    decisions_behind_the_commit_are_told
    direct_copies_come_back_whole
    durable_records_survive_a_crash
    entries_get_rising_sequences_and_read_back
    expiry_is_the_publishers_or_the_default
    lag_counts_what_waits
    load_gives_the_newest_row_of_each_key
    marks_and_runs_survive_a_crash
    opens_and_removals_survive_in_order
    over_the_limit_the_oldest_go
    pages_obey_their_bounds
    positions_rise_over_crashes
    queues_survive_any_mix_of_crashes
    received_entries_are_never_trimmed
    received_marks_show_once_settled
    relaxed_and_durable_rows_of_a_key_keep_their_order
    relaxed_appends_keep_the_order_too
    removal_ends_the_queue
    reserved_runs_show_until_acknowledged
    retained_rows_wait_for_the_consumer
    row_positions_rise_over_restarts
    rows_of_one_put_stand_together
    subscriptions_are_found_as_the_commit_left_them
    the_bucket_gives_what_it_has
    the_consumer_is_told_how_far_the_log_goes
    what_was_not_committed_comes_again_under_the_same_identity
}
