//! Rates as an operator writes them, and the arithmetic that holds them: a cell per window says
//! until when the window is used up, so a client costs eight bytes a window.

use std::fmt;
use std::sync::Arc;

/// Windows in one limit. More stop the start: what one client costs has a bound.
pub const WINDOWS_MAX: usize = 4;
/// The longest window, a year of seconds. Longer ones stop the start.
const SECONDS_MAX: u64 = 31_536_000;
/// Time is counted in 16ths of a nanosecond: fine enough for a billion bytes a second, and 36
/// years fit.
const TICKS_PER_NANO: u64 = 16;

/// What a window counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Messages,
    /// Of payload, properties and topic.
    Bytes,
}

/// At most `limit` at once, and `limit` in `seconds` in the long run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateWindow {
    pub limit: u64,
    pub seconds: u64,
    pub unit: Unit,
}

/// Windows that must all hold (LIM-1); one to [`WINDOWS_MAX`].
#[derive(Clone, PartialEq, Eq)]
pub struct RateWindows(Arc<[RateWindow]>);

impl RateWindows {
    /// Reads `limit:seconds,bytes:limit:seconds,…`; `None` when the text has another form (LIM-3).
    pub fn parse(text: &str) -> Option<RateWindows> {
        let windows = text.split(',').map(window).collect::<Option<Vec<RateWindow>>>()?;
        (windows.len() <= WINDOWS_MAX).then(|| RateWindows(windows.into()))
    }

    /// The same, where bytes have no meaning.
    pub fn parse_counts(text: &str) -> Option<RateWindows> {
        let windows = RateWindows::parse(text)?;
        windows.0.iter().all(|window| window.unit == Unit::Messages).then_some(windows)
    }

    /// One window of messages; both numbers at least 1.
    pub fn of_messages(limit: u64, seconds: u64) -> RateWindows {
        let (limit, seconds) = (limit.max(1), seconds.clamp(1, SECONDS_MAX));
        RateWindows(Arc::from([RateWindow { limit, seconds, unit: Unit::Messages }]))
    }

    pub fn windows(&self) -> &[RateWindow] {
        &self.0
    }

    /// What holds in the long run: the least limit by seconds (QUO-2), for `seconds` of them.
    pub fn sustained(&self, seconds: f64) -> f64 {
        let rates = self.0.iter().map(|window| window.limit as f64 / window.seconds as f64);
        rates.fold(f64::INFINITY, f64::min) * seconds
    }
}

fn window(text: &str) -> Option<RateWindow> {
    let text = text.trim();
    let (unit, pair) = match text.strip_prefix("bytes:") {
        Some(pair) => (Unit::Bytes, pair),
        None => (Unit::Messages, text),
    };
    let (limit, seconds) = pair.split_once(':')?;
    let (limit, seconds) = (number(limit)?, number(seconds)?);
    (seconds <= SECONDS_MAX).then_some(RateWindow { limit, seconds, unit })
}

/// 1 to 4294967295, in digits only.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits { text.parse::<u32>().ok()? } else { return None };
    (value > 0).then_some(u64::from(value))
}

impl fmt::Debug for RateWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.0.iter().map(|window| {
            let prefix = match window.unit {
                Unit::Messages => "",
                Unit::Bytes => "bytes:",
            };
            format!("{prefix}{}:{}", window.limit, window.seconds)
        });
        f.write_str(&pairs.collect::<Vec<String>>().join(","))
    }
}

/// What one client has used: for each window, the tick at which it is whole again. A cell in the
/// past says "untouched", so whoever was idle for the longest window needs no cells at all.
pub(super) type Cells = [u64; WINDOWS_MAX];

/// A moment, in ticks since a table began.
pub(super) fn ticks(nanos: u64) -> u64 {
    nanos.saturating_mul(TICKS_PER_NANO)
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    /// What one message or byte uses up. Rounded up: a limit is never exceeded for rounding.
    one: u64,
    /// The whole window.
    all: u64,
    unit: Unit,
}

/// Windows made ready for the hot path.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    paces: [Pace; WINDOWS_MAX],
    used: usize,
}

impl Meter {
    pub(super) fn new(windows: &RateWindows) -> Self {
        let mut paces = [Pace { one: 0, all: 0, unit: Unit::Messages }; WINDOWS_MAX];
        let used = windows.windows().len().min(WINDOWS_MAX);
        for (pace, window) in paces.iter_mut().zip(windows.windows()) {
            let whole = ticks(window.seconds * 1_000_000_000);
            let one = whole.div_ceil(window.limit);
            *pace = Pace { one, all: one * window.limit, unit: window.unit };
        }
        Self { paces, used }
    }

