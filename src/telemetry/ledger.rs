//! The dropped messages ledger (MET-2): who lost how many messages, on which topic, why and when.
//!
//! What comes in: one entry per loss, counted up under a short lock of one of many shards, or by
//! the connection itself (`losses`). What goes out: rows for whoever asks. A task folds both into
//! the table once a second, so the table's size and the clock are nobody's business who loses a
//! message. Whatever has no row of
//! its own (told without a name, beyond a bound, or older than the table reaches) stands in a row
//! without client and topic, so that the sum of all rows is the counter's.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ahash::RandomState;
use parking_lot::Mutex;

use super::clock;
use super::drop_reason::{Direction, DropReason, dropped_so_far};
use super::losses::Cells;

/// Rows of the table. Full: what was lost longest ago goes into the row without a name.
const ROWS_MAX: usize = 100_000;
/// How long a row is kept from its last loss.
const KEEP_MS: u64 = 7 * 24 * 3600 * 1000;
const SHARDS: usize = 16;
/// New rows in one shard until they are folded. Full: the loss has no name.
const SHARD_ROWS_MAX: usize = 1024;
const FOLD_EVERY: Duration = Duration::from_secs(1);

static ENABLED: AtomicBool = AtomicBool::new(false);
static LEDGER: LazyLock<Ledger> = LazyLock::new(Ledger::default);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    client: Box<str>,
    topic: Box<str>,
    reason: DropReason,
    direction: Direction,
}

/// What one client lost on one topic for one reason. Without client and topic: the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedRow {
    pub client: Box<str>,
    pub topic: Box<str>,
    pub reason: DropReason,
    pub direction: Direction,
    pub count: u64,
    /// Milliseconds of wall clock, good to a second.
    pub first_ms: u64,
    pub last_ms: u64,
}

impl DroppedRow {
    /// Its name and its numbers, for another node; no name holds U+0000.
    pub fn to_pair(&self) -> (Vec<u8>, Vec<u8>) {
        let side = match self.direction {
            Direction::Inbound => "in",
            Direction::Outbound => "out",
        };
        let Self { client, topic, count, first_ms, last_ms, .. } = self;
        let name = format!("{}\0{side}\0{client}\0{topic}", self.reason.text());
        (name.into_bytes(), format!("{count} {first_ms} {last_ms}").into_bytes())
    }

    /// What another node told; `None` if it is of another version.
    pub fn from_pair((name, numbers): &(Vec<u8>, Vec<u8>)) -> Option<Self> {
        let mut name = std::str::from_utf8(name).ok()?.split('\0');
        let why = name.next()?;
        let reason = DropReason::ALL.into_iter().find(|reason| reason.text() == why)?;
        let direction = match name.next()? {
            "in" => Direction::Inbound,
            "out" => Direction::Outbound,
            _ => return None,
        };
        let (client, topic) = (name.next()?.into(), name.next()?.into());
        let numbers = std::str::from_utf8(numbers).ok()?;
        let mut numbers = numbers.split(' ').map_while(|number| number.parse().ok());
        let (count, first_ms, last_ms) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Self { client, topic, reason, direction, count, first_ms, last_ms })
    }
}

/// Up to where another place knows the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    until_ms: u64,
    /// Of which [`Table::removals`]; `None`: of nothing.
    removals: Option<u64>,
}

/// Rows that have changed.
#[derive(Debug)]
pub struct News {
    pub rows: Vec<DroppedRow>,
    /// They are all there are: others that are known are gone.
    pub whole: bool,
    pub seen: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    count: u64,
    first_ms: u64,
    last_ms: u64,
}

impl Cell {
    fn add(&mut self, count: u64, first_ms: u64, last_ms: u64) {
        if self.count == 0 {
            self.first_ms = first_ms;
        }
        self.count += count;
        self.first_ms = self.first_ms.min(first_ms);
        self.last_ms = self.last_ms.max(last_ms);
    }

    fn row(&self, client: &str, topic: &str, (reason, direction): Kind) -> DroppedRow {
        let Cell { count, first_ms, last_ms } = *self;
        let (client, topic) = (client.into(), topic.into());
        DroppedRow { client, topic, reason, direction, count, first_ms, last_ms }
    }
}

