//! The task that owns the write half of a socket.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::{Instant, timeout, timeout_at};

use super::out_buffer::OutBuffer;
use super::pull::Work;
use super::{Outbox, Owner};
use crate::storage::{BoxFuture, Page, StorageError};
use crate::telemetry::metrics;

/// How long a closing connection may take to accept what is still buffered.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How a writer task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// The outbox was closed, and everything left.
    Shut,
    /// The socket took nothing any more.
    Failed,
    /// There is nothing to do, and the outbox starts another task when there is.
    Rested,
}

/// Writes what the outbox holds, one vectored write for all of it, and reads the client's queue
/// when there is room. It never waits on the read side of its connection (invariant 10). Ends when
/// the socket fails, when the outbox is closed and empty, which is told to `owner`, or when there
/// is nothing to do and the outbox can start another one.
pub async fn write<W: AsyncWrite + Unpin>(outbox: Arc<Outbox>, mut io: W, owner: Weak<dyn Owner>) {
    let written = run(&outbox, &mut io).await.unwrap_or(Written::Failed);
    if written == Written::Rested {
        return;
    }
    outbox.close(None);
    if written == Written::Shut {
        let shut = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx));
        // Whether the peer takes the FIN in time or not, the socket goes now.
        drop(Box::pin(timeout(CLOSE_TIMEOUT, shut)).await);
    }
    outbox.set_gone();
    if written == Written::Shut
        && let Some(owner) = owner.upgrade()
    {
        owner.written_out();
    }
}

type Pull = BoxFuture<'static, Result<Page, StorageError>>;

async fn run(outbox: &Arc<Outbox>, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<Written> {
    let mut pull: Option<Pull> = None;
    loop {
        match outbox.work() {
            Work::Write(buffer) => Box::pin(write_all(outbox, io, buffer)).await?,
            Work::Pull { queue, incarnation, after, messages } => {
                let queues = outbox.queues();
                pull = Some(Box::pin(async move {
                    let started = Instant::now();
                    let bytes = Outbox::pull_bytes();
                    let page = queues.read(&queue, incarnation, after, messages, bytes).await;
                    metrics::PERSISTENT_PROCESSING.observe(started.elapsed());
                    page
                }));
            }
            Work::Shut => return Ok(Written::Shut),
            Work::Rest => return Ok(Written::Rested),
            Work::Wait(until) if pull.is_none() => woken(outbox, until).await,
            Work::Wait(_) => {}
        }
        if let Some(reading) = pull.as_mut() {
            // What comes first: the page, or something to write meanwhile.
            let page = tokio::select! {
                biased;
                page = reading => page,
                () = outbox.writer.notified() => continue,
            };
            pull = None;
            outbox.page(page);
        }
    }
}

/// Waits for something to do, or for the next look at a paused session.
async fn woken(outbox: &Outbox, until: Option<Instant>) {
    let woken = outbox.writer.notified();
    match until {
        None => woken.await,
        // Woken or due: what there is to do is found out next.
        Some(until) => drop(Box::pin(timeout_at(until, woken)).await),
    }
}

async fn write_all(
    outbox: &Arc<Outbox>,
    io: &mut (impl AsyncWrite + Unpin),
    mut buffer: OutBuffer,
) -> io::Result<()> {
    let client = || outbox.settings().client_id;
    tracing::trace!(stop = 11, client = %client(), bytes = buffer.len(), "writing");
    // However slowly the peer takes what is left, a closing connection ends.
    let mut end = None;
    loop {
        let write = poll_fn(|cx| {
            if buffer.is_empty() {
                // What the transport holds back, a TLS record say, belongs to this write.
                return Pin::new(&mut *io).poll_flush(cx).map_ok(|()| 0);
            }
            let (slices, count) = buffer.slices();
            Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count])
        });
        let written = if outbox.is_closing() {
            let end = *end.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
            Box::pin(timeout_at(end, write)).await??
        } else {
            // A stuck socket must not keep a closed connection: a close wakes this task.
            tokio::select! {
                biased;
                written = write => written?,
                () = outbox.writer.notified() => continue,
            }
        };
        if buffer.is_empty() {
            break;
        }
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        outbox.left(buffer.advance(written));
    }
    buffer.observe(&metrics::DELIVERY);
    buffer.recycle();
    Ok(())
}
