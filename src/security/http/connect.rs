//! Connections to a service, bare or over TLS.

use std::path::Path;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Sender, ServiceConfig, Target};
use crate::telemetry::task;

/// What TLS to the service goes by.
pub(super) fn tls(config: &ServiceConfig) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|fault| fault.to_string())?
        .with_root_certificates(roots(config.ca_file.as_deref())?);
    let made = match &config.identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let shown = PrivateKeyDer::from_pem_file(key);
            let shown = shown.map_err(|fault| format!("{}: {fault}", key.display()))?;
            let fault = |fault| format!("{}: {fault}", cert.display());
            builder.with_client_auth_cert(certificates(cert)?, shown).map_err(fault)?
        }
    };
    Ok(Arc::new(made))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let named = |fault: &dyn std::fmt::Display| format!("{}: {fault}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|fault| named(&fault))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|fault| named(&fault))?;
    if found.is_empty() { Err(named(&"no certificate in PEM")) } else { Ok(found) }
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                let added = roots.add(certificate);
                added.map_err(|fault| format!("{}: {fault}", path.display()))?;
            }
        }
        None => {
            let (added, _) =
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err("the system has no authorities: name a file of them".into());
            }
        }
    }
    Ok(roots)
}

pub(super) async fn open(
    target: &Target,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Sender, String> {
    let connected = TcpStream::connect((target.host.as_str(), target.port)).await;
    let stream = connected.map_err(|fault| format!("it can't be reached: {fault}"))?;
    // Without it requests are only slower.
    stream.set_nodelay(true).ok();
    let Some(config) = tls else { return begin(stream).await };
    let name = ServerName::try_from(target.host.clone());
    let name = name.map_err(|_| "its host is no name for TLS".to_owned())?;
    let encrypted = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
    begin(encrypted.map_err(|fault| format!("TLS to it: {fault}"))?).await
}

async fn begin<S>(stream: S) -> Result<Sender, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let begun = http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|fault| format!("HTTP to it: {fault}"))?;
    // It ends with its sender; what broke it, the sender tells.
    task::spawn("service connection", async move { drop(connection.await) });
    Ok(sender)
}
