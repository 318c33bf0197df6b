//! Which packet ids are free (MQTT-2.2.1-3, -4), and what is in flight under the others.
//! Arithmetic, nothing else.

use crate::mqtt::PacketId;

/// What the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// QoS 1: PUBACK.
    Puback,
    /// QoS 2: PUBREC.
    Pubrec,
    /// QoS 2: PUBREC came, its record is on the way to disk; PUBREL must wait for it.
    Recording,
    /// QoS 2: PUBREL went out, PUBCOMP is awaited.
    Pubcomp,
}

/// One exchange in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlight {
    /// The sequence in the client's queue; 0 when the message came from no queue.
    pub seq: u64,
    pub stage: Stage,
    /// Whether it holds a credit: a PUBREL that was carried over from an earlier connection
    /// doesn't (RM-4).
    pub credited: bool,
}

/// The ids in flight: an open-addressed table over the id's low bits, as large as the widest
/// spread of held ids asks for (at most 65 536 places) and nothing at all when nothing is in
/// flight. Each operation is one array access.
#[derive(Debug, Default)]
pub(super) struct PacketIds {
    places: Vec<Option<(PacketId, InFlight)>>,
    held: usize,
    next: Option<PacketId>,
}

const SMALLEST: usize = 16;

impl PacketIds {
    pub(super) fn len(&self) -> usize {
        self.held
    }

    pub(super) fn get(&self, id: PacketId) -> Option<InFlight> {
        match self.places.get(self.place(id)) {
            Some(Some((held, entry))) if *held == id => Some(*entry),
            _ => None,
        }
    }

    fn place(&self, id: PacketId) -> usize {
        usize::from(id.get()) & self.places.len().wrapping_sub(1)
    }

    /// Books `id`; `false` if it is in flight already.
    #[must_use]
    pub(super) fn insert(&mut self, id: PacketId, entry: InFlight) -> bool {
        if self.places.is_empty() {
            self.places = vec![None; SMALLEST];
        }
        loop {
            let place = self.place(id);
            match self.places[place] {
                None => {
                    self.places[place] = Some((id, entry));
                    self.held += 1;
                    return true;
                }
                Some((held, _)) if held == id => return false,
                // At 65 536 places no two ids share one, so this ends.
                Some(_) => self.grow(),
            }
        }
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.places);
        self.places = vec![None; old.len() * 2];
        for (id, entry) in old.into_iter().flatten() {
            let place = self.place(id);
            self.places[place] = Some((id, entry));
        }
    }

    /// Moves `id` to another stage.
    pub(super) fn set_stage(&mut self, id: PacketId, stage: Stage) {
        let place = self.place(id);
        if let Some(Some((held, entry))) = self.places.get_mut(place)
            && *held == id
        {
            entry.stage = stage;
        }
    }

    /// Frees `id`; the table's memory goes with the last one.
    pub(super) fn remove(&mut self, id: PacketId) -> Option<InFlight> {
        let entry = self.get(id)?;
        let place = self.place(id);
        self.places[place] = None;
        self.held -= 1;
        if self.held == 0 && self.places.len() > 64 {
            self.places = Vec::new();
        }
        Some(entry)
    }

    /// The next free id, skipping every one that is held (FLO-07); `None` when all are.
    pub(super) fn allocate(&mut self) -> Option<PacketId> {
        let (first, _) = self.allocate_run(1)?;
        Some(first)
    }

    /// A run of free ids that follow one another, up to `want` long (65 535 is followed by 1).
    pub(super) fn allocate_run(&mut self, want: u16) -> Option<(PacketId, u16)> {
        if self.held >= usize::from(u16::MAX) || want == 0 {
            return None;
        }
        let mut first = self.next.unwrap_or(PacketId::MIN);
        while self.get(first).is_some() {
            first = first.next();
        }
        let (mut end, mut count) = (first.next(), 1);
        while count < want && end != first && self.get(end).is_none() {
            end = end.next();
            count += 1;
        }
        self.next = Some(end);
        Some((first, count))
    }

    /// Goes on behind `id`: what earlier connections of a session have used.
    pub(super) fn continue_after(&mut self, id: PacketId) {
        self.next = Some(id.next());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const WAITING: InFlight = InFlight { seq: 0, stage: Stage::Puback, credited: true };

    /// FLO-06: ids 1 to 65 535, never 0.
    #[test]
    fn ids_run_from_1_to_65535_and_wrap() {
        let mut ids = PacketIds::default();
        let given: Vec<u16> =
            (0..65_536).map(|_| ids.allocate().expect("nothing is held").get()).collect();
        assert!(given[..65_535].iter().copied().eq(1..=65_535));
        assert_eq!(given[65_535], 1);
    }

    /// FLO-07: a held id is never given again, over several wraps.
    #[test]
    fn a_held_id_is_skipped() {
        let mut ids = PacketIds::default();
        let kept = ids.allocate().expect("free");
        assert!(ids.insert(kept, WAITING));
        for _ in 0..140_000 {
            let id = ids.allocate().expect("free");
            assert_ne!(id, kept);
            assert!(ids.insert(id, WAITING));
            assert!(ids.remove(id).is_some());
        }
    }

    #[test]
    fn all_ids_held_gives_none() {
        let mut ids = PacketIds::default();
        for _ in 0..65_535 {
            let id = ids.allocate().expect("free");
            assert!(ids.insert(id, WAITING));
        }
        assert_eq!(ids.allocate(), None);
        ids.remove(PacketId::MAX);
        assert_eq!(ids.allocate(), Some(PacketId::MAX));
    }

    proptest! {
        /// The table against a map; runs never touch a held id.
        #[test]
        fn the_table_is_a_map(steps in prop::collection::vec((0u8..4, 1u16..400), 0..400)) {
            let mut ids = PacketIds::default();
            let mut model: HashMap<PacketId, InFlight> = HashMap::new();
            for (step, number) in steps {
                // Spread over the whole range, so that low bits collide.
                let id = PacketId::new(number.wrapping_mul(641).max(1)).expect("not 0");
                match step {
                    0 => {
                        let fresh = !model.contains_key(&id);
                        prop_assert_eq!(ids.insert(id, WAITING), fresh);
                        model.insert(id, WAITING);
                    }
                    1 => prop_assert_eq!(ids.remove(id), model.remove(&id)),
                    2 => prop_assert_eq!(ids.get(id), model.get(&id).copied()),
                    _ => {
                        let (first, count) = ids.allocate_run(number).expect("not all held");
                        prop_assert!(count >= 1 && count <= number);
                        let mut id = first;
                        for _ in 0..count {
                            prop_assert!(!model.contains_key(&id));
                            id = id.next();
                        }
                    }
                }
                prop_assert_eq!(ids.len(), model.len());
            }
        }
    }
}
