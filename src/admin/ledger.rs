//! `/api/dropped-messages`: who lost what (MET-2), in pages.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::access::{Administrator, Viewer};
use super::error::{ApiError, ErrorBody};

use crate::telemetry::ledger::{self, DroppedRow};
use crate::telemetry::{Direction, DropReason};

/// Rows in one reply. More is refused with 400.
const PAGE_SIZE_MAX: usize = 1000;

pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list, clear))
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
enum SortBy {
    ClientId,
    Topic,
    Reason,
    Direction,
    Count,
    FirstTs,
    #[default]
    LastTs,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
enum SortOrder {
    #[serde(rename = "ASC", alias = "asc")]
    Ascending,
    #[default]
    #[serde(rename = "DESC", alias = "desc")]
    Descending,
}

/// What may be asked for, in TBMQ's words.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Asked {
    page: usize,
    page_size: Option<usize>,
    sort_property: SortBy,
    sort_order: SortOrder,
    /// The label text of MET-3, whatever its case.
    reason: Option<String>,
    /// A part of it; the same for the topic.
    client_id: Option<String>,
    topic: Option<String>,
    direction: Option<String>,
    /// Rows with a loss in this time, milliseconds.
    start_time: Option<u64>,
    end_time: Option<u64>,
}

/// The same, checked.
struct Wanted {
    reason: Option<DropReason>,
    direction: Option<Direction>,
    asked: Asked,
}

impl Asked {
    fn checked(self) -> Result<Wanted, String> {
        let known = |text: &String| {
            let found =
                DropReason::ALL.into_iter().find(|why| why.text().eq_ignore_ascii_case(text));
            found.ok_or_else(|| format!("reason {text:?} is not known"))
        };
        let reason = self.reason.as_ref().map(known).transpose()?;
        let side = |text: &String| match text.to_ascii_uppercase().as_str() {
            "INBOUND" => Ok(Direction::Inbound),
            "OUTBOUND" => Ok(Direction::Outbound),
            _ => Err(format!("direction {text:?} is neither INBOUND nor OUTBOUND")),
        };
        let direction = self.direction.as_ref().map(side).transpose()?;
        if !(1..=PAGE_SIZE_MAX).contains(&self.page_size()) {
            return Err(format!("pageSize is 1 to {PAGE_SIZE_MAX}"));
        }
        Ok(Wanted { reason, direction, asked: self })
    }

    fn page_size(&self) -> usize {
        self.page_size.unwrap_or(20)
    }
}

impl Wanted {
    fn fits(&self, row: &DroppedRow) -> bool {
        let asked = &self.asked;
        let part = |part: &Option<String>, of: &str| part.as_ref().is_none_or(|p| of.contains(p));
        self.reason.is_none_or(|reason| reason == row.reason)
            && self.direction.is_none_or(|direction| direction == row.direction)
            && part(&asked.client_id, &row.client)
            && part(&asked.topic, &row.topic)
            && asked.start_time.is_none_or(|start| row.last_ms >= start)
            && asked.end_time.is_none_or(|end| row.first_ms <= end)
    }

    fn order(&self, a: &DroppedRow, b: &DroppedRow) -> Ordering {
        let by = match self.asked.sort_property {
            SortBy::ClientId => a.client.cmp(&b.client),
            SortBy::Topic => a.topic.cmp(&b.topic),
            SortBy::Reason => a.reason.text().cmp(b.reason.text()),
            SortBy::Direction => a.direction.cmp(&b.direction),
            SortBy::Count => a.count.cmp(&b.count),
            SortBy::FirstTs => a.first_ms.cmp(&b.first_ms),
            SortBy::LastTs => a.last_ms.cmp(&b.last_ms),
        };
        let by = match self.asked.sort_order {
            SortOrder::Ascending => by,
            SortOrder::Descending => by.reverse(),
        };
        // A row keeps its page while nothing changes.
        let name = |row: &DroppedRow| (row.client.clone(), row.topic.clone(), row.reason);
        by.then_with(|| name(a).cmp(&name(b))).then_with(|| a.direction.cmp(&b.direction))
    }

    fn reply(&self, mut rows: Vec<DroppedRow>) -> Value {
        rows.retain(|row| self.fits(row));
        rows.sort_unstable_by(|a, b| self.order(a, b));
        let (total, size) = (rows.len(), self.asked.page_size());
        let count: u64 = rows.iter().map(|row| row.count).sum();
        let from = self.asked.page.saturating_mul(size).min(total);
        let to = (from + size).min(total);
        let data: Vec<Value> = rows[from..to].iter().map(describe).collect();
        json!({
            "data": data,
            "totalPages": total.div_ceil(size),
            "totalElements": total,
            "hasNext": to < total,
            "totalCount": count,
        })
    }
}

fn describe(row: &DroppedRow) -> Value {
    json!({
        "clientId": &*row.client,
        "topic": &*row.topic,
        "reason": row.reason.text(),
        "direction": match row.direction {
            Direction::Inbound => "INBOUND",
            Direction::Outbound => "OUTBOUND",
        },
        "count": row.count,
        "firstTs": row.first_ms,
        "lastTs": row.last_ms,
    })
}

