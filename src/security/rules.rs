//! Which topics a client may publish to, and which it may read: compiled from a credential's rules
//! for one client. Pure: no lock, no clock.
//!
//! A topic is judged by the ordered rules first (the first that matches decides), then by the
//! expressions (any that matches allows); what is left is denied, as soon as there is a list at
//! all, even an empty one (ACL-07). Without any list everything is allowed.

use regex::{RegexBuilder, RegexSet, RegexSetBuilder};
use serde::{Deserialize, Serialize};

use super::template::{Template, Who};
use crate::limits;
use crate::mqtt::TopicFilter;

/// The rules of a credential, as they are stored and as REST shows them. The first two lists are
/// TBMQ's: expressions of which one has to match the whole topic or filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthRules {
    #[serde(rename = "pubAuthRulePatterns", default)]
    pub publish: Option<Vec<String>>,
    #[serde(rename = "subAuthRulePatterns", default)]
    pub subscribe: Option<Vec<String>>,
    /// Beyond TBMQ: ordered, with MQTT filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<Rule>>,
}

/// One ordered rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub action: Action,
    #[serde(default)]
    pub operation: Operation,
    /// An MQTT filter that may hold `${clientId}`, `${username}` and `${cn}`.
    pub filter: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    Deny,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Publish,
    Subscribe,
    #[default]
    All,
}

/// What one client may do.
#[derive(Debug, Default)]
pub struct Rights {
    publish: Side,
    subscribe: Side,
}

/// One direction; `None`: everything is allowed.
#[derive(Debug, Default)]
struct Side(Option<Listed>);

#[derive(Debug)]
struct Listed {
    ordered: Vec<(Action, Levels)>,
    expressions: RegexSet,
    /// Expressions that are MQTT filters, too, as TBMQ's users write them.
    filters: Vec<Levels>,
}

/// A filter, level by level. What stands for a placeholder is text, whatever it holds (ACL-05).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Levels(Vec<Level>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    One,
    Rest,
    Text(Box<str>),
}

impl AuthRules {
    /// What is wrong with the rules; `None`: nothing, and they compile for whomever they are used.
    pub fn fault(&self) -> Option<String> {
        let lists =
            [("pubAuthRulePatterns", &self.publish), ("subAuthRulePatterns", &self.subscribe)];
        for (name, list) in lists {
            let list = list.as_deref().unwrap_or_default();
            if list.len() > limits::RULES_PER_LIST {
                return Some(format!("{name} has more than {} entries", limits::RULES_PER_LIST));
            }
            for text in list {
                if let Some(fault) = expression_fault(text) {
                    return Some(format!("{name}: {fault}"));
                }
            }
        }
        let rules = self.rules.as_deref().unwrap_or_default();
        if rules.len() > limits::RULES_PER_LIST {
            return Some(format!("rules has more than {} entries", limits::RULES_PER_LIST));
        }
        rules.iter().find_map(|rule| filter_fault(&rule.filter)).or_else(|| {
            let longest = "x".repeat(64);
            let who = Who { client_id: &longest, username: Some(&longest), cn: Some(&longest) };
            Rights::compile(self, &who).err()
        })
    }
}

fn expression_fault(text: &str) -> Option<String> {
    if text.len() > limits::RULE_BYTES {
        return Some(format!("an expression is longer than {} bytes", limits::RULE_BYTES));
    }
    let plain = match Template::parse(text) {
        Ok(template) => template.fill_literal("x"),
        Err(fault) => return Some(format!("{text:?}: {fault}")),
    };
    let built = RegexBuilder::new(&plain)
        .size_limit(limits::EXPRESSIONS_BYTES)
        .nest_limit(limits::EXPRESSION_NESTING)
        .build();
    built.err().map(|fault| format!("{text:?} is no expression that is taken here: {fault}"))
}

fn filter_fault(text: &str) -> Option<String> {
    if text.len() > limits::RULE_BYTES {
        return Some(format!("a filter is longer than {} bytes", limits::RULE_BYTES));
    }
    match Template::parse(text).map(|template| TopicFilter::new(&template.fill_literal("x"))) {
        Err(fault) => Some(format!("{text:?}: {fault}")),
        Ok(Err(fault)) => Some(format!("{text:?} {fault}")),
        Ok(Ok(filter)) if filter.is_shared() => {
            Some(format!("{text:?}: rules see a shared subscription's filter without its share"))
        }
        Ok(Ok(_)) => None,
    }
}

impl Rights {
    /// The rules as they are for one client. Error: they name something of it that it has not, or
    /// that holds a character with a meaning in topics; then it has no rights at all.
    pub fn compile(rules: &AuthRules, who: &Who<'_>) -> Result<Self, String> {
        let side = |expressions: &Option<Vec<String>>, operation: Operation| {
            Side::compile(expressions.as_deref(), rules.rules.as_deref(), operation, who)
        };
        Ok(Self {
            publish: side(&rules.publish, Operation::Publish)?,
            subscribe: side(&rules.subscribe, Operation::Subscribe)?,
        })
    }

    pub fn may_publish(&self, topic: &str) -> bool {
        self.publish.allows_topic(topic)
    }

