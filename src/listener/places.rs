//! Who may come in, and how many: permits for connections, places for those that are on their way
//! to a CONNECT, and counts by address.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::Config;
use crate::limits::HANDSHAKE_GRACE_MS;
use crate::telemetry::{Door, Turned};

const GRACE: Duration = Duration::from_millis(HANDSHAKE_GRACE_MS);

fn permits(most: Option<usize>) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(most.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS)))
}

/// What all listeners share.
#[derive(Debug)]
pub(super) struct House {
    permits: Arc<Semaphore>,
    openings: Arc<Openings>,
    addresses: Option<Arc<Addresses>>,
}

impl House {
    pub(super) fn new(config: &Config) -> Self {
        let addresses = config
            .max_connections_per_address
            .map(|most| Arc::new(Addresses { most, counts: Mutex::default() }));
        let openings = Openings { most: config.max_handshakes, ..Openings::default() };
        Self { permits: permits(config.max_connections), openings: Arc::new(openings), addresses }
    }

    /// Counts a connection of `address`, or says that it has too many.
    pub(super) fn admit(
        &self,
        address: Option<SocketAddr>,
    ) -> Result<Option<Box<Admitted>>, Turned> {
        match (&self.addresses, address) {
            (Some(addresses), Some(address)) => {
                addresses.admit(address.ip()).map(|admitted| Some(Box::new(admitted)))
            }
            (None, _) | (_, None) => Ok(None),
        }
    }
}

/// One listener's part.
#[derive(Debug)]
pub(super) struct Gate {
    door: Door,
    house: Arc<House>,
    permits: Arc<Semaphore>,
}

impl Gate {
    pub(super) fn new(door: Door, house: Arc<House>, most: Option<usize>) -> Self {
        Self { door, house, permits: permits(most) }
    }

    /// Waits until this listener may accept one more.
    pub(super) async fn ready(&self) {
        take(&self.permits).await;
    }

    /// One came: waits until the house has room for it, and gives it its place for as long as it
    /// lives, and one for as long as it is on its way in.
    pub(super) async fn enter(self: &Arc<Self>) -> (Place, Opening) {
        take(&self.house.permits).await;
        self.door.entered();
        let place = Place(Arc::clone(self));
        (place, Openings::enter(&self.house.openings).await)
    }
}

/// Takes a permit that goes back by hand, with its `Place`.
async fn take(permits: &Semaphore) {
    // The semaphores are never closed.
    if let Ok(permit) = permits.acquire().await {
        permit.forget();
    }
}

/// Held by a connection until its end.
#[derive(Debug)]
pub(super) struct Place(Arc<Gate>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.door.left();
        self.0.permits.add_permits(1);
        self.0.house.permits.add_permits(1);
    }
}

// === on the way in ===

/// Connections between accept and CONNECT, from the oldest on.
#[derive(Debug, Default)]
struct Openings {
    most: usize,
    state: Mutex<Entering>,
    /// Wakes a listener that waits for a place.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Entering {
    next: u64,
    begun: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

/// A place on the way in; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Opening {
    all: Arc<Openings>,
    id: u64,
    displaced: Arc<Notify>,
}

impl Openings {
    /// Waits for a free place, or takes that of the oldest which had its time.
    async fn enter(all: &Arc<Self>) -> Opening {
        loop {
            let freed = all.freed.notified();
            let oldest = match all.try_enter() {
                Ok((id, displaced)) => return Opening { all: Arc::clone(all), id, displaced },
                Err(since) => since,
            };
            // Whether one went or the oldest had its time, the next look tells.
            drop(timeout_at(oldest + GRACE, freed).await);
        }
    }

