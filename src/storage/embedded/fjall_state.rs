//! The projection on disk: one fjall database, one keyspace for each `Space`.

use std::path::{Path, PathBuf};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::RwLock;

use super::format::TABLES;
use super::projection::{Change, Changes, Projection, Space, Visit};
use super::torn_journal;
use crate::storage::{StorageError, Table};

const ENTRIES: &str = "entries";
const FIXED: [(Space, &str); 3] =
    [(Space::Meta, "meta"), (Space::Queues, "queues"), (Space::Entries, ENTRIES)];

/// What one keyspace holds in memory before it is written out. There are nine of them, and each
/// fills up however little is written: with the library's 64 MiB a node would grow for days.
const MEMTABLE: u64 = 4 << 20;
/// The same for entries of queues: each costs about 128 bytes there when it is written and again
/// when it is acknowledged, so that clients who take their backlog fill any size in no time.
const ENTRIES_MEMTABLE: u64 = 2 << 20;

#[derive(Debug)]
pub(super) struct FjallState {
    path: PathBuf,
    cache_bytes: u64,
    open: RwLock<State>,
}

enum State {
    Open(Open),
    /// fjall refuses writes for good after one failed; a new handle recovers its journal.
    Failed,
    Closed,
}

struct Open {
    database: Database,
    keyspaces: Vec<Keyspace>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Open(_) => "Open",
            State::Failed => "Failed",
            State::Closed => "Closed",
        })
    }
}

fn table_name(table: Table) -> &'static str {
    match table {
        Table::Sessions => "sessions",
        Table::Subscriptions => "subscriptions",
        Table::Retained => "retained",
        Table::Credentials => "credentials",
        Table::Blocked => "blocked",
        Table::Settings => "settings",
    }
}

fn place(space: Space) -> usize {
    match space {
        Space::Meta => 0,
        Space::Queues => 1,
        Space::Entries => 2,
        // Tables are numbered from 1 without a gap.
        Space::Table(table) => FIXED.len() + table as usize - 1,
    }
}

impl FjallState {
    pub(super) fn open(path: &Path, cache_bytes: u64) -> Result<Self, StorageError> {
        let open = RwLock::new(State::Open(Open::new(path, cache_bytes)?));
        Ok(Self { path: path.to_path_buf(), cache_bytes, open })
    }

    fn with<T>(
        &self,
        call: impl FnOnce(&Open) -> Result<T, fjall::Error>,
    ) -> Result<T, StorageError> {
        match &*self.open.read() {
            State::Open(open) => call(open).map_err(|error| self.explain(&error)),
            State::Failed => Err(unavailable("the state database is being reopened")),
            State::Closed => Err(unavailable("the state database is closed")),
        }
    }

    fn write(
        &self,
        call: impl FnOnce(&Open) -> Result<(), fjall::Error>,
    ) -> Result<(), StorageError> {
        self.reopen()?;
        let wrote = self.with(call);
        if wrote.is_err() {
            let mut state = self.open.write();
            if matches!(*state, State::Open(_)) {
                *state = State::Failed;
            }
        }
        wrote
    }

    fn reopen(&self) -> Result<(), StorageError> {
        if !matches!(*self.open.read(), State::Failed) {
            return Ok(());
        }
        let mut state = self.open.write();
        if matches!(*state, State::Failed) {
            *state = State::Open(Open::new(&self.path, self.cache_bytes)?);
        }
        Ok(())
    }

    fn explain(&self, error: &fjall::Error) -> StorageError {
        explain(&self.path, error)
    }
}

fn unavailable(text: &str) -> StorageError {
    StorageError::Unavailable(text.into())
}

/// An error of the medium may pass; everything else says that the bytes are not what was written.
fn explain(path: &Path, error: &fjall::Error) -> StorageError {
    let text = format!("state database {}: {error}", path.display());
    match error {
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io))
            if io.kind() != std::io::ErrorKind::UnexpectedEof
                && io.kind() != std::io::ErrorKind::InvalidData =>
        {
            StorageError::Unavailable(text)
        }
        fjall::Error::Poisoned | fjall::Error::Locked | fjall::Error::KeyspaceDeleted => {
            StorageError::Unavailable(text)
        }
        // The library's own list, which may grow: whatever it is, nobody may go on.
        _ => StorageError::Damaged(text),
    }
}

