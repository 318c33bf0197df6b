//! One put, awaited.

use std::time::Duration;

use crate::storage::{AppendOutcome, ChangeLog, Durability, Row, once};

/// How long storage may take. Longer: nobody can say whether it is stored.
const PATIENCE: Duration = Duration::from_secs(10);

/// Stores the rows durably; when this returns true, followers have them, too.
pub(super) async fn put(tables: &dyn ChangeLog, rows: Vec<Row>) -> bool {
    let (sink, mut settled) = once();
    tables.put(rows, Durability::Durable, sink, 0);
    let settled = tokio::time::timeout(PATIENCE, settled.outcome()).await;
    matches!(settled, Ok(AppendOutcome::Stored(_)))
}
