//! The contract in memory, and that the faults do what they say.

use std::time::Duration;

use super::{Faults, Memory, MemoryConfig};
use crate::storage::contract::{Backend, Factory, Inbox, Options, batch_of};
use crate::storage::embedded::Window;
use crate::storage::{AppendOutcome, BoxFuture, Durability, Stores};

struct InMemory {
    faults: Faults,
}

struct MemoryBackend {
    memory: Option<Memory>,
}

impl MemoryBackend {
    fn swap(&mut self, how: impl FnOnce(Memory) -> Memory) {
        self.memory = self.memory.take().map(how);
    }
}

impl Backend for MemoryBackend {
    fn stores(&self) -> Stores {
        self.memory.as_ref().expect("a backend under test is open").stores()
    }

    fn crash(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.swap(Memory::crash) })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.swap(Memory::restart) })
    }
}

impl Factory for InMemory {
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>> {
        let faults = self.faults;
        Box::pin(async move {
            let memory = Memory::new(MemoryConfig {
                seed: options.seed,
                queue_limit: options.queue_limit,
                queue_ttl: Duration::from_millis(options.queue_ttl_ms),
                bucket: vec![Window {
                    capacity: options.tokens,
                    period: Duration::from_secs(3600),
                }],
            });
            memory.set_faults(faults);
            Box::new(MemoryBackend { memory: Some(memory) }) as Box<dyn Backend>
        })
    }
}

mod quiet {
    use super::{Faults, InMemory};

    crate::storage::contract::suite!(InMemory { faults: Faults::default() });
}

/// The same cases when every answer is late and every crash rolls back as far as it may.
mod rough {
    use std::time::Duration;

    use super::{Faults, InMemory};

    crate::storage::contract::suite!(InMemory {
        faults: Faults { delay: Duration::from_micros(300), rollback: true, ..Faults::default() }
    });
}

/// IN-2: whatever goes wrong, every append settles exactly once, and what settled as `Stored` is
/// consumed, in order.
#[tokio::test(start_paused = true)]
async fn faults_refuse_and_doubt_but_never_lie() {
    let memory = Memory::new(MemoryConfig { seed: 7, ..MemoryConfig::default() });
    let delay = Duration::from_millis(5);
    memory.set_faults(Faults { delay, not_stored: 200, in_doubt: 200, ..Faults::default() });
    let (stores, inbox) = (memory.stores(), std::sync::Arc::new(Inbox::default()));
    for ticket in 0..300 {
        let batch = batch_of("p", &[&ticket.to_string()], None);
        let sink = std::sync::Arc::<Inbox>::clone(&inbox);
        stores.log.append(batch, Durability::Durable, sink, ticket);
    }
    inbox.outcome(299).await;
    let told = inbox.told();
    assert_eq!(told.iter().map(|told| told.0).collect::<Vec<_>>(), (0..300).collect::<Vec<_>>());
    let count = |kind: fn(&AppendOutcome) -> bool| told.iter().filter(|one| kind(&one.1)).count();
    assert!(count(|one| *one == AppendOutcome::NotStored) > 20);
    assert!(count(|one| *one == AppendOutcome::InDoubt) > 20);
    let (_, mut consumer) = stores.log.consumer(0);
    let mut positions = Vec::new();
    while let Ok(batch) = tokio::time::timeout(delay, consumer.next()).await {
        positions.extend(batch.expect("reads").items.iter().map(|item| item.0));
    }
    for (ticket, outcome) in told {
        match outcome {
            AppendOutcome::Stored(at) => assert!(positions.contains(&at), "{ticket} is lost"),
            AppendOutcome::NotStored | AppendOutcome::InDoubt => {}
        }
    }
    assert!(positions.windows(2).all(|pair| pair[0] < pair[1]));
}
