//! How Redis stands: which masters are away, which terms were seen, and what a lost master may have
//! forgotten that this node can say again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::key::Names;
use super::link::Term;
use crate::storage::StorageError;
use crate::telemetry::metrics;

/// Removals that are remembered; more in so short a time are found by nobody if a master is lost.
const REMOVALS: usize = 65_536;

#[derive(Debug)]
pub(super) struct Standing {
    /// Longer than a replica can be behind.
    lag: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Masters that don't answer, since when, and why.
    away: BTreeMap<String, (Instant, String)>,
    terms: Vec<Term>,
    /// All masters were seen once: a term that is new from here on is a change.
    settled: bool,
    changed: Option<Instant>,
    removals: VecDeque<(Instant, Arc<Names>, u64)>,
}

impl Standing {
    pub(super) fn new(lag: Duration) -> Self {
        Self { lag, inner: Mutex::default() }
    }

    pub(super) fn away(&self, master: &str, error: &StorageError) {
        let mut inner = self.inner.lock();
        if inner.away.contains_key(master) {
            return;
        }
        tracing::warn!(
            master, %error,
            "Redis is away: queues wait, sessions that need one are refused, the others go on"
        );
        inner.away.insert(master.to_owned(), (Instant::now(), error.to_string()));
        metrics::REDIS_MASTERS_AWAY.set(inner.away.len() as i64);
    }

    pub(super) fn back(&self, master: &str) {
        let mut inner = self.inner.lock();
        if let Some((since, _)) = inner.away.remove(master) {
            let seconds = since.elapsed().as_secs_f64();
            tracing::info!(master, seconds, "Redis is back");
            metrics::REDIS_MASTERS_AWAY.set(inner.away.len() as i64);
        }
    }

    /// Only these masters count from here on.
    pub(super) fn only(&self, masters: &[String]) {
        let mut inner = self.inner.lock();
        inner.away.retain(|master, _| masters.contains(master));
        metrics::REDIS_MASTERS_AWAY.set(inner.away.len() as i64);
    }

    pub(super) fn trouble(&self) -> Option<String> {
        let inner = self.inner.lock();
        let (master, (since, error)) = inner.away.iter().next()?;
        let (seconds, more) = (since.elapsed().as_secs(), inner.away.len() - 1);
        let others = if more == 0 { String::new() } else { format!(", and {more} more") };
        Some(format!("Redis {master} is away for {seconds} s{others}: {error}"))
    }

    pub(super) fn settled(&self) {
        self.inner.lock().settled = true;
    }

    /// A master of this term answers. `true`: it took the place of another.
    pub(super) fn saw(&self, term: Term) -> bool {
        let mut inner = self.inner.lock();
        if inner.terms.contains(&term) {
            return false;
        }
        inner.terms.push(term);
        if !inner.settled {
            return false;
        }
        inner.changed = Some(Instant::now());
        metrics::REDIS_MASTER_CHANGES.inc();
        tracing::warn!("a Redis master changed: what it may lack is filled in from the log again");
        true
    }

    /// A master was lost so short a time ago that what it had may not be back yet.
    pub(super) fn rolled_back(&self) -> bool {
        self.inner.lock().changed.is_some_and(|at| at.elapsed() < self.lag)
    }

    pub(super) fn removed(&self, names: &Arc<Names>, incarnation: u64) {
        let now = Instant::now();
        let mut inner = self.inner.lock();
        let late = |at: &Instant| now.duration_since(*at) > self.lag;
        while inner.removals.front().is_some_and(|removal| late(&removal.0)) {
            inner.removals.pop_front();
        }
        if inner.removals.len() == REMOVALS {
            inner.removals.pop_front();
        }
        inner.removals.push_back((now, Arc::clone(names), incarnation));
    }

    /// What the lost master was told to remove: its follower may not know.
    pub(super) fn removals(&self) -> Vec<(Arc<Names>, u64)> {
        let inner = self.inner.lock();
        inner.removals.iter().map(|(_, names, number)| (Arc::clone(names), *number)).collect()
    }
}
