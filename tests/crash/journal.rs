//! Reads the shim's journal.

use std::fs;
use std::path::{Path, PathBuf};

use crate::lost_writes::Written;

/// One record.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    pub(crate) change: Change,
}

#[derive(Debug)]
pub(crate) enum Change {
    Written(Written),
    Synced {
        inode: u64,
        through: u64,
    },
    SyncFailed {
        inode: u64,
        through: u64,
    },
    Created {
        path: PathBuf,
        inode: u64,
    },
    FolderMade {
        path: PathBuf,
    },
    Renamed {
        from: PathBuf,
        to: PathBuf,
    },
    Removed {
        path: PathBuf,
    },
    FolderRemoved {
        path: PathBuf,
    },
    FolderSynced {
        path: PathBuf,
        through: u64,
    },
    /// While tracing: the first bytes that went to a socket.
    Sent {
        bytes: Vec<u8>,
    },
}

impl Change {
    /// The name that the change is about, if it is about one.
    pub(crate) fn name(&self) -> Option<&Path> {
        match self {
            Change::Created { path, .. }
            | Change::FolderMade { path }
            | Change::Renamed { to: path, .. }
            | Change::Removed { path }
            | Change::FolderRemoved { path } => Some(path),
            Change::Written(_)
            | Change::Synced { .. }
            | Change::SyncFailed { .. }
            | Change::FolderSynced { .. }
            | Change::Sent { .. } => None,
        }
    }
}

/// The size of `struct record` in the shim.
const HEAD: usize = 64;
const MAGIC: u32 = 0x4C57_5231;

/// All records; one that the kill cut short is left out, for its change was not made either.
pub(crate) fn read_journal(path: &Path) -> Vec<Entry> {
    // A broker that was killed before the shim was loaded has none.
    let bytes = if path.exists() { fs::read(path).unwrap() } else { Vec::new() };
    let mut rest = bytes.as_slice();
    let mut entries = Vec::new();
    while let Some((head, body)) = rest.split_at_checked(HEAD) {
        let four = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(four(0), MAGIC, "the journal of the shim is not whole");
        let (first, second) = (four(HEAD - 8) as usize, four(HEAD - 4) as usize);
        let Some((data, after)) = body.split_at_checked(first + second) else { break };
        let (one, two) = data.split_at(first);
        entries.push(entry(head, one, two));
        rest = after;
    }
    entries
}

fn entry(head: &[u8], one: &[u8], two: &[u8]) -> Entry {
    let eight = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    let kind = u32::from_le_bytes(head[4..8].try_into().unwrap());
    let (sequence, inode, a) = (eight(8), eight(16), eight(24));
    let path = |bytes: &[u8]| PathBuf::from(String::from_utf8(bytes.to_vec()).unwrap());
    let change = match kind {
        1 => Change::Written(Written {
            inode,
            at: a,
            length: eight(32),
            old_size: eight(40),
            new_size: eight(48),
            old: one.to_vec(),
            new: two.to_vec(),
        }),
        2 => Change::Synced { inode, through: a },
        3 => Change::Created { path: path(one), inode },
        4 => Change::FolderMade { path: path(one) },
        5 => Change::Renamed { from: path(one), to: path(two) },
        6 => Change::Removed { path: path(one) },
        7 => Change::FolderRemoved { path: path(one) },
        8 => Change::FolderSynced { path: path(one), through: a },
        9 => Change::Sent { bytes: one.to_vec() },
        10 => Change::SyncFailed { inode, through: a },
        other => panic!("record of kind {other} in the shim's journal"),
    };
    Entry { sequence, change }
}
