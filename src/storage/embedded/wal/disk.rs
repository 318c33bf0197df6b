//! The file layer under the log: one flat folder of files.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// A folder that holds the log's files.
///
/// `create`, `rename` and `remove` survive a crash only after `sync_dir`; what `write_at` wrote
/// survives only after `sync` of that file. `io::ErrorKind::StorageFull` is how ENOSPC looks.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Names of all files of the folder, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a new file of `bytes` zero bytes, its space taken on the medium. An existing file of
    /// that name is replaced.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_dir(&self) -> io::Result<()>;
    /// Where this is, for messages to an operator.
    fn place(&self) -> String;
}

/// One open file. All calls may come from several threads.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Writes some bytes of `parts` at `at`, and says how many: a short write is no error.
    fn write_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize>;
    /// Reads up to `into.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
    /// fdatasync.
    fn sync(&self) -> io::Result<()>;
    fn bytes(&self) -> io::Result<u64>;
    /// Grows the file to `bytes`, the new space zero and taken on the medium.
    fn grow(&self, bytes: u64) -> io::Result<()>;
    fn truncate(&self, bytes: u64) -> io::Result<()>;
}
