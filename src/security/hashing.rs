//! Work that takes a processor for milliseconds: password hashes, signatures, expressions. A small
//! pool of threads does it, so that no network thread does; addresses take turns, so that a flood
//! from one holds up nobody else. When the queue is full, the address with most in it loses its
//! newest.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::{Condvar, Mutex};
use sha2::Sha256;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::config::HashingConfig;
use super::credential::random;
use crate::limits;
use crate::telemetry::metrics;

/// Of the threads that check; the others have 0.
const NICENESS: i32 = 5;

/// The work could not be done now: the queue is full, or it took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

type Job = Box<dyn FnOnce() + Send>;
/// Who asks; clients without an address of their own share one turn.
type Source = Option<IpAddr>;

pub(super) struct Pool {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    threads: usize,
    started: Once,
    argon2: Argon2<'static>,
    remembered: Mutex<HashMap<[u8; 32], Instant, ahash::RandomState>>,
    /// Makes what is remembered of a password useless outside this process.
    pepper: [u8; 32],
    /// What an unknown client's password is compared with, so that it takes as long as a known
    /// one's.
    decoy: Mutex<Option<Arc<str>>>,
}

#[derive(Default)]
struct Queue {
    /// Sources in turn; each is here once as long as it has a job.
    turns: VecDeque<Source>,
    jobs: HashMap<Source, VecDeque<Job>, ahash::RandomState>,
    len: usize,
    closed: bool,
}

impl Queue {
    /// Takes the job, at the cost of somebody's newest when the queue is full; a job that is
    /// dropped tells whoever waits for it.
    fn push(&mut self, source: Source, job: Job) {
        if self.len >= limits::HASHING_QUEUE {
            let own = self.jobs.get(&source).map_or(0, VecDeque::len);
            let longest = self.jobs.iter().max_by_key(|(_, jobs)| jobs.len());
            let Some(victim) = longest.filter(|(_, jobs)| jobs.len() > own).map(|(of, _)| *of)
            else {
                return;
            };
            self.jobs.get_mut(&victim).and_then(VecDeque::pop_back);
            self.len -= 1;
        }
        let jobs = self.jobs.entry(source).or_default();
        if jobs.is_empty() && !self.turns.contains(&source) {
            self.turns.push_back(source);
        }
        jobs.push_back(job);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Job> {
        while let Some(source) = self.turns.pop_front() {
            let Some(jobs) = self.jobs.get_mut(&source) else { continue };
            let job = jobs.pop_front();
            if jobs.is_empty() {
                self.jobs.remove(&source);
            } else {
                self.turns.push_back(source);
            }
            if job.is_some() {
                self.len -= 1;
                return job;
            }
        }
        None
    }
}

impl Pool {
    pub(super) fn new(config: &HashingConfig) -> Self {
        let params = Params::new(config.memory_kib, config.iterations, 1, None);
        let params = params.unwrap_or_default();
        Self {
            queue: Arc::default(),
            threads: match config.threads {
                0 => std::thread::available_parallelism().map_or(1, |all| (all.get() - 1).max(1)),
                asked => asked,
            },
            started: Once::new(),
            argon2: Argon2::new(Algorithm::Argon2id, Version::V0x13, params),
            remembered: Mutex::default(),
            pepper: random(),
            decoy: Mutex::default(),
        }
    }

