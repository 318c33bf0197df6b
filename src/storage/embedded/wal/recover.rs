//! Opening the log: find its segments, check and replay them, cut a torn tail, and begin a new
//! segment above everything that may ever have been written.
//!
//! Nothing is guessed. A frame that cannot be read is a torn tail only if nothing behind it says
//! that it had been made durable; otherwise the start is refused with file and offset. What was
//! replayed is synced before anybody acts on it: it may be there only because the program, not
//! the machine, went down.

use std::io;
use std::sync::Arc;

use super::Replay;
use super::disk::Disk;
use super::format::{self, SegmentHeader};
use super::prepare::{self, Made};
use super::scan::{Found, Stop, Why};
use super::segments::Segments;
use super::types::{SyncMode, WalConfig};
use crate::storage::StorageError;

/// What recovery found and made.
pub(super) struct Recovered {
    pub(super) segments: Arc<Segments>,
    /// Where writing goes on.
    pub(super) made: Made,
}

pub(super) fn recover(
    disk: &Arc<dyn Disk>,
    config: &WalConfig,
    replay_from: u64,
    replay: Replay<'_>,
) -> Result<Recovered, StorageError> {
    let all = find(disk)?;
    let incarnation = incarnation(&all, config)?;
    let top = all.iter().map(|found| found.header.end_of_room()).max();
    let base = top.unwrap_or(format::FIRST_BASE);
    if replay_from > base || (all.is_empty() && replay_from > 0) {
        return Err(StorageError::Damaged(format!(
            "the log in {} ends before offset {replay_from}, up to which it was already used: \
             segment files are missing",
            disk.place()
        )));
    }
    let (mut chain, mut garbage) = link(&**disk, all, replay_from)?;
    let tail = replay_chain(&mut chain, &mut garbage, replay_from, replay)?;
    if config.sync == SyncMode::Always {
        chain.iter().try_for_each(Found::make_last)?;
    }
    let mut header = SegmentHeader {
        base,
        capacity: config.segment_bytes,
        incarnation,
        after: 0,
        cut: 0,
        synced: 0,
    };
    attach(&mut header, &mut chain, &mut garbage, tail);
    if config.sync == SyncMode::Always {
        header.synced = header.cut;
    }
    let made = prepare::make(&**disk, header)
        .map_err(|error| unavailable(&**disk, "cannot make a log segment", &error))?;
    tidy(&**disk, &chain, &garbage, &header)?;
    let segments = Arc::new(Segments::new(Arc::clone(disk), incarnation, config.segment_bytes));
    for (index, found) in chain.iter().enumerate() {
        let next = chain.get(index + 1).map_or(&header, |next| &next.header);
        let end = if next.cut == 0 { found.header.end_of_room() } else { next.cut };
        segments.push_old(found.header.base, end);
    }
    // A checkpoint may cover relaxed frames that a crash lost: the end never goes back.
    let end = if header.cut == 0 { base } else { header.cut };
    segments.set_end(end.max(replay_from));
    Ok(Recovered { segments, made })
}

/// All segments of the folder, bases rising. Files that never became one are removed.
fn find(disk: &Arc<dyn Disk>) -> Result<Vec<Found>, StorageError> {
    let names = disk.list().map_err(|error| unavailable(&**disk, "cannot list the log", &error))?;
    let mut found = Vec::new();
    for name in names {
        if name.strip_suffix(format::UNBORN).and_then(format::base_of).is_some() {
            disk.remove(&name)
                .map_err(|error| unavailable(&**disk, "cannot remove a leftover", &error))?;
        } else if let Some(base) = format::base_of(&name) {
            found.push(Found::open(disk, base)?);
        }
    }
    found.sort_by_key(|found| found.header.base);
    Ok(found)
}

fn incarnation(all: &[Found], config: &WalConfig) -> Result<u64, StorageError> {
    let Some(first) = all.first() else {
        return Ok(config.incarnation.unwrap_or_else(random));
    };
    let incarnation = first.header.incarnation;
    match all.iter().find(|found| found.header.incarnation != incarnation) {
        Some(other) => {
            Err(other.damaged(other.header.base, "the segment belongs to another log than others"))
        }
        None => Ok(incarnation),
    }
}

/// A number no other log has; std's hasher keys are random.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish().max(1)
}

