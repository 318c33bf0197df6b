//! The nodes that share one log, as this one knows them: kept up by whoever reads the log, asked by
//! sessions and dispatch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::{Members, Silence, Word, place_of};

/// Own words come back at least so often while Kafka is well.
const OWN_MS: u64 = 3000;

/// One node among others.
#[derive(Debug)]
pub struct Peers {
    node: Arc<str>,
    run: u64,
    members: watch::Sender<Arc<Members>>,
    /// Why this run is over for the others, if it is.
    fenced: watch::Sender<Option<String>>,
    silence: Mutex<Silence>,
    since: Instant,
    /// What is durable of our own work, for our next word.
    commit: AtomicU64,
    tables: AtomicU64,
    decided_below: u64,
}

impl Peers {
    /// `members` as the log has them where this node begins to listen.
    pub fn new(node: &str, run: u64, members: Members, dead_after_ms: u64) -> Self {
        Self {
            node: Arc::from(node),
            run,
            members: watch::Sender::new(Arc::new(members)),
            fenced: watch::Sender::new(None),
            silence: Mutex::new(Silence::new(dead_after_ms, OWN_MS)),
            since: Instant::now(),
            commit: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            decided_below: 0,
        }
    }

    /// An earlier run of this node has come so far.
    #[must_use]
    pub(super) fn with_decided_below(mut self, position: u64) -> Self {
        self.decided_below = position;
        self
    }

    /// What an earlier run of this node has routed: who of a group got it is decided.
    pub fn decided_below(&self) -> u64 {
        self.decided_below
    }

    /// This node's name.
    pub fn node(&self) -> &Arc<str> {
        &self.node
    }

    pub fn run(&self) -> u64 {
        self.run
    }

    /// Who counts, as far as the log was read.
    pub fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.borrow())
    }

    /// Changes with every word of a node.
    pub fn watch(&self) -> watch::Receiver<Arc<Members>> {
        self.members.subscribe()
    }

    /// Whether this node has a client's session that `home` claimed at `claimed`.
    pub fn owns(&self, client: &str, home: &str, claimed: u64) -> bool {
        let members = self.members.borrow();
        members.owner(place_of(client), home, claimed) == Some(&*self.node)
    }

    /// Whether this node keeps the tables' topics.
    pub fn is_keeper(&self) -> bool {
        self.members.borrow().keeper() == Some(&*self.node)
    }

    /// Waits until the others go on without this run; says why. Cancel safe: yes.
    pub async fn fenced(&self) -> String {
        let mut fenced = self.fenced.subscribe();
        loop {
            if let Some(why) = fenced.borrow_and_update().clone() {
                return why;
            }
            if fenced.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub fn is_fenced(&self) -> bool {
        self.fenced.borrow().is_some()
    }

    // === whoever reads and writes the log ===

    /// A word stands in the log.
    pub(super) fn take(&self, position: u64, run: u64, word: &Word) {
        let now_ms = self.now_ms();
        match run == self.run {
            true => self.silence.lock().heard_own(now_ms),
            false => self.silence.lock().heard(run, now_ms),
        }
        let mut members = Members::clone(&self.members.borrow());
        if members.take(position, run, word) {
            let nodes: Vec<&str> = members.alive().map(|(node, _)| node).collect();
            tracing::info!(?word, nodes = nodes.join(" "), "nodes of the cluster");
        }
        let ours = members.get(&self.node).is_some_and(|member| member.joined > 0);
        if ours && !members.admits(self.run) && !self.is_fenced() {
            let why = match word {
                Word::Joined { .. } => "another process has joined under this node's name",
                Word::Left { .. } => "this node has left",
                Word::Dead { .. } | Word::Beat { .. } => {
                    "the other nodes took this one for dead: it was silent for too long"
                }
            };
            self.fenced.send_replace(Some(why.to_owned()));
        }
        self.members.send_replace(Arc::new(members));
    }

    /// Nodes that were silent for too long, with their runs.
    pub(super) fn dead(&self) -> Vec<(String, u64)> {
        let members = self.members();
        let others = members.alive().filter(|(node, _)| *node != &*self.node);
        let others: Vec<(String, u64)> =
            others.map(|(node, member)| (node.to_owned(), member.run)).collect();
        let runs = others.iter().map(|(_, run)| *run);
        let dead = self.silence.lock().dead(runs, self.now_ms());
        others.into_iter().filter(|(_, run)| dead.contains(run)).collect()
    }

    pub(super) fn is_durable(&self, commit: u64, tables: u64) {
        self.commit.fetch_max(commit, Ordering::Release);
        self.tables.fetch_max(tables, Ordering::Release);
    }

    /// What this node has to say each second.
    pub(super) fn beat(&self) -> Word {
        Word::Beat {
            node: self.node.to_string(),
            commit: self.commit.load(Ordering::Acquire),
            tables: if self.is_keeper() { self.tables.load(Ordering::Acquire) } else { 0 },
        }
    }

    fn now_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }
}
