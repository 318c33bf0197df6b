//! IN-6: when what a read has brought is handed to the log.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::tests::{Node, config};
use crate::limits::{BATCH_BYTES, BATCH_MESSAGES};
use crate::storage::{
    AppendSink, Batch, Committed, DirectCopy, Durability, LogConsumer, Memory, MemoryConfig,
    Position, PublishLog, QueueKey,
};

/// A batch waits no longer for others.
const TOGETHER: Duration = Duration::from_millis(20);
const MESSAGES: usize = 5 * BATCH_MESSAGES;

/// The log, and how many messages and bytes came with each batch.
struct Looked {
    log: Arc<dyn PublishLog>,
    sizes: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl PublishLog for Looked {
    fn append(
        &self,
        batch: Arc<Batch>,
        durability: Durability,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        self.sizes.lock().push((batch.len(), batch.body().len()));
        self.log.append(batch, durability, sink, ticket);
    }

    fn append_direct(
        &self,
        to: QueueKey,
        incarnation: u64,
        batch: Arc<Batch>,
        deliveries: Arc<[DirectCopy]>,
        sink: Arc<dyn AppendSink>,
        ticket: u64,
    ) {
        self.log.append_direct(to, incarnation, batch, deliveries, sink, ticket);
    }

    fn consumer(&self, partition: u32) -> (Committed, Box<dyn LogConsumer>) {
        self.log.consumer(partition)
    }

    fn end(&self, partition: u32) -> Position {
        self.log.end(partition)
    }

    fn lag(&self) -> (u64, u64) {
        self.log.lag()
    }

    fn trouble(&self) -> Option<String> {
        self.log.trouble()
    }
}

/// IN-6: a lone message is in the log and answered without a wait for others: nothing stands before
/// it, and no timer runs on its way, or the paused clock would have moved.
#[tokio::test(start_paused = true)]
async fn a_lone_message_waits_for_no_other() {
    let node = Node::new(1 << 20);
    let mut client = node.connect(5, b'p').await;
    for id in 1..=3 {
        let before = Instant::now();
        client.send(0x32, &[0, 1, b't', 0, id, 0, b'm']).await;
        assert_eq!(client.expect(0x40).await[..2], [0, id]);
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}

/// IN-6: of messages that come faster than they are handed on, a batch takes up to its size, and is
/// closed then; what is left over waits for nothing, either.
#[tokio::test(start_paused = true)]
async fn a_batch_closes_at_its_size() {
    for payload in [1, 2000] {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sizes);
        let mut config = config(64 << 20);
        (config.read_ahead_messages, config.read_ahead_bytes) = (10 * BATCH_MESSAGES, 64 << 20);
        let node =
            Node::over(Memory::new(MemoryConfig::default()), config, Duration::ZERO, |log| {
                Arc::new(Looked { log, sizes: seen })
            });
        let mut client = node.connect(4, b'p').await;
        let body = [&[0, 1, b't'][..], &vec![b'm'; payload]].concat();
        let length = match u8::try_from(body.len()) {
            Ok(short @ ..=127) => vec![short],
            Ok(_) | Err(_) => vec![body.len() as u8 | 128, (body.len() >> 7) as u8],
        };
        let frame = [&[0x30][..], &length, &body].concat();
        let before = Instant::now();
        client.stream.write_all(&frame.repeat(MESSAGES)).await.expect("it is read");
        client.send(0xc0, &[]).await;
        client.expect(0xd0).await;
        let sizes = std::mem::take(&mut *sizes.lock());
        assert_eq!(sizes.iter().map(|(messages, _)| messages).sum::<usize>(), MESSAGES);
        for (messages, bytes) in &sizes {
            assert!(*messages <= BATCH_MESSAGES, "{messages} messages");
            // The message that reaches the bound is inside.
            assert!(*bytes < BATCH_BYTES + body.len() + 100, "{bytes} bytes");
        }
        assert!(before.elapsed() < TOGETHER, "{:?}", before.elapsed());
    }
}
