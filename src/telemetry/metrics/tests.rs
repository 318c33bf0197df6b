use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::clock::wall_ms;
use super::super::{Direction, DropReason, dropped};
use super::export::families;
use super::*;

fn page() -> String {
    render().unwrap()
}

fn value(page: &str, series: &str) -> f64 {
    let line =
        page.lines().find(|line| line.strip_prefix(series).is_some_and(|v| v.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{series} is not on the page"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// MET-1: a count made through a static is on the page under TBMQ's name.
#[test]
fn what_is_counted_is_on_the_page() {
    let before = value(&page(), "connectionRefused_total");
    CONNECTION_REFUSED.add(3);
    assert!(value(&page(), "connectionRefused_total") >= before + 3.0);
}

/// MET-1, MET-3: the total is the sum over the reasons, each with its written label.
#[test]
fn drops_appear_by_reason_and_in_the_total() {
    let series = "droppedMsgs_by_reason_total{reason=\"Packet too large\",direction=\"outbound\"}";
    let (by_reason, total) = (value(&page(), series), value(&page(), "droppedMsgs_total"));
    dropped(DropReason::PacketTooLarge, Direction::Outbound, 7);
    let page = page();
    assert!(value(&page, series) >= by_reason + 7.0);
    assert!(value(&page, "droppedMsgs_total") >= total + 7.0);
    assert_eq!(page.matches("\ndroppedMsgs_by_reason_total{").count(), 2 * DropReason::ALL.len());
}

#[test]
fn a_timer_is_a_histogram_in_seconds() {
    RETAINED_LOOKUP.observe(std::time::Duration::from_micros(700));
    let page = page();
    assert!(page.contains("# TYPE retainedMsgLookup_seconds histogram"));
    let count = value(&page, "retainedMsgLookup_seconds_count");
    assert_eq!(value(&page, "retainedMsgLookup_seconds_bucket{le=\"+Inf\"}"), count);
    let up_to =
        |le: &str| value(&page, &format!("retainedMsgLookup_seconds_bucket{{le=\"{le}\"}}"));
    assert!(up_to("0.001") > up_to("0.0005"), "700 us lie between the two");
}

/// MEM-05: the number of series does not depend on what was counted.
#[test]
fn the_number_of_series_is_fixed() {
    let count = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    let before = count(&page());
    for reason in DropReason::ALL {
        dropped(reason, Direction::Inbound, 1);
    }
    PUBLISHED_FAILED.inc();
    assert_eq!(count(&page()), before);
}

#[test]
fn hooks_run_before_each_reading_and_end_with_their_owner() {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let runs = || RUNS.load(Ordering::Relaxed);
    let hook: ScrapeHook = Arc::new(|| {
        RUNS.fetch_add(1, Ordering::Relaxed);
    });
    before_scrape(&hook);
    page();
    let first = runs();
    page();
    assert!(first > 0 && runs() > first);
    drop(hook);
    // A reading that began in another test may still hold the hook.
    let ends = || {
        let last = runs();
        page();
        runs() == last
    };
    assert!((0..100).any(|_| ends()));
}

#[test]
fn a_family_is_declared_in_one_place() {
    let families = families();
    let names: BTreeSet<&str> = families.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), families.len(), "series of one name must stand together");
    for series in WRITTEN {
        let family = families.iter().find(|family| family.name == series.name).unwrap();
        let labels: Vec<&str> = series.labels.iter().map(|(name, _)| *name).collect();
        assert_eq!(family.labels, labels, "{}", series.name);
        assert_eq!(family.help, series.help, "{}", series.name);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_tells_about_itself() {
    let page = page();
    assert!(value(&page, "process_resident_memory_bytes") > 1e6);
    assert!(value(&page, "process_cpu_seconds_total") > 0.0);
    assert!(value(&page, "process_open_fds") >= 3.0);
    assert!(value(&page, "process_max_fds") > value(&page, "process_open_fds"));
    let age = wall_ms() as f64 / 1000.0 - value(&page, "process_start_time_seconds");
    assert!((-1.0..86_400.0).contains(&age), "{age} s old");
}

/// `UPDATE_DOCS=1 cargo test` writes the file anew.
#[test]
fn the_manual_lists_exactly_the_metrics_there_are() {
    let mut text = String::from(
        "# Metrics\n\n\
         `GET /actuator/prometheus` on `HTTP_BIND_PORT` (8083). This page is made from the \
         catalogue in\n`src/telemetry/metrics`; a test compares them. Names are TBMQ's where TBMQ \
         has the thing. No label takes its\nvalues from traffic, so the number of series is \
         fixed. A histogram `x_seconds` gives `x_seconds_bucket`,\n`x_seconds_sum` and \
         `x_seconds_count`. Values are this node's.\n\n\
         | Name | Type | Labels | Meaning |\n|---|---|---|---|\n",
    );
    for family in families() {
        let kind = format!("{:?}", family.kind).to_lowercase();
        let labels = if family.labels.is_empty() { "–".into() } else { family.labels.join(", ") };
        text.push_str(&format!("| `{}` | {kind} | {labels} | {} |\n", family.name, family.help));
    }
    text.push_str("\n`direction` is `inbound` or `outbound`; `reason` is one of: ");
    text.push_str(&DropReason::ALL.map(DropReason::text).join(", "));
    text.push_str(".\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/metrics.md: UPDATE_DOCS=1 cargo test metrics");
}
