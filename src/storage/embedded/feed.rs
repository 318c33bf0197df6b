//! What waits between the log's thread and the consumer: the newest items in memory, bounded. A
//! consumer that lags behind them reads the older ones back from the log.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::storage::{LogBatch, LogItem, Position, Row};
use crate::telemetry::clock::wall_ms;

/// What stands in the log for the consumer.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Log(LogItem),
    /// Retained rows: they reach their follower when everything before them was dealt with.
    Retained(Arc<[Row]>),
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) offset: u64,
    pub(super) item: Item,
    pub(super) bytes: usize,
}

/// The bounds of the feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedBounds {
    /// Of what waits in memory; above them the oldest items go and are read back later.
    pub(super) bytes: usize,
    pub(super) items: usize,
    /// Of one `LogBatch`.
    pub(super) batch_bytes: usize,
    pub(super) batch_messages: usize,
}

#[derive(Debug)]
pub(super) struct Feed {
    state: Mutex<FeedState>,
    pub(super) arrived: Notify,
    pub(super) bounds: FeedBounds,
    pub(super) log: u64,
}

#[derive(Debug)]
struct FeedState {
    ring: VecDeque<Waiting>,
    bytes: usize,
    /// The ring holds everything from here to `end`.
    front: u64,
    end: u64,
    /// Where the consumer reads next: everything below was handed out.
    at: u64,
    /// The end of the last batch that was handed out.
    told: u64,
    /// Everything below was dealt with.
    passed: u64,
    /// When the oldest item that was not dealt with came, wall clock.
    oldest_ms: u64,
    /// The newest commit that came with its state.
    commit: (u64, Arc<Vec<u8>>),
    /// A checkpoint is waiting for a commit with its state.
    due: bool,
    taken: bool,
}

/// What the consumer finds.
#[derive(Debug)]
pub(super) enum Taken {
    Batch(LogBatch),
    Retained(u64, Arc<[Row]>),
    /// The consumer is behind the ring: it must read the log from the first to the second.
    Behind(u64, u64),
    Nothing,
}

impl Feed {
    pub(super) fn new(
        bounds: FeedBounds,
        log: u64,
        committed: u64,
        state: Vec<u8>,
        end: u64,
    ) -> Self {
        let state = FeedState {
            ring: VecDeque::new(),
            bytes: 0,
            front: end,
            end,
            at: committed.min(end),
            told: committed.min(end),
            passed: committed.min(end),
            oldest_ms: wall_ms(),
            commit: (committed, Arc::new(state)),
            due: true,
            taken: false,
        };
        Self { state: Mutex::new(state), arrived: Notify::new(), bounds, log }
    }

    /// Marks the consumer as opened, and tells what was last committed; `None` if it was before.
    pub(super) fn open(&self) -> Option<(u64, Vec<u8>)> {
        let mut state = self.state.lock();
        let first = !std::mem::replace(&mut state.taken, true);
        first.then(|| (state.commit.0, state.commit.1.to_vec()))
    }

    /// Called by the log's thread, once a group.
    pub(super) fn push(&self, fresh: &mut Vec<Waiting>, end: u64) {
        {
            let mut state = self.state.lock();
            if state.at == state.passed && state.ring.is_empty() && state.at >= state.front {
                state.oldest_ms = wall_ms();
            }
            state.bytes += fresh.iter().map(|waiting| waiting.bytes).sum::<usize>();
            state.ring.extend(fresh.drain(..));
            state.end = end;
            while state.bytes > self.bounds.bytes || state.ring.len() > self.bounds.items {
                let Some(dropped) = state.ring.pop_front() else { break };
                state.bytes -= dropped.bytes;
                state.front = state.ring.front().map_or(end, |next| next.offset);
            }
        }
        self.arrived.notify_one();
    }

