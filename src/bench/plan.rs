//! What one run consists of: made once from the arguments, then read by every thread.

use std::net::{SocketAddr, ToSocketAddrs};

use super::args::{BenchArgs, Pattern};

/// The part one connection plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Publisher(u32),
    Subscriber(u32),
    Idle(u32),
    Churn(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V4,
    V5,
}

/// One run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) args: BenchArgs,
    target: SocketAddr,
    subs_target: SocketAddr,
    pub(super) version: Version,
    /// Fresh for each run and part of every payload, so that a message of an earlier run is
    /// told apart from ours.
    pub(super) run_tag: u32,
    pub(super) pubs: u32,
    pub(super) subs: u32,
}

impl Plan {
    pub(super) fn new(args: BenchArgs, run_tag: u32) -> Result<Plan, String> {
        if let Some(fault) = args.fault() {
            return Err(fault);
        }
        let target = (args.host.as_str(), args.port)
            .to_socket_addrs()
            .map_err(|error| format!("{}: {error}", args.host))?
            .next()
            .ok_or_else(|| format!("{} has no address", args.host))?;
        let mut subs_target = target;
        subs_target.set_port(args.subs_port.unwrap_or(args.port));
        let (pubs, subs) = args.crowd();
        let version = if args.version == 5 { Version::V5 } else { Version::V4 };
        Ok(Plan { args, target, subs_target, version, run_tag, pubs, subs })
    }

    /// Where a connection goes to.
    pub(super) fn target(&self, role: Role) -> SocketAddr {
        match role {
            Role::Subscriber(_) => self.subs_target,
            Role::Publisher(_) | Role::Idle(_) | Role::Churn(_) => self.target,
        }
    }

    /// The connections of one thread, subscribers first. Each kind is dealt out in turn, so
    /// that every thread has its share of both sides.
    pub(super) fn roles(&self, thread: u32) -> Vec<Role> {
        let step = usize::from(self.args.threads);
        let deal = |count: u32| (thread..count).step_by(step);
        match self.args.pattern {
            Pattern::P2p | Pattern::FanIn | Pattern::FanOut => deal(self.subs)
                .map(Role::Subscriber)
                .chain(deal(self.pubs).map(Role::Publisher))
                .collect(),
            Pattern::Idle => deal(self.args.clients).map(Role::Idle).collect(),
            Pattern::Churn => deal(self.args.clients).map(Role::Churn).collect(),
        }
    }

    /// All connections that must stand before the run begins.
    pub(super) fn connections(&self) -> u64 {
        match self.args.pattern {
            Pattern::P2p | Pattern::FanIn | Pattern::FanOut => {
                u64::from(self.pubs) + u64::from(self.subs)
            }
            Pattern::Idle => u64::from(self.args.clients),
            Pattern::Churn => 0,
        }
    }

    /// Subscribers that get a copy of each message.
    pub(super) fn copies(&self) -> u64 {
        match self.args.pattern {
            Pattern::P2p => 1,
            Pattern::FanIn | Pattern::FanOut => u64::from(self.subs),
            Pattern::Idle | Pattern::Churn => 0,
        }
    }

    pub(super) fn topic(&self, publisher: u32) -> String {
        let (prefix, tag) = (&self.args.topic_prefix, self.run_tag);
        match self.args.pattern {
            Pattern::FanOut => format!("{prefix}/{tag:08x}/all"),
            Pattern::P2p | Pattern::FanIn | Pattern::Idle | Pattern::Churn => {
                format!("{prefix}/{tag:08x}/{publisher}")
            }
        }
    }

    pub(super) fn filter(&self, subscriber: u32) -> String {
        match self.args.pattern {
            Pattern::FanIn => format!("{}/{:08x}/+", self.args.topic_prefix, self.run_tag),
            Pattern::P2p | Pattern::FanOut | Pattern::Idle | Pattern::Churn => {
                self.topic(subscriber)
            }
        }
    }

    /// The publishers whose messages reach a subscriber: the first one's number, and how many.
    pub(super) fn sources(&self, subscriber: u32) -> (u32, u32) {
        match self.args.pattern {
            Pattern::P2p => (subscriber, 1),
            Pattern::FanIn | Pattern::FanOut => (0, self.pubs),
            Pattern::Idle | Pattern::Churn => (0, 0),
        }
    }

    pub(super) fn client_id(&self, role: Role) -> String {
        let (prefix, tag) = (&self.args.topic_prefix, self.run_tag);
        match role {
            Role::Publisher(n) => format!("{prefix}-{tag:08x}-p{n}"),
            Role::Subscriber(n) => format!("{prefix}-{tag:08x}-s{n}"),
            Role::Idle(n) => format!("{prefix}-{tag:08x}-i{n}"),
            Role::Churn(n) => format!("{prefix}-{tag:08x}-c{n}"),
        }
    }

    /// The filter that this connection subscribes to after CONNACK, if any.
    pub(super) fn subscription(&self, role: Role) -> Option<String> {
        match role {
            Role::Subscriber(n) => Some(self.filter(n)),
            Role::Idle(n) if self.args.subscribe => Some(self.filter(n)),
            Role::Publisher(_) | Role::Idle(_) | Role::Churn(_) => None,
        }
    }

    /// Only the receiving side keeps a session: that is what a broker must hold queues for.
    pub(super) fn keeps_session(&self, role: Role) -> bool {
        self.args.persistent && matches!(role, Role::Subscriber(_) | Role::Idle(_))
    }
}