/// Sorts out which segments count (each names its predecessor) and which were given up by an
/// earlier recovery that did not come to removing them.
fn link(
    disk: &dyn Disk,
    all: Vec<Found>,
    replay_from: u64,
) -> Result<(Vec<Found>, Vec<Found>), StorageError> {
    let (mut chain, mut garbage): (Vec<Found>, Vec<Found>) = (Vec::new(), Vec::new());
    for found in all {
        let header = found.header;
        if header.cut != 0 || header.after == 0 {
            while chain.last().is_some_and(|last| last.header.base > header.after) {
                garbage.extend(chain.pop());
            }
        }
        let linked = chain.last().map_or(0, |last| last.header.base) == header.after;
        let needed_from = if header.cut == 0 { header.base } else { header.cut };
        if !linked && replay_from < needed_from {
            return Err(StorageError::Damaged(format!(
                "{}: segment {} is missing, and {} goes on behind it",
                disk.place(),
                format::file_name(header.after),
                format::file_name(header.base)
            )));
        }
        chain.push(found);
    }
    Ok((chain, garbage))
}

/// Replays from the segment that holds `replay_from`. Leaves only segments that count in `chain`;
/// says where the last one ends, `None` if it was not looked into because it is empty.
fn replay_chain(
    chain: &mut Vec<Found>,
    garbage: &mut Vec<Found>,
    replay_from: u64,
    replay: Replay<'_>,
) -> Result<Option<u64>, StorageError> {
    let behind = chain.partition_point(|found| found.header.base <= replay_from);
    let mut tail = None;
    for index in behind.saturating_sub(1)..chain.len() {
        let found = &chain[index];
        let next = chain.get(index + 1).map(|next| next.header);
        let limit = match next {
            Some(next) if next.cut != 0 => next.cut,
            Some(_) | None => found.header.end_of_room(),
        };
        let stop = found.walk(limit, &mut |offset, end, kind, head, body| {
            if end > limit || (offset < replay_from && replay_from < end) {
                let what = "a frame stands across a boundary of the log";
                return Err(found.damaged(offset, what));
            }
            if offset >= replay_from { replay(offset, kind, head, body) } else { Ok(()) }
        })?;
        tail = Some(stop.at);
        match stop.why {
            Why::Limit => {}
            Why::Sealed if next.is_some() => {}
            Why::Sealed => {
                let what = "the log goes on in a segment that is missing";
                return Err(found.damaged(stop.at, what));
            }
            Why::Closed | Why::Broken => {
                refuse_damage(&chain[index..], stop)?;
                garbage.extend(chain.drain(index + 1..));
                return Ok(tail);
            }
        }
    }
    Ok(tail)
}

/// Tells a torn tail from damage: nothing behind the place may say that it was durable.
fn refuse_damage(rest: &[Found], stop: Stop) -> Result<(), StorageError> {
    let mut claim = 0;
    for (index, found) in rest.iter().enumerate() {
        let from = if index == 0 { stop.at } else { found.header.base };
        claim = claim.max(found.claims_from(from)?);
        if index > 0 {
            claim = claim.max(found.header.synced);
        }
    }
    if claim > stop.at {
        let what = format!(
            "a frame is damaged; it was durable once, for the log was durable up to {claim}"
        );
        return Err(rest[0].damaged(stop.at, &what));
    }
    Ok(())
}

/// Lets `header` go on behind the last segment that holds frames. An empty one is given up, so
/// that starts without traffic leave no files behind.
fn attach(
    header: &mut SegmentHeader,
    chain: &mut Vec<Found>,
    garbage: &mut Vec<Found>,
    tail: Option<u64>,
) {
    let (Some(last), Some(tail)) = (chain.last(), tail) else {
        return;
    };
    let last = last.header;
    let empty = tail == last.base;
    if empty && (last.cut != 0 || last.after == 0) {
        (header.after, header.cut) = (last.after, last.cut);
        garbage.extend(chain.pop());
    } else {
        (header.after, header.cut) = (last.base, tail);
    }
}

/// Removes what does not count any more and gives back the space behind the cut. Only now: the
/// new segment, which says so, is durable.
fn tidy(
    disk: &dyn Disk,
    chain: &[Found],
    garbage: &[Found],
    header: &SegmentHeader,
) -> Result<(), StorageError> {
    for found in garbage {
        disk.remove(&format::file_name(found.header.base))
            .map_err(|error| unavailable(disk, "cannot remove a given up segment", &error))?;
    }
    if let Some(last) = chain.last().filter(|last| last.header.base == header.after) {
        last.truncate(header.cut)?;
    }
    disk.sync_dir().map_err(|error| unavailable(disk, "cannot sync the folder", &error))
}

fn unavailable(disk: &dyn Disk, what: &str, error: &io::Error) -> StorageError {
    StorageError::Unavailable(format!("{what} in {}: {error}", disk.place()))
}
