//! Cuts the torn end off fjall's journal, before fjall reads it.
//!
//! The journal is synced every few seconds; of what was written since, a loss of power keeps any
//! part. fjall cuts an end that just stops, but refuses to open (or allocates what a torn length
//! says) when a batch has a hole and its last sector. All of it is only written behind our own
//! log, which is kept up to the last sync: so the end from the first batch on that is not whole is
//! cut here, and replayed from the log. If damage reaches below that sync, the checkpoint found
//! is older than the log's first segment, which the log refuses.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

const SUFFIX: &str = ".jnl";
const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// What stands behind a batch's checksum.
const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];
/// Kind of value, compression, keyspace, length of the key, of the value, of what is stored.
const ITEM_HEAD: usize = 1 + 1 + 8 + 2 + 4 + 4;

/// Cuts the newest journal of the database in `folder` behind its last whole batch. Older ones
/// were synced as a whole before the next one was made.
pub(super) fn cut(folder: &Path) -> io::Result<()> {
    let Some(path) = newest(folder)? else { return Ok(()) };
    let file = File::open(&path)?;
    let bytes = file.metadata()?.len();
    let mut reader = Reader { inner: BufReader::with_capacity(1 << 20, file), left: bytes };
    let mut whole = 0;
    while reader.batch().is_some() {
        whole = bytes - reader.left;
    }
    if whole == bytes {
        return Ok(());
    }
    let file = OpenOptions::new().write(true).open(&path)?;
    file.set_len(whole)?;
    file.sync_all()
}

fn newest(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest: Option<(u64, PathBuf)> = None;
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(SUFFIX)?.parse().ok());
        if let Some(number) = number
            && newest.as_ref().is_none_or(|(most, _)| number > *most)
        {
            newest = Some((number, path));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Reads batches; `None` is the end, or something that is not whole.
struct Reader {
    inner: BufReader<File>,
    left: u64,
}

impl Reader {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.left = self.left.checked_sub(N as u64)?;
        self.inner.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn batch(&mut self) -> Option<()> {
        if self.take()? != [START] {
            return None;
        }
        let items = u32::from_le_bytes(self.take()?);
        let _sequence: [u8; 8] = self.take()?;
        let mut hash = Xxh3::new();
        for _ in 0..items {
            self.item(&mut hash)?;
        }
        let ends = self.take()? == [END];
        let checksum = u64::from_le_bytes(self.take()?);
        let trailer: [u8; 4] = self.take()?;
        (ends && checksum == hash.digest() && trailer == TRAILER).then_some(())
    }

    fn item(&mut self, hash: &mut Xxh3) -> Option<()> {
        let tag: [u8; 1] = self.take()?;
        hash.update(&tag);
        match tag[0] {
            CLEAR => hash.update(&self.take::<8>()?),
            ITEM => {
                let head: [u8; ITEM_HEAD] = self.take()?;
                hash.update(&head);
                let key = u16::from_le_bytes([head[10], head[11]]);
                let stored = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
                self.body(u64::from(key) + u64::from(stored), hash)?;
            }
            _ => return None,
        }
        Some(())
    }

    fn body(&mut self, mut length: u64, hash: &mut Xxh3) -> Option<()> {
        self.left = self.left.checked_sub(length)?;
        let mut chunk = [0; 4096];
        while length > 0 {
            let step = length.min(chunk.len() as u64) as usize;
            self.inner.read_exact(&mut chunk[..step]).ok()?;
            hash.update(&chunk[..step]);
            length -= step as u64;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    use super::*;

    const BATCHES: u32 = 6;
    const SECTOR: u64 = 512;

    fn open(folder: &Path) -> (Database, fjall::Keyspace) {
        let database = Database::builder(folder).open().expect("opens");
        let keyspace = database.keyspace("k", KeyspaceCreateOptions::default).expect("opens");
        (database, keyspace)
    }

    /// Batches of several sizes, each with its number under the key `n`.
    fn write(folder: &Path) {
        let (database, keyspace) = open(folder);
        for number in 1..=BATCHES {
            let mut batch = database.batch();
            batch.insert(&keyspace, "n", number.to_le_bytes());
            for item in 0..number {
                // Every second value is long enough to be compressed.
                let length: u32 = if item % 2 == 0 { 300 } else { 9000 };
                let noise =
                    |at: u32| (at.wrapping_mul(2_654_435_761).wrapping_add(number) >> 13) as u8;
                let value: Vec<u8> = (0..length).map(noise).collect();
                batch.insert(&keyspace, item.to_le_bytes(), value);
            }
            batch.commit().expect("commits");
            database.persist(PersistMode::SyncAll).expect("syncs");
        }
    }

    fn last_batch(folder: &Path) -> u32 {
        let (_database, keyspace) = open(folder);
        let found = keyspace.get("n").expect("reads");
        found.map_or(0, |bytes| u32::from_le_bytes(bytes[..].try_into().expect("4 bytes")))
    }

    fn whole_bytes(path: &Path) -> u64 {
        let file = File::open(path).expect("opens");
        let bytes = file.metadata().expect("stats").len();
        let mut reader = Reader { inner: BufReader::new(file), left: bytes };
        let mut whole = 0;
        while reader.batch().is_some() {
            whole = bytes - reader.left;
        }
        whole
    }

    /// STO-03: whichever sector was lost, the database opens, with all batches before it and none
    /// behind it; and a journal that is whole loses nothing.
    #[test]
    fn a_journal_that_lost_any_sector_opens_with_what_stands_before() {
        let made = tempfile::tempdir().expect("a folder");
        write(made.path());
        let journal = newest(made.path()).expect("lists").expect("a journal");
        let name = journal.file_name().expect("a name").to_owned();
        let whole = whole_bytes(&journal);
        assert!(whole > 20 * SECTOR, "the batches are found: {whole}");
        let mut newest_found = 0;
        // From the back, so that what one round cuts is not missed by the next.
        let sectors: Vec<u64> = (0..=whole / SECTOR).rev().step_by(3).chain([0]).collect();
        for sector in sectors {
            cut(made.path()).expect("cuts");
            let torn = made.path().join(&name);
            let length = whole_bytes(&torn);
            if sector * SECTOR >= length {
                continue;
            }
            let file = OpenOptions::new().write(true).open(&torn).expect("opens");
            let hole = SECTOR.min(length - sector * SECTOR) as usize;
            file.write_all_at(&vec![0; hole], sector * SECTOR).expect("tears");
            cut(made.path()).expect("cuts");
            assert!(whole_bytes(&torn) <= sector * SECTOR, "sector {sector}");
            let found = last_batch(made.path());
            assert!(found < BATCHES && (newest_found == 0 || found <= newest_found));
            newest_found = found;
        }
        assert_eq!(newest_found, 0, "the first sector went at last");
    }

    #[test]
    fn a_whole_journal_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        cut(folder.path()).expect("there is nothing to cut");
        write(folder.path());
        let journal = newest(folder.path()).expect("lists").expect("a journal");
        let whole = whole_bytes(&journal);
        cut(folder.path()).expect("cuts what was never written");
        assert_eq!((whole_bytes(&journal), last_batch(folder.path())), (whole, BATCHES));
    }
}
