//! An advisory lock on a folder, so that two processes never write the same data.

use std::fs::File;
use std::io;
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
        let refused = |what: &str, error: io::Error| {
            StorageError::Unavailable(format!("{what} {}: {error}", folder.display()))
        };
        make(folder).map_err(|error| refused("cannot make folder", error))?;
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

/// Makes the folder and what is missing above it, durably: what is synced inside a folder is lost
/// all the same when a loss of power takes the folder's name.
fn make(folder: &Path) -> io::Result<()> {
    // A relative path of one name has an empty parent.
    let parent = folder.parent().map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        make(parent)?;
    }
    match std::fs::create_dir(folder) {
        Err(error) if !folder.is_dir() => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Also when it was there: whoever made it may not have come this far. A parent that may not
    // be read was made by somebody else.
    match parent.map(File::open) {
        Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Some(parent) => parent?.sync_all(),
        None => Ok(()),
    }
}