type Kind = (DropReason, Direction);

type Map<V> = HashMap<Key, V, RandomState>;

#[derive(Debug)]
struct Ledger {
    hasher: RandomState,
    fresh: [Mutex<hashbrown::HashTable<(u64, Key, u64)>>; SHARDS],
    /// What connections count by themselves.
    cells: Cells,
    table: Mutex<Table>,
}

impl Default for Ledger {
    fn default() -> Self {
        let fresh = [const { Mutex::new(hashbrown::HashTable::new()) }; SHARDS];
        Self { hasher: RandomState::new(), fresh, cells: Cells::default(), table: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct Table {
    rows: Map<Cell>,
    /// What has no row, by reason and direction: the counter less all rows and all that was
    /// deleted.
    rest: HashMap<(DropReason, Direction), Cell>,
    /// Counts that somebody deleted.
    deleted: HashMap<(DropReason, Direction), u64>,
    /// How often rows have gone.
    removals: u64,
}

fn kinds() -> impl Iterator<Item = (DropReason, Direction)> {
    let both = [Direction::Inbound, Direction::Outbound];
    DropReason::ALL.into_iter().flat_map(move |reason| both.map(|direction| (reason, direction)))
}

impl Ledger {
    /// Counts under its row, if there is room for one.
    fn record(&self, reason: DropReason, direction: Direction, client: &str, topic: &str, n: u64) {
        let hash = self.hasher.hash_one((client, topic, reason, direction));
        let mut shard = self.fresh[hash as usize % SHARDS].lock();
        let same = |(other, key, _): &(u64, Key, u64)| {
            *other == hash
                && (key.reason, key.direction) == (reason, direction)
                && (&*key.client, &*key.topic) == (client, topic)
        };
        if let Some((_, _, count)) = shard.find_mut(hash, same) {
            *count += n;
        } else if shard.len() < SHARD_ROWS_MAX {
            let key = Key { client: client.into(), topic: topic.into(), reason, direction };
            shard.insert_unique(hash, (hash, key, n), |(hash, _, _)| *hash);
        }
    }

    /// Folds what is fresh into the table, and keeps the table within its bounds.
    fn fold(&self, now_ms: u64) {
        let mut table = self.table.lock();
        for shard in &self.fresh {
            let fresh = std::mem::take(&mut *shard.lock());
            for (_, key, count) in fresh {
                table.add(key, count, now_ms);
            }
        }
        self.cells.empty(|cell, count| {
            let (client, topic) = (cell.client.clone(), cell.topic.clone());
            let (reason, direction) = (cell.reason, Direction::Outbound);
            table.add(Key { client, topic, reason, direction }, count, now_ms);
        });
        let before = table.rows.len();
        table.rows.retain(|_, cell| cell.last_ms + KEEP_MS > now_ms);
        table.trim();
        table.removals += u64::from(table.rows.len() < before);
        table.reckon(now_ms);
    }
}

impl Table {
    fn add(&mut self, key: Key, count: u64, now_ms: u64) {
        match self.rows.entry(key) {
            Entry::Occupied(mut row) => row.get_mut().add(count, now_ms, now_ms),
            Entry::Vacant(row) => row.insert(Cell::default()).add(count, now_ms, now_ms),
        }
    }

    /// A tenth at once, so that a table at its bound is not sorted for each new row.
    fn trim(&mut self) {
        if self.rows.len() <= ROWS_MAX {
            return;
        }
        let mut times: Vec<u64> = self.rows.values().map(|cell| cell.last_ms).collect();
        let surplus = self.rows.len() - ROWS_MAX * 9 / 10;
        let (_, newest_to_go, _) = times.select_nth_unstable(surplus - 1);
        let newest_to_go = *newest_to_go;
        let mut left = surplus;
        self.rows.retain(|_, cell| {
            let goes = left > 0 && cell.last_ms <= newest_to_go;
            left -= usize::from(goes);
            !goes
        });
    }

    /// Rows with a loss at this time or later; with `gone` also a rest that came to nothing.
    fn since(&self, from_ms: u64, gone: bool) -> Vec<DroppedRow> {
        let named = self.rows.iter().filter(|(_, cell)| cell.last_ms >= from_ms);
        let named = named.map(|(k, cell)| cell.row(&k.client, &k.topic, (k.reason, k.direction)));
        let counts = |cell: &Cell| cell.last_ms >= from_ms && (gone || cell.count > 0);
        let rest = self.rest.iter().filter(|(_, cell)| counts(cell));
        named.chain(rest.map(|(kind, cell)| cell.row("", "", *kind))).collect()
    }

    /// Makes the rest what the counter has beyond the rows.
    fn reckon(&mut self, now_ms: u64) {
        let mut named: HashMap<(DropReason, Direction), u64> = HashMap::new();
        for (key, cell) in &self.rows {
            *named.entry((key.reason, key.direction)).or_default() += cell.count;
        }
        for kind in kinds() {
            let in_rows = named.get(&kind).copied().unwrap_or(0);
            let deleted = self.deleted.get(&kind).copied().unwrap_or(0);
            let rest = dropped_so_far(kind.0, kind.1).saturating_sub(in_rows + deleted);
            let cell = self.rest.entry(kind).or_default();
            if rest != cell.count {
                let first_ms = if cell.count == 0 { now_ms } else { cell.first_ms };
                *cell = Cell { count: rest, first_ms, last_ms: now_ms };
            }
        }
    }
}

/// Counts `n` lost messages of a client on a topic. The names are copied when they are new.
pub fn dropped_of(reason: DropReason, direction: Direction, client: &str, topic: &str, n: u64) {
    // The row first: a reader that sees the count finds the name.
    if n > 0 && ENABLED.load(Ordering::Relaxed) {
        LEDGER.record(reason, direction, client, topic, n);
    }
    super::dropped(reason, direction, n);
}

/// Whether anybody wants rows.
pub(super) fn is_kept() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

pub(super) fn cells() -> &'static Cells {
    &LEDGER.cells
}

/// Runs this while the ledger is kept, and somebody has all its locks.
#[cfg(test)]
pub(crate) fn while_locked<T>(meanwhile: impl FnOnce() -> T) -> T {
    ENABLED.store(true, Ordering::Relaxed);
    let _table = LEDGER.table.lock();
    let _fresh = LEDGER.fresh.each_ref().map(Mutex::lock);
    LEDGER.cells.hold(meanwhile)
}

/// Keeps rows from now on, and their table up to date until the task is aborted.
pub async fn keep() {
    ENABLED.store(true, Ordering::Relaxed);
    loop {
        tokio::time::sleep(FOLD_EVERY).await;
        LEDGER.fold(clock::wall_ms());
    }
}

/// All rows, in no order. The sum of their counts is that of `droppedMsgs_total` since the last
/// [`clear`]. Looks through the whole table: not for a hot path.
pub fn rows() -> Vec<DroppedRow> {
    LEDGER.fold(clock::wall_ms());
    LEDGER.table.lock().since(0, false)
}

/// What has changed since somebody saw the rows.
pub fn news(seen: Seen) -> News {
    let now_ms = clock::wall_ms();
    LEDGER.fold(now_ms);
    let table = LEDGER.table.lock();
    let whole = seen.removals != Some(table.removals);
    let rows = table.since(if whole { 0 } else { seen.until_ms }, !whole);
    News { rows, whole, seen: Seen { until_ms: now_ms, removals: Some(table.removals) } }
}

/// Rows of several nodes, those of one name as one.
pub fn merged(rows: impl IntoIterator<Item = DroppedRow>) -> Vec<DroppedRow> {
    let mut table: Map<Cell> = Map::default();
    for row in rows {
        let DroppedRow { client, topic, reason, direction, count, first_ms, last_ms } = row;
        let key = Key { client, topic, reason, direction };
        table.entry(key).or_default().add(count, first_ms, last_ms);
    }
    let rows = table.into_iter().filter(|(_, cell)| cell.count > 0);
    rows.map(|(key, cell)| cell.row(&key.client, &key.topic, (key.reason, key.direction))).collect()
}

/// Deletes all rows; the counters stay.
pub fn clear() {
    let now_ms = clock::wall_ms();
    LEDGER.fold(now_ms);
    let mut table = LEDGER.table.lock();
    table.removals += 1;
    let rows = std::mem::take(&mut table.rows);
    let mut gone: HashMap<(DropReason, Direction), u64> = HashMap::new();
    for (key, cell) in rows {
        *gone.entry((key.reason, key.direction)).or_default() += cell.count;
    }
    for (kind, cell) in std::mem::take(&mut table.rest) {
        *gone.entry(kind).or_default() += cell.count;
    }
    for (kind, count) in gone {
        *table.deleted.entry(kind).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: DropReason = DropReason::ProcessingGiveUp;

    fn key(client: usize) -> Key {
        let client = client.to_string().into();
        Key { client, topic: "t".into(), reason: WHY, direction: Direction::Inbound }
    }

    /// MET-2: bounded, the oldest go first, and none of two that are alike by time twice.
    #[test]
    fn the_table_keeps_its_newest_rows() {
        let mut table = Table::default();
        for client in 0..ROWS_MAX + 50 {
            table.add(key(client), 1, (client / 7) as u64);
        }
        table.trim();
        assert_eq!(table.rows.len(), ROWS_MAX * 9 / 10);
        assert!(table.rows.contains_key(&key(ROWS_MAX + 49)) && !table.rows.contains_key(&key(0)));
    }

    /// MET-2: rows are kept for a week from their last loss.
    #[test]
    fn old_rows_go() {
        let ledger = Ledger::default();
        ledger.record(WHY, Direction::Inbound, "old", "t", 1);
        ledger.fold(1000);
        ledger.record(WHY, Direction::Inbound, "new", "t", 2);
        ledger.record(WHY, Direction::Inbound, "new", "t", 3);
        ledger.fold(1000 + KEEP_MS);
        let table = ledger.table.lock();
        let clients: Vec<&str> = table.rows.keys().map(|key| &*key.client).collect();
        assert_eq!(clients, ["new"]);
        assert_eq!(table.rows.values().next().map(|cell| cell.count), Some(5));
    }

    /// A flood of new names between two folds is bounded; what has no place has no name.
    #[test]
    fn a_flood_of_names_is_bounded() {
        let ledger = Ledger::default();
        for client in 0..100_000 {
            ledger.record(WHY, Direction::Inbound, &client.to_string(), "t", 1);
        }
        ledger.fold(1);
        assert_eq!(ledger.table.lock().rows.len(), SHARDS * SHARD_ROWS_MAX);
    }

    /// MET-2: rows of several nodes are told and taken as they are, those of one name as one.
    #[test]
    fn rows_of_several_nodes_are_one_table() {
        let row = |client: &str, count, first_ms| DroppedRow {
            client: client.into(),
            topic: "t/ü x".into(),
            reason: WHY,
            direction: Direction::Outbound,
            count,
            first_ms,
            last_ms: first_ms + 1,
        };
        let there = [row("a", 2, 20), row("", 0, 30)];
        let told: Vec<_> = there.iter().map(DroppedRow::to_pair).collect();
        let taken: Vec<_> = told.iter().filter_map(DroppedRow::from_pair).collect();
        assert_eq!(taken, there);
        assert_eq!(DroppedRow::from_pair(&(b"what\0in\0a\0t".to_vec(), b"1 2 3".to_vec())), None);
        let all = merged([row("a", 1, 10)].into_iter().chain(taken));
        assert_eq!(all, [DroppedRow { last_ms: 21, ..row("a", 3, 10) }]);
    }

    /// MET-2: only what has changed is told; when rows have gone, all is.
    #[test]
    fn news_are_what_has_changed() {
        let key = |client: &str| Key {
            client: client.into(),
            topic: "t".into(),
            reason: WHY,
            direction: Direction::Inbound,
        };
        let mut table = Table::default();
        table.add(key("old"), 1, 10);
        table.add(key("new"), 1, 20);
        let names =
            |rows: Vec<DroppedRow>| rows.into_iter().map(|row| row.client).collect::<Vec<_>>();
        assert_eq!(names(table.since(20, true)), [Box::<str>::from("new")]);
        assert_eq!(table.since(0, false).len(), 2);
    }
}
