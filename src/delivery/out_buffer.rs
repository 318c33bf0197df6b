//! Bytes on their way to one socket: small frames copied one behind the other, large payloads
//! shared with the batch they came in.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use tokio::time::Instant;

use crate::telemetry::metrics::Timer;

/// Chunks are filled up to this and then a new one is begun, so that no frame moves twice.
const CHUNK_BYTES: usize = 64 * 1024;
/// Above it a payload is shared instead of copied (measured: copying wins up to about 1 KiB).
pub(super) const SHARE_FROM_BYTES: usize = 1024;
/// What a shared payload takes beside its part of a batch: two places in the list, and the head
/// before it.
const SHARED_BYTES: usize = 128;
/// Buffers that a thread keeps for those it begins next; of those beyond, the memory goes.
const SPARE_MAX: usize = 8;

/// Looking at the clock twice costs as much as encoding a small frame.
const TIMED_EVERY: u32 = 8;

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
    static SPARE: RefCell<Vec<VecDeque<Chunk>>> = const { RefCell::new(Vec::new()) };
}

/// Slices handed to one vectored write.
const SLICES_MAX: usize = 32;

#[derive(Debug)]
enum Chunk {
    Copied { bytes: Vec<u8>, sent: usize },
    Shared { bytes: Bytes, beside: u32 },
}

/// What has left a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) sent: usize,
    /// Those bytes, and what stood beside them in memory.
    pub(super) held: usize,
}

impl Chunk {
    fn rest(&self) -> &[u8] {
        match self {
            Chunk::Copied { bytes, sent } => &bytes[*sent..],
            Chunk::Shared { bytes, .. } => bytes,
        }
    }
}

/// An ordered list of chunks. Its length is bounded by the watermark, not here.
#[derive(Debug, Default)]
pub(super) struct OutBuffer {
    chunks: VecDeque<Chunk>,
    len: usize,
    begun: bool,
    /// When its first byte came; every [`TIMED_EVERY`]th buffer of a thread knows.
    since: Option<Instant>,
}

impl OutBuffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Everything left: one of the buffers that are timed stands for all.
    pub(super) fn observe(&self, timer: &Timer) {
        if let Some(since) = self.since {
            timer.observe_n(since.elapsed(), TIMED_EVERY.into());
        }
    }

    /// Keeps its memory for the next buffer that this thread begins: an idle connection holds
    /// none, and a busy one allocates none.
    pub(super) fn recycle(mut self) {
        self.chunks.truncate(1);
        let Some(Chunk::Copied { bytes, sent }) = self.chunks.front_mut() else { return };
        if bytes.capacity() > 2 * CHUNK_BYTES {
            return;
        }
        bytes.clear();
        *sent = 0;
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_MAX {
                spare.push(self.chunks);
            }
        });
    }

    /// Something is about to come in.
    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            let turn = TURN.get();
            TURN.set(turn.wrapping_add(1));
            self.since = turn.is_multiple_of(TIMED_EVERY).then(Instant::now);
            if let Some(chunks) = SPARE.with_borrow_mut(Vec::pop) {
                self.chunks = chunks;
            }
        }
    }

    /// Appends what `encode` writes; gives back its length.
    pub(super) fn push_with<T>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> T) -> (usize, T) {
        self.begin();
        let open = match self.chunks.back() {
            Some(Chunk::Copied { bytes, .. }) => bytes.len() < CHUNK_BYTES,
            Some(Chunk::Shared { .. }) | None => false,
        };
        if !open {
            self.chunks.push_back(Chunk::Copied { bytes: Vec::new(), sent: 0 });
        }
        let Some(Chunk::Copied { bytes, .. }) = self.chunks.back_mut() else {
            unreachable!("a copied chunk was just put at the back");
        };
        let before = bytes.len();
        let result = encode(bytes);
        let added = bytes.len() - before;
        self.len += added;
        (added, result)
    }

    /// Appends bytes without copying them; `memory` is what it costs that somebody refers to them.
    /// Gives back what they take in all.
    pub(super) fn push_shared(&mut self, bytes: Bytes, memory: usize) -> usize {
        self.begin();
        let len = bytes.len();
        let beside = SHARED_BYTES + memory.saturating_sub(len);
        self.len += len;
        self.chunks.push_back(Chunk::Shared { bytes, beside: beside as u32 });
        len + beside
    }

    /// What one write should take, where one slice is all there is.
    pub(super) fn only_slice(&self) -> Option<&[u8]> {
        let only = self.chunks.front().filter(|_| self.chunks.len() == 1);
        only.map(Chunk::rest)
    }

    /// What one vectored write should take.
    pub(super) fn slices(&self) -> ([IoSlice<'_>; SLICES_MAX], usize) {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(chunk.rest());
            count += 1;
        }
        (slices, count)
    }

    /// `written` bytes have left. The last chunk stays, for `recycle`.
    pub(super) fn advance(&mut self, mut written: usize) -> Gone {
        self.len -= written;
        let mut gone = Gone { sent: written, held: written };
        let mut left = self.chunks.len();
        while let Some(chunk) = self.chunks.front_mut() {
            let here = chunk.rest().len();
            left -= 1;
            if here <= written
                && let Chunk::Shared { beside, .. } = chunk
            {
                gone.held += std::mem::take(beside) as usize;
            }
            if here <= written && left > 0 {
                written -= here;
                self.chunks.pop_front();
                continue;
            }
            match chunk {
                Chunk::Copied { sent, .. } => *sent += written,
                Chunk::Shared { bytes, .. } => bytes.advance(written),
            }
            break;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(buffer: &mut OutBuffer, step: usize) -> (Vec<u8>, Gone) {
        let (mut out, mut gone) = (Vec::new(), Gone::default());
        while !buffer.is_empty() {
            let (slices, count) = buffer.slices();
            let all: Vec<u8> = slices[..count].iter().flat_map(|s| s.iter().copied()).collect();
            let taken = all.len().min(step);
            out.extend_from_slice(&all[..taken]);
            let now = buffer.advance(taken);
            gone = Gone { sent: gone.sent + now.sent, held: gone.held + now.held };
        }
        (out, gone)
    }

    proptest! {
        /// Whatever is written how, and however little each write takes, the bytes come out in
        /// the order in which they went in, and what they held goes with them (OUT-4).
        #[test]
        fn bytes_keep_their_order(
            parts in prop::collection::vec((any::<bool>(), 0usize..3000), 0..80),
            step in 1usize..100_000,
        ) {
            let (mut buffer, mut expected) = (OutBuffer::default(), Vec::new());
            let mut held = 0;
            for (n, (shared, len)) in parts.into_iter().enumerate() {
                let part = vec![n as u8; len];
                expected.extend_from_slice(&part);
                if shared {
                    held += buffer.push_shared(Bytes::from(part), len + len / 5);
                } else {
                    held += buffer.push_with(|out| out.extend_from_slice(&part)).0;
                }
            }
            prop_assert_eq!(buffer.len, expected.len());
            let (out, gone) = drain(&mut buffer, step);
            // Nothing to send is never advanced over, and holds nothing worth counting.
            if !expected.is_empty() {
                prop_assert_eq!(gone, Gone { sent: expected.len(), held });
            }
            prop_assert_eq!(out, expected);
        }
    }
}
