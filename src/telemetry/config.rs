//! What an operator decides about reports, and the rate windows that several rooms' settings use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How often a line of totals goes to the log; `None`: never.
    pub stats_period: Option<Duration>,
}

/// At most `limit` in any `seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateWindow {
    pub limit: u64,
    pub seconds: u64,
}

/// Windows that must all hold (LIM-1); never empty.
#[derive(Clone, PartialEq, Eq)]
pub struct RateWindows(Arc<[RateWindow]>);

impl RateWindows {
    /// Reads `limit:seconds,limit:seconds`; `None` when the text has another form (LIM-3).
    pub fn parse(text: &str) -> Option<RateWindows> {
        text.split(',')
            .map(|pair| {
                let (limit, seconds) = pair.split_once(':')?;
                let window = RateWindow { limit: number(limit)?, seconds: number(seconds)? };
                Some(window)
            })
            .collect::<Option<Vec<RateWindow>>>()
            .map(|windows| RateWindows(windows.into()))
    }

    pub fn windows(&self) -> &[RateWindow] {
        &self.0
    }
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
        let pairs = self.0.iter().map(|window| format!("{}:{}", window.limit, window.seconds));
        f.write_str(&pairs.collect::<Vec<String>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LIM-1: comma-separated pairs, all kept.
    #[test]
    fn pairs_are_read_in_order() {
        let windows = RateWindows::parse("10:1, 300:60").unwrap();
        assert_eq!(windows.windows()[1], RateWindow { limit: 300, seconds: 60 });
        assert_eq!(format!("{windows:?}"), "10:1,300:60");
    }

    /// LIM-3
    #[test]
    fn another_form_is_refused() {
        for bad in ["10", "a:1", "0:1", "10:0", "", ",", "10:1,", "-1:1", "+1:1", "1:1:1", "1.5:1"]
        {
            assert_eq!(RateWindows::parse(bad), None, "{bad:?}");
        }
        assert_eq!(RateWindows::parse("99999999999999999999:1"), None);
    }
}
