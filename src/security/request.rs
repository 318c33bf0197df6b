//! What a client's CONNECT becomes in a request to the service: placeholders in URL and body, each
//! written so that no value can become more than a value. Pure.

use hyper::Method;
use hyper::header::HeaderValue;
use serde_json::json;

use super::config::HttpConfig;
use super::http::parted;
use super::identity::Attempt;

/// The settings' texts, cut at their placeholders.
#[derive(Debug)]
pub(super) struct Texts {
    method: Method,
    path: Vec<Part>,
    /// `None`: a JSON object of all values.
    body: Option<Vec<Part>>,
    kind: HeaderValue,
    write: Writing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Name),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    ClientId,
    Username,
    Password,
    Cn,
    Address,
}

const NAMES: [(&str, Name); 5] = [
    ("clientId", Name::ClientId),
    ("username", Name::Username),
    ("password", Name::Password),
    ("commonName", Name::Cn),
    ("ipAddress", Name::Address),
];

/// How a value is written into a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Json,
    Percent,
    Plain,
}

/// Method, path with query, and the body with its kind.
pub(super) type Filled = (Method, String, Option<(HeaderValue, Vec<u8>)>);

impl Texts {
    pub(super) fn new(config: &HttpConfig) -> Result<Self, String> {
        let url = &config.service.url;
        let (host, path) = parted(url);
        if cut(host)?.len() > 1 {
            return Err("placeholders may stand behind the host of its URL only".into());
        }
        let kind = config.content_type.to_ascii_lowercase();
        let write = match kind.as_str() {
            kind if kind.contains("json") => Writing::Json,
            kind if kind.contains("x-www-form-urlencoded") => Writing::Percent,
            _ => Writing::Plain,
        };
        let body = config.body.as_deref().map(cut).transpose()?;
        if body.is_none() && write != Writing::Json {
            return Err("a content type that is not JSON needs a body".into());
        }
        Ok(Self {
            method: if config.post { Method::POST } else { Method::GET },
            path: cut(&path)?,
            body,
            kind: HeaderValue::from_str(&config.content_type).map_err(|_| "no content type")?,
            write,
        })
    }

    /// `None`: the password is no text.
    pub(super) fn fill(&self, attempt: &Attempt<'_>) -> Option<Filled> {
        let password = attempt.password.map(std::str::from_utf8).transpose().ok()?;
        let address = attempt.peer.address.map(|address| address.to_string());
        let value = |name: Name| match name {
            Name::ClientId => Some(attempt.client_id),
            Name::Username => attempt.username,
            Name::Password => password,
            Name::Cn => attempt.cn(),
            Name::Address => address.as_deref(),
        };
        let filled = |parts: &[Part], write: Writing| {
            let part = |part: &Part| match part {
                Part::Text(text) => text.clone(),
                Part::Value(name) => write.text(value(*name).unwrap_or_default()),
            };
            parts.iter().map(part).collect::<String>()
        };
        let body = || match &self.body {
            Some(parts) => filled(parts, self.write),
            None => json!({
                "clientId": attempt.client_id,
                "username": attempt.username,
                "password": password,
                "commonName": attempt.cn(),
                "ipAddress": address,
            })
            .to_string(),
        };
        let body = (self.method == Method::POST).then(|| (self.kind.clone(), body().into_bytes()));
        Some((self.method.clone(), filled(&self.path, Writing::Percent), body))
    }
}

/// Error: a placeholder that nobody knows.
fn cut(text: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("a placeholder is not closed")?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        let (_, name) = known.ok_or_else(|| format!("unknown placeholder ${{{name}}}"))?;
        parts.extend([Part::Text(before.to_owned()), Part::Value(*name)]);
        rest = after;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

impl Writing {
    fn text(self, value: &str) -> String {
        match self {
            Writing::Plain => value.to_owned(),
            Writing::Percent => percent(value),
            Writing::Json => {
                let quoted = serde_json::Value::from(value).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
        }
    }
}

fn percent(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::identity::Peer;
    use super::*;

    fn filled(url: &str, body: Option<&str>, kind: &str) -> (String, String) {
        let mut config =
            HttpConfig { post: true, content_type: kind.into(), ..HttpConfig::default() };
        config.service.url = url.into();
        config.body = body.map(str::to_owned);
        let peer = Peer { address: Some([192, 0, 2, 1].into()), ..Peer::default() };
        let attempt = Attempt {
            client_id: "a\"b&c/ö",
            username: Some("u"),
            password: Some(b"\n\\${clientId}"),
            peer: &peer,
        };
        let texts = Texts::new(&config).expect("good texts");
        let (_, path, body) = texts.fill(&attempt).expect("texts");
        let (_, body) = body.expect("a POST");
        (path, String::from_utf8(body).expect("a text"))
    }

    #[test]
    fn a_value_stays_a_value() {
        let (path, body) =
            filled("http://h/x?id=${clientId}&a=${ipAddress}", None, "application/json");
        assert_eq!(path, "/x?id=a%22b%26c%2F%C3%B6&a=192.0.2.1");
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["clientId"], "a\"b&c/ö");
        assert_eq!(
            (&body["password"], &body["commonName"]),
            (&json!("\n\\${clientId}"), &json!(null))
        );
        let template = r#"{"id":"${clientId}","p":"${password}","cn":"${commonName}"}"#;
        let (path, body) = filled("http://h", Some(template), "application/json");
        assert_eq!(path, "/");
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body, json!({"id": "a\"b&c/ö", "p": "\n\\${clientId}", "cn": ""}));
        let form = "application/x-www-form-urlencoded";
        assert_eq!(filled("http://h/", Some("c=${clientId}"), form).1, "c=a%22b%26c%2F%C3%B6");
        assert_eq!(
            filled("http://h?q", Some("${username}"), "text/plain"),
            ("/?q".into(), "u".into())
        );
    }

    #[test]
    fn bad_texts_are_refused() {
        let make = |url: &str, body: Option<&str>, kind: &str| {
            let mut config = HttpConfig { content_type: kind.into(), ..HttpConfig::default() };
            config.service.url = url.into();
            config.body = body.map(str::to_owned);
            Texts::new(&config).is_ok()
        };
        assert!(make("http://h/${clientId}", None, "application/json"));
        assert!(!make("http://${clientId}/", None, "application/json"));
        assert!(!make("http://h/${nobody}", None, "application/json"));
        assert!(!make("http://h/", Some("${clientId"), "application/json"));
        assert!(!make("http://h/", None, "text/plain"));
    }
}