    /// Takes what is ready, up to the bounds of a batch. Everything handed out earlier was dealt
    /// with: that is what asking again means.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.state.lock();
        state.passed = state.passed.max(state.at);
        if state.at < state.front {
            return Taken::Behind(state.at, state.front);
        }
        let (mut items, mut bytes, mut messages) = (Vec::new(), 0, 0);
        while bytes < self.bounds.batch_bytes && messages < self.bounds.batch_messages {
            let retained =
                matches!(state.ring.front(), Some(Waiting { item: Item::Retained(_), .. }));
            if retained && !items.is_empty() {
                break;
            }
            let Some(Waiting { offset, item, bytes: cost }) = state.ring.pop_front() else { break };
            state.bytes -= cost;
            match item {
                Item::Retained(rows) => {
                    state.step();
                    return Taken::Retained(offset, rows);
                }
                Item::Log(item) => {
                    bytes += cost;
                    messages += item_len(&item);
                    items.push((Position { partition: 0, offset }, item));
                }
            }
        }
        state.step();
        if let Some((_, first)) = items.first() {
            state.oldest_ms = item_ms(first);
        } else if state.at <= state.told {
            return Taken::Nothing;
        }
        state.told = state.at;
        Taken::Batch(self.batch(items, state.at))
    }

    pub(super) fn batch(&self, items: Vec<(Position, LogItem)>, end: u64) -> LogBatch {
        LogBatch {
            incarnation: self.log,
            changes: Vec::new(),
            items,
            end: Position { partition: 0, offset: end },
        }
    }

    /// What was read back from the log is handed out up to `at`.
    pub(super) fn read_back(&self, first: Option<&LogItem>, at: u64) {
        let mut state = self.state.lock();
        state.at = at;
        state.told = at;
        if let Some(first) = first {
            state.oldest_ms = item_ms(first);
        }
    }

    /// Whether the commit of `position` must bring its state.
    pub(super) fn wants_state(&self, position: u64, cheap: bool) -> bool {
        let mut state = self.state.lock();
        state.passed = state.passed.max(position);
        let idle = state.ring.is_empty() && state.at >= state.front && position >= state.at;
        state.due || (idle && cheap)
    }

    pub(super) fn commit(&self, position: u64, encoded: Vec<u8>) {
        let mut state = self.state.lock();
        state.commit = (position, Arc::new(encoded));
        state.due = false;
    }

    /// The commit a checkpoint is to make durable.
    pub(super) fn checkpoint(&self) -> (u64, Arc<Vec<u8>>) {
        let mut state = self.state.lock();
        state.due = true;
        let idle = state.ring.is_empty() && state.at >= state.front;
        // Nothing for the consumer stands between its commit and the end, so the state holds at
        // the end, too. Without this a log of rows alone could never be shortened.
        if idle && state.commit.0 >= state.at {
            state.commit.0 = state.commit.0.max(state.end);
            state.at = state.end;
            state.front = state.end;
            state.passed = state.end;
        }
        (state.commit.0, Arc::clone(&state.commit.1))
    }

    /// Bytes and oldest age of what waits; `applied` is where the log ends by now.
    pub(super) fn lag(&self, applied: u64) -> (u64, u64) {
        let state = self.state.lock();
        let idle = state.ring.is_empty() && state.at >= state.front && state.passed >= state.at;
        if idle && state.end >= applied {
            return (0, 0);
        }
        let end = state.end.max(applied);
        (end.saturating_sub(state.passed), wall_ms().saturating_sub(state.oldest_ms))
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.bytes, state.ring.len())
    }
}

impl FeedState {
    /// What comes next stands at the ring's front or, when it is empty, at the end.
    fn step(&mut self) {
        self.at = self.ring.front().map_or(self.end, |next| next.offset);
        self.front = self.at;
    }
}

pub(super) fn item_len(item: &LogItem) -> usize {
    match item {
        LogItem::Publishes(batch) | LogItem::Direct { batch, .. } => batch.len(),
    }
}

fn item_ms(item: &LogItem) -> u64 {
    match item {
        LogItem::Publishes(batch) | LogItem::Direct { batch, .. } => batch.received_at_ms(),
    }
}

/// What an item costs in memory, roughly.
pub(super) fn item_bytes(item: &Item) -> usize {
    match item {
        Item::Log(LogItem::Publishes(batch) | LogItem::Direct { batch, .. }) => {
            128 + batch.body().len() + 20 * batch.len()
        }
        Item::Retained(rows) => {
            let size = |row: &Row| 64 + row.key.len() + row.value.as_ref().map_or(0, |v| v.len());
            rows.iter().map(size).sum()
        }
    }
}
