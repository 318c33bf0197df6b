//! Every session of the cluster by its client id, counted where its claim stands in the log: so
//! that `mqtt.sessions-limit` and `mqtt.application-clients-limit` hold over all nodes, however
//! many claims are under way. A claim that comes to a full house is known from then on as one too
//! many: it is not counted, and whoever made it takes it back.

use std::collections::HashSet;

use bytes::Bytes;

use super::config::Config;
use super::rows::SessionRow;
use crate::mqtt::{ByClientId, ClientId, HasClientId};

/// Of what there would be one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    Sessions,
    Applications,
}

/// A session as its row has it. Most of them are another node's and away: they are kept as they
/// were read, which the table's own memory shares.
#[derive(Debug)]
struct Entry {
    client_id: ClientId,
    row: Bytes,
    /// Where it was put.
    position: u64,
    epoch: u64,
    application: bool,
    /// It counts; otherwise its end is on its way.
    counts: bool,
}

impl Entry {
    fn read(&self) -> Option<SessionRow> {
        SessionRow::decode(&self.row).ok()
    }
}

impl HasClientId for Box<Entry> {
    fn client_id(&self) -> &ClientId {
        &self.client_id
    }
}

#[derive(Debug, Default)]
struct Count {
    is: u64,
    most: Option<u64>,
}

impl Count {
    fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.is >= most)
    }
}

/// Bounded by the number of sessions of the cluster, and of claims that are under way.
#[derive(Debug, Default)]
pub(super) struct Census {
    entries: HashSet<ByClientId<Box<Entry>>, ahash::RandomState>,
    sessions: Count,
    applications: Count,
}

