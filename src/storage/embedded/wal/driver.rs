//! The queue in front of the writer, and the loop that empties it: on a thread of its own, or as
//! a task on simulated time. The loop's steps are the same.
//!
//! The queue has no bound of its own: each submission is part of what a caller has open (a read
//! of one publisher that waits for its ack), and callers bound that. `pending_bytes` shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::types::Applier;
use super::writer::{Submission, Writer};

/// Room for submissions that is kept between groups.
const KEEP_SUBMISSIONS: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Wakes the thread.
    bell: Condvar,
    /// Wakes the task.
    task_bell: Notify,
    pending_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    submissions: Vec<Submission>,
    /// The driver looks again only when it is woken.
    sleeping: bool,
    closed: bool,
}

impl Queue {
    /// Never blocks. After `close` the submission is dropped, which settles it as not stored.
    pub(super) fn push(&self, submission: Submission) {
        self.pending_bytes.fetch_add(submission.bytes(), Ordering::Relaxed);
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            drop(waiting);
            self.pending_bytes.fetch_sub(submission.bytes(), Ordering::Relaxed);
            return;
        }
        waiting.submissions.push(submission);
        let wake = std::mem::take(&mut waiting.sleeping);
        drop(waiting);
        if wake {
            self.ring();
        }
    }

    fn ring(&self) {
        self.bell.notify_one();
        self.task_bell.notify_one();
    }

    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.ring();
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Moves what waits into `group`, which is empty. False when the queue is closed and empty.
    fn take(&self, group: &mut Vec<Submission>) -> bool {
        let mut waiting = self.waiting.lock();
        std::mem::swap(&mut waiting.submissions, group);
        waiting.sleeping = group.is_empty() && !waiting.closed;
        !group.is_empty() || !waiting.closed
    }

    /// Waits until something may be there.
    fn sleep(&self, at_most: Option<Duration>) {
        let mut waiting = self.waiting.lock();
        // What came between `take` and now has reset the flag.
        if !waiting.sleeping || waiting.closed {
            return;
        }
        match at_most {
            Some(at_most) => drop(self.bell.wait_for(&mut waiting, at_most)),
            None => self.bell.wait(&mut waiting),
        }
    }

    /// Drops what waits: it settles as not stored.
    pub(super) fn clear(&self) {
        let mut left = Vec::new();
        self.take(&mut left);
        self.forget(&left);
    }

    fn forget(&self, group: &[Submission]) {
        let bytes = group.iter().map(Submission::bytes).sum();
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The writer and its applier, with the room for one group.
pub(super) struct Engine {
    pub(super) writer: Writer,
    pub(super) applier: Box<dyn Applier>,
    queue: Arc<Queue>,
    group: Vec<Submission>,
    retry_after: Duration,
}

/// What the loop does next.
enum Step {
    Again,
    Sleep(Option<Duration>),
    Stop,
}

impl Engine {
    pub(super) fn new(
        writer: Writer,
        applier: Box<dyn Applier>,
        queue: Arc<Queue>,
        retry_after: Duration,
    ) -> Self {
        Self { writer, applier, queue, group: Vec::new(), retry_after }
    }

    fn step(&mut self) -> Step {
        let open = self.queue.take(&mut self.group);
        if !open {
            return Step::Stop;
        }
        if self.group.is_empty() {
            self.writer.tend();
            return Step::Sleep(self.writer.ill().then_some(self.retry_after));
        }
        let bytes = self.group.iter().map(Submission::bytes).sum();
        self.writer.run_group(&mut self.group, &mut *self.applier);
        self.queue.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.group.shrink_to(KEEP_SUBMISSIONS);
        Step::Again
    }

    /// Settles all that waits and closes the log.
    pub(super) fn finish(mut self) {
        while let Step::Again = self.step() {}
        self.writer.close();
    }

    /// The loop on a thread.
    pub(super) fn run(self, trouble: &Mutex<Option<String>>) {
        let _ended = Ended { queue: Arc::clone(&self.queue), trouble };
        // Dropped before the guard, so that its group settles before what waits behind it.
        let mut engine = self;
        loop {
            match engine.step() {
                Step::Again => {}
                Step::Sleep(at_most) => engine.queue.sleep(at_most),
                Step::Stop => break,
            }
        }
        engine.writer.close();
    }
}

/// However the loop ends, nobody is left waiting for it.
struct Ended<'a> {
    queue: Arc<Queue>,
    trouble: &'a Mutex<Option<String>>,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = "the log's writer has failed; the program must be started again";
            *self.trouble.lock() = Some(text.into());
        }
        self.queue.close();
        self.queue.clear();
    }
}

/// A step of the engine in `slot`; one that panics takes the engine with it, which settles its
/// group.
fn step_in(slot: &Mutex<Option<Engine>>) -> Step {
    let mut slot = slot.lock();
    let Some(mut engine) = slot.take() else {
        return Step::Stop;
    };
    let step = engine.step();
    *slot = Some(engine);
    step
}

/// The loop as a task. The engine stays in `slot`, so that a stop can finish it at once.
///
/// Cancel safe: yes; a group is always run to its end.
pub(super) async fn run_as_task(
    slot: Arc<Mutex<Option<Engine>>>,
    queue: Arc<Queue>,
    trouble: Arc<Mutex<Option<String>>>,
) {
    let _ended = Ended { queue: Arc::clone(&queue), trouble: &trouble };
    loop {
        match step_in(&slot) {
            Step::Again => tokio::task::yield_now().await,
            Step::Sleep(None) => queue.task_bell.notified().await,
            Step::Sleep(Some(at_most)) => {
                // Whichever comes first, the loop looks again.
                drop(tokio::time::timeout(at_most, queue.task_bell.notified()).await);
            }
            Step::Stop => return,
        }
    }
}
