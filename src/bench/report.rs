//! What a run says at its end: one structure, as a table or as JSON.

use std::fmt::{self, Write};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::Pattern;
use super::conduct::{Outcome, expected};
use super::process::Watched;
use super::run_state::RunState;
use super::tally::Tally;

#[derive(Debug, Serialize)]
pub(super) struct Latency {
    count: u64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Process {
    pid: u32,
    /// The generator's own line.
    generator: bool,
    /// CPU seconds per second in the measured window.
    cores: f64,
    /// CPU time in the window for each message delivered (churn: each cycle) in it.
    cpu_us_per_message: Option<f64>,
    rss_before_bytes: u64,
    rss_bytes: u64,
    rss_max_bytes: u64,
    /// Idle: growth since before the first connection, for each connection.
    rss_bytes_per_connection: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pattern: String,
    /// tcp, tls, ws or wss.
    transport: &'static str,
    publishers: u32,
    subscribers: u32,
    qos: u8,
    mqtt: u8,
    payload_bytes: u32,
    rate: u64,
    window: u16,
    persistent: bool,
    seconds: u64,
    connections: u64,
    connect_seconds: f64,
    connects_per_second: f64,
    in_per_second: f64,
    out_per_second: f64,
    out_mib_per_second: f64,
    cycles_per_second: f64,
    drain_seconds: f64,
    expected: u64,
    lost: u64,
    /// Scheduled messages that windows or sockets kept from being sent.
    not_sent: u64,
    totals: Tally,
    delivery: Option<Latency>,
    acknowledgement: Option<Latency>,
    connect: Option<Latency>,
    processes: Vec<Process>,
    faultless: bool,
    first_fault: Option<String>,
}

fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    (!histogram.is_empty()).then(|| Latency {
        count: histogram.len(),
        p50_ms: at(0.5),
        p95_ms: at(0.95),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: histogram.max() as f64 / 1e6,
    })
}

impl Report {
    pub(super) fn new(run: &RunState, outcome: &Outcome) -> Report {
        let (plan, args, totals) = (&run.plan, &run.plan.args, outcome.total);
        let per_second = |count: u64| count as f64 / args.secs as f64;
        let expected = expected(run, &totals);
        let lost = expected.saturating_sub(totals.received);
        let taken = if args.qos > 0 { totals.acked_window } else { totals.sent_window };
        let churn = args.pattern == Pattern::Churn;
        let delivered = if churn { totals.cycles_window } else { totals.received_window };
        let faults = lost + totals.duplicates + totals.order_faults + totals.closed;
        let processes = outcome.watched.iter().map(|process| {
            let ready = (args.pattern == Pattern::Idle).then_some(totals.ready);
            Process::new(process, args.secs, delivered, ready)
        });
        Report {
            pattern: format!("{:?}", args.pattern).to_lowercase(),
            transport: args.carrier.name(),
            publishers: plan.pubs,
            subscribers: plan.subs,
            qos: args.qos,
            mqtt: args.version,
            payload_bytes: args.payload,
            rate: args.rate,
            window: args.window,
            persistent: args.persistent,
            seconds: args.secs,
            connections: totals.ready,
            connect_seconds: outcome.connect_secs,
            connects_per_second: totals.ready as f64 / outcome.connect_secs.max(1e-3),
            in_per_second: per_second(taken),
            out_per_second: per_second(totals.received_window),
            out_mib_per_second: per_second(totals.received_window_bytes) / f64::from(1 << 20),
            cycles_per_second: per_second(totals.cycles_window),
            drain_seconds: outcome.drain_secs,
            expected,
            lost,
            not_sent: totals.due.saturating_sub(totals.sent),
            totals,
            delivery: latency(&outcome.latencies.delivery),
            acknowledgement: latency(&outcome.latencies.ack),
            connect: latency(&outcome.latencies.connect),
            processes: processes.collect(),
            faultless: faults + totals.failed == 0,
            first_fault: run.first_fault(),
        }
    }

    /// Lost, doubled, reordered.
    #[cfg(test)]
    pub(super) fn faults(&self) -> (u64, u64, u64) {
        (self.lost, self.totals.duplicates, self.totals.order_faults)
    }

    #[cfg(test)]
    pub(super) fn delivered(&self) -> u64 {
        self.totals.received
    }

    /// Nothing lost, doubled, reordered or disconnected.
    pub(super) fn faultless(&self) -> bool {
        self.faultless
    }

