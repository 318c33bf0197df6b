//! What carries the run's connections, from the command line: TCP, TLS, WebSocket, or both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    SupportedProtocolVersion, version,
};

use super::tickets::Tickets;

#[derive(Args, Clone, Debug)]
pub struct CarrierArgs {
    /// MQTT over TLS.
    #[arg(long, conflicts_with_all = ["ws", "wss"])]
    pub tls: bool,
    /// MQTT over WebSocket.
    #[arg(long, conflicts_with = "wss")]
    pub ws: bool,
    /// MQTT over WebSocket over TLS.
    #[arg(long)]
    pub wss: bool,
    /// Path of the WebSocket.
    #[arg(long, default_value = "/mqtt")]
    pub ws_path: String,
    /// Authorities (PEM) that the broker's certificate must come from; default: the system's.
    #[arg(long)]
    pub ca_file: Option<PathBuf>,
    /// Certificate (PEM, its chain behind it) that all clients show.
    #[arg(long, requires = "key_file")]
    pub cert_file: Option<PathBuf>,
    /// Key of --cert-file (PEM).
    #[arg(long, requires = "cert_file")]
    pub key_file: Option<PathBuf>,
    /// Name that is asked for (SNI) and looked for in the certificate; default: --host.
    #[arg(long)]
    pub server_name: Option<String>,
    /// Take any certificate of the broker.
    #[arg(long, conflicts_with = "ca_file")]
    pub insecure: bool,
    /// Speak this version of TLS only.
    #[arg(long, value_parser = ["1.2", "1.3"])]
    pub tls_version: Option<String>,
    /// Resume TLS sessions where the broker lets us; otherwise each handshake is a full one.
    #[arg(long)]
    pub resume: bool,
}

/// The layers between a socket and MQTT.
#[derive(Clone, Debug, Default)]
pub(super) struct Carrier {
    pub(super) tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The upgrade request.
    pub(super) upgrade: Option<Arc<str>>,
}

impl CarrierArgs {
    /// As a report names it.
    pub(super) fn name(&self) -> &'static str {
        match (self.tls, self.ws, self.wss) {
            (true, _, _) => "tls",
            (_, true, _) => "ws",
            (_, _, true) => "wss",
            (false, false, false) => "tcp",
        }
    }

    /// Where brokers usually listen for it.
    pub(super) fn default_port(&self) -> u16 {
        match self.name() {
            "tls" => 8883,
            "ws" => 8084,
            "wss" => 8085,
            _ => 1883,
        }
    }

    /// Reads the files.
    pub(super) fn carrier(&self, host: &str) -> Result<Carrier, String> {
        let encrypted = self.tls || self.wss;
        if !encrypted && (self.ca_file.is_some() || self.cert_file.is_some() || self.resume) {
            return Err("--ca-file, --cert-file and --resume need --tls or --wss".to_owned());
        }
        let tls = encrypted.then(|| self.client(host)).transpose()?;
        let upgrade = (self.ws || self.wss).then(|| upgrade(&self.ws_path, host).into());
        Ok(Carrier { tls, upgrade })
    }

    fn client(&self, host: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
        let name = self.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name).map_err(|fault| fault.to_string())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.versions())
            .map_err(|fault| fault.to_string())?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        } else {
            builder.with_root_certificates(self.roots()?)
        };
        let mut config = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => {
                let shown = PrivateKeyDer::from_pem_file(key);
                let shown = shown.map_err(|fault| format!("{}: {fault}", key.display()))?;
                let made = builder.with_client_auth_cert(certificates(cert)?, shown);
                made.map_err(|fault| format!("{}: {fault}", cert.display()))?
            }
            (None, _) | (_, None) => builder.with_no_client_auth(),
        };
        config.resumption = if self.resume {
            Resumption::store(Arc::new(Tickets::default()))
        } else {
            Resumption::disabled()
        };
        Ok((Arc::new(config), name))
    }

    fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        match self.tls_version.as_deref() {
            Some("1.2") => vec![&version::TLS12],
            Some("1.3") => vec![&version::TLS13],
            Some(_) | None => rustls::DEFAULT_VERSIONS.to_vec(),
        }
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca_file {
            for certificate in certificates(path)? {
                let added = roots.add(certificate);
                added.map_err(|fault| format!("{}: {fault}", path.display()))?;
            }
        } else {
            let system = rustls_native_certs::load_native_certs().certs;
            if roots.add_parsable_certificates(system).0 == 0 {
                return Err("the system has no authorities: give --ca-file".to_owned());
            }
        }
        Ok(roots)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let named = |fault: &dyn std::fmt::Display| format!("{}: {fault}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|fault| named(&fault))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|fault| named(&fault))?;
    if found.is_empty() { Err(named(&"no certificate in PEM")) } else { Ok(found) }
}

/// The key may be the same each time: nothing between us and the broker caches.
fn upgrade(path: &str, host: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: c2x1aWNlIGJlbmNoIGtleQ==\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
}

/// Who asked for it with `--insecure` takes every certificate; its key must be the broker's.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