    /// Runs `work` when its turn comes. Cancel safe: yes; work whose asker is gone is not begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        source: Source,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Busy> {
        self.start();
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move || {
            if !sender.is_closed() {
                // The asker may have gone meanwhile.
                sender.send(work()).ok();
            }
        });
        let (queue, work_there_is) = &*self.queue;
        queue.lock().push(source, job);
        work_there_is.notify_one();
        let patience = Duration::from_millis(limits::AUTHENTICATION_MS);
        match tokio::time::timeout(patience, receiver).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) | Err(_) => {
                metrics::AUTHENTICATION_BUSY.inc();
                Err(Busy)
            }
        }
    }

    /// Threads exist from the first use on: who needs none has none.
    fn start(&self) {
        self.started.call_once(|| {
            for number in 0..self.threads {
                let queue = Arc::clone(&self.queue);
                let thread = std::thread::Builder::new().name(format!("hashing-{number}"));
                if let Err(error) = thread.spawn(move || work_on(&queue)) {
                    tracing::error!(%error, "no thread for password checks");
                }
            }
        });
    }

    pub(super) async fn hash(&self, source: Source, password: &[u8]) -> Result<String, Busy> {
        let (argon2, password) = (self.argon2.clone(), password.to_vec());
        let hashed = self.run(source, move || hash_now(&argon2, &password)).await?;
        hashed.ok_or(Busy)
    }

    /// Whether `password` is the one of `hash`. A right one is remembered for a minute.
    pub(super) async fn verify(
        &self,
        source: Source,
        hash: &str,
        password: &[u8],
    ) -> Result<bool, Busy> {
        if password.len() > limits::PASSWORD_BYTES {
            return Ok(false);
        }
        let mark = self.mark(hash, password);
        if self.remembers(&mark) {
            return Ok(true);
        }
        let (hash, password) = (hash.to_owned(), password.to_vec());
        let right = self.run(source, move || verify_now(&hash, &password)).await?;
        if right {
            self.remember(mark);
        }
        Ok(right)
    }

    /// Takes as long as a real check, and is never right.
    pub(super) async fn pretend(&self, source: Source, password: &[u8]) -> Result<(), Busy> {
        let known = self.decoy.lock().clone();
        let decoy = match known {
            Some(decoy) => decoy,
            None => {
                let made: Arc<str> = Arc::from(self.hash(source, &random::<16>()).await?);
                *self.decoy.lock() = Some(Arc::clone(&made));
                made
            }
        };
        self.verify(source, &decoy, password).await.map(drop)
    }

    fn mark(&self, hash: &str, password: &[u8]) -> [u8; 32] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.pepper);
        let mut mac = mac.expect("HMAC takes keys of any length");
        mac.update(&(hash.len() as u64).to_be_bytes());
        mac.update(hash.as_bytes());
        mac.update(password);
        mac.finalize().into_bytes().into()
    }

    fn remembers(&self, mark: &[u8; 32]) -> bool {
        let fresh = Duration::from_millis(limits::PASSWORD_REMEMBERED_MS);
        self.remembered.lock().get(mark).is_some_and(|since| since.elapsed() < fresh)
    }

    fn remember(&self, mark: [u8; 32]) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= limits::PASSWORDS_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(mark, Instant::now());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let (queue, work_there_is) = &*self.queue;
        queue.lock().closed = true;
        work_there_is.notify_all();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("waiting", &self.queue.0.lock().len).finish_non_exhaustive()
    }
}

fn work_on(queue: &(Mutex<Queue>, Condvar)) {
    let (queue, work_there_is) = queue;
    // Who is in goes before who wants in: on a machine that is busy with checks, the network's
    // threads get their turn first. (Here the calling thread's; where that is refused, all are
    // equal.)
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "password checks have no lower priority");
    }
    loop {
        let job = {
            let mut queue = queue.lock();
            loop {
                if queue.closed {
                    return;
                }
                match queue.pop() {
                    Some(job) => break job,
                    None => work_there_is.wait(&mut queue),
                }
            }
        };
        // A job that panics must not take its thread with it; its asker is told by the drop.
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        if caught.is_err() {
            metrics::TASK_PANICS.inc();
        }
    }
}

fn hash_now(argon2: &Argon2<'_>, password: &[u8]) -> Option<String> {
    let hash: Result<PasswordHash, _> = argon2.hash_password(password);
    hash.ok().map(|hash| hash.to_string())
}

/// The comparison inside takes the same time wherever the hashes differ.
fn verify_now(hash: &str, password: &[u8]) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else { return false };
    Argon2::default().verify_password(password, &hash).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::new(&HashingConfig { threads: 1, memory_kib: 64, iterations: 1 })
    }

    #[tokio::test]
    async fn a_password_is_right_or_wrong() {
        let pool = pool();
        let hash = pool.hash(None, b"secret").await.expect("there is room");
        assert!(hash.starts_with("$argon2id$v=19$m=64,t=1,p=1$"), "{hash}");
        for _ in 0..2 {
            assert_eq!(pool.verify(None, &hash, b"secret").await, Ok(true));
            assert_eq!(pool.verify(None, &hash, b"Secret").await, Ok(false));
        }
        assert_ne!(hash, pool.hash(None, b"secret").await.expect("there is room"));
        let long = vec![b'x'; limits::PASSWORD_BYTES + 1];
        assert_eq!(pool.verify(None, &hash, &long).await, Ok(false));
    }

    /// A flood from one address holds up nobody else, and pays for a full queue.
    #[test]
    fn addresses_take_turns_and_the_longest_queue_pays() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(limits::HASHING_QUEUE * 2);
        let mut queue = Queue::default();
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let job = |name: u8| -> Job {
            let sender = sender.clone();
            Box::new(move || sender.send(name).expect("the test reads"))
        };
        for _ in 0..limits::HASHING_QUEUE {
            queue.push(address(1), job(1));
        }
        queue.push(address(1), job(1));
        assert_eq!(queue.len, limits::HASHING_QUEUE, "its own newest was refused");
        queue.push(address(2), job(2));
        queue.push(address(3), job(3));
        assert_eq!(queue.len, limits::HASHING_QUEUE);
        for _ in 0..4 {
            queue.pop().expect("there are jobs")();
        }
        assert_eq!(receiver.try_iter().collect::<Vec<u8>>(), [1, 2, 3, 1]);
        assert_eq!(queue.turns.len(), 1);
    }
}