impl Open {
    fn new(path: &Path, cache_bytes: u64) -> Result<Self, StorageError> {
        let explain = |error: fjall::Error| explain(path, &error);
        torn_journal::cut(path).map_err(|error| explain(error.into()))?;
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(2)
            .open()
            .map_err(explain)?;
        let tables = TABLES.into_iter().map(table_name);
        let names = FIXED.into_iter().map(|(_, name)| name).chain(tables);
        let keyspaces = names
            .map(|name| {
                let bytes = if name == ENTRIES { ENTRIES_MEMTABLE } else { MEMTABLE };
                let options = || KeyspaceCreateOptions::default().max_memtable_size(bytes);
                database.keyspace(name, options)
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(explain)?;
        // fjall syncs what is in a keyspace's folder, but not the name of the folder.
        std::fs::File::open(path.join("keyspaces"))
            .and_then(|names| names.sync_all())
            .map_err(|error| explain(error.into()))?;
        Ok(Self { database, keyspaces })
    }

    fn space(&self, space: Space) -> &Keyspace {
        &self.keyspaces[place(space)]
    }
}

impl Projection for FjallState {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let found = self.with(|open| open.space(space).get(key))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        visit: Visit<'_>,
    ) -> Result<(), StorageError> {
        // The iterator is a snapshot, so the lock is not held while the visitor works.
        let range = self.with(|open| {
            let keyspace = open.space(space);
            Ok(if to.is_empty() { keyspace.range(from..) } else { keyspace.range(from..to) })
        })?;
        for guard in range {
            let (key, value) = guard.into_inner().map_err(|error| self.explain(&error))?;
            if !visit(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    fn commit(&self, changes: Changes) -> Result<(), StorageError> {
        self.write(|open| {
            let mut batch = open.database.batch();
            for Change { space, key, value } in changes.list {
                match value {
                    Some(value) => batch.insert(open.space(space), key, value),
                    None => batch.remove(open.space(space), key),
                }
            }
            batch.commit()
        })
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.write(|open| open.database.persist(PersistMode::SyncAll))
    }

    fn close(&self) {
        *self.open.write() = State::Closed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(state: &FjallState, key: &[u8], value: &[u8]) {
        let mut changes = Changes::default();
        changes.put(Space::Entries, key.to_vec(), value.to_vec());
        state.commit(changes).expect("commits");
    }

    #[test]
    fn what_was_committed_is_found_in_order_after_reopening() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = FjallState::open(folder.path(), 1 << 20).expect("opens");
        for table in TABLES {
            assert_eq!(state.get(Space::Table(table), b"1").expect("reads"), None);
        }
        put(&state, b"2", b"two");
        put(&state, b"1", b"one");
        put(&state, b"3", b"three");
        state.sync().expect("syncs");
        state.close();
        assert!(state.get(Space::Entries, b"1").is_err());
        let state = FjallState::open(folder.path(), 1 << 20).expect("opens again");
        let mut found = Vec::new();
        let mut visit = |_: &[u8], value: &[u8]| {
            found.push(value.to_vec());
            Ok(true)
        };
        state.scan(Space::Entries, b"1", b"3", &mut visit).expect("scans");
        assert_eq!(found, [b"one".to_vec(), b"two".to_vec()]);
    }

    /// STO-03: a damaged state folder is an error that names it, never an empty start.
    #[test]
    fn a_damaged_state_folder_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = FjallState::open(folder.path(), 1 << 20).expect("opens");
        put(&state, b"1", b"one");
        state.close();
        drop(state);
        for entry in std::fs::read_dir(folder.path()).expect("lists").flatten() {
            if entry.path().is_file() {
                let len = entry.metadata().expect("stats").len().min(64) as usize;
                std::fs::write(entry.path(), vec![0xA5; len]).expect("damages");
            }
        }
        assert!(FjallState::open(folder.path(), 1 << 20).is_err());
    }
}