/// Lists what was dropped, by client, topic, reason and direction.
#[utoipa::path(get, path = "/api/dropped-messages", tag = "dropped messages", params(Asked),
    responses((status = 200, body = Value), (status = 400, body = ErrorBody)))]
async fn list(
    _: Viewer,
    State(api): State<Arc<Api>>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let wanted = match asked {
        Ok(Query(asked)) => asked.checked(),
        Err(fault) => Err(fault.body_text()),
    };
    let wanted = wanted.map_err(|text| ApiError::new(StatusCode::BAD_REQUEST, text))?;
    let others = match &api.losses {
        Some(losses) => losses.others().await.ok(),
        None => Some(Vec::new()),
    };
    let partial = others.is_none();
    let others = others.unwrap_or_default();
    // The whole table is looked through: not on a worker thread.
    let reply = tokio::task::spawn_blocking(move || {
        let rows = match others.is_empty() {
            true => ledger::rows(),
            false => {
                let told = others.iter().filter_map(DroppedRow::from_pair);
                ledger::merged(ledger::rows().into_iter().chain(told))
            }
        };
        let mut reply = wanted.reply(rows);
        if partial {
            // Redis is away: this node's own rows are better than none.
            reply["partial"] = true.into();
        }
        reply
    });
    reply.await.map(Json).map_err(|_| ApiError::storage())
}

/// Forgets the rows of all nodes; the counters stay.
#[utoipa::path(delete, path = "/api/dropped-messages", tag = "dropped messages",
    responses((status = 200)))]
async fn clear(_: Administrator, State(api): State<Arc<Api>>) -> Result<StatusCode, ApiError> {
    if let Some(losses) = &api.losses {
        losses.delete().await.map_err(|_| ApiError::storage())?;
    }
    let cleared = tokio::task::spawn_blocking(ledger::clear).await;
    cleared.map(|()| StatusCode::OK).map_err(|_| ApiError::storage())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(client: &str, count: u64, last_ms: u64, reason: DropReason) -> DroppedRow {
        let (topic, direction) = ("t/1".into(), Direction::Outbound);
        DroppedRow { client: client.into(), topic, reason, direction, count, first_ms: 5, last_ms }
    }

    fn reply(query: &str) -> Value {
        let uri = format!("http://x/?{query}").parse().expect("a URI");
        let Query(asked) = Query::<Asked>::try_from_uri(&uri).expect("a good query");
        asked.checked().expect("good values").reply(vec![
            row("a", 3, 30, DropReason::RateLimits),
            row("b", 1, 50, DropReason::MessageExpired),
            row("ab", 2, 40, DropReason::RateLimits),
        ])
    }

    fn clients(reply: &Value) -> Vec<&str> {
        let rows = reply["data"].as_array().expect("rows");
        rows.iter().map(|row| row["clientId"].as_str().expect("a text")).collect()
    }

    /// MET-2: page, sort, filter by reason, client, topic, direction and time.
    #[test]
    fn rows_are_filtered_sorted_and_paged() {
        assert_eq!(clients(&reply("")), ["b", "ab", "a"], "the latest first");
        assert_eq!(clients(&reply("sortProperty=count&sortOrder=ASC")), ["b", "ab", "a"]);
        assert_eq!(clients(&reply("sortProperty=clientId&sortOrder=asc")), ["a", "ab", "b"]);
        assert_eq!(clients(&reply("reason=rate%20limits")), ["ab", "a"]);
        assert_eq!(clients(&reply("clientId=a")), ["ab", "a"]);
        assert_eq!(clients(&reply("startTime=41")), ["b"]);
        assert_eq!(clients(&reply("endTime=4")), [] as [&str; 0]);
        assert_eq!(clients(&reply("topic=t/2")), [] as [&str; 0]);
        assert_eq!(clients(&reply("direction=inbound")), [] as [&str; 0]);
        let first = reply("pageSize=2");
        assert_eq!((clients(&first), &first["hasNext"]), (vec!["b", "ab"], &true.into()));
        let last = reply("pageSize=2&page=1");
        assert_eq!((clients(&last), &last["hasNext"]), (vec!["a"], &false.into()));
        assert_eq!((&last["totalElements"], &last["totalCount"]), (&3.into(), &6.into()));
        assert_eq!(clients(&reply("page=999999999999")), [] as [&str; 0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let checked = |asked: Asked| asked.checked().map(|_| ()).expect_err("refused");
        let reason = Some("none".to_owned());
        assert!(checked(Asked { reason, ..Asked::default() }).contains("not known"));
        assert!(checked(Asked { page_size: Some(0), ..Asked::default() }).contains("pageSize"));
        let direction = Some("up".to_owned());
        assert!(checked(Asked { direction, ..Asked::default() }).contains("INBOUND"));
    }
}
