//! The contract on a real folder. A crash is a drop without a stop: what the checkpoint lacks must
//! come from the log.

use std::time::Duration;

use tempfile::TempDir;

use crate::storage::contract::{Backend, Factory, Options};
use crate::storage::embedded::Window;
use crate::storage::{BoxFuture, Embedded, EmbeddedSettings, Stores};

struct Real;

struct RealBackend {
    folder: TempDir,
    config: EmbeddedSettings,
    open: Option<(Embedded, Stores)>,
}

pub(super) fn config(options: Options) -> EmbeddedSettings {
    EmbeddedSettings {
        queue_limit: options.queue_limit,
        queue_ttl: Duration::from_millis(options.queue_ttl_ms),
        checkpoint_every: Duration::from_millis(5),
        bucket: vec![Window { capacity: options.tokens, period: Duration::from_secs(3600) }],
        ..EmbeddedSettings::default()
    }
}

impl RealBackend {
    fn reopen(&mut self) {
        let opened = Embedded::open(self.folder.path(), self.config.clone());
        self.open = Some(opened.expect("what was written opens"));
    }
}

impl Backend for RealBackend {
    fn stores(&self) -> Stores {
        self.open.as_ref().expect("a backend under test is open").1.clone()
    }

    fn crash(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            drop(self.open.take());
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

impl Factory for Real {
    fn make(&self, options: Options) -> BoxFuture<'_, Box<dyn Backend>> {
        Box::pin(async move {
            let folder = tempfile::tempdir().expect("a folder");
            let mut config = config(options);
            config.wal.segment_bytes = 1 << 20;
            let mut backend = RealBackend { folder, config, open: None };
            backend.reopen();
            Box::new(backend) as Box<dyn Backend>
        })
    }

    fn seeds(&self) -> u64 {
        2
    }
}

crate::storage::contract::suite!(Real);
