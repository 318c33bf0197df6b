//! Clients that were refused, for the administrator: the newest attempt of each, for three days,
//! on this node, until it stops.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::identity::Attempt;
use crate::limits::{UNAUTHORIZED_CLIENTS, UNAUTHORIZED_MS};
use crate::telemetry::metrics;

/// Texts of clients are cut here: a stranger writes this list.
const TEXT_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnauthorizedClient {
    pub client_id: String,
    pub address: String,
    pub at_ms: u64,
    pub username: Option<String>,
    pub has_password: bool,
    pub secure: bool,
    pub reason: String,
}

/// Full: the attempt that is longest ago goes.
#[derive(Debug, Default)]
pub(super) struct Unauthorized {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_client: HashMap<String, (u64, Arc<UnauthorizedClient>), ahash::RandomState>,
    /// By the order of their attempts.
    order: BTreeMap<u64, String>,
    next: u64,
}

impl Inner {
    fn remove(&mut self, client_id: &str) -> bool {
        let removed = self.by_client.remove(client_id);
        if let Some((place, _)) = &removed {
            self.order.remove(place);
        }
        removed.is_some()
    }

    fn remove_oldest(&mut self) {
        if let Some((_, client_id)) = self.order.pop_first() {
            self.by_client.remove(&client_id);
        }
    }
}

impl Unauthorized {
    pub(super) fn note(&self, attempt: &Attempt<'_>, reason: &str, now_ms: u64) {
        let client = UnauthorizedClient {
            client_id: cut(attempt.client_id),
            address: attempt.peer.address.map_or_else(String::new, |at| at.to_string()),
            at_ms: now_ms,
            username: attempt.username.map(cut),
            has_password: attempt.password.is_some(),
            secure: attempt.peer.secure,
            reason: cut(reason),
        };
        let mut inner = self.inner.lock();
        inner.remove(&client.client_id);
        if inner.by_client.len() >= UNAUTHORIZED_CLIENTS {
            inner.remove_oldest();
        }
        let place = inner.next;
        inner.next += 1;
        inner.order.insert(place, client.client_id.clone());
        inner.by_client.insert(client.client_id.clone(), (place, Arc::new(client)));
        metrics::UNAUTHORIZED_CLIENTS.set(inner.by_client.len() as i64);
    }

    pub(super) fn purge(&self, now_ms: u64) {
        let mut inner = self.inner.lock();
        while let Some((_, client_id)) = inner.order.first_key_value() {
            let at_ms = inner.by_client.get(client_id).map_or(0, |(_, client)| client.at_ms);
            if at_ms.saturating_add(UNAUTHORIZED_MS) > now_ms {
                break;
            }
            inner.remove_oldest();
        }
        metrics::UNAUTHORIZED_CLIENTS.set(inner.by_client.len() as i64);
    }

    pub(super) fn all(&self) -> Vec<Arc<UnauthorizedClient>> {
        self.inner.lock().by_client.values().map(|(_, client)| Arc::clone(client)).collect()
    }

    pub(super) fn get(&self, client_id: &str) -> Option<Arc<UnauthorizedClient>> {
        self.inner.lock().by_client.get(client_id).map(|(_, client)| Arc::clone(client))
    }

    pub(super) fn remove(&self, client_id: &str) -> bool {
        self.inner.lock().remove(client_id)
    }

    pub(super) fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.by_client.clear();
        inner.order.clear();
        metrics::UNAUTHORIZED_CLIENTS.set(0);
    }
}

fn cut(text: &str) -> String {
    let end = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Peer;

    #[test]
    fn the_list_is_bounded_and_forgets() {
        let list = Unauthorized::default();
        let peer = Peer::default();
        let note = |client_id: &str, at_ms| {
            let (username, password) = (Some("u"), Some(&b"secret"[..]));
            let attempt = Attempt { client_id, username, password, peer: &peer };
            list.note(&attempt, "no", at_ms);
        };
        for number in 0..UNAUTHORIZED_CLIENTS + 5 {
            note(&number.to_string(), number as u64);
            note("again", number as u64);
        }
        assert_eq!(list.all().len(), UNAUTHORIZED_CLIENTS);
        assert!(list.get("5").is_none() && list.get("6").is_some() && list.get("again").is_some());
        note(&"ü".repeat(1000), 1);
        assert!(list.all().iter().all(|client| client.client_id.len() <= TEXT_BYTES));
        assert!(list.remove("6") && !list.remove("6"));
        list.purge(UNAUTHORIZED_MS + UNAUTHORIZED_CLIENTS as u64 * 2);
        assert!(list.all().is_empty());
    }
}