    /// A place, or since when the oldest has had its own.
    fn try_enter(&self) -> Result<(u64, Arc<Notify>), Instant> {
        let mut state = self.state.lock();
        if state.begun.len() >= self.most
            && let Some(oldest) = state.begun.first_entry()
        {
            let since = oldest.get().0;
            if since.elapsed() < GRACE {
                return Err(since);
            }
            oldest.remove().1.notify_one();
        }
        state.next += 1;
        let (id, displaced) = (state.next, Arc::<Notify>::default());
        state.begun.insert(id, (Instant::now(), Arc::clone(&displaced)));
        Ok((id, displaced))
    }
}

impl Opening {
    /// Waits until a newer connection takes the place. Cancel safe: yes.
    pub(super) async fn displaced(&self) {
        self.displaced.notified().await;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // A displaced one gave its place up before.
        if self.all.state.lock().begun.remove(&self.id).is_some() {
            self.all.freed.notify_one();
        }
    }
}

// === by address ===

#[derive(Debug)]
struct Addresses {
    most: usize,
    /// Holds addresses with a connection only.
    counts: Mutex<HashMap<IpAddr, usize, ahash::RandomState>>,
}

/// A connection that counts for its address until this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Admitted, Turned> {
        let mut counts = self.counts.lock();
        let count = counts.entry(address).or_default();
        if *count >= self.most {
            return Err(Turned::Address);
        }
        *count += 1;
        Ok(Admitted { addresses: Arc::clone(self), address })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(config: &Config) -> Arc<Gate> {
        Arc::new(Gate::new(Door::Unix, Arc::new(House::new(config)), None))
    }

    /// As a listener does it.
    async fn come(gate: &Arc<Gate>) -> (Place, Opening) {
        gate.ready().await;
        gate.enter().await
    }

    /// KAL-04: a full way in takes the place of the oldest, and only when that had its time.
    #[tokio::test(start_paused = true)]
    async fn the_oldest_gives_its_place_when_it_had_its_time() {
        let gate = gate(&Config { max_handshakes: 2, ..Config::default() });
        let ((_, first), (_, second)) = (come(&gate).await, come(&gate).await);
        let since = Instant::now();
        let (_, third) = come(&gate).await;
        assert_eq!(since.elapsed(), GRACE, "nobody is pushed out before");
        first.displaced().await;
        drop(second);
        let (_, fourth) = come(&gate).await;
        assert_eq!(since.elapsed(), GRACE, "a place that was given back is taken at once");
        // The first gave its place up before: its end frees none.
        drop(first);
        let fifth = tokio::time::timeout(GRACE / 2, come(&gate)).await;
        assert!(fifth.is_err(), "there are two places");
        drop((third, fourth));
    }

    /// What waits for a place is woken by one that is given back.
    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_given_back_wakes_who_waits() {
        let gate = gate(&Config { max_handshakes: 1, ..Config::default() });
        let (place, opening) = come(&gate).await;
        let since = Instant::now();
        let leave = async {
            tokio::time::sleep(GRACE / 4).await;
            drop((place, opening));
        };
        tokio::join!(come(&gate), leave);
        assert_eq!(since.elapsed(), GRACE / 4);
    }

    /// Permits and counts by address come back with the connection.
    #[tokio::test]
    async fn permits_and_addresses_come_back() {
        let most = Some(1);
        let config = Config {
            max_connections: most,
            max_connections_per_address: most,
            ..Config::default()
        };
        let gate = gate(&config);
        let (place, _opening) = come(&gate).await;
        assert_eq!(gate.house.permits.available_permits(), 0);
        let address = |text: &str| Some(text.parse().unwrap());
        let admitted = gate.house.admit(address("192.0.2.7:1")).unwrap();
        assert!(gate.house.admit(address("192.0.2.7:2")).is_err());
        assert!(gate.house.admit(address("192.0.2.8:2")).is_ok());
        assert!(gate.house.admit(None).is_ok_and(|admitted| admitted.is_none()));
        drop((place, admitted));
        assert_eq!(gate.house.permits.available_permits(), 1);
        assert!(gate.house.admit(address("192.0.2.7:3")).is_ok());
    }
}
