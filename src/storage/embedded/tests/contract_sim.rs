//! The contract on a medium that really loses, at a crash, what was not synced: of the log any
//! subset of unsynced writes, of the projection any number of its last batches.

use std::sync::Arc;
use std::time::Duration;

use crate::storage::contract::{Backend, Factory, Options};
use crate::storage::embedded::MemoryProjection;
use crate::storage::embedded::wal::SimDisk;
use crate::storage::{BoxFuture, Embedded, EmbeddedSettings, Stores};

struct Sim;

struct SimBackend {
    disk: SimDisk,
    projection: Arc<MemoryProjection>,
    config: EmbeddedSettings,
    open: Option<(Embedded, Stores)>,
    dice: u64,
}

impl SimBackend {
    fn reopen(&mut self) {
        let projection = Arc::clone(&self.projection);
        let opened = Embedded::simulated(self.disk.disk(), projection, self.config.clone());
        self.open = Some(opened.expect("what was written opens"));
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.dice >> 33) as usize % sides
    }
}

impl Backend for SimBackend {
    fn stores(&self) -> Stores {
        self.open.as_ref().expect("a backend under test is open").1.clone()
    }

    fn crash(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // First the medium stops, then the program.
            self.disk = self.disk.crash();
            let keep = self.roll(self.projection.unsynced() + 1);
            let frozen = Arc::new(self.projection.crash(keep));
            drop(self.open.take());
            self.projection = frozen;
            self.reopen();
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let (embedded, _) = self.open.take().expect("a backend under test is open");
            embedded.stop().expect("stops");
            drop(embedded);
            self.reopen();
        })
    }
}

impl Factory for Sim {
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>> {
        Box::pin(async move {
            let mut config = super::contract_real::config(options);
            config.wal.segment_bytes = 2 << 10;
            config.checkpoint_every = Duration::from_millis(1);
            config.sync_every = Duration::from_millis(10);
            config.retain_bytes = 6 << 10;
            let disk = SimDisk::new(options.seed);
            let projection = Arc::new(MemoryProjection::default());
            let dice = options.seed;
            let mut backend = SimBackend { disk, projection, config, open: None, dice };
            backend.reopen();
            Box::new(backend) as Box<dyn Backend>
        })
    }

    fn seeds(&self) -> u64 {
        400
    }
}

crate::storage::contract::suite!(Sim);
