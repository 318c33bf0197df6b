//! From the cells to the text that Prometheus reads.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, MetricFamily, MetricType};
use prometheus::{Registry, TextEncoder};

use super::super::doors::{Door, Turned};
use super::super::drop_reason::{Direction, DropReason, dropped_so_far};
use super::cells::{BOUNDS_US, Timer};
use super::{READ, Series, Source, WRITTEN};

pub(super) const DROPPED: (&str, &str) =
    ("droppedMsgs_total", "Messages, or copies of one, that were not delivered.");
pub(super) const DROPPED_BY_REASON: (&str, &str) = (
    "droppedMsgs_by_reason_total",
    "Messages, or copies of one, that were not delivered, by why and on which side.",
);
pub(super) const ACCEPTED: (&str, &str) =
    ("listenerConnections_total", "Connections accepted, by listener.");
pub(super) const OPEN: (&str, &str) =
    ("listenerOpenConnections", "Connections open now, by listener, with a session or not yet.");
pub(super) const SHAKEN: (&str, &str) = (
    "listenerTlsHandshakes_total",
    "TLS handshakes carried through, by listener and kind: full, or resumed from an earlier one.",
);
pub(super) const TURNED: (&str, &str) = (
    "listenerHandshakeFailures_total",
    "Connections that ended before their CONNECT was complete, by listener and cause.",
);

/// What [`render`] gives, as an HTTP header says it.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Runs before each reading of the page, to set gauges.
pub type ScrapeHook = Arc<dyn Fn() + Send + Sync>;

static HOOKS: Mutex<Vec<Weak<dyn Fn() + Send + Sync>>> = Mutex::new(Vec::new());

/// `hook` runs before each [`render`] for as long as the caller keeps it.
pub fn before_scrape(hook: &ScrapeHook) {
    let mut hooks = HOOKS.lock();
    hooks.retain(|other| other.strong_count() > 0);
    hooks.push(Arc::downgrade(hook));
}

/// The whole page, in Prometheus' text form.
pub fn render() -> Result<String, prometheus::Error> {
    let hooks: Vec<ScrapeHook> = HOOKS.lock().iter().filter_map(Weak::upgrade).collect();
    for hook in hooks {
        hook();
    }
    TextEncoder::new().encode_to_string(&registry()?.gather())
}

fn registry() -> Result<&'static Registry, prometheus::Error> {
    static REGISTRY: OnceLock<Result<Registry, String>> = OnceLock::new();
    let made = REGISTRY.get_or_init(|| make_registry().map_err(|fault| fault.to_string()));
    made.as_ref().map_err(|fault| prometheus::Error::Msg(fault.clone()))
}

fn make_registry() -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(Catalogue::new()?))?;
    Ok(registry)
}

/// One family: the series that share a name.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: MetricType,
    pub(super) labels: Vec<&'static str>,
    series: Vec<&'static Series>,
}

/// Every family on the page, in the catalogue's order.
pub(super) fn families() -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for series in WRITTEN.iter().chain(READ) {
        match families.last_mut().filter(|family| family.name == series.name) {
            Some(family) => family.series.push(series),
            None => families.push(Family {
                name: series.name,
                help: series.help,
                kind: kind(&series.source),
                labels: series.labels.iter().map(|(name, _)| *name).collect(),
                series: vec![series],
            }),
        }
    }
    let (counter, gauge) = (MetricType::COUNTER, MetricType::GAUGE);
    for ((name, help), kind, labels) in [
        (DROPPED, counter, vec![]),
        (DROPPED_BY_REASON, counter, vec!["reason", "direction"]),
        (ACCEPTED, counter, vec!["listener"]),
        (OPEN, gauge, vec!["listener"]),
        (SHAKEN, counter, vec!["listener", "kind"]),
        (TURNED, counter, vec!["listener", "cause"]),
    ] {
        families.push(Family { name, help, kind, labels, series: vec![] });
    }
    families
}

fn kind(source: &Source) -> MetricType {
    match source {
        Source::Counter(_) | Source::ReadCounter(_) => MetricType::COUNTER,
        Source::Gauge(_) | Source::Level(_) | Source::ReadGauge(_) => MetricType::GAUGE,
        Source::Timer(_) => MetricType::HISTOGRAM,
    }
}

struct Catalogue {
    descs: Vec<Desc>,
    families: Vec<Family>,
}

