//! Requests to one service of the operator's: the one that judges clients, the one that gives keys.
//!
//! What comes in: a URL, files with certificates, requests. What goes out: a status and a body of
//! bounded size, within a bounded time. Connections are kept and used again. Never: a redirect
//! followed, a cookie, a URL or a body in a fault's text.

mod connect;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::time::timeout;

type Sender = SendRequest<Full<Bytes>>;

/// How a service is reached.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ServiceConfig {
    /// `http://…` or `https://…`.
    pub url: String,
    /// User name and password of HTTP's basic authentication.
    pub basic: Option<(String, String)>,
    pub headers: Vec<(String, String)>,
    /// Who the service's certificate must come from; `None`: the system's authorities.
    pub ca_file: Option<PathBuf>,
    /// What the service is shown of us: a certificate with its chain, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A whole request, connecting included.
    pub timeout: Duration,
    pub max_answer_bytes: usize,
    /// Connections that are kept open without a request.
    pub idle: usize,
}

impl std::fmt::Debug for ServiceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceConfig").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Where the service is.
#[derive(Clone, Debug)]
struct Target {
    host: String,
    port: u16,
}

pub(super) struct Service {
    target: Target,
    tls: Option<Arc<ClientConfig>>,
    headers: HeaderMap,
    timeout: Duration,
    max_answer_bytes: usize,
    idle: Mutex<Vec<Sender>>,
    idle_max: usize,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("target", &self.target).finish_non_exhaustive()
    }
}

/// What the service said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// A request that came to nothing.
enum Failed {
    /// It may not have come as far as the service.
    Unanswered(String),
    Answered(String),
}

impl Failed {
    fn text(self) -> String {
        match self {
            Failed::Unanswered(text) | Failed::Answered(text) => text,
        }
    }
}

impl Service {
    /// Error: what is wrong with the settings, or with files that they name. Blocks on the disk.
    pub(super) fn new(config: &ServiceConfig) -> Result<Self, String> {
        let url: Uri = config.url.parse().map_err(|_| "its URL is none")?;
        let host = url.host().ok_or("its URL has no host")?.to_owned();
        let authority = url.authority().ok_or("its URL has no host")?;
        if authority.as_str().contains('@') {
            return Err("its URL holds a user name: there are settings for that".into());
        }
        let (secure, port) = match url.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err("its URL begins neither with http:// nor with https://".into()),
        };
        let mut headers = HeaderMap::new();
        let value = |text: &str| HeaderValue::from_str(text).map_err(|_| "a header is none");
        headers.insert(HOST, value(authority.as_str())?);
        for (name, text) in &config.headers {
            let name: HeaderName = name.parse().map_err(|_| "a header's name is none")?;
            headers.insert(name, value(text)?);
        }
        if let Some((username, password)) = &config.basic {
            use base64::Engine;
            let pair = format!("{username}:{password}");
            let encoded = base64::engine::general_purpose::STANDARD.encode(pair);
            let mut header = value(&format!("Basic {encoded}"))?;
            header.set_sensitive(true);
            headers.insert(AUTHORIZATION, header);
        }
        let port = url.port_u16().unwrap_or(port);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self {
            target: Target { host, port },
            tls: secure.then(|| connect::tls(config)).transpose()?,
            headers,
            timeout: config.timeout,
            max_answer_bytes: config.max_answer_bytes,
            idle: Mutex::default(),
            idle_max: config.idle,
        })
    }

    /// Asks for `path`, with a body of this kind, if there is one. Cancel safe: yes.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(HeaderValue, Vec<u8>)>,
    ) -> Result<Answer, String> {
        let (kind, body) = body.unzip();
        let mut request = Request::new(Full::new(Bytes::from(body.unwrap_or_default())));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| "the path of its URL is none")?;
        *request.headers_mut() = self.headers.clone();
        if let Some(kind) = kind {
            request.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
        }
        match timeout(self.timeout, self.exchange(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(format!("no answer in {} ms", self.timeout.as_millis())),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        // One that was kept may be closed at the other end at any moment: then a new one is made.
        while let Some(kept) = self.kept() {
            match self.send(kept, request.clone()).await {
                Err(Failed::Unanswered(_)) => {}
                answered => return answered.map_err(Failed::text),
            }
        }
        let fresh = connect::open(&self.target, self.tls.as_ref()).await?;
        self.send(fresh, request).await.map_err(Failed::text)
    }

    async fn send(
        &self,
        mut sender: Sender,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, Failed> {
        let broken =
            |fault: hyper::Error| Failed::Unanswered(format!("the connection broke: {fault}"));
        sender.ready().await.map_err(broken)?;
        let answered = sender.send_request(request).await.map_err(broken)?;
        let status = answered.status().as_u16();
        let limited = Limited::new(answered.into_body(), self.max_answer_bytes);
        let body = limited.collect().await;
        let body = body.map_err(|fault| Failed::Answered(format!("its answer: {fault}")))?;
        self.keep(sender);
        Ok(Answer { status, body: body.to_bytes() })
    }

    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() < self.idle_max && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

/// A URL up to its host, and its path with the query.
pub(super) fn parted(url: &str) -> (&str, String) {
    let host = url.find("://").map_or(0, |at| at + 3);
    let at = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    let path = url[at..].split('#').next().unwrap_or_default();
    let slash = if path.starts_with('/') { "" } else { "/" };
    (&url[..at], format!("{slash}{path}"))
}
