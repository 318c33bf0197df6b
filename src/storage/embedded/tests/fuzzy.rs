//! Checkpoints are not one moment: the program goes on while a pass writes its batches. What
//! happens in between is made to happen here, at the worst place.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::rig::{entries, settings};
use crate::storage::contract::{Inbox, batch_of, client, text};
use crate::storage::embedded::projection::{Changes, Projection, Space, Visit};
use crate::storage::embedded::start::build;
use crate::storage::embedded::wal::{Driver, SimDisk};
use crate::storage::embedded::{Embedded, MemoryProjection, Stores};
use crate::storage::{Durability, LogBatch, QueueAppend, Row, StorageError, Table};

type Hook = Box<dyn FnOnce() + Send>;

/// A projection that lets something happen right after a batch for `space`.
#[derive(Default)]
struct Hooked {
    inner: MemoryProjection,
    hook: Mutex<Option<(Space, Hook)>>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl Projection for Hooked {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.get(space, key)
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        visit: Visit<'_>,
    ) -> Result<(), StorageError> {
        self.inner.scan(space, from, to, visit)
    }

    fn commit(&self, changes: Changes) -> Result<(), StorageError> {
        let spaces: Vec<Space> = changes.list.iter().map(|change| change.space).collect();
        self.inner.commit(changes)?;
        let due = self.hook.lock().take_if(|(space, _)| spaces.contains(space));
        if let Some((_, hook)) = due {
            hook();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.inner.sync()
    }

    fn close(&self) {}
}

struct World {
    disk: SimDisk,
    projection: Arc<Hooked>,
    embedded: Embedded,
    stores: Stores,
}

fn open(disk: SimDisk, projection: Arc<Hooked>) -> World {
    let state: Arc<dyn Projection> = Arc::<Hooked>::clone(&projection);
    let (embedded, stores) = build(disk.disk(), state, settings(), Driver::Task).expect("opens");
    World { disk, projection, embedded, stores }
}

impl World {
    fn crash(self) -> World {
        let (disk, inner) = (self.disk.crash(), self.projection.inner.crash(usize::MAX));
        drop((self.stores, self.embedded));
        open(disk, Arc::new(Hooked { inner, hook: Mutex::default() }))
    }

    async fn publish(&self, texts: &[&str]) {
        let inbox = Arc::new(Inbox::default());
        let sink = Arc::<Inbox>::clone(&inbox);
        self.stores.log.append(batch_of("p", texts, None), Durability::Durable, sink, 1);
        inbox.stored(1).await;
    }

    async fn texts(&self) -> Vec<(u64, String)> {
        let mut all: Vec<(u64, String)> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| last.0);
            let read = self.stores.queues.read(&client("c"), 1, after, 99, 9999);
            let page = read.await.expect("reads").messages;
            if page.is_empty() {
                return all;
            }
            all.extend(page.iter().map(|one| (one.seq, text(&one.message))));
        }
    }
}

fn append(batch: &LogBatch) -> QueueAppend {
    QueueAppend { queue: client("c"), incarnation: 1, entries: entries(batch) }
}

/// DEV-8: an entry that comes, and whose commit comes, while a pass is under way: either both are
/// durable or neither is.
#[tokio::test]
async fn a_commit_during_a_pass_never_overtakes_its_entries() {
    let world = open(SimDisk::new(3), Arc::default());
    world.stores.queues.open(&client("c"), 1).await.expect("opens");
    let (_, mut consumer) = world.stores.log.consumer(0);
    world.publish(&["1"]).await;
    let mut first = consumer.next().await.expect("reads");
    while first.items.is_empty() {
        first = consumer.next().await.expect("reads");
    }
    world.stores.queues.append(vec![append(&first)]).await.expect("appends");
    consumer.commit(first.end, &mut || b"1".to_vec());
    world.publish(&["2"]).await;
    let second = consumer.next().await.expect("reads");
    let parts = Arc::clone(&world.embedded.checkpointer);
    let hook: Hook = Box::new(move || {
        parts.queues.append(append(&second));
        parts.feed.commit(second.end.offset, b"2".to_vec());
    });
    *world.projection.hook.lock() = Some((Space::Queues, hook));
    world.embedded.checkpoint().expect("checkpoints");
    assert!(world.projection.hook.lock().is_none(), "it happened during the pass");
    drop(consumer);
    let world = world.crash();
    let (committed, mut consumer) = world.stores.log.consumer(0);
    assert_eq!(committed.state, b"1");
    let again = consumer.next().await.expect("reads");
    world.stores.queues.append(vec![append(&again)]).await.expect("appends");
    assert_eq!(world.texts().await, [(1, "1".to_owned()), (2, "2".to_owned())]);
}

/// A queue that is emptied for a new incarnation while a pass is under way is the new one after a
/// crash, with what it got.
#[tokio::test]
async fn an_open_during_a_pass_is_neither_lost_nor_done_twice() {
    let world = open(SimDisk::new(4), Arc::default());
    world.stores.queues.open(&client("c"), 7).await.expect("opens");
    let rows = vec![Row { table: Table::Settings, key: "k".into(), value: None }];
    let inbox = Arc::new(Inbox::default());
    let sink = Arc::<Inbox>::clone(&inbox);
    world.stores.tables.put(rows, Durability::Durable, sink, 1);
    inbox.stored(1).await;
    world.publish(&["1"]).await;
    let (_, mut consumer) = world.stores.log.consumer(0);
    let mut batch = consumer.next().await.expect("reads");
    while batch.items.is_empty() {
        batch = consumer.next().await.expect("reads");
    }
    // The log's thread applies the frame and the dispatcher appends, right after the rows.
    let head = crate::storage::embedded::format::queue_frame(&client("c"), 1);
    let frame = crate::storage::embedded::wal::Frame {
        kind: crate::storage::embedded::wal::FrameKind::QueueOpen,
        head: head.clone(),
        body: bytes::Bytes::new(),
        live: None,
    };
    let parts = Arc::clone(&world.embedded.checkpointer);
    let offset = parts.wal.end();
    let sink = Arc::<Inbox>::clone(&inbox);
    let hook: Hook = Box::new(move || {
        let kind = frame.kind;
        parts.wal.submit(frame, Durability::Durable, sink, 2);
        parts.queues.apply(offset, kind, &head).expect("applies");
        parts.queues.append(append(&batch));
    });
    *world.projection.hook.lock() = Some((Space::Table(Table::Settings), hook));
    world.embedded.checkpoint().expect("checkpoints");
    inbox.stored(2).await;
    assert_eq!(inbox.stored(2).await.offset, offset, "the frame stands where it was applied");
    consumer.commit(world.stores.log.end(0), &mut Vec::new);
    let mut world = world.crash();
    for _ in 0..2 {
        assert_eq!(world.texts().await, [(1, "1".to_owned())]);
        world = world.crash();
    }
}
