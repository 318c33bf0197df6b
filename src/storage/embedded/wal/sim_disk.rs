//! A disk in memory that can fail and crash, for tests and the simulation. Deterministic.
//!
//! What it promises is what a real one promises and no more: a write lasts when its file was
//! synced, sector by sector in any subset before that; names last when the folder was synced, in
//! order before that; a sync that failed may have kept anything of what it covered, and a later
//! one does not make up for it.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile};

const SECTOR: usize = 512;
/// The trace keeps no more than this; a longer run has forgotten its beginning.
const TRACE_MAX: usize = 1 << 16;

/// One thing that was done, for tests that look at the order of things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimOp {
    Create(String),
    Rename(String),
    Remove(String),
    SyncDir,
    Write {
        at: u64,
        bytes: usize,
    },
    Sync,
    /// A mark of the test's own.
    Mark(u64),
}

/// Clones are handles to the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    names: BTreeMap<String, SharedInode>,
    lasting_names: BTreeMap<String, SharedInode>,
    name_ops: Vec<NameOp>,
    faults: Faults,
    random: Random,
    syncs: u64,
    trace: Vec<SimOp>,
    /// The disk after the power failed.
    image: Option<SimDisk>,
}

#[derive(Debug, Default)]
struct Faults {
    writes: u64,
    /// Bytes that still succeed before `writes` begins to count.
    write_bytes_left: Option<u64>,
    syncs: u64,
    bytes_max: Option<u64>,
    sync_takes: Duration,
    /// Changes until the power fails.
    crash_in: Option<u64>,
}

/// Lives as long as a name or an open file refers to it. Locked after the state.
type SharedInode = Arc<Mutex<Inode>>;

#[derive(Clone, Debug, Default)]
struct Inode {
    data: Vec<u8>,
    lasting: Vec<u8>,
    /// Since the last sync, in order.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Bytes(usize, Vec<u8>),
    Len(usize),
}

#[derive(Clone, Debug)]
enum NameOp {
    Created(String, SharedInode),
    Renamed(String, String),
    Removed(String),
}

/// SplitMix64: small, seedable, good enough to choose what is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

impl Inode {
    fn resize(&mut self, len: usize) {
        self.data.resize(len, 0);
        self.pending.push(Change::Len(len));
    }

    /// All pending changes last.
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Bytes(at, bytes) => put(&mut self.lasting, at, &bytes),
                Change::Len(len) => self.lasting.resize(len, 0),
            }
        }
    }

    /// Any subset of the pending changes lasts, writes sector by sector.
    fn lose(&mut self, random: &mut Random) {
        // All, nothing, or some: each is likely enough to be seen often.
        let keep = [0, 4, 2][random.below(3) as usize];
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Len(len) if random.below(4) < keep => self.lasting.resize(len, 0),
                Change::Len(_) => {}
                Change::Bytes(at, bytes) => {
                    let mut from = 0;
                    while from < bytes.len() {
                        let to = (from + SECTOR - (at + from) % SECTOR).min(bytes.len());
                        if random.below(4) < keep {
                            put(&mut self.lasting, at + from, &bytes[from..to]);
                        }
                        from = to;
                    }
                }
            }
        }
    }
}

