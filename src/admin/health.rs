//! Is the node well? The sum of what its parts say about themselves.

use std::path::Path;

/// One part's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    pub name: &'static str,
    /// One sentence about what is wrong; `None` when it is well.
    pub trouble: Option<String>,
}

impl Component {
    pub fn up(name: &'static str) -> Component {
        Component { name, trouble: None }
    }

    pub fn down(name: &'static str, trouble: impl Into<String>) -> Component {
        Component { name, trouble: Some(trouble.into()) }
    }
}

/// Who knows about the parts: `listeners`, `storage`, `queues`, `disk`. Asked once a request, on a
/// thread that may block for a moment.
pub trait HealthSource: Send + Sync + 'static {
    fn components(&self) -> Vec<Component>;
}

/// The component `disk`: has the folder at least `min_free_bytes` left?
pub fn disk(folder: &Path, min_free_bytes: u64) -> Component {
    const NAME: &str = "disk";
    match rustix::fs::statvfs(folder) {
        Err(fault) => Component::down(NAME, format!("{}: {fault}", folder.display())),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            if free >= min_free_bytes {
                return Component::up(NAME);
            }
            let folder = folder.display();
            let trouble = format!("{folder}: {free} bytes are free, wanted {min_free_bytes}");
            Component::down(NAME, trouble)
        }
    }
}