    /// Whether a copy of a message may be delivered.
    pub fn may_receive(&self, topic: &str) -> bool {
        self.subscribe.allows_topic(topic)
    }

    /// Whether the plain part of a filter may be subscribed to: an allow rule covers all of it, or
    /// an expression matches its text. What a deny rule takes out of it is held back copy by copy.
    pub fn may_subscribe(&self, filter: &str) -> bool {
        self.subscribe.allows_filter(filter)
    }

    pub fn restricts_publish(&self) -> bool {
        self.publish.0.is_some()
    }

    pub fn restricts_subscribe(&self) -> bool {
        self.subscribe.0.is_some()
    }
}

impl Side {
    fn compile(
        expressions: Option<&[String]>,
        rules: Option<&[Rule]>,
        operation: Operation,
        who: &Who<'_>,
    ) -> Result<Self, String> {
        if expressions.is_none() && rules.is_none() {
            return Ok(Self(None));
        }
        let mut ordered = Vec::new();
        for rule in rules.unwrap_or_default() {
            if rule.operation == operation || rule.operation == Operation::All {
                ordered.push((rule.action, Levels::fill(&rule.filter, who)?));
            }
        }
        let (mut filled, mut filters) = (Vec::new(), Vec::new());
        for text in expressions.unwrap_or_default() {
            let template = Template::parse(text)?;
            filled.push(format!("^(?:{})$", template.fill(who, regex::escape)?));
            filters.extend(as_filter(text).map(|text| Levels::fill(&text, who)).transpose()?);
        }
        let expressions = RegexSetBuilder::new(filled)
            .size_limit(limits::EXPRESSIONS_BYTES)
            .dfa_size_limit(limits::EXPRESSIONS_BYTES)
            .nest_limit(limits::EXPRESSION_NESTING + 2)
            .build()
            .map_err(|fault| format!("the expressions are too large together: {fault}"))?;
        Ok(Self(Some(Listed { ordered, expressions, filters })))
    }

    fn allows_topic(&self, topic: &str) -> bool {
        let Some(listed) = &self.0 else { return true };
        match listed.ordered.iter().find(|(_, levels)| levels.matches(topic)) {
            Some((action, _)) => *action == Action::Allow,
            None => {
                listed.expressions.is_match(topic)
                    || listed.filters.iter().any(|levels| levels.matches(topic))
            }
        }
    }

    fn allows_filter(&self, filter: &str) -> bool {
        let Some(listed) = &self.0 else { return true };
        match listed.ordered.iter().find(|(_, levels)| levels.covers(filter)) {
            Some((action, _)) => *action == Action::Allow,
            None => {
                listed.expressions.is_match(filter)
                    || listed.filters.iter().any(|levels| levels.covers(filter))
            }
        }
    }
}

/// The filter that an expression is, when it is written as one: `sensors/#`, `sensors/\+/temp`.
fn as_filter(expression: &str) -> Option<String> {
    let text = expression.replace("\\+", "+").replace("\\.", ".");
    let plain = Template::parse(&text).ok()?.fill_literal("x");
    let special = |c: char| "\\^$.|?*()[]{}".contains(c);
    let wild = plain.split('/').any(|level| level == "+" || level == "#");
    (wild && !plain.contains(special) && TopicFilter::new(&plain).is_ok()).then_some(text)
}

impl Levels {
    fn fill(text: &str, who: &Who<'_>) -> Result<Self, String> {
        let levels = text.split('/').map(|level| {
            Ok(match level {
                "+" => Level::One,
                "#" => Level::Rest,
                text => {
                    let filled = Template::parse(text)?.fill(who, str::to_owned)?;
                    Level::Text(filled.into_boxed_str())
                }
            })
        });
        levels.collect::<Result<_, String>>().map(Self)
    }

    fn begins_wild(&self) -> bool {
        matches!(self.0.first(), Some(Level::One | Level::Rest))
    }

    /// As `mqtt::matches`, of which this is the form with literal values in it.
    fn matches(&self, topic: &str) -> bool {
        if topic.starts_with('$') && self.begins_wild() {
            return false;
        }
        let mut levels = topic.split('/');
        for own in &self.0 {
            match (own, levels.next()) {
                (Level::Rest, _) => return true,
                (Level::One, Some(_)) => {}
                (Level::Text(text), Some(level)) if **text == *level => {}
                (Level::One | Level::Text(_), _) => return false,
            }
        }
        levels.next().is_none()
    }

    /// Whether every topic that `filter` matches is matched by this, too.
    fn covers(&self, filter: &str) -> bool {
        if filter.starts_with('$') && self.begins_wild() {
            return false;
        }
        let mut levels = filter.split('/');
        for own in &self.0 {
            match (own, levels.next()) {
                (Level::Rest, _) => return true,
                (Level::One, Some(level)) if level != "#" => {}
                (Level::Text(text), Some(level)) => {
                    if matches!(level, "+" | "#") || **text != *level {
                        return false;
                    }
                }
                (Level::One, _) | (Level::Text(_), None) => return false,
            }
        }
        levels.next().is_none()
    }
}
