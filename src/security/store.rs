//! The credentials in force, as a follower of their table; and the connections that rest on them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use regex::Regex;
use tokio::sync::Notify;

use super::credential::{Credential, Key, whole_match};
use super::identity::Grant;
use crate::storage::{Follower, Position, Row, StorageError};
use crate::telemetry::metrics;

/// Bounded by the administrator, who makes them one by one.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    inner: RwLock<Inner>,
    /// Grants by the credential they rest on.
    live: Mutex<HashMap<Arc<str>, Vec<Weak<Grant>>, ahash::RandomState>>,
    /// Credentials whose connections have to be looked at, with the state before: at most one for
    /// each credential.
    changed: Mutex<HashMap<Arc<str>, Option<Arc<Credential>>, ahash::RandomState>>,
    /// Held by who acts on them, to the end: nobody says that a change acts while it does not yet.
    acting: Mutex<()>,
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: BTreeMap<Arc<str>, Arc<Credential>>,
    by_key: HashMap<Key, Vec<Arc<Credential>>, ahash::RandomState>,
    expressions: Vec<Arc<Expression>>,
}

/// A credential for every common name that fits.
#[derive(Debug)]
struct Expression {
    credential: Arc<Credential>,
    compiled: OnceLock<Option<Regex>>,
}

impl Expression {
    fn fits(&self, pattern: &str, cn: &str) -> bool {
        let compile = || whole_match(pattern).ok();
        self.compiled.get_or_init(compile).as_ref().is_some_and(|regex| regex.is_match(cn))
    }
}

impl Inner {
    fn remove(&mut self, id: &str) -> Option<Arc<Credential>> {
        let old = self.by_id.remove(id)?;
        let key = old.key();
        if let Some(same) = self.by_key.get_mut(&key) {
            same.retain(|other| *other.id != *id);
            if same.is_empty() {
                self.by_key.remove(&key);
            }
        }
        self.expressions.retain(|expression| *expression.credential.id != *id);
        Some(old)
    }

    fn insert(&mut self, credential: Arc<Credential>) {
        let key = credential.key();
        if matches!(key, Key::CnExpression(_)) {
            let (credential, compiled) = (Arc::clone(&credential), OnceLock::new());
            self.expressions.push(Arc::new(Expression { credential, compiled }));
        }
        self.by_key.entry(key).or_default().push(Arc::clone(&credential));
        self.by_id.insert(Arc::clone(&credential.id), credential);
    }
}

impl Credentials {
    /// Takes up a stored row.
    pub(super) fn load(&self, value: &[u8]) -> Result<(), StorageError> {
        self.set(Arc::new(Credential::decode(value)?));
        Ok(())
    }

    fn set(&self, credential: Arc<Credential>) {
        let mut inner = self.inner.write();
        let old = inner.remove(&credential.id);
        let id = Arc::clone(&credential.id);
        inner.insert(credential);
        metrics::CREDENTIALS.set(inner.by_id.len() as i64);
        drop(inner);
        self.note(id, old);
    }

    fn remove(&self, id: &str) {
        let mut inner = self.inner.write();
        let old = inner.remove(id);
        metrics::CREDENTIALS.set(inner.by_id.len() as i64);
        drop(inner);
        if old.is_some() {
            self.note(Arc::from(id), old);
        }
    }

    fn note(&self, id: Arc<str>, old: Option<Arc<Credential>>) {
        self.changed.lock().entry(id).or_insert(old);
        self.news.notify_one();
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Credential>> {
        self.inner.read().by_id.get(id).cloned()
    }

    /// The credential that is found by `key`; of several, the oldest in force.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Credential>> {
        self.inner.read().by_key.get(key).and_then(|same| same.first()).cloned()
    }

    pub(super) fn find_by_name(&self, name: &str) -> Option<Arc<Credential>> {
        self.inner.read().by_id.values().find(|credential| credential.name == name).cloned()
    }

    /// The first credential whose expression fits the common name.
    pub(super) fn find_expression(&self, cn: &str) -> Option<Arc<Credential>> {
        // Matching is not done under the lock.
        let expressions = self.inner.read().expressions.clone();
        let fits = expressions.iter().find(|expression| match expression.credential.key() {
            Key::CnExpression(pattern) => expression.fits(&pattern, cn),
            Key::ClientId(_)
            | Key::Username(_)
            | Key::Both { .. }
            | Key::Scram(..)
            | Key::Cn(_) => false,
        });
        fits.map(|expression| Arc::clone(&expression.credential))
    }

    pub(super) fn expressions(&self) -> usize {
        self.inner.read().expressions.len()
    }

    /// Visits all of them in a copy of the list: nothing is locked meanwhile.
    pub(super) fn all(&self) -> Vec<Arc<Credential>> {
        self.inner.read().by_id.values().cloned().collect()
    }

