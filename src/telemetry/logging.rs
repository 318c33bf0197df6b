//! Where log lines go: one compact line an event on standard error, filtered by `RUST_LOG`.

use std::any::Any;
use std::io::IsTerminal;
use std::panic;

use tracing_subscriber::EnvFilter;

/// What is logged when `RUST_LOG` says nothing. The state engine is quiet: its INFO lines are about
/// its own files.
pub const DEFAULT_FILTER: &str = "info,fjall=warn,lsm_tree=warn";

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("RUST_LOG = {value:?}: {fault}; wanted directives like `info,sluice::session=debug`")]
    Filter { value: String, fault: String },
    #[error("logging is already set up in this process")]
    Taken,
}

/// Sets logging up for the process, and logs panics as ERROR lines instead of bare text.
pub fn init() -> Result<(), LoggingError> {
    let value = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = filter(&value)?;
    tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init()
        .map_err(|_| LoggingError::Taken)?;
    panic::set_hook(Box::new(|info| {
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(at, thread, "panic: {}", panic_text(info.payload()));
    }));
    Ok(())
}

fn filter(value: &str) -> Result<EnvFilter, LoggingError> {
    let directives = if value.trim().is_empty() { DEFAULT_FILTER } else { value };
    EnvFilter::builder()
        .parse(directives)
        .map_err(|fault| LoggingError::Filter { value: value.to_owned(), fault: fault.to_string() })
}

/// The words a panic was raised with.
pub(super) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "(no text)"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_means_info_of_ours() {
        for empty in ["", " "] {
            let filter = filter(empty).unwrap().to_string();
            let mut directives: Vec<&str> = filter.split(',').collect();
            directives.sort_unstable();
            assert_eq!(directives, ["fjall=warn", "info", "lsm_tree=warn"]);
        }
    }

    #[test]
    fn a_bad_filter_is_refused_with_its_text() {
        let fault = filter("sluice=loud").unwrap_err().to_string();
        assert!(fault.contains("sluice=loud"), "{fault}");
    }
}
