//! The contract's cases of queues and of the token bucket, unchanged, on a real Redis. The log is
//! the one in memory. A crash kills broker and Redis; an orderly restart ends the broker.

use std::time::Duration;

use sluice::storage::contract::{Backend, Factory, Options, suite};
use sluice::storage::{BoxFuture, Memory, MemoryConfig, Redis, RedisSettings, Stores, Window};

use crate::redis_server::RedisServer;

struct OnRedis;

struct RedisBackend {
    server: RedisServer,
    settings: RedisSettings,
    memory: Option<Memory>,
    redis: Option<Redis>,
}

impl RedisBackend {
    async fn reconnect(&mut self) {
        let connected = Redis::connect(self.settings.clone()).await;
        self.redis = Some(connected.expect("a running Redis takes connections"));
    }
}

impl Backend for RedisBackend {
    fn stores(&self) -> Stores {
        let stores = self.memory.as_ref().expect("a backend under test is open").stores();
        let redis = self.redis.as_ref().expect("a backend under test is open");
        Stores { queues: redis.queues(), bucket: redis.bucket(), ..stores }
    }

    fn crash(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            drop(self.redis.take());
            self.server.kill();
            self.server.run();
            self.memory = self.memory.take().map(Memory::crash);
            self.reconnect().await;
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let redis = self.redis.take().expect("a backend under test is open");
            redis
                .stop(Duration::from_secs(15))
                .await
                .expect("a running Redis takes the last calls");
            self.memory = self.memory.take().map(Memory::restart);
            self.reconnect().await;
        })
    }
}

impl Factory for OnRedis {
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>> {
        Box::pin(async move {
            let server = RedisServer::start();
            let settings = RedisSettings {
                queue_limit: options.queue_limit,
                queue_ttl: Duration::from_millis(options.queue_ttl_ms),
                bucket: vec![Window {
                    capacity: options.tokens,
                    period: Duration::from_secs(3600),
                }],
                prefix: "contract:".into(),
                ..server.settings()
            };
            let memory =
                Memory::new(MemoryConfig { seed: options.seed, ..MemoryConfig::default() });
            let mut backend = RedisBackend { server, settings, memory: Some(memory), redis: None };
            backend.reconnect().await;
            Box::new(backend) as Box<dyn Backend>
        })
    }

    fn seeds(&self) -> u64 {
        3
    }
}

suite! { OnRedis;
    a_crash_is_not_forgotten_by_an_orderly_restart
    a_new_incarnation_empties_the_queue
    a_queue_lost_in_a_crash_is_filled_again_by_the_replay
    a_source_is_taken_once
    acks_forget_in_any_order
    an_ack_survives_an_orderly_restart
    an_exact_cursor_spares_the_dup_flag
    calls_for_another_incarnation_change_nothing
    entries_get_rising_sequences_and_read_back
    expiry_is_the_publishers_or_the_default
    marks_and_runs_survive_a_crash
    opens_and_removals_survive_in_order
    over_the_limit_the_oldest_go
    pages_obey_their_bounds
    queues_survive_any_mix_of_crashes
    received_entries_are_never_trimmed
    received_marks_show_once_settled
    removal_ends_the_queue
    reserved_runs_show_until_acknowledged
    the_bucket_gives_what_it_has
}
