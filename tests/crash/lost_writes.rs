//! The disk that can lose what was not synced: builds the shim, sets its switches, and takes back
//! unsynced bytes after a kill.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::journal::{Change, Entry, read_journal};
use crate::support::{Broker, Random, Start};

/// What a disk loses in whole: nothing smaller is ever half written.
const SECTOR: u64 = 512;

/// What becomes of the bytes that were not synced when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    Everything,
    /// Each sector, size and name by itself, back to one of its earlier states.
    Some,
}

/// Values of `errno` for the switches.
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOSPC: u32 = 28;

/// Which files the switches are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All = 0,
    Log = 1,
    State = 2,
}

/// The shim's shared page of one broker's folder.
pub(crate) struct Disk {
    folder: PathBuf,
    control: File,
}

/// The built shim; `None` (after a word) where there is no C compiler and none is demanded.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = folder.join(format!("lost_writes.{}.so", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash/lost_writes.c");
        let compiler = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .arg("-lpthread")
            .output();
        match compiler {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "the shim can't be built:\n{said}");
                Some(library)
            }
            Err(error) => {
                let all = std::env::var_os("SLUICE_TESTS_REQUIRE_ALL").is_some_and(|v| v == "1");
                assert!(!all, "there is no C compiler: {error}");
                eprintln!("SKIPPED: there is no C compiler ({error})");
                None
            }
        }
    });
    built.as_deref()
}

/// How to start a broker on such a disk; `None`: this machine can't.
pub(crate) fn on_lossy_disk(start: Start) -> Option<Start> {
    let library = library()?;
    let start = start.env("LD_PRELOAD", library.display()).env("LOST_WRITES_SIDE", "side");
    // Small segments: their changes are part of what is tested.
    Some(start.env("STORAGE_EMBEDDED_SEGMENT_BYTES", 1 << 20))
}

impl Disk {
    /// The disk of a broker that was started by [`on_lossy_disk`].
    pub(crate) fn of(broker: &Broker) -> Disk {
        let folder = broker.folder().to_path_buf();
        let path = folder.join("side/control");
        let control = OpenOptions::new().read(true).write(true).open(path);
        Disk { folder, control: control.expect("the shim was loaded") }
    }

    // --- switches; the offsets are those of `struct control` in the shim

    pub(crate) fn fail_writes(&self, errno: u32) {
        self.set(0, errno);
    }

    pub(crate) fn fail_syncs(&self, errno: u32) {
        self.set(4, errno);
    }

    /// How long each sync takes.
    pub(crate) fn sync_takes_us(&self, microseconds: u32) {
        self.set(8, microseconds);
    }

    /// From now on the journal also has what is written, to files and to sockets.
    pub(crate) fn trace(&self) {
        self.set(12, 1);
    }

    pub(crate) fn scope(&self, scope: Scope) {
        self.set(16, scope as u32);
    }

    /// The medium takes so many more bytes; none: as many as it likes.
    pub(crate) fn room(&self, bytes: Option<u64>) {
        self.control.write_all_at(&bytes.unwrap_or(0).to_le_bytes(), 24).unwrap();
        self.set(20, u32::from(bytes.is_some()));
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.count(32)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.count(40)
    }

