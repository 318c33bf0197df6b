//! The contract of `PublishLog`, `LogConsumer` and `ChangeLog`, unchanged, on a real Kafka. Queues
//! are in memory here.

use sluice::storage::contract::{Backend, Factory, Options};
use sluice::storage::{BoxFuture, Kafka, KafkaConfig, KafkaSettings, Memory, MemoryConfig, Stores};

use crate::support::services;

struct OnKafka;

struct KafkaBackend {
    settings: KafkaSettings,
    open: Option<Kafka>,
    queues: Memory,
}

impl KafkaBackend {
    async fn reopen(&mut self, orderly: bool) {
        let (old, settings) = (self.open.take().unwrap(), self.settings.clone());
        self.open = Some(
            blocking(move || {
                if orderly {
                    old.stop().unwrap();
                }
                drop(old);
                Kafka::open(settings).unwrap()
            })
            .await,
        );
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

impl Backend for KafkaBackend {
    fn stores(&self) -> Stores {
        let open = self.open.as_ref().unwrap();
        Stores { log: open.log(), tables: open.tables(), ..self.queues.stores() }
    }

    fn crash(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen(false))
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.reopen(true))
    }
}

impl Factory for OnKafka {
    fn make(&self, _options: Options) -> BoxFuture<'_, Box<dyn Backend>> {
        Box::pin(async move {
            let services = services().expect("a skipped case makes nothing");
            let settings = KafkaSettings::new(KafkaConfig {
                servers: services.kafka().to_owned(),
                prefix: services.prefix(),
                ..KafkaConfig::default()
            });
            let (opened, queues) = (settings.clone(), Memory::new(MemoryConfig::default()));
            let open = Some(blocking(move || Kafka::open(opened).unwrap()).await);
            Box::new(KafkaBackend { settings, open, queues }) as Box<dyn Backend>
        })
    }
}

macro_rules! cases {
    ($($case:ident)*) => {$(
        #[tokio::test]
        async fn $case() {
            if services().is_some() {
                sluice::storage::contract::$case(&OnKafka).await;
            }
        }
    )*};
}

cases! {
    a_cancelled_next_loses_nothing
    a_consumer_goes_on_behind_its_commit
    a_put_is_applied_before_it_settles
    a_second_consumer_of_a_partition_panics
    appends_settle_and_are_consumed_in_order
    commit_and_state_are_a_pair_after_a_crash
    direct_copies_come_back_whole
    durable_records_survive_a_crash
    lag_counts_what_waits
    load_gives_the_newest_row_of_each_key
    positions_rise_over_crashes
    relaxed_and_durable_rows_of_a_key_keep_their_order
    relaxed_appends_keep_the_order_too
    retained_rows_wait_for_the_consumer
    row_positions_rise_over_restarts
    rows_of_one_put_stand_together
    subscriptions_are_found_as_the_commit_left_them
    the_consumer_is_told_how_far_the_log_goes
    what_was_not_committed_comes_again_under_the_same_identity
}