impl Catalogue {
    fn new() -> Result<Catalogue, prometheus::Error> {
        let families = families();
        let descs = families
            .iter()
            .map(|family| {
                let labels = family.labels.iter().map(ToString::to_string).collect();
                Desc::new(family.name.into(), family.help.into(), labels, HashMap::new())
            })
            .collect::<Result<Vec<Desc>, prometheus::Error>>()?;
        Ok(Catalogue { descs, families })
    }
}

impl Collector for Catalogue {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.families
            .iter()
            .map(|family| {
                let mut out = MetricFamily::default();
                out.set_name(family.name.into());
                out.set_help(family.help.into());
                out.set_field_type(family.kind);
                out.set_metric(metrics_of(family));
                out
            })
            .collect()
    }
}

fn metrics_of(family: &Family) -> Vec<proto::Metric> {
    if family.name == DROPPED.0 {
        let sum = drops().map(|(_, _, n)| n).sum();
        return vec![counter(&[], sum)];
    }
    if family.name == DROPPED_BY_REASON.0 {
        return drops()
            .map(|(reason, direction, n)| {
                counter(&[("reason", reason.text()), ("direction", side(direction))], n)
            })
            .collect();
    }
    if family.name == ACCEPTED.0 {
        let one = |door: Door| counter(&[("listener", door.text())], door.accepted_so_far());
        return Door::ALL.map(one).into();
    }
    if family.name == OPEN.0 {
        let one = |door: Door| {
            let mut out = labelled(&[("listener", door.text())]);
            out.set_gauge(gauge(door.open() as f64));
            out
        };
        return Door::ALL.map(one).into();
    }
    if family.name == SHAKEN.0 {
        let one = |door: Door, kind, resumed| {
            counter(&[("listener", door.text()), ("kind", kind)], door.shaken_so_far(resumed))
        };
        let doors = [Door::Ssl, Door::Wss].into_iter();
        let of_door = |door| [one(door, "full", false), one(door, "resumed", true)];
        return doors.flat_map(of_door).collect();
    }
    if family.name == TURNED.0 {
        let one = |door: Door, why: Turned| {
            let labels = [("listener", door.text()), ("cause", why.text())];
            counter(&labels, door.turned_so_far(why))
        };
        let of_door = |door| Turned::ALL.map(|why| one(door, why));
        return Door::ALL.map(of_door).into_iter().flatten().collect();
    }
    family.series.iter().filter_map(|series| metric(series)).collect()
}

fn drops() -> impl Iterator<Item = (DropReason, Direction, u64)> {
    DropReason::ALL.into_iter().flat_map(|reason| {
        [Direction::Inbound, Direction::Outbound]
            .map(|direction| (reason, direction, dropped_so_far(reason, direction)))
    })
}

fn side(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    }
}

fn metric(series: &Series) -> Option<proto::Metric> {
    let mut out = labelled(series.labels);
    match series.source {
        Source::Counter(cell) => return Some(counter(series.labels, cell.get())),
        Source::ReadCounter(read) => {
            let mut value = proto::Counter::default();
            value.set_value(read()?);
            out.set_counter(value);
        }
        Source::Gauge(cell) => out.set_gauge(gauge(cell.get() as f64)),
        Source::Level(cell) => out.set_gauge(gauge(cell.get() as f64)),
        Source::ReadGauge(read) => out.set_gauge(gauge(read()?)),
        Source::Timer(cell) => out.set_histogram(histogram(cell)),
    }
    Some(out)
}

fn labelled(labels: &[(&str, &str)]) -> proto::Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).into());
        pair.set_value((*value).into());
        pair
    });
    proto::Metric::from_label(pairs.collect())
}

fn counter(labels: &[(&str, &str)], n: u64) -> proto::Metric {
    let mut out = labelled(labels);
    let mut value = proto::Counter::default();
    value.set_value(n as f64);
    out.set_counter(value);
    out
}

fn gauge(value: f64) -> proto::Gauge {
    let mut gauge = proto::Gauge::default();
    gauge.set_value(value);
    gauge
}

fn histogram(timer: &Timer) -> proto::Histogram {
    let snapshot = timer.snapshot();
    let buckets = BOUNDS_US.iter().zip(snapshot.cumulative).map(|(bound_us, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*bound_us as f64 / 1e6);
        bucket.set_cumulative_count(count);
        bucket
    });
    let mut out = proto::Histogram::default();
    out.set_bucket(buckets.collect());
    out.set_sample_count(snapshot.count);
    out.set_sample_sum(snapshot.sum_seconds);
    out
}
