//! What `/actuator/health` tells of this node.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::storage::Trouble;
use crate::admin::{Component, HealthSource, disk};
use crate::config::Config;
use crate::storage::{Profile, PublishLog};

/// Read at each request; nothing is kept up for it.
#[derive(Clone)]
pub(super) struct Health {
    listening: Arc<AtomicBool>,
    log: Arc<dyn PublishLog>,
    queues: Option<Trouble>,
    folder: PathBuf,
    min_free_bytes: u64,
}

impl Health {
    pub(super) fn new(config: &Config, log: Arc<dyn PublishLog>, queues: Option<Trouble>) -> Self {
        let embedded = &config.storage.embedded;
        Self {
            listening: Arc::default(),
            log,
            queues,
            folder: embedded.path.clone(),
            // Kafka and Redis look after their own disks.
            min_free_bytes: match config.storage.profile {
                Profile::Embedded => embedded.min_free_bytes,
                Profile::Cluster => 0,
            },
        }
    }

    pub(super) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Relaxed);
    }
}

impl HealthSource for Health {
    fn components(&self) -> Vec<Component> {
        let listeners = if self.listening.load(Ordering::Relaxed) {
            Component::up("listeners")
        } else {
            Component::down("listeners", "not listening")
        };
        let storage = match self.log.trouble() {
            None => Component::up("storage"),
            Some(trouble) => Component::down("storage", trouble),
        };
        let mut components = vec![listeners, storage];
        components.extend(self.queues.as_ref().map(|queues| match queues() {
            None => Component::up("queues"),
            Some(trouble) => Component::down("queues", trouble),
        }));
        if self.min_free_bytes > 0 {
            components.push(disk(&self.folder, self.min_free_bytes));
        }
        components
    }
}
