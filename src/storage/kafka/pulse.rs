//! The thread that says each second that this node lives, and says of another one that it does not.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::KafkaSettings;
use super::format::{Mark, RecordKind, encode_state};
use super::scribe::{Line, Scribe};
use crate::cluster::Word;
use crate::storage::{Peers, StorageError};

/// How often to see whether the end has come.
const TICK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Pulse {
    pub(super) settings: Arc<KafkaSettings>,
    /// The log.
    pub(super) topic: String,
    pub(super) scribe: Mutex<Scribe>,
    pub(super) peers: Arc<Peers>,
}

impl Pulse {
    pub(super) fn run(&self, ended: &dyn Fn() -> bool) {
        let mut scribe = self.scribe.lock();
        let mut said: Option<Instant> = None;
        while !ended() && !self.peers.is_fenced() {
            if said.is_some_and(|at| at.elapsed() < self.settings.beat_every) {
                std::thread::sleep(TICK);
                continue;
            }
            said = Some(Instant::now());
            // One that is late is as good as the next one: another producer would only be later.
            self.say(&mut scribe, &self.peers.beat(), ended);
            for (node, run) in self.peers.dead() {
                tracing::warn!(node, "a node was silent for too long: the others take over");
                self.say(&mut scribe, &Word::Dead { node, run }, ended);
            }
        }
    }

    /// The last word of an orderly end.
    pub(super) fn leave(&self, patience: Duration) {
        if self.peers.is_fenced() {
            return;
        }
        let mut scribe = self.scribe.lock();
        let node = self.settings.node.clone();
        let until = Instant::now() + patience;
        self.say(&mut scribe, &Word::Left { node }, &|| Instant::now() > until);
    }

    fn say(&self, scribe: &mut Scribe, word: &Word, given_up: &dyn Fn() -> bool) {
        if let Err(error) = say(scribe, &self.topic, self.peers.run(), word, given_up) {
            tracing::debug!(%error, ?word, "nobody heard this");
        }
    }
}

/// Puts a word into the log, and waits until it is durable.
pub(super) fn say(
    scribe: &mut Scribe,
    topic: &str,
    run: u64,
    word: &Word,
    given_up: &dyn Fn() -> bool,
) -> Result<(), StorageError> {
    let payload = encode_state(word);
    let mark = Mark { kind: RecordKind::Word, writer: run, number: 0 };
    let line = Line { topic, partition: 0, key: &[], payload: Some(&payload), mark };
    scribe.write(std::iter::once(line), given_up)
}
