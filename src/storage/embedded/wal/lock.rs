//! An advisory lock on a folder, so that two processes never write the same data.

use std::fs::File;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::storage::StorageError;

/// The lock on a folder (its file `LOCK`), held until this is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Makes the folder if it is missing. Another holder, in this process or another one, is an
    /// error that names the folder.
    pub fn take(folder: &Path) -> Result<FolderLock, StorageError> {
        let refused = |what: &str, error: std::io::Error| {
            StorageError::Unavailable(format!("{what} {}: {error}", folder.display()))
        };
        std::fs::create_dir_all(folder).map_err(|error| refused("cannot make folder", error))?;
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true);
        let file = options
            .open(folder.join("LOCK"))
            .map_err(|error| refused("cannot write into folder", error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(FolderLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StorageError::Unavailable(format!(
                "folder {} is in use by another process",
                folder.display()
            ))),
            Err(error) => Err(refused("cannot lock folder", error.into())),
        }
    }
}
