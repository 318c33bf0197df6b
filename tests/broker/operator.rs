//! An administrator at the HTTP door: real requests over a socket, JSON both ways.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Broker, Start};

pub(crate) const PASSWORD: &str = "only for the tests";

/// An answer: its status code and its body, null if it is empty or no JSON.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) body: Value,
}

/// Somebody with a token, or without one.
pub(crate) struct Operator {
    pub(crate) address: std::net::SocketAddrV4,
    pub(crate) token: Option<String>,
}

/// A broker whose administrator has a known password.
pub(crate) fn start() -> Start {
    Start::new().env("SECURITY_ADMIN_PASSWORD", PASSWORD)
}

/// The same, with basic authentication on.
pub(crate) fn start_basic() -> Start {
    start().env("SECURITY_MQTT_BASIC_ENABLED", "true")
}

impl Operator {
    pub(crate) fn stranger(broker: &Broker) -> Self {
        Self { address: broker.http_address(), token: None }
    }

    #[track_caller]
    pub(crate) fn login(broker: &Broker) -> Self {
        Self::login_as(broker, "admin", PASSWORD)
    }

    #[track_caller]
    pub(crate) fn login_as(broker: &Broker, username: &str, password: &str) -> Self {
        let mut operator = Self::stranger(broker);
        let credentials = json!({ "username": username, "password": password });
        let answer = operator.post("/api/auth/login", &credentials).ok();
        operator.token = Some(answer["token"].as_str().expect("a token").to_owned());
        operator
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None)
    }

    #[track_caller]
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, None)
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, Some(&body.to_string()))
    }

    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let body = body.unwrap_or_default();
        let token = self.token.as_ref().map(|token| format!("Authorization: Bearer {token}\r\n"));
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let (token, length) = (token.unwrap_or_default(), body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}{token}\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let parsed = serde_json::from_str(body).unwrap_or(Value::Null);
        Answer { status, text: text.clone(), body: parsed }
    }

    // --- what many tests do

    /// Makes a MQTT_BASIC credential and gives its id.
    #[track_caller]
    pub(crate) fn credential(&self, name: &str, value: &Value) -> String {
        let body = json!({ "name": name, "credentialsValue": value });
        let saved = self.post("/api/mqtt/client/credentials", &body).ok();
        saved["id"].as_str().expect("an id").to_owned()
    }

    /// Gives a MQTT_BASIC credential another value.
    #[track_caller]
    pub(crate) fn change(&self, id: &str, name: &str, value: &Value) {
        let body = json!({ "id": id, "name": name, "credentialsValue": value });
        self.post("/api/mqtt/client/credentials", &body).ok();
    }
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.body
    }

    /// A refusal with this status, in TBMQ's form.
    #[track_caller]
    pub(crate) fn refused(self, status: u16) {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.body["status"], status, "{}", self.text);
        assert!(self.body["message"].is_string(), "{}", self.text);
    }
}
