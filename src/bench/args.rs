//! The command line of `sluice bench`.

use clap::{Args, ValueEnum};

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// n publishers, n subscribers, a topic for each pair.
    P2p,
    /// Many publishers, each with its topic; every subscriber (default 1) gets them all.
    FanIn,
    /// One topic; every subscriber gets each message of every publisher (default 1).
    FanOut,
    /// Hold connections that do nothing.
    Idle,
    /// Connect, disconnect, and again.
    Churn,
}

/// Load generator for any MQTT broker: rates, latencies, and proof that nothing was lost,
/// doubled or reordered.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Who sends to whom.
    #[arg(value_enum, default_value = "p2p")]
    pub pattern: Pattern,
    /// Broker's host name or address.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Broker's plain TCP port.
    #[arg(long, default_value_t = 1883)]
    pub port: u16,
    /// Another port for subscribers: that of another node of the cluster.
    #[arg(long)]
    pub subs_port: Option<u16>,
    /// QoS of the messages and of the subscriptions.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    /// Payload bytes; the first 24 carry run, publisher, sequence and send time.
    #[arg(long, default_value_t = 256, value_parser = payload_range())]
    pub payload: u32,
    /// Messages a second over all publishers (churn: connects a second), sent by an open-loop
    /// schedule; 0 sends as fast as sockets and windows allow.
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Unacknowledged messages per publisher at QoS 1 and 2 (v5: the broker's Receive Maximum
    /// may lower it).
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub window: u16,
    /// MQTT version: 4 (3.1.1) or 5.
    #[arg(long = "v", default_value_t = 4, value_parser = clap::value_parser!(u8).range(4..=5))]
    pub version: u8,
    /// Subscribers keep their session (clean session off; v5: expiry of an hour). The sessions
    /// are removed after the run.
    #[arg(long)]
    pub persistent: bool,
    /// Seconds of traffic before the measured window.
    #[arg(long, default_value_t = 2)]
    pub warm: u64,
    /// Seconds of the measured window.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub secs: u64,
    /// Seconds to wait for what is still on its way; what comes later counts as lost.
    #[arg(long, default_value_t = 20)]
    pub drain: u64,
    /// Pairs (p2p), publishers (fan-in), subscribers (fan-out), or connections (idle, churn).
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
    /// Number of publishers, where it is not --clients.
    #[arg(long)]
    pub pubs: Option<u32>,
    /// Number of subscribers, where it is not --clients.
    #[arg(long)]
    pub subs: Option<u32>,
    /// Idle connections also hold a subscription each.
    #[arg(long)]
    pub subscribe: bool,
    /// First part of topics and client ids; a tag of this run follows it.
    #[arg(long, default_value = "bench")]
    pub topic_prefix: String,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
    /// A process whose CPU time and memory are reported (repeatable).
    #[arg(long = "pid")]
    pub pids: Vec<u32>,
    /// User name for CONNECT.
    #[arg(long)]
    pub username: Option<String>,
    /// Password for CONNECT; needs --username.
    #[arg(long, requires = "username")]
    pub password: Option<String>,
    /// Threads of the generator, each with an event loop of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Keep Alive in seconds; 0 switches it off (some brokers refuse that).
    #[arg(long, default_value_t = 60)]
    pub keep_alive: u16,
    /// Handshakes in progress at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub connecting: u16,
    /// Exit with 1 if a message was lost, doubled or out of order, or a connection was lost.
    #[arg(long)]
    pub strict: bool,
}

fn payload_range() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(24..=16_777_216)
}

impl BenchArgs {
    /// What the ranges of single options can't say, or `None` if the arguments make sense.
    pub(super) fn fault(&self) -> Option<String> {
        let bad_topic = |c: char| matches!(c, '+' | '#' | '\0');
        if self.topic_prefix.is_empty() || self.topic_prefix.contains(bad_topic) {
            return Some("--topic-prefix must be a topic name, not empty".to_owned());
        }
        if self.username.as_deref() == Some("") {
            return Some("--username must not be empty".to_owned());
        }
        if self.pubs == Some(0) || self.subs == Some(0) {
            return Some("--pubs and --subs must be at least 1".to_owned());
        }
        match self.pattern {
            Pattern::P2p if self.pair_count().is_none() => {
                Some("p2p has as many publishers as subscribers: give --clients".to_owned())
            }
            Pattern::Idle | Pattern::Churn if self.pubs.is_some() || self.subs.is_some() => {
                Some("idle and churn take --clients, not --pubs or --subs".to_owned())
            }
            Pattern::P2p | Pattern::FanIn | Pattern::FanOut | Pattern::Idle | Pattern::Churn => {
                None
            }
        }
    }

    fn pair_count(&self) -> Option<u32> {
        let pubs = self.pubs.or(self.subs).unwrap_or(self.clients);
        let subs = self.subs.unwrap_or(pubs);
        (pubs == subs).then_some(pubs)
    }

    /// Number of publishers and of subscribers.
    pub(super) fn crowd(&self) -> (u32, u32) {
        match self.pattern {
            Pattern::P2p => {
                let pairs = self.pair_count().unwrap_or(self.clients);
                (pairs, pairs)
            }
            Pattern::FanIn => (self.pubs.unwrap_or(self.clients), self.subs.unwrap_or(1)),
            Pattern::FanOut => (self.pubs.unwrap_or(1), self.subs.unwrap_or(self.clients)),
            Pattern::Idle | Pattern::Churn => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        let words = std::iter::once("bench").chain(words.iter().copied());
        Line::try_parse_from(words).map(|line| line.bench)
    }

    #[test]
    fn each_pattern_takes_clients_for_the_side_that_is_many() {
        let crowd = |words: &[&str]| parse(words).unwrap().crowd();
        assert_eq!(crowd(&["p2p", "--clients", "7"]), (7, 7));
        assert_eq!(crowd(&["fan-in", "--clients", "7"]), (7, 1));
        assert_eq!(crowd(&["fan-out", "--clients", "7"]), (1, 7));
        assert_eq!(crowd(&["fan-out", "--pubs", "2", "--subs", "5"]), (2, 5));
    }

    #[test]
    fn arguments_that_contradict_each_other_are_refused() {
        assert!(parse(&["p2p", "--pubs", "2", "--subs", "3"]).unwrap().fault().is_some());
        assert!(parse(&["idle", "--subs", "3"]).unwrap().fault().is_some());
        assert!(parse(&["--topic-prefix", "a/#"]).unwrap().fault().is_some());
        assert!(parse(&["--password", "x"]).is_err());
        assert!(parse(&["--payload", "23"]).is_err());
        assert!(parse(&["--v", "3"]).is_err());
        assert!(parse(&[]).unwrap().fault().is_none());
    }
}
