//! epoll, edge-triggered, with a timer that is finer than epoll's own millisecond.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

const EVENTS_MAX: usize = 1024;
/// A thread looks at the phase of the run at least this often.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const NO_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const TIMER: u64 = u64::MAX;

/// What happened on one socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) token: u32,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The other side ended, or the socket failed: read until that shows.
    pub(super) ended: bool,
}

pub(super) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_for_ns: u64,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), edge)?;
        let events = Vec::with_capacity(EVENTS_MAX);
        Ok(Poller { epoll, timer, armed_for_ns: 0, events })
    }

    /// Watches a socket until it is closed.
    pub(super) fn add(&self, socket: impl AsFd, token: u32) -> io::Result<()> {
        let edges = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(u64::from(token)), edges)?;
        Ok(())
    }

    /// Waits for events, for `wake_ns`, or for the nap's end; not at all if `busy`.
    pub(super) fn wait(&mut self, busy: bool, wake_ns: Option<u64>, now_ns: u64) -> io::Result<()> {
        let mut nap = if busy { &NO_NAP } else { &NAP };
        match wake_ns {
            Some(wake_ns) if wake_ns <= now_ns => nap = &NO_NAP,
            Some(wake_ns) if !busy => self.arm(wake_ns, now_ns)?,
            Some(_) | None => {}
        }
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, Some(nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn arm(&mut self, wake_ns: u64, now_ns: u64) -> io::Result<()> {
        if self.armed_for_ns == wake_ns {
            return Ok(());
        }
        self.armed_for_ns = wake_ns;
        let left = Duration::from_nanos(wake_ns - now_ns);
        let it_value =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: NO_NAP, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// What the last wait brought.
    pub(super) fn ready(&self) -> impl Iterator<Item = Ready> {
        let told = |event: &epoll::Event| {
            let (flags, token) = (event.flags, event.data.u64());
            let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            let ended = flags.intersects(ends);
            (token != TIMER).then_some(Ready {
                token: token as u32,
                readable: ended || flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                ended,
            })
        };
        self.events.iter().filter_map(told)
    }
}
