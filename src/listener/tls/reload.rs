//! Certificates, keys and revocation lists that change while the broker runs: new handshakes get
//! the new ones, connections stay, and a bad new file changes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::files::{Served, TlsFault, load};
use crate::listener::TlsConfig;

/// Which file it is, and when it was written: device, inode, size, seconds, nanoseconds. `None`:
/// it is not there.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// What one listener uses now.
#[derive(Debug)]
pub(in crate::listener) struct Current {
    /// Its settings stand below this.
    below: &'static str,
    config: TlsConfig,
    in_use: RwLock<Served>,
    seen: Mutex<Vec<Stamp>>,
}

impl Current {
    /// Reads the files. Blocks on the disk.
    pub(in crate::listener) fn load(
        below: &'static str,
        config: &TlsConfig,
    ) -> Result<Self, Vec<TlsFault>> {
        // Before they are read: what is written meanwhile is found by the next look.
        let seen = Mutex::new(stamps(config));
        let in_use = RwLock::new(load(config)?);
        Ok(Self { below, config: config.clone(), in_use, seen })
    }

    pub(in crate::listener) fn get(&self) -> Served {
        self.in_use.read().clone()
    }

    /// Takes the files as they are now, if they changed or `always`. Blocks on the disk.
    fn look(&self, always: bool) -> Result<(), Vec<TlsFault>> {
        let now = stamps(&self.config);
        {
            let mut seen = self.seen.lock();
            if *seen == now && !always {
                return Ok(());
            }
            *seen = now;
        }
        let (below, loaded) = (self.below, load(&self.config));
        match loaded {
            Ok(made) => {
                *self.in_use.write() = made;
                tracing::info!(below, "certificate files are in use as they are now");
                Ok(())
            }
            Err(faults) => {
                for TlsFault { setting, text } in &faults {
                    tracing::warn!(
                        "{below}.{setting}: {text}; what was loaded before stays in use"
                    );
                }
                Err(faults)
            }
        }
    }
}

fn stamps(config: &TlsConfig) -> Vec<Stamp> {
    let identities = config.identities.iter();
    let files = identities.flat_map(|identity| [&identity.cert_file, &identity.key_file]);
    let files = files.chain(&config.ca_file).chain(&config.crl_file);
    files.map(|path| stamp(path)).collect()
}

/// Follows links, so that a folder of links that is switched as a whole counts as changed.
fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

/// The certificates of all doors, for whoever wants them read again.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<Mutex<Vec<Arc<Current>>>>);

impl Certificates {
    /// Takes all files as they are now; a door with a fault keeps what it has. Error: all that is
    /// wrong. Blocks on the disk.
    pub fn reload(&self) -> Result<(), Vec<String>> {
        let mut faults = Vec::new();
        for current in self.all() {
            for TlsFault { setting, text } in current.look(true).err().unwrap_or_default() {
                faults.push(format!("{}.{setting}: {text}", current.below));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    pub(in crate::listener) fn add(&self, current: &Arc<Current>) {
        self.0.lock().push(Arc::clone(current));
    }

    pub(in crate::listener) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn all(&self) -> Vec<Arc<Current>> {
        self.0.lock().clone()
    }

    fn look(&self) {
        for current in self.all() {
            // What is wrong was logged; the next change is the next try.
            let _kept = current.look(false);
        }
    }
}

/// Looks at the files again and again. Ends with its task.
pub(in crate::listener) async fn watch(certificates: Certificates, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        let certificates = certificates.clone();
        // It does not fail but by a panic, which says so itself.
        drop(tokio::task::spawn_blocking(move || certificates.look()).await);
    }
}