    fn write_rates(&self, out: &mut impl Write) -> fmt::Result {
        match self.pattern.as_str() {
            "idle" => writeln!(out, "connections      {:>12}", self.connections)?,
            "churn" => {
                writeln!(out, "connects         {:>12.0} /s", self.cycles_per_second)?;
                return writeln!(out, "failed           {:>12}", self.totals.failed);
            }
            _ => {
                writeln!(out, "accepted         {:>12.0} msg/s", self.in_per_second)?;
                writeln!(
                    out,
                    "delivered        {:>12.0} msg/s, {:.1} MiB/s",
                    self.out_per_second, self.out_mib_per_second
                )?;
                let not_sent = match self.not_sent {
                    0 => String::new(),
                    count => format!(", {count} scheduled but not sent"),
                };
                writeln!(
                    out,
                    "whole run        {:>12} sent, {} of {} received{not_sent}",
                    self.totals.sent, self.totals.received, self.expected
                )?;
                writeln!(out, "drained          {:>12.2} s after the window", self.drain_seconds)?;
            }
        }
        writeln!(out, "connected        {:>12.0} /s", self.connects_per_second)
    }

    fn write_faults(&self, out: &mut impl Write) -> fmt::Result {
        let totals = &self.totals;
        writeln!(
            out,
            "lost {}, duplicates {}, order faults {}, redelivered {}, refused {}, foreign {}, \
             disconnected {}",
            self.lost,
            totals.duplicates,
            totals.order_faults,
            totals.redelivered,
            totals.refused,
            totals.foreign,
            totals.closed,
        )?;
        if totals.tls_full + totals.tls_resumed > 0 {
            let (full, resumed) = (totals.tls_full, totals.tls_resumed);
            writeln!(out, "TLS handshakes: {full} full, {resumed} resumed")?;
        }
        if totals.downgrade > 0 {
            writeln!(out, "the broker granted a QoS lower by {}", totals.downgrade)?;
        }
        match &self.first_fault {
            Some(fault) => writeln!(out, "first fault: {fault}"),
            None => Ok(()),
        }
    }
}

impl Process {
    fn new(seen: &Watched, secs: u64, delivered: u64, connections: Option<u64>) -> Process {
        let cpu_us = seen.to.cpu_us.saturating_sub(seen.from.cpu_us) as f64;
        let grown = seen.to.rss_bytes as f64 - seen.before.rss_bytes as f64;
        Process {
            pid: seen.pid,
            generator: seen.pid == std::process::id(),
            cores: cpu_us / 1e6 / secs as f64,
            cpu_us_per_message: (delivered > 0).then(|| cpu_us / delivered as f64),
            rss_before_bytes: seen.before.rss_bytes,
            rss_bytes: seen.to.rss_bytes,
            rss_max_bytes: seen.rss_max_bytes,
            rss_bytes_per_connection: connections
                .filter(|count| *count > 0)
                .map(|count| grown / count as f64),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = if self.rate > 0 { format!("{}/s", self.rate) } else { "unthrottled".into() };
        writeln!(
            out,
            "{} over {} {} -> {}, QoS {}, {} B, {rate}, MQTT {}{}, {} s",
            self.pattern,
            self.transport,
            self.publishers,
            self.subscribers,
            self.qos,
            self.payload_bytes,
            self.mqtt,
            if self.persistent { ", persistent" } else { "" },
            self.seconds,
        )?;
        self.write_rates(out)?;
        let rows = [
            ("send to receipt", &self.delivery),
            ("send to ack", &self.acknowledgement),
            ("connect", &self.connect),
        ];
        if rows.iter().any(|(_, latency)| latency.is_some()) {
            writeln!(out, "latency, ms             p50       p95       p99     p99.9       max")?;
        }
        for (name, latency) in rows {
            let Some(row) = latency else { continue };
            writeln!(
                out,
                "{name:<16} {:>10.3} {:>9.3} {:>9.3} {:>9.3} {:>9.3}",
                row.p50_ms, row.p95_ms, row.p99_ms, row.p999_ms, row.max_ms
            )?;
        }
        for process in &self.processes {
            let name = if process.generator { "generator" } else { "process" };
            write!(
                out,
                "{:<16} {:>5.2} cores, peak RSS {:.1} MiB",
                format!("{name} {}", process.pid),
                process.cores,
                process.rss_max_bytes as f64 / f64::from(1 << 20),
            )?;
            if let Some(cpu_us) = process.cpu_us_per_message {
                write!(out, ", {cpu_us:.2} us CPU per message")?;
            }
            if let Some(bytes) = process.rss_bytes_per_connection {
                write!(out, ", {bytes:.0} B RSS per connection")?;
            }
            writeln!(out)?;
        }
        self.write_faults(out)
    }
}
