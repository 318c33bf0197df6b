//! The power supply of one run of the node, and a disk that loses it in the middle of its work.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use sluice::storage::embedded::MemoryProjection;
use sluice::storage::embedded::wal::{Disk, DiskFile, SimDisk};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::Notify;

use crate::dice::Dice;

/// When it is gone, nothing that the node still does is seen by anybody.
#[derive(Debug, Default)]
pub(crate) struct Power {
    gone: AtomicBool,
    went: Notify,
}

impl Power {
    pub(crate) fn cut(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.went.notify_waiters();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) async fn went(&self) {
        let went = self.went.notified();
        tokio::pin!(went);
        went.as_mut().enable();
        if !self.is_gone() {
            went.await;
        }
    }
}

/// The node's end of a connection: it falls silent with the power.
pub(crate) struct Link {
    pub(crate) stream: DuplexStream,
    pub(crate) power: Arc<Power>,
}

impl Link {
    fn check(&self) -> io::Result<()> {
        if self.power.is_gone() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What is left of the media after the power went.
pub(crate) struct Image {
    pub(crate) disk: SimDisk,
    pub(crate) projection: MemoryProjection,
}

/// The log's disk. It can lose its power just before any change, and then takes the picture of log
/// and projection at that very moment.
#[derive(Clone)]
pub(crate) struct PowerDisk {
    inner: Arc<Inner>,
}

struct Inner {
    disk: SimDisk,
    projection: Arc<MemoryProjection>,
    power: Arc<Power>,
    fuse: Mutex<Fuse>,
}

struct Fuse {
    dice: Dice,
    /// Changes until the power goes.
    left: Option<u64>,
    image: Option<Image>,
}

impl std::fmt::Debug for PowerDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PowerDisk")
    }
}

impl PowerDisk {
    pub(crate) fn new(
        disk: SimDisk,
        projection: Arc<MemoryProjection>,
        power: Arc<Power>,
        dice: Dice,
    ) -> Self {
        let fuse = Mutex::new(Fuse { dice, left: None, image: None });
        PowerDisk { inner: Arc::new(Inner { disk, projection, power, fuse }) }
    }

    pub(crate) fn sim(&self) -> &SimDisk {
        &self.inner.disk
    }

    pub(crate) fn projection(&self) -> &MemoryProjection {
        &self.inner.projection
    }

    /// Lets the power go just before the change after `changes` more.
    pub(crate) fn cut_in(&self, changes: u64) {
        self.inner.fuse.lock().left = Some(changes);
    }

    /// The power stays, and nothing fails any more.
    pub(crate) fn heal(&self) {
        self.inner.fuse.lock().left = None;
        self.sim().fail_writes(0);
        self.sim().fail_syncs(0);
        self.sim().fail_write_after(u64::MAX);
        self.sim().limit(None);
        self.projection().fail(false);
    }

    /// Cuts the power now, unless it is gone already, and gives what is left.
    pub(crate) fn cut(&self) -> Image {
        let inner = &self.inner;
        let mut fuse = inner.fuse.lock();
        inner.picture(&mut fuse);
        fuse.image.take().expect("a picture was taken when the power went")
    }

    fn tick(&self) {
        let mut fuse = self.inner.fuse.lock();
        match fuse.left {
            Some(0) => {
                fuse.left = None;
                self.inner.picture(&mut fuse);
            }
            Some(left) => fuse.left = Some(left - 1),
            None => {}
        }
    }
}

impl Inner {
    fn picture(&self, fuse: &mut Fuse) {
        if self.power.is_gone() {
            return;
        }
        self.power.cut();
        let keep = fuse.dice.below(self.projection.unsynced() as u64 + 1) as usize;
        let projection = self.projection.crash(keep);
        fuse.image = Some(Image { disk: self.disk.crash(), projection });
    }
}

impl Disk for PowerDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.sim().list()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.tick();
        let file = self.sim().create(name, bytes)?;
        Ok(Arc::new(PowerFile { file, disk: self.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.sim().open(name)?;
        Ok(Arc::new(PowerFile { file, disk: self.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.tick();
        self.sim().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.tick();
        self.sim().remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.tick();
        self.sim().sync_dir()
    }

    fn place(&self) -> String {
        self.sim().place()
    }
}

#[derive(Debug)]
struct PowerFile {
    file: Arc<dyn DiskFile>,
    disk: PowerDisk,
}

impl DiskFile for PowerFile {
    fn write_at(&self, parts: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        self.disk.tick();
        self.file.write_at(parts, at)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.tick();
        self.file.sync()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        self.disk.tick();
        self.file.grow(bytes)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.disk.tick();
        self.file.truncate(bytes)
    }
}