    fn set(&self, at: u64, value: u32) {
        self.control.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn count(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    // --- what is on it

    fn side(&self) -> PathBuf {
        self.folder.join("side")
    }

    pub(crate) fn journal(&self) -> Vec<Entry> {
        read_journal(&self.side().join("journal"))
    }

    /// The power goes while the broker is down: unsynced bytes are lost. What is left counts as
    /// synced. Returns how many changes were taken back, in part or in whole.
    pub(crate) fn lose(&self, loss: Loss, random: &mut Random) -> usize {
        let journal = self.journal();
        let mut lost = 0;
        if loss != Loss::Nothing {
            let files = self.files_by_inode();
            for (inode, changes) in unsynced_writes(&journal) {
                if let Some(path) = files.get(&inode) {
                    lost += take_back(path, &changes, loss, random);
                }
            }
            lost += self.take_back_names(&journal, loss, random);
        }
        for entry in fs::read_dir(self.side()).unwrap().map(Result::unwrap) {
            if entry.file_name() != "control" {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        lost
    }

    fn files_by_inode(&self) -> HashMap<u64, PathBuf> {
        let mut found = HashMap::new();
        let mut folders = vec![self.folder.join("data"), self.side()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                let metadata = entry.metadata().unwrap();
                if metadata.is_dir() {
                    folders.push(entry.path());
                } else {
                    found.insert(metadata.ino(), entry.path());
                }
            }
        }
        found
    }

    /// Names that their folder's sync did not cover, the newest first. A file system keeps the
    /// order of its names, so what survives is a beginning of them.
    fn take_back_names(&self, journal: &[Entry], loss: Loss, random: &mut Random) -> usize {
        let mut open: Vec<(u64, &Change)> = Vec::new();
        for Entry { sequence, change } in journal {
            match change {
                Change::FolderSynced { path, through } => open.retain(|(at, name)| {
                    at > through || name.name().and_then(Path::parent) != Some(path.as_path())
                }),
                name if name.name().is_some() => open.push((*sequence, name)),
                _ => {}
            }
        }
        let kept = match loss {
            Loss::Everything => 0,
            Loss::Some | Loss::Nothing => random.below(open.len() + 1),
        };
        let saved = |sequence: u64| self.side().join(format!("saved.{sequence}"));
        for (sequence, change) in open[kept..].iter().rev() {
            // Where a later change that was synced stands in the way, the name stays as it is.
            let _as_far_as_it_goes = match change {
                Change::Created { path, .. } => fs::remove_file(path),
                Change::FolderMade { path } => fs::remove_dir_all(path),
                Change::FolderRemoved { path } => fs::create_dir(path),
                Change::Removed { path } => fs::rename(saved(*sequence), path),
                Change::Renamed { from, to } => {
                    fs::rename(to, from).and_then(|()| fs::rename(saved(*sequence), to).or(Ok(())))
                }
                Change::Written(_)
                | Change::Synced { .. }
                | Change::SyncFailed { .. }
                | Change::FolderSynced { .. }
                | Change::Sent { .. } => Ok(()),
            };
        }
        open.len() - kept
    }
}

/// One change to a file's bytes or size, with what was there before.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) inode: u64,
    pub(crate) at: u64,
    pub(crate) length: u64,
    pub(crate) old_size: u64,
    pub(crate) new_size: u64,
    /// Empty when all of it was zero.
    pub(crate) old: Vec<u8>,
    /// While tracing.
    pub(crate) new: Vec<u8>,
}

impl Written {
    fn old_part(&self, from: u64, to: u64) -> Vec<u8> {
        let (from, to) = ((from - self.at) as usize, (to - self.at) as usize);
        let known = self.old.get(from..to.min(self.old.len())).unwrap_or(&[]);
        let mut part = known.to_vec();
        part.resize(to - from, 0);
        part
    }

    fn sectors(&self) -> impl Iterator<Item = u64> + use<> {
        self.at / SECTOR..(self.at + self.length).div_ceil(SECTOR)
    }
}

/// Of each file: the changes that no successful sync covers, oldest first.
fn unsynced_writes(journal: &[Entry]) -> HashMap<u64, Vec<(u64, &Written)>> {
    let mut open: HashMap<u64, Vec<(u64, bool, &Written)>> = HashMap::new();
    for Entry { sequence, change } in journal {
        match change {
            Change::Written(written) => {
                open.entry(written.inode).or_default().push((*sequence, false, written));
            }
            Change::Synced { inode, through } => {
                if let Some(changes) = open.get_mut(inode) {
                    sync(changes, *through);
                }
            }
            // The kernel calls these pages clean now; no later sync writes them.
            Change::SyncFailed { inode, through } => {
                for (at, failed, _) in open.entry(*inode).or_default() {
                    *failed |= *at <= *through;
                }
            }
            _ => {}
        }
    }
    let without_mark = |changes: Vec<(u64, bool, _)>| {
        changes.into_iter().map(|(at, _, written)| (at, written)).collect::<Vec<_>>()
    };
    open.into_iter().map(|(inode, changes)| (inode, without_mark(changes))).collect()
}

/// A sync that succeeded: it covers all before it, but for what an earlier one failed on, unless
/// all of that was written again.
fn sync(changes: &mut Vec<(u64, bool, &Written)>, through: u64) {
    let rewritten: Vec<(u64, u64, u64)> = changes
        .iter()
        .filter(|(at, failed, _)| *at <= through && !failed)
        .map(|(at, _, written)| (*at, written.at / SECTOR, written.sectors().last().unwrap_or(0)))
        .collect();
    changes.retain(|(at, failed, written)| {
        let again = |sector: u64| {
            rewritten
                .iter()
                .any(|(later, first, last)| later > at && (*first..=*last).contains(&sector))
        };
        *at > through || (*failed && !written.sectors().all(again))
    });
}

/// Takes back changes of one file, sector by sector.
fn take_back(path: &Path, changes: &[(u64, &Written)], loss: Loss, random: &mut Random) -> usize {
    let Some((first, _)) = changes.first() else { return 0 };
    let last = changes.last().map_or(*first, |(at, _)| *at);
    let mut lost_from = || match loss {
        Loss::Nothing => u64::MAX,
        Loss::Everything => 0,
        Loss::Some => match random.below(3) {
            0 => u64::MAX,
            1 => 0,
            _ => first + random.below((last - first + 1) as usize) as u64,
        },
    };
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut states: HashMap<u64, u64> = HashMap::new();
    for (at, written) in changes.iter().rev() {
        for sector in written.sectors() {
            if *states.entry(sector).or_insert_with(&mut lost_from) > *at {
                continue;
            }
            let from = written.at.max(sector * SECTOR);
            let to = (written.at + written.length).min((sector + 1) * SECTOR);
            file.write_all_at(&written.old_part(from, to), from).unwrap();
        }
    }
    let size_from = lost_from();
    let resized = |(_, written): &&(u64, &Written)| written.old_size != written.new_size;
    let sizes: Vec<_> = changes.iter().filter(resized).collect();
    let size = match sizes.iter().find(|(at, _)| *at >= size_from) {
        Some((_, written)) => written.old_size,
        None => changes.last().map_or(0, |(_, written)| written.new_size),
    };
    file.set_len(size).unwrap();
    changes.len()
}
