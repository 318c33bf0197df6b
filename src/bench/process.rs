//! CPU time and memory of processes, from /proc.

use std::fs;

/// Linux counts user and system time of /proc in hundredths of a second on every platform.
const TICK_US: u64 = 10_000;
/// Linux pages as /proc reports them; `statm` would need the page size, `status` does not.
const KIB: u64 = 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) cpu_us: u64,
    pub(super) rss_bytes: u64,
    pub(super) rss_peak_bytes: u64,
}

/// `None` once the process is gone.
pub(super) fn sample(pid: u32) -> Option<Sample> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Sample {
        cpu_us: cpu_us(&stat)?,
        rss_bytes: kib_line(&status, "VmRSS:")?,
        rss_peak_bytes: kib_line(&status, "VmHWM:")?,
    })
}

/// Sums user and system time. The name in brackets may hold blanks, so fields are counted
/// after it.
fn cpu_us(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) * TICK_US)
}

fn kib_line(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * KIB)
}

/// One process over the run.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) pid: u32,
    /// Before the first connection.
    pub(super) before: Sample,
    /// At the beginning and the end of the measured window.
    pub(super) from: Sample,
    pub(super) to: Sample,
    /// The largest seen in the run; the kernel's own peak may be older than the run.
    pub(super) rss_max_bytes: u64,
}

impl Watched {
    pub(super) fn new(pid: u32) -> Result<Watched, String> {
        let before = sample(pid).ok_or_else(|| format!("there is no process {pid}"))?;
        Ok(Watched { pid, before, from: before, to: before, rss_max_bytes: before.rss_bytes })
    }

    /// A sample now; a process that is gone keeps its last one.
    pub(super) fn look(&mut self) -> Sample {
        let seen = sample(self.pid).unwrap_or(self.to);
        self.rss_max_bytes = self.rss_max_bytes.max(seen.rss_bytes);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_a_name_with_blanks_and_brackets() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 1 0 5 6 7";
        assert_eq!(cpu_us(stat), Some(460_000));
    }

    #[test]
    fn own_process_has_memory_and_a_peak_not_below_it() {
        let seen = sample(std::process::id()).unwrap();
        assert!(seen.rss_bytes > 0 && seen.rss_peak_bytes >= seen.rss_bytes);
        assert_eq!(sample(u32::MAX), None);
    }
}