    /// Takes one message of so many bytes from every window, or from none.
    pub(super) fn take(&self, cells: &mut Cells, now: u64, bytes: u64) -> bool {
        let mut after = *cells;
        for (cell, pace) in after.iter_mut().zip(&self.paces[..self.used]) {
            let n = match pace.unit {
                Unit::Messages => 1,
                Unit::Bytes => bytes,
            };
            *cell = (*cell).max(now).saturating_add(pace.one.saturating_mul(n));
            if *cell > now.saturating_add(pace.all) {
                return false;
            }
        }
        *cells = after;
        true
    }

    /// Whether nothing of what was used is left to remember.
    pub(super) fn is_whole(&self, cells: &Cells, now: u64) -> bool {
        cells[..self.used].iter().all(|cell| *cell <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIM-1: comma-separated pairs, all kept.
    #[test]
    fn pairs_are_read_in_order() {
        let windows = RateWindows::parse("10:1, 300:60,bytes:5000:2").expect("a good text");
        let second = RateWindow { limit: 300, seconds: 60, unit: Unit::Messages };
        assert_eq!(windows.windows()[1], second);
        assert_eq!(format!("{windows:?}"), "10:1,300:60,bytes:5000:2");
        assert_eq!(windows.sustained(60.0), 300.0);
    }

    /// LIM-3
    #[test]
    fn another_form_is_refused() {
        for bad in ["10", "a:1", "0:1", "10:0", "", ",", "10:1,", "-1:1", "+1:1", "1:1:1", "1.5:1"]
        {
            assert_eq!(RateWindows::parse(bad), None, "{bad:?}");
        }
        for bad in ["99999999999999999999:1", "1:31536001", "1:1,1:2,1:3,1:4,1:5", "byte:1:1"] {
            assert_eq!(RateWindows::parse(bad), None, "{bad:?}");
        }
        assert_eq!(RateWindows::parse_counts("bytes:1:1"), None);
    }

    /// A plain model of one window: tokens and their fractions, exact.
    struct Model {
        window: RateWindow,
        /// In messages or bytes, times the nanoseconds of the window.
        tokens: u128,
        at: u64,
    }

    impl Model {
        fn scale(&self) -> u128 {
            u128::from(self.window.seconds) * 1_000_000_000
        }

        fn refill(&mut self, now_ns: u64) {
            let full = u128::from(self.window.limit) * self.scale();
            let fresh = u128::from(now_ns - self.at) * u128::from(self.window.limit);
            self.tokens = (self.tokens + fresh).min(full);
            self.at = now_ns;
        }
    }

    /// LIM-1: whatever comes, no window is ever exceeded, and nothing is refused that all windows
    /// hold, but for the rounding of one 16th of a nanosecond a message.
    #[test]
    fn random_traffic_equals_the_model() {
        let windows = RateWindows::parse("7:1,30:10,bytes:900:1").expect("a good text");
        let meter = Meter::new(&windows);
        let (mut cells, mut now_ns, mut seed) = (Cells::default(), 0_u64, 1_u64);
        let mut models: Vec<Model> = windows
            .windows()
            .iter()
            .map(|&window| {
                let scale = u128::from(window.seconds) * 1_000_000_000;
                Model { window, tokens: u128::from(window.limit) * scale, at: 0 }
            })
            .collect();
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..200_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            now_ns += [0, 1_000_003, 77_000_011, 900_000_017][(seed >> 62) as usize];
            let bytes = (seed >> 40) % 400;
            let need = |model: &Model| match model.window.unit {
                Unit::Messages => model.scale(),
                Unit::Bytes => u128::from(bytes) * model.scale(),
            };
            models.iter_mut().for_each(|model| model.refill(now_ns));
            // Within what rounding may have cost since the windows were last whole.
            let slack = 1_000_000;
            let holds = models.iter().all(|model| model.tokens >= need(model));
            let surely = models.iter().all(|model| model.tokens >= need(model) + slack);
            if meter.take(&mut cells, ticks(now_ns), bytes) {
                assert!(holds, "taken beyond a window at {now_ns}");
                models.iter_mut().for_each(|model| model.tokens -= need(model));
                taken += 1;
            } else {
                assert!(!surely, "refused within all windows at {now_ns}");
                refused += 1;
            }
        }
        assert!(taken > 10_000 && refused > 10_000, "{taken} {refused}");
    }

    #[test]
    fn a_window_gives_its_whole_limit_at_once_and_then_evenly() {
        let meter = Meter::new(&RateWindows::of_messages(10, 1));
        let mut cells = Cells::default();
        let at_once = (0..100).filter(|_| meter.take(&mut cells, ticks(5), 0)).count();
        assert_eq!(at_once, 10);
        assert!(!meter.take(&mut cells, ticks(99_999_999), 0));
        assert!(meter.take(&mut cells, ticks(100_000_005), 0));
        assert!(!meter.is_whole(&cells, ticks(1_000_000_000)));
        assert!(meter.is_whole(&cells, ticks(1_200_000_000)));
    }
}