fn put(data: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if data.len() < at + bytes.len() {
        data.resize(at + bytes.len(), 0);
    }
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

impl State {
    fn record(&mut self, op: SimOp) {
        if self.trace.len() == TRACE_MAX {
            self.trace.drain(..TRACE_MAX / 2);
        }
        self.trace.push(op);
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| inode.lock().data.len() as u64).sum()
    }

    fn crash(&mut self) -> SimDisk {
        let mut random = Random(self.random.next());
        let mut names = self.lasting_names.clone();
        let kept = random.below(self.name_ops.len() as u64 + 1) as usize;
        self.name_ops[..kept].iter().for_each(|op| apply(&mut names, op));
        let after = SimDisk::new(random.next());
        let mut new = after.state.lock();
        for (name, inode) in names {
            let mut inode = inode.lock().clone();
            inode.lose(&mut random);
            inode.data.clone_from(&inode.lasting);
            let inode = Arc::new(Mutex::new(inode));
            new.names.insert(name.clone(), Arc::clone(&inode));
            new.lasting_names.insert(name, inode);
        }
        drop(new);
        after
    }

    /// Called before each change.
    fn tick(&mut self) {
        match self.faults.crash_in {
            Some(0) => {
                self.faults.crash_in = None;
                self.image = Some(self.crash());
            }
            Some(left) => self.faults.crash_in = Some(left - 1),
            None => {}
        }
    }

    fn find(&self, name: &str) -> io::Result<SharedInode> {
        self.names.get(name).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    fn change(&mut self, op: NameOp) {
        apply(&mut self.names, &op);
        self.name_ops.push(op);
    }

    fn room_for(&self, more: u64) -> io::Result<()> {
        match self.faults.bytes_max {
            Some(max) if self.used() + more > max => Err(io::ErrorKind::StorageFull.into()),
            Some(_) | None => Ok(()),
        }
    }
}

fn apply(names: &mut BTreeMap<String, SharedInode>, op: &NameOp) {
    match op {
        NameOp::Created(name, inode) => drop(names.insert(name.clone(), Arc::clone(inode))),
        NameOp::Removed(name) => drop(names.remove(name)),
        NameOp::Renamed(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

// === impl SimDisk ===

impl SimDisk {
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            names: BTreeMap::new(),
            lasting_names: BTreeMap::new(),
            name_ops: Vec::new(),
            faults: Faults::default(),
            random: Random(seed),
            syncs: 0,
            trace: Vec::new(),
            image: None,
        };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// The disk as a log wants it.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// The disk as the machine finds it after a loss of power now: a new disk, without faults.
    /// This one lives on, so that whoever still writes to it disturbs nothing.
    #[must_use]
    pub fn crash(&self) -> SimDisk {
        self.state.lock().crash()
    }

    /// Lets the power fail just before the change (write, sync, or change of names) after
    /// `changes` more. What the disk is then, `crashed` gives; this one goes on as if nothing
    /// had happened.
    pub fn crash_in(&self, changes: u64) {
        self.state.lock().faults.crash_in = Some(changes);
    }

    /// The disk after the power failed, once that has happened.
    pub fn crashed(&self) -> Option<SimDisk> {
        self.state.lock().image.clone()
    }

    /// The next `count` writes fail and change nothing.
    pub fn fail_writes(&self, count: u64) {
        self.state.lock().faults.writes = count;
    }

    /// After `bytes` more bytes, in the middle of a write if it comes so, one write fails.
    pub fn fail_write_after(&self, bytes: u64) {
        self.state.lock().faults.write_bytes_left = Some(bytes);
    }

    /// The next `count` syncs fail; any part of what they covered lasts.
    pub fn fail_syncs(&self, count: u64) {
        self.state.lock().faults.syncs = count;
    }

    /// How many bytes all files together may have; `None` for any number.
    pub fn limit(&self, bytes_max: Option<u64>) {
        self.state.lock().faults.bytes_max = bytes_max;
    }

    /// How long each sync blocks its thread. Not for simulated time.
    pub fn slow_syncs(&self, takes: Duration) {
        self.state.lock().faults.sync_takes = takes;
    }

    /// Syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// What was done so far, the newest 32 768 things at least.
    pub fn trace(&self) -> Vec<SimOp> {
        self.state.lock().trace.clone()
    }

    /// Puts a mark into the trace.
    pub fn mark(&self, number: u64) {
        self.state.lock().record(SimOp::Mark(number));
    }

    /// Changes a byte of a file for good, as a failing medium does.
    pub fn damage(&self, name: &str, at: usize) {
        let state = self.state.lock();
        if let Some(inode) = state.names.get(name) {
            let mut inode = inode.lock();
            inode.data[at] ^= 0x55;
            if let Some(byte) = inode.lasting.get_mut(at) {
                *byte ^= 0x55;
            }
        }
    }

    fn file(&self, inode: SharedInode) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), inode })
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.tick();
        state.room_for(bytes)?;
        let data = vec![0; bytes as usize];
        let pending = vec![Change::Len(data.len())];
        let inode = Arc::new(Mutex::new(Inode { data, lasting: Vec::new(), pending }));
        state.change(NameOp::Created(name.into(), Arc::clone(&inode)));
        state.record(SimOp::Create(name.into()));
        drop(state);
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.state.lock().find(name)?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.tick();
        state.find(from)?;
        state.change(NameOp::Renamed(from.into(), to.into()));
        state.record(SimOp::Rename(to.into()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.tick();
        state.find(name)?;
        state.change(NameOp::Removed(name.into()));
        state.record(SimOp::Remove(name.into()));
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.tick();
        state.lasting_names = state.names.clone();
        state.name_ops.clear();
        state.record(SimOp::SyncDir);
        Ok(())
    }

    fn place(&self) -> String {
        "simulated disk".into()
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: SharedInode,
}

impl DiskFile for SimFile {
    fn write_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let mut state = self.disk.state.lock();
        state.tick();
        if state.faults.writes > 0 {
            state.faults.writes -= 1;
            return Err(io::Error::other("simulated write fault"));
        }
        if let Some(left) = state.faults.write_bytes_left {
            if left == 0 {
                state.faults.write_bytes_left = None;
                return Err(io::Error::other("simulated write fault"));
            }
            bytes.truncate(left.min(bytes.len() as u64) as usize);
            state.faults.write_bytes_left = Some(left - bytes.len() as u64);
        }
        let (at_byte, count) = (at as usize, bytes.len());
        let mut inode = self.inode.lock();
        put(&mut inode.data, at_byte, &bytes);
        inode.pending.push(Change::Bytes(at_byte, bytes));
        drop(inode);
        state.record(SimOp::Write { at, bytes: count });
        Ok(count)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let inode = self.inode.lock();
        let from = (at as usize).min(inode.data.len());
        let count = into.len().min(inode.data.len() - from);
        into[..count].copy_from_slice(&inode.data[from..from + count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        let takes = self.disk.state.lock().faults.sync_takes;
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        let mut state = self.disk.state.lock();
        state.tick();
        if state.faults.syncs > 0 {
            state.faults.syncs -= 1;
            self.inode.lock().lose(&mut state.random);
            return Err(io::Error::other("simulated sync fault"));
        }
        self.inode.lock().sync();
        state.syncs += 1;
        state.record(SimOp::Sync);
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.inode.lock().data.len() as u64)
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.tick();
        let len = self.bytes()?;
        if bytes > len {
            state.room_for(bytes - len)?;
            self.inode.lock().resize(bytes as usize);
        }
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.disk.state.lock().tick();
        let mut inode = self.inode.lock();
        inode.resize(bytes as usize);
        inode.sync();
        Ok(())
    }
}