    /// From here on, changes of its credential act on the grant. Those between its making and
    /// here are made up for.
    pub(super) fn watch(&self, grant: &Arc<Grant>, made_from: &Arc<Credential>) {
        let Some(id) = grant.credential() else { return };
        let mut live = self.live.lock();
        let watched = live.entry(Arc::clone(id)).or_default();
        if watched.len() == watched.capacity() {
            watched.retain(|weak| weak.strong_count() > 0);
        }
        watched.push(Arc::downgrade(grant));
        drop(live);
        match self.get(id) {
            Some(now) if Arc::ptr_eq(&now, made_from) => {}
            now => act(grant, Some(made_from), now.as_deref()),
        }
    }

    /// Applies what has changed to the connections that rest on it. Compiles expressions, so it is
    /// not for a network thread. `true`: something ended.
    pub(super) fn act_on_live(&self) -> bool {
        let _turn = self.acting.lock();
        let changed = std::mem::take(&mut *self.changed.lock());
        let mut any = false;
        for (id, old) in changed {
            let now = self.get(&id);
            let grants = {
                let mut live = self.live.lock();
                let Some(watched) = live.get_mut(&id) else { continue };
                watched.retain(|weak| weak.strong_count() > 0);
                let grants: Vec<Arc<Grant>> = watched.iter().filter_map(Weak::upgrade).collect();
                if grants.is_empty() {
                    live.remove(&id);
                }
                grants
            };
            any |= !grants.is_empty();
            for grant in grants {
                act(&grant, old.as_ref(), now.as_deref());
            }
        }
        any
    }
}

/// A credential that is gone, or that proves something else now, ends the connection; rules go on
/// as they are now.
fn act(grant: &Grant, old: Option<&Arc<Credential>>, now: Option<&Credential>) {
    let goes_on = match (old, now) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(now)) => now.continues(old),
    };
    let Some(now) = now.filter(|_| goes_on) else { return grant.revoke() };
    if let Err(fault) = grant.set_rules(&now.rules(grant.cn())) {
        tracing::info!(credential = %now.id, fault, "rules that can't hold for a connection");
        grant.revoke();
    }
}

impl Follower for Credentials {
    fn apply(&self, _position: Position, row: &Row) {
        let Some(value) = &row.value else {
            return self.remove(&String::from_utf8_lossy(&row.key));
        };
        if let Err(error) = self.load(value) {
            tracing::error!(%error, "a credential's row was not understood");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::credential::{Basic, ClientType, Proof};
    use super::super::identity::Identity;
    use super::super::rules::AuthRules;
    use super::*;

    fn credential(topic: &str) -> Arc<Credential> {
        // Slow to compile, so that two who act meet.
        let rules = (0..32).map(|number| format!("{topic}/([a-z]{{1,20}}/){{1,3}}{number}"));
        let rules = rules.chain([topic.to_owned()]).collect();
        Arc::new(Credential {
            id: "id".into(),
            name: "name".into(),
            created_ms: 0,
            client_type: ClientType::Device,
            proof: Proof::Basic(Basic {
                client_id: None,
                username: Some("u".into()),
                password: None,
                rules: AuthRules { publish: Some(rules), ..AuthRules::default() },
            }),
        })
    }

    fn grant(credential: &Credential) -> Arc<Grant> {
        let identity = Identity {
            provider: "MQTT_BASIC",
            client_type: ClientType::Device,
            credential: Some(Arc::clone(&credential.id)),
            rules: credential.rules(None),
            username: Some("u".into()),
            cn: None,
            expires_at_ms: None,
        };
        Grant::new(identity, "c").expect("good rules")
    }

    /// TBMQ-195: who changes a credential is answered when the change acts on all connections, also
    /// when somebody else has begun to make it act.
    #[test]
    fn a_change_acts_before_anybody_says_so() {
        let (credentials, old) = (Arc::new(Credentials::default()), credential("old"));
        credentials.set(Arc::clone(&old));
        credentials.act_on_live();
        let grants: Vec<Arc<Grant>> = (0..8).map(|_| grant(&old)).collect();
        grants.iter().for_each(|grant| credentials.watch(grant, &old));
        assert!(grants.iter().all(|grant| grant.may_publish("old")));
        credentials.set(credential("new"));
        let other = Arc::clone(&credentials);
        let first = std::thread::spawn(move || other.act_on_live());
        while !credentials.changed.lock().is_empty() {
            std::thread::yield_now();
        }
        credentials.act_on_live();
        assert!(grants.iter().all(|grant| grant.may_publish("new") && !grant.may_publish("old")));
        assert!(first.join().expect("it acts"));
    }
}
