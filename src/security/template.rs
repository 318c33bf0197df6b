//! Texts with placeholders: `${clientId}`, `${username}`, `${cn}`. Pure.

/// Who a text is filled in for.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    /// The common name of the client's certificate.
    pub cn: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    ClientId,
    Username,
    Cn,
}

const NAMES: [(&str, Name); 3] =
    [("clientId", Name::ClientId), ("username", Name::Username), ("cn", Name::Cn)];

/// A text, cut at its placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template<'t> {
    parts: Vec<Part<'t>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'t> {
    Text(&'t str),
    Value(Name),
}

impl<'t> Template<'t> {
    /// Error: a placeholder that nobody knows. (`$` without a brace stands for itself.)
    pub(super) fn parse(text: &'t str) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or("a placeholder is not closed")?;
            let known = NAMES.iter().find(|(known, _)| *known == name);
            let Some((_, name)) = known else {
                return Err(format!("unknown placeholder ${{{name}}}"));
            };
            parts.extend([Part::Text(before), Part::Value(*name)]);
            rest = after;
        }
        parts.push(Part::Text(rest));
        Ok(Self { parts })
    }

    /// The text for one client. Error: a value is missing, or has a meaning in topics (ACL-05).
    pub(super) fn fill(
        &self,
        who: &Who<'_>,
        write: impl Fn(&str) -> String,
    ) -> Result<String, String> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Value(name) => filled.push_str(&write(name.of(who)?)),
            }
        }
        Ok(filled)
    }

    /// The text with the same word for every placeholder, to see whether its form is right.
    pub(super) fn fill_literal(&self, value: &str) -> String {
        let part = |part: &Part<'t>| match part {
            Part::Text(text) => (*text).to_owned(),
            Part::Value(_) => value.to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

impl Name {
    fn of<'a>(self, who: &Who<'a>) -> Result<&'a str, String> {
        let (name, value) = match self {
            Name::ClientId => ("client id", Some(who.client_id)),
            Name::Username => ("user name", who.username),
            Name::Cn => ("common name", who.cn),
        };
        let value = value.filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("its rules need a {name}, and it has none"))?;
        if value.contains(['/', '+', '#', '\0']) {
            return Err(format!("its {name} holds a character with a meaning in topics"));
        }
        Ok(value)
    }
}
