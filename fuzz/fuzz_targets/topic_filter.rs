//! Any text as filter and topic, `filter NUL topic`: no panic; what is accepted splits into share
//! and plain part again, and a topic matches the filter that is written like it.
//!
//! `cargo +nightly fuzz run topic_filter`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::mqtt::{TopicFilter, TopicName, matches};

fuzz_target!(|data: &str| {
    let (filter_text, topic_text) = data.split_once('\0').unwrap_or((data, data));
    let filter = TopicFilter::new(filter_text);
    let topic = TopicName::new(topic_text);
    // Even unchecked text never makes the matcher panic.
    let _ = matches(filter_text, topic_text);
    if let Ok(filter) = &filter {
        match filter.share_name() {
            Some(share) => {
                assert!(!share.as_str().is_empty());
                let whole = format!("$share/{}/{}", share.as_str(), filter.plain());
                assert_eq!(whole, filter.as_str());
            }
            None => assert_eq!(filter.plain(), filter.as_str()),
        }
        assert!(!filter.plain().is_empty());
        if let Ok(topic) = &topic {
            let reserved = topic.as_str().starts_with('$') && !filter.plain().starts_with('$');
            assert!(!reserved || !matches(filter.plain(), topic.as_str()));
        }
    }
    if let Ok(topic) = &topic {
        let as_filter = TopicFilter::new(topic.as_str());
        assert!(as_filter.is_ok() || topic.as_str().starts_with("$share"));
        assert!(matches(topic.as_str(), topic.as_str()));
        assert_eq!(matches("#", topic.as_str()), !topic.as_str().starts_with('$'));
    }
});
