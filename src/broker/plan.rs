//! What an installed plan makes of the configuration.

use std::time::Duration;

use crate::config::Config;
use crate::limits::RateWindows;
use crate::plan::{Plan, PlanError};
use crate::telemetry::clock::wall_ms;

/// How long a running node takes new sessions after its plan expired.
const GRACE_MS: u64 = 72 * 3600 * 1000;
const SAY_EVERY: Duration = Duration::from_secs(3600);

/// Reads the plan, if there is one, and puts it over the settings: it can't be enlarged or
/// switched off by them. One that is not in force stops the start.
pub(super) fn apply(config: &mut Config) -> Result<Option<Plan>, PlanError> {
    let Some(file) = &config.plan_file else { return Ok(None) };
    let plan = Plan::load(file, wall_ms() / 1000)?;
    put_over(config, &plan);
    tracing::info!(
        name = plan.name,
        throughput = plan.throughput,
        sessions = plan.sessions,
        expires_at = plan.expires_at_s,
        "the plan is in force"
    );
    Ok(Some(plan))
}

fn put_over(config: &mut Config, plan: &Plan) {
    let session = &mut config.session;
    session.total_rate.windows = Some(RateWindows::of_messages(plan.throughput.into(), 1));
    let limits = [session.sessions_limit, plan.sessions.map(u64::from)];
    session.sessions_limit = limits.into_iter().flatten().min();
    session.new_sessions_until_ms = Some(plan.expires_at_s.saturating_mul(1000) + GRACE_MS);
}

/// Tells once an hour that the plan has expired.
pub(super) async fn watch(plan: Plan) {
    loop {
        let now_s = wall_ms() / 1000;
        if plan.check(now_s).is_ok() {
            let left = Duration::from_secs(plan.expires_at_s - now_s);
            tokio::time::sleep(left.min(SAY_EVERY)).await;
            continue;
        }
        let name = &plan.name;
        tracing::warn!(name, "the plan has expired: 72 h after that, no new session is taken");
        tokio::time::sleep(SAY_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn config(env: &'static [(&str, &str)]) -> Config {
        let of = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        config::load(None, &of).expect("a good configuration").config
    }

    fn plan(sessions: Option<u32>) -> Plan {
        Plan { name: "p".into(), throughput: 500, sessions, expires_at_s: 1_900_000_000 }
    }

    /// QUO-1: with a plan the quota is on, and no setting enlarges or disables it; a smaller number
    /// of sessions may be set.
    #[test]
    fn a_plan_stands_over_the_settings() {
        for env in [
            &[][..],
            &[("MQTT_TOTAL_RATE_LIMITS_ENABLED", "false")],
            &[
                ("MQTT_TOTAL_RATE_LIMITS_ENABLED", "true"),
                ("MQTT_TOTAL_RATE_LIMITS_CONFIG", "1000000:1"),
                ("MQTT_SESSIONS_LIMIT", "5000"),
            ],
        ] {
            let mut config = config(env);
            put_over(&mut config, &plan(Some(1000)));
            let windows = config.session.total_rate.windows.expect("on");
            assert_eq!(format!("{windows:?}"), "500:1");
            assert_eq!(config.session.sessions_limit, Some(1000));
            let until_ms = config.session.new_sessions_until_ms;
            assert_eq!(until_ms, Some((1_900_000_000 + 72 * 3600) * 1000));
        }
        let mut fewer = config(&[("MQTT_SESSIONS_LIMIT", "10")]);
        put_over(&mut fewer, &plan(None));
        assert_eq!(fewer.session.sessions_limit, Some(10));
    }

    /// No plan: nothing of the settings changes.
    #[test]
    fn without_a_plan_the_settings_hold() {
        let (mut one, other) = (config(&[]), config(&[]));
        assert_eq!(apply(&mut one), Ok(None));
        assert_eq!(one, other);
    }
}
