//! Named tasks: a panic in one is logged with the task's name and counted, and the task's end is
//! told to whoever holds the handle. Nothing is boxed: a connection pays for its own future only.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::logging::panic_text;
use super::metrics;

/// Starts `future` on the runtime under `name`. Dropping the handle lets the task run on.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[allow(clippy::disallowed_methods, reason = "this is what everybody else calls instead")]
    tokio::spawn(Named { name, future })
}

/// [`spawn`] from a thread that is none of the runtime's.
pub fn spawn_on<F>(runtime: &Handle, name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[allow(clippy::disallowed_methods, reason = "as above")]
    runtime.spawn(Named { name, future })
}

pin_project! {
    struct Named<F> {
        name: &'static str,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Named<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let name = *this.name;
        // The future is never polled again after a panic: Tokio drops it when we unwind on.
        match catch_unwind(AssertUnwindSafe(|| this.future.poll(cx))) {
            Ok(poll) => poll,
            Err(payload) => {
                metrics::TASK_PANICS.inc();
                tracing::error!(task = name, "task panicked: {}", panic_text(&*payload));
                resume_unwind(payload)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_result_of_a_task_reaches_the_handle() {
        assert_eq!(spawn("answer", async { 42 }).await.unwrap(), 42);
    }

    /// QTA-06: one task's panic is counted, reported to its holder, and stops nobody else.
    #[tokio::test]
    async fn a_panic_is_counted_and_stays_in_its_task() {
        let before = metrics::TASK_PANICS.get();
        let bad = spawn("bad", async { panic!("on purpose") });
        assert!(bad.await.unwrap_err().is_panic());
        assert_eq!(spawn("good", async { 1 }).await.unwrap(), 1);
        assert!(metrics::TASK_PANICS.get() > before);
    }

    #[test]
    fn naming_a_task_costs_it_no_more_than_the_name() {
        fn size<F: Future>(future: F) -> (usize, usize) {
            let bare = size_of_val(&future);
            (bare, size_of_val(&Named { name: "sized", future }))
        }
        let (bare, named) = size(async {
            let kept = [1u8; 300];
            tokio::task::yield_now().await;
            kept[7]
        });
        assert!(named <= bare + 16, "{bare} → {named}");
    }
}