impl Census {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            sessions: Count { is: 0, most: config.sessions_limit },
            applications: Count { is: 0, most: config.application_clients_limit },
            ..Self::default()
        }
    }

    fn entry(&self, client_id: &ClientId) -> Option<&Entry> {
        self.entries.get(client_id.as_str()).map(|one| &*one.0)
    }

    pub(super) fn get(&self, client_id: &ClientId) -> Option<SessionRow> {
        self.entry(client_id)?.read()
    }

    /// The row and where it was put.
    pub(super) fn row(&self, client_id: &ClientId) -> Option<(u64, Bytes)> {
        self.entry(client_id).map(|entry| (entry.position, entry.row.clone()))
    }

    pub(super) fn epoch(&self, client_id: &ClientId) -> Option<u64> {
        self.entry(client_id).map(|entry| entry.epoch)
    }

    pub(super) fn clients(&self) -> Vec<ClientId> {
        self.entries.iter().map(|one| one.0.client_id.clone()).collect()
    }

    pub(super) fn is_full(&self, of: Excess) -> bool {
        match of {
            Excess::Sessions => self.sessions.is_full(),
            Excess::Applications => self.applications.is_full(),
        }
    }

    /// A claim stands in the log here: what it found, and whether it is one too many.
    pub(super) fn claim(
        &mut self,
        client_id: &ClientId,
        now: &SessionRow,
        (position, row): (u64, Bytes),
    ) -> (Option<SessionRow>, Option<Excess>) {
        let before = self.take(client_id);
        let counted = before.as_ref().filter(|before| before.counts);
        let application = now.is_application();
        let excess = if counted.is_none() && self.sessions.is_full() {
            Some(Excess::Sessions)
        } else if application
            && !counted.is_some_and(|before| before.application)
            && self.applications.is_full()
        {
            Some(Excess::Applications)
        } else {
            None
        };
        self.put(client_id, now, (position, row), excess.is_none());
        (before.and_then(|before| before.read()), excess)
    }

    /// What exists stays, also when a limit was lowered.
    pub(super) fn load(&mut self, client_id: &ClientId, now: &SessionRow, row: (u64, Bytes)) {
        self.take(client_id);
        self.put(client_id, now, row, true);
    }

    /// The session's newest claim, told anew.
    pub(super) fn update(&mut self, client_id: &ClientId, now: &SessionRow, row: (u64, Bytes)) {
        let counts = self.take(client_id).is_none_or(|before| before.counts);
        self.put(client_id, now, row, counts);
    }

    pub(super) fn remove(&mut self, client_id: &ClientId) -> Option<SessionRow> {
        self.take(client_id)?.read()
    }

    fn take(&mut self, client_id: &ClientId) -> Option<Entry> {
        let ByClientId(entry) = self.entries.take(client_id.as_str())?;
        let by = u64::from(entry.counts);
        self.sessions.is -= by;
        self.applications.is -= if entry.application { by } else { 0 };
        Some(*entry)
    }

    fn put(
        &mut self,
        client_id: &ClientId,
        now: &SessionRow,
        (position, row): (u64, Bytes),
        counts: bool,
    ) {
        let (epoch, application) = (now.epoch, now.is_application());
        let by = u64::from(counts);
        self.sessions.is += by;
        self.applications.is += if application { by } else { 0 };
        let client_id = client_id.clone();
        let entry = Entry { client_id, row, position, epoch, application, counts };
        self.entries.insert(ByClientId(Box::new(entry)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::ProtocolVersion;

    fn row(epoch: u64, application: bool) -> SessionRow {
        let row = SessionRow::new(epoch, epoch, "a", ProtocolVersion::V5, 60, None, None);
        row.of_application(application)
    }

    fn claims(census: &mut Census, name: &str, row: SessionRow) -> Option<Excess> {
        let value = row.row(&id(name)).value.expect("no end");
        census.claim(&id(name), &row, (row.epoch, value)).1
    }

    fn house(sessions: u64, applications: u64) -> Census {
        let mut census = Census::default();
        census.sessions.most = Some(sessions);
        census.applications.most = Some(applications);
        census
    }

    fn id(text: &str) -> ClientId {
        ClientId::new(text)
    }

    /// QTA-05: the claims in front of the limit come in, those behind it do not and take nobody's
    /// place; who has a session keeps its place; an end makes room for one.
    #[test]
    fn places_are_given_in_the_logs_order() {
        let mut census = house(2, 9);
        let excess: Vec<Option<Excess>> = ["a", "b", "c", "d"]
            .iter()
            .zip(1..)
            .map(|(name, at)| claims(&mut census, name, row(at, false)))
            .collect();
        let too_many = Some(Excess::Sessions);
        assert_eq!(excess, [None, None, too_many, too_many]);
        assert_eq!(claims(&mut census, "a", row(5, false)), None, "it has a session");
        let again = row(3, false);
        census.update(&id("c"), &again, (3, again.row(&id("c")).value.expect("no end")));
        assert!(census.remove(&id("b")).is_some() && !census.is_full(Excess::Sessions));
        let now = row(6, false);
        let found = census.claim(&id("c"), &now, (6, now.row(&id("c")).value.expect("no end")));
        assert_eq!(found, (Some(row(3, false)), None), "there is room by now");
        assert!(census.remove(&id("d")).is_some() && census.is_full(Excess::Sessions));
    }

    /// A session that becomes an APPLICATION client's takes one of their places.
    #[test]
    fn applications_are_counted_among_the_sessions() {
        let mut census = house(3, 1);
        assert_eq!(claims(&mut census, "a", row(1, true)), None);
        assert_eq!(claims(&mut census, "b", row(2, false)), None);
        assert_eq!(claims(&mut census, "b", row(3, true)), Some(Excess::Applications));
        assert_eq!(claims(&mut census, "a", row(4, true)), None, "it has its place");
        assert_eq!(claims(&mut census, "a", row(5, false)), None);
        assert_eq!(claims(&mut census, "b", row(6, true)), None, "a place came free");
        let stored = row(7, true);
        census.load(&id("c"), &stored, (7, stored.row(&id("c")).value.expect("no end")));
        assert_eq!(census.applications.is, 2, "what is stored stays");
        assert_eq!(census.sessions.is, 3);
    }
}
