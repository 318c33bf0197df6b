//! Named places in the way of a message at which a test lets the process die, as if it were
//! killed there. In a release build they are nothing.
//!
//! `SLUICE_FAIL_POINT=queue.appended:200:FILE` ends the process at the 200th pass of that place, if
//! the file is there. If the file says `stop`, it stands still there, once, until it is let go on.

#[cfg(debug_assertions)]
mod armed {
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    struct Armed {
        name: String,
        passes: u64,
        fuse: PathBuf,
        passed: AtomicU64,
    }

    fn armed() -> Option<&'static Armed> {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let read = || {
            let text = std::env::var("SLUICE_FAIL_POINT").ok()?;
            let mut parts = text.splitn(3, ':');
            let (name, passes, fuse) = (parts.next()?, parts.next()?, parts.next()?);
            let (name, fuse) = (name.to_owned(), PathBuf::from(fuse));
            Some(Armed { name, passes: passes.parse().ok()?, fuse, passed: AtomicU64::new(0) })
        };
        ARMED.get_or_init(read).as_ref()
    }

    pub(super) fn pass(name: &'static str) {
        let Some(armed) = armed().filter(|armed| armed.name == name) else { return };
        let passed = armed.passed.fetch_add(1, Ordering::Relaxed) + 1;
        if passed < armed.passes {
            return;
        }
        match std::fs::read_to_string(&armed.fuse) {
            Ok(text) if text == "stop" => stand_still(&armed.fuse),
            Ok(_) => std::process::abort(),
            Err(_) => {}
        }
    }

    fn stand_still(fuse: &Path) {
        use rustix::process::{Signal, getpid, kill_process};
        let stopped =
            std::fs::remove_file(fuse).is_ok() && kill_process(getpid(), Signal::STOP).is_ok();
        // Another thread may be the first to hear of it; this one must not go on meanwhile.
        std::thread::sleep(Duration::from_millis(500));
        tracing::warn!(stopped, "stood still at a fail point");
    }
}

/// This place is passed.
#[inline]
pub fn pass(name: &'static str) {
    #[cfg(debug_assertions)]
    armed::pass(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}
