//! Lists in pages, as TBMQ has them: `pageSize`, `page`, `textSearch`, `sortProperty`, `sortOrder`.
//! A list is never held as a whole: only what stands up to the end of the page is kept.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;
use crate::limits::{PAGE_ENTRIES, PAGE_REACH};

/// Which part of a list, and in which order.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub(super) struct PageLink {
    /// Entries of a page, 1 to 1000; 100 if not given.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<usize>,
    /// Its number, from 0 on.
    page: Option<usize>,
    /// Only entries that hold this text, whatever its case.
    text_search: Option<String>,
    /// A property of the entries.
    sort_property: Option<String>,
    /// `ASC` or `DESC`.
    sort_order: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageData<T> {
    data: Vec<T>,
    total_pages: usize,
    total_elements: usize,
    has_next: bool,
}

impl<T> PageData<T> {
    pub(super) fn map<U>(self, change: impl FnMut(T) -> U) -> PageData<U> {
        PageData {
            data: self.data.into_iter().map(change).collect(),
            total_pages: self.total_pages,
            total_elements: self.total_elements,
            has_next: self.has_next,
        }
    }
}

/// A property that a list can be sorted by: its value for an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SortKey {
    Number(u64),
    Text(String),
}

/// Collects the entries of one page.
pub(super) struct Pager<T> {
    size: usize,
    page: usize,
    descending: bool,
    text: Option<String>,
    property: Option<String>,
    kept: Vec<(SortKey, String, T)>,
    total: usize,
}

impl<T> Pager<T> {
    pub(super) fn new(link: &PageLink) -> Result<Self, ApiError> {
        let size = link.page_size.unwrap_or(100);
        let page = link.page.unwrap_or(0);
        if size == 0 || size > PAGE_ENTRIES {
            return Err(ApiError::invalid(format!("pageSize must be 1 to {PAGE_ENTRIES}")));
        }
        if page.saturating_add(1).saturating_mul(size) > PAGE_REACH {
            let message = format!("pages reach to entry {PAGE_REACH}; search for less");
            return Err(ApiError::invalid(message));
        }
        let order = link.sort_order.as_deref().unwrap_or("ASC").to_ascii_uppercase();
        if order != "ASC" && order != "DESC" {
            return Err(ApiError::invalid("sortOrder must be ASC or DESC"));
        }
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            size,
            page,
            descending: order == "DESC",
            text: given(&link.text_search).map(|text| text.to_lowercase()),
            property: given(&link.sort_property),
            kept: Vec::new(),
            total: 0,
        })
    }

    /// Whether one of the texts holds what is searched for.
    pub(super) fn finds(&self, texts: &[&str]) -> bool {
        let Some(wanted) = &self.text else { return true };
        texts.iter().any(|text| text.to_lowercase().contains(wanted))
    }

    /// The property to sort by.
    pub(super) fn property(&self, default: &str) -> String {
        self.property.clone().unwrap_or_else(|| default.to_owned())
    }

    /// Takes an entry; `name` decides between equal keys.
    pub(super) fn push(&mut self, key: SortKey, name: &str, entry: T) {
        self.total += 1;
        self.kept.push((key, name.to_owned(), entry));
        let end = (self.page + 1) * self.size;
        if self.kept.len() >= 2 * end + 1024 {
            self.sort();
            self.kept.truncate(end);
        }
    }

    fn sort(&mut self) {
        let descending = self.descending;
        self.kept.sort_by(|a, b| {
            let order = a.0.cmp(&b.0).then_with(|| a.1.cmp(&b.1));
            if descending { Ordering::reverse(order) } else { order }
        });
    }

    pub(super) fn finish(mut self) -> PageData<T> {
        self.sort();
        let from = self.page * self.size;
        let data: Vec<T> =
            self.kept.into_iter().skip(from).take(self.size).map(|(_, _, entry)| entry).collect();
        let total_pages = self.total.div_ceil(self.size);
        PageData {
            has_next: self.page + 1 < total_pages,
            total_elements: self.total,
            total_pages,
            data,
        }
    }
}

/// The answer to a property that a list can't be sorted by.
pub(super) fn unsortable(property: &str) -> ApiError {
    ApiError::invalid(format!("it can't be sorted by {property:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(size: usize, page: usize, order: &str) -> PageLink {
        PageLink {
            page_size: Some(size),
            page: Some(page),
            sort_order: Some(order.into()),
            ..PageLink::default()
        }
    }

    #[test]
    fn pages_are_cut_out_of_a_sorted_list_without_keeping_it() {
        for (order, page, expected) in [
            ("asc", 0, vec![0, 1, 2]),
            ("DESC", 1, vec![9996, 9995, 9994]),
            ("ASC", 3333, vec![9999]),
        ] {
            let mut pager = Pager::new(&link(3, page, order)).expect("a good page");
            for number in (0..10_000_u64).map(|n| n * 7919 % 10_000) {
                pager.push(SortKey::Number(number), "", number);
                assert!(pager.kept.len() < 2 * (page + 1) * 3 + 1024);
            }
            let page = pager.finish();
            assert_eq!(page.data, expected);
            assert_eq!((page.total_elements, page.total_pages), (10_000, 3334));
            assert_eq!(page.has_next, expected != [9999]);
        }
    }

    #[test]
    fn pages_are_bounded() {
        for bad in
            [link(0, 0, "ASC"), link(1001, 0, "ASC"), link(1000, 100, "ASC"), link(1, 0, "x")]
        {
            assert!(Pager::<()>::new(&bad).is_err(), "{bad:?}");
        }
        let huge = link(1000, usize::MAX, "ASC");
        assert!(Pager::<()>::new(&huge).is_err());
    }
}
