//! Room 6: the HTTP door for operators: `/actuator/health`, `/actuator/info`,
//! `/actuator/prometheus`, open to all, and the administration under `/api`, behind a login.
//!
//! What comes in: HTTP requests, a [`HealthSource`] that the broker gives, the handles of security
//! and sessions. What goes out: small replies made from snapshots. The broker binds it last and
//! stops it last, so that health can be read while the node drains. Never: a lock held while a
//! reply is written, a body larger than its bound, more connections than their bound, state of
//! its own.

mod access;
mod api;
mod auth;
mod certificates;
mod clients;
mod config;
mod connection;
mod credentials;
mod error;
mod health;
mod ledger;
mod license;
mod page;
mod probe;
mod refused;
mod retained;
mod routes;
mod shares;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::limits;
use crate::listener::{Certificates, Encryption};
use crate::plan::Plan;
use crate::security::Security;
use crate::session::Sessions;
use crate::storage::{AppTopics, NodeLosses, Quota};

use api::{Api, blocking};

pub use config::Config;
pub use health::{Component, HealthSource, disk};
pub use probe::probe;

/// What `/actuator/info` tells.
#[derive(Clone, Debug)]
pub struct Info {
    pub node_id: Arc<str>,
    /// The storage profile's name.
    pub storage: &'static str,
}

/// What the administration works on; without it, only the actuator is there.
#[derive(Debug)]
pub struct Managed {
    pub security: Arc<Security>,
    pub sessions: Sessions,
    pub throughput: Option<Arc<Quota>>,
    pub plan: Option<Plan>,
    /// What other nodes have lost; `None`: there are none.
    pub losses: Option<Arc<NodeLosses>>,
    /// Of APPLICATION sessions; `None`: they have none.
    pub topics: Option<AppTopics>,
    /// Those of all doors, to be read again by order.
    pub certificates: Certificates,
}

/// Why the door could not open.
#[derive(Debug, thiserror::Error)]
#[error("HTTP can't listen on {address} (server.address, server.port): {fault}")]
pub struct BindError {
    address: SocketAddr,
    fault: io::Error,
}

/// The door, listening; it answers while [`Admin::run`] runs.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    encryption: Option<Encryption>,
    address: SocketAddr,
    router: axum::Router,
}

impl Admin {
    pub async fn bind(
        config: &Config,
        info: Info,
        health: Arc<dyn HealthSource>,
        managed: Option<Managed>,
    ) -> Result<Admin, BindError> {
        let failed = |fault| BindError { address: config.bind, fault };
        let listener = TcpListener::bind(config.bind).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut router = routes::router(config, info, health);
        let certificates = managed.as_ref().map(|managed| managed.certificates.clone());
        let encryption = config.tls.as_ref().map(|tls| {
            let loaded = Encryption::load("server.ssl", tls, &certificates.unwrap_or_default());
            loaded.map_err(|fault| failed(io::Error::other(fault)))
        });
        let encryption = encryption.transpose()?;
        if let Some(managed) = managed {
            router = router.merge(api::router(managed));
        }
        let router = router.layer(DefaultBodyLimit::max(limits::ADMIN_BODY_BYTES));
        Ok(Admin { listener, encryption, address, router })
    }

    /// Where it listens: the port is known even when any was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` resolves, then lets replies under way end, for a bounded time.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        let stopping = Arc::new(Notify::new());
        let signal = {
            let stopping = stopping.clone();
            async move {
                stop.await;
                stopping.notify_one();
            }
        };
        let listener =
            connection::Bounded::new(self.listener, self.encryption, limits::ADMIN_CONNECTIONS);
        let service = self.router.into_make_service_with_connect_info::<connection::PeerAddress>();
        let serve = axum::serve(listener, service).with_graceful_shutdown(signal);
        let too_long = async {
            stopping.notified().await;
            tokio::time::sleep(Duration::from_millis(limits::ADMIN_STOP_MS)).await;
        };
        tokio::select! {
            ended = serve.into_future() => {
                if let Err(fault) = ended {
                    tracing::error!(%fault, "the HTTP door closed");
                }
            }
            () = too_long => tracing::warn!("HTTP replies under way were cut at the stop"),
        }
    }
}
