//! What an operator decides about the HTTP door.

use std::net::SocketAddr;

use crate::listener::TlsConfig;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port 0 takes any free port.
    pub bind: SocketAddr,
    /// HTTPS and nothing else.
    pub tls: Option<TlsConfig>,
    pub health: bool,
    pub info: bool,
    pub prometheus: bool,
    /// Does `/actuator/health` name the components, or only the sum?
    pub health_details: bool,
    /// Is the data folder's free space part of the health?
    pub health_disk: bool,
}
