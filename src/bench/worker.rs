//! One thread of the generator: an event loop over its connections. A turn serves every
//! connection that has something with one read and one write; what a message costs is a copy
//! of its frame on one side and a look at its head on the other.

use std::io;

use super::args::Pattern;
use super::churn::Churn;
use super::conn::{Conn, Inflow, Part, Stage};
use super::frame::{self, Frame};
use super::handshake;
use super::plan::{Role, Version};
use super::poller::Poller;
use super::publisher::{Fill, Pace, Publisher};
use super::run_state::RunState;
use super::schedule::{Pacer, Schedule};
use super::subscriber::Subscriber;
use super::tally::{Latencies, Tally, Timeline};

/// At least this much is read at once.
const READ_BYTES: usize = 256 * 1024;
/// What a packet of ours may have besides its payload: topic, properties a broker adds.
const PACKET_SPARE: usize = 128 * 1024;
const SWEEP_NS: u64 = 1_000_000_000;

/// Buffers and counts that serve whichever connection has its turn.
#[derive(Debug)]
struct Desk {
    inbuf: Vec<u8>,
    out: Vec<u8>,
    tally: Tally,
    latencies: Latencies,
}

pub(super) struct Worker<'a> {
    run: &'a RunState,
    index: u32,
    poller: Poller,
    conns: Vec<Conn>,
    desk: Desk,
    /// Connections that have a turn now, and those for the next round.
    queue: Vec<u32>,
    later: Vec<u32>,
    /// The next connection to open, and how many are in their handshake.
    next_open: usize,
    opening: usize,
    opening_max: usize,
    /// This thread's publishers, as indexes of `conns`.
    publishers: Vec<u32>,
    pace: Option<Pace>,
    pacer: Option<Pacer>,
    churn: Option<Churn>,
    sweep_ns: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(run: &'a RunState, index: u32) -> io::Result<Worker<'a>> {
        let plan = &run.plan;
        let part = |role| match role {
            Role::Publisher(n) => {
                let template = handshake::template(plan, n);
                Part::Publisher(Box::new(Publisher::new(n, plan.run_tag, template)))
            }
            Role::Subscriber(n) => {
                let sources = plan.sources(n);
                Part::Subscriber(Box::new(Subscriber::new(plan.run_tag, plan.version, sources)))
            }
            Role::Idle(_) | Role::Churn(_) => Part::Bare,
        };
        let roles = plan.roles(index);
        let conns: Vec<Conn> = roles.iter().map(|role| Conn::new(*role, part(*role))).collect();
        let publishes = |at: &u32| matches!(roles[*at as usize], Role::Publisher(_));
        let publishers = (0..roles.len() as u32).filter(publishes).collect();
        let churning = plan.args.pattern == Pattern::Churn;
        let threads = usize::from(plan.args.threads);
        let packet_max = plan.args.payload as usize + PACKET_SPARE;
        Ok(Worker {
            run,
            index,
            poller: Poller::new()?,
            churn: churning.then(|| Churn::new(conns.len() as u32)),
            next_open: if churning { conns.len() } else { 0 },
            conns,
            desk: Desk {
                inbuf: vec![0; packet_max.max(READ_BYTES)],
                out: Vec::with_capacity(READ_BYTES),
                tally: Tally::default(),
                latencies: Latencies::new(),
            },
            queue: Vec::new(),
            later: Vec::new(),
            opening: 0,
            opening_max: usize::from(plan.args.connecting).div_ceil(threads),
            publishers,
            pace: None,
            pacer: None,
            sweep_ns: 0,
        })
    }

    /// Runs until the run is stopped.
    pub(super) fn work(mut self) -> Latencies {
        while !self.run.stopped() {
            if let Err(error) = self.turn() {
                self.run.fault(|| format!("event loop: {error}"));
                self.run.stop();
            }
            self.run.boards[self.index as usize].show(&self.desk.tally);
        }
        self.leave();
        self.desk.latencies
    }

    fn turn(&mut self) -> io::Result<()> {
        let before_ns = self.run.now_ns();
        let may_open = self.next_open < self.conns.len() && self.opening < self.opening_max;
        let busy = may_open || !self.queue.is_empty();
        self.poller.wait(busy, self.wake_ns(), before_ns)?;
        let now_ns = self.run.now_ns();
        self.collect_events();
        if self.pace.is_none() {
            self.begin_if_time(now_ns);
        }
        self.collect_due(now_ns);
        self.open_some(now_ns)?;
        std::mem::swap(&mut self.queue, &mut self.later);
        while let Some(at) = self.later.pop() {
            self.conns[at as usize].queued = false;
            if self.serve(at, now_ns) {
                enqueue(&mut self.conns, &mut self.queue, at);
            }
        }
        if now_ns >= self.sweep_ns {
            self.sweep(now_ns);
        }
        Ok(())
    }

    /// When there is something to do even without an event.
    fn wake_ns(&self) -> Option<u64> {
        let Some(pace) = &self.pace else {
            return self.run.timeline.get().map(|timeline| timeline.start_ns);
        };
        let due_ns = self.pacer.as_ref().and_then(Pacer::next_due_ns);
        let due_ns = due_ns.or_else(|| self.churn.as_ref().and_then(Churn::next_due_ns));
        due_ns.filter(|due_ns| *due_ns < pace.timeline.window_to_ns)
    }

    fn collect_events(&mut self) {
        for ready in self.poller.ready() {
            let conn = &mut self.conns[ready.token as usize];
            conn.readable |= ready.readable;
            conn.writable |= ready.writable;
            conn.ended |= ready.ended;
            enqueue(&mut self.conns, &mut self.queue, ready.token);
        }
    }

    fn begin_if_time(&mut self, now_ns: u64) {
        let Some(&timeline) = self.run.timeline.get() else { return };
        if now_ns < timeline.start_ns {
            return;
        }
        let plan = &self.run.plan;
        let schedule =
            (plan.args.rate > 0).then(|| Schedule::new(timeline.start_ns, plan.args.rate));
        self.pace = Some(Pace { timeline, schedule, publishers: plan.pubs });
        if let Some(churn) = &mut self.churn {
            churn.begin(timeline, schedule, self.index, u32::from(plan.args.threads));
            return;
        }
        let number = |at: &u32| match self.conns[*at as usize].role {
            Role::Publisher(number) => Some(number),
            Role::Subscriber(_) | Role::Idle(_) | Role::Churn(_) => None,
        };
        let numbers = self.publishers.iter().filter_map(number).collect();
        self.pacer = schedule.map(|schedule| Pacer::new(schedule, numbers, plan.pubs));
        for &at in &self.publishers {
            enqueue(&mut self.conns, &mut self.queue, at);
        }
    }

    /// Gives each publisher what the schedule asks of it by now.
    fn collect_due(&mut self, now_ns: u64) {
        let (Some(pacer), Some(pace)) = (&mut self.pacer, &self.pace) else { return };
        let by_ns = now_ns.min(pace.timeline.window_to_ns.saturating_sub(1));
        while let Some(index) = pacer.take(by_ns) {
            let at = self.publishers[index];
            if let Part::Publisher(publisher) = &mut self.conns[at as usize].part {
                publisher.due += 1;
                self.desk.tally.due += 1;
            }
            enqueue(&mut self.conns, &mut self.queue, at);
        }
    }

    fn open_some(&mut self, now_ns: u64) -> io::Result<()> {
        while self.next_open < self.conns.len() && self.opening < self.opening_max {
            let at = self.next_open;
            self.next_open += 1;
            self.open(at as u32, now_ns)?;
        }
        while let Some((at, due_ns)) = self.churn.as_mut().and_then(|churn| churn.next(now_ns)) {
            self.open(at, due_ns)?;
        }
        Ok(())
    }

    fn open(&mut self, at: u32, now_ns: u64) -> io::Result<()> {
        let conn = &mut self.conns[at as usize];
        match conn.open(self.run.plan.target(conn.role), now_ns) {
            Ok(socket) => {
                self.opening += 1;
                self.poller.add(socket, at)
            }
            Err(error) => {
                self.desk.tally.failed += 1;
                self.run.fault(|| format!("connect: {error}"));
                if let Some(churn) = &mut self.churn {
                    churn.failed(at, now_ns);
                }
                Ok(())
            }
        }
    }

    /// One turn of one connection; whether it wants another without a new event.
    fn serve(&mut self, at: u32, now_ns: u64) -> bool {
        let result = self.move_bytes(at, now_ns);
        let conn = &self.conns[at as usize];
        match result {
            Ok(more) => (more && conn.writable && !conn.has_unsent()) || conn.can_go_on(),
            Err(reason) => {
                self.lose(at, &reason, now_ns);
                false
            }
        }
    }

    /// Reads and answers once, then publishes once. `Err` ends the connection.
    fn move_bytes(&mut self, at: u32, now_ns: u64) -> Result<bool, String> {
        let conn = &mut self.conns[at as usize];
        self.desk.out.clear();
        match conn.stage {
            Stage::Closed => return Ok(false),
            Stage::Connecting if !conn.writable && !conn.ended => return Ok(false),
            Stage::Connecting => {
                if let Some(error) = conn.connect_error() {
                    return Err(format!("connect: {error}"));
                }
                let clean = !self.run.plan.keeps_session(conn.role);
                let connect = handshake::connect(&self.run.plan, conn.role, clean);
                self.desk.out.extend_from_slice(&connect);
                conn.stage = Stage::AwaitConnack;
            }
            Stage::AwaitConnack | Stage::AwaitSuback | Stage::Ready | Stage::Leaving => {}
        }
        match conn.read(&mut self.desk.inbuf).map_err(|error| error.to_string())? {
            Inflow::Nothing => {}
            Inflow::Bytes(count) => self.take_in(at, count)?,
            Inflow::End => return Err("the broker closed the connection".to_owned()),
        }
        let conn = &mut self.conns[at as usize];
        if conn.has_unsent() {
            conn.write(&[], now_ns).map_err(|error| error.to_string())?;
        }
        let free = conn.writable && !conn.has_unsent();
        let mut fill = Fill::Idle;
        if let (Part::Publisher(publisher), Stage::Ready, Some(pace), true) =
            (&mut conn.part, conn.stage, &self.pace, free)
        {
            let sending_ns = self.run.now_ns();
            let Desk { out, tally, .. } = &mut self.desk;
            fill = publisher.fill(pace, sending_ns, out, tally);
        }
        if !self.desk.out.is_empty() {
            conn.write(&self.desk.out, now_ns).map_err(|error| error.to_string())?;
        }
        Ok(fill == Fill::More)
    }

    /// Takes every whole packet of a read.
    fn take_in(&mut self, at: u32, count: usize) -> Result<(), String> {
        let now_ns = self.run.now_ns();
        let timeline = self.pace.map(|pace| pace.timeline).unwrap_or_default();
        let inbuf = std::mem::take(&mut self.desk.inbuf);
        let full = inbuf.len() == count;
        let mut taken = 0;
        let result = loop {
            match Frame::next(&inbuf[taken..count]) {
                Ok(Some(frame)) => {
                    taken += frame.whole.len();
                    if let Err(reason) = self.take(at, &frame, now_ns, &timeline) {
                        break Err(reason);
                    }
                }
                Ok(None) if taken == 0 && full => {
                    break Err("a packet larger than any that was asked for".to_owned());
                }
                Ok(None) => break Ok(()),
                Err(malformed) => break Err(malformed.to_string()),
            }
        };
        self.conns[at as usize].keep(&inbuf[taken..count]);
        self.desk.inbuf = inbuf;
        result
    }

    #[inline]
    fn take(
        &mut self,
        at: u32,
        frame: &Frame<'_>,
        now_ns: u64,
        timeline: &Timeline,
    ) -> Result<(), String> {
        let conn = &mut self.conns[at as usize];
        let Desk { out, tally, latencies, .. } = &mut self.desk;
        let taken = match (&mut conn.part, frame.kind()) {
            (Part::Subscriber(subscriber), frame::PUBLISH) => {
                subscriber.published(frame, now_ns, timeline, out, (tally, latencies))
            }
            (Part::Publisher(publisher), frame::PUBACK | frame::PUBREC | frame::PUBCOMP) => {
                publisher.acknowledged(frame, now_ns, timeline, out, (tally, latencies))
            }
            (Part::Subscriber(subscriber), frame::PUBREL) => subscriber.released(frame, out),
            (_, frame::PINGRESP) => Ok(()),
            _ => return self.take_rare(at, frame, now_ns),
        };
        taken.map_err(|malformed| malformed.to_string())
    }

    #[cold]
    fn take_rare(&mut self, at: u32, frame: &Frame<'_>, now_ns: u64) -> Result<(), String> {
        let plan = &self.run.plan;
        let conn = &mut self.conns[at as usize];
        match (conn.stage, frame.kind()) {
            (Stage::AwaitConnack, frame::CONNACK) => {
                let grant = handshake::connack(plan.version, frame.whole)?;
                let keep_alive = u64::from(grant.keep_alive.unwrap_or(plan.args.keep_alive));
                conn.ping_after_ns = keep_alive * 700_000_000;
                let in_run = self.pace.is_none_or(|pace| pace.timeline.in_window(conn.opened_ns));
                if in_run {
                    let took_ns = now_ns.saturating_sub(conn.opened_ns);
                    self.desk.latencies.connect.saturating_record(took_ns);
                }
                if let Part::Publisher(publisher) = &mut conn.part
                    && plan.args.qos > 0
                {
                    publisher.open_window(plan.args.window.min(grant.receive_maximum));
                }
                if matches!(conn.role, Role::Churn(_)) {
                    self.desk.out.extend_from_slice(&frame::DISCONNECT);
                    conn.stage = Stage::Leaving;
                } else if let Some(filter) = plan.subscription(conn.role) {
                    let subscribe = handshake::subscribe(plan, &filter);
                    self.desk.out.extend_from_slice(&subscribe);
                    conn.stage = Stage::AwaitSuback;
                } else {
                    self.set_ready(at);
                }
                Ok(())
            }
            (Stage::AwaitSuback, frame::SUBACK) => {
                let granted = handshake::suback(plan.version, frame.whole)?;
                let tally = &mut self.desk.tally;
                let missing = u64::from(plan.args.qos.saturating_sub(granted));
                tally.downgrade = tally.downgrade.max(missing);
                self.set_ready(at);
                Ok(())
            }
            (_, frame::SERVER_DISCONNECT) if plan.version == Version::V5 => {
                let reason = frame.body.first().copied().unwrap_or(0);
                Err(format!("the broker sent DISCONNECT 0x{reason:02x}"))
            }
            (stage, kind) => Err(format!("unexpected packet type {kind} while {stage:?}")),
        }
    }

    fn set_ready(&mut self, at: u32) {
        self.conns[at as usize].stage = Stage::Ready;
        self.desk.tally.ready += 1;
        self.opening -= 1;
    }

    fn lose(&mut self, at: u32, reason: &str, now_ns: u64) {
        let conn = &mut self.conns[at as usize];
        let stage = conn.stage;
        conn.close();
        let tally = &mut self.desk.tally;
        match stage {
            Stage::Closed => return,
            Stage::Ready => {
                tally.closed += 1;
                self.run.fault(|| reason.to_owned());
            }
            Stage::Connecting | Stage::AwaitConnack | Stage::AwaitSuback => {
                tally.failed += 1;
                self.opening -= 1;
                self.run.fault(|| reason.to_owned());
            }
            // A reset says as well as an end that the broker has let go.
            Stage::Leaving => {
                self.opening -= 1;
                let in_window = self.pace.is_some_and(|pace| pace.timeline.in_window(now_ns));
                tally.cycles_window += u64::from(in_window);
            }
        }
        if let Some(churn) = &mut self.churn {
            if stage == Stage::Leaving { churn.done(at) } else { churn.failed(at, now_ns) }
        }
    }

    /// Keeps silent connections alive.
    fn sweep(&mut self, now_ns: u64) {
        self.sweep_ns = now_ns + SWEEP_NS;
        for at in 0..self.conns.len() {
            let conn = &mut self.conns[at];
            let silent_ns = now_ns.saturating_sub(conn.last_write_ns);
            let due = conn.ping_after_ns > 0 && silent_ns >= conn.ping_after_ns;
            if !due || conn.stage != Stage::Ready || conn.has_unsent() {
                continue;
            }
            if let Err(error) = conn.write(&frame::PINGREQ, now_ns) {
                self.lose(at as u32, &error.to_string(), now_ns);
            }
        }
    }

    fn leave(&mut self) {
        let now_ns = self.run.now_ns();
        for conn in &mut self.conns {
            if conn.stage == Stage::Ready && conn.write(&frame::DISCONNECT, now_ns).is_err() {
                // The connection is going away either way.
                conn.ended = true;
            }
            conn.close();
        }
    }
}

fn enqueue(conns: &mut [Conn], queue: &mut Vec<u32>, at: u32) {
    let conn = &mut conns[at as usize];
    if !conn.queued {
        conn.queued = true;
        queue.push(at);
    }
}
