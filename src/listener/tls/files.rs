//! Files and lists of a TLS listener → the configuration that handshakes use, or every fault.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version,
};

use super::super::{ClientAuth, TlsConfig, TlsVersion};
use super::identity::{self, Resolver};
use super::path::Anchors;

/// Settings below `listener.ssl.config.` and its like.
pub(super) mod setting {
    pub(in super::super) const CERT: &str = "credentials.pem.cert_file";
    pub(in super::super) const KEY: &str = "credentials.pem.key_file";
    pub(in super::super) const MORE: &str = "credentials.pem.more_certs";
    pub(in super::super) const CA: &str = "credentials.pem.ca_file";
    pub(in super::super) const CRL: &str = "credentials.pem.crl_file";
    pub(in super::super) const SUITES: &str = "enabled_cipher_suites";
}

/// One thing that is wrong, and the setting that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFault {
    /// Below `listener.ssl.config.`, `listener.wss.config.` or `server.ssl.`.
    pub setting: &'static str,
    pub text: String,
}

/// What handshakes use.
#[derive(Clone, Debug)]
pub(in crate::listener) struct Served {
    pub(super) config: Arc<ServerConfig>,
    pub(super) anchors: Anchors,
}

/// Reads all files. Blocks on the disk.
pub(in crate::listener) fn load(config: &TlsConfig) -> Result<Served, Vec<TlsFault>> {
    let mut faults = Vec::new();
    let mut provider = ring::default_provider();
    match cipher_suites(config, &provider) {
        Ok(suites) => provider.cipher_suites = suites,
        Err(text) => faults.push(TlsFault { setting: setting::SUITES, text }),
    }
    let provider = Arc::new(provider);
    let mut identities = Vec::new();
    for (at, identity) in config.identities.iter().enumerate() {
        identities.extend(identity::load(identity, at == 0, &provider, &mut faults));
    }
    let (verifier, anchors) = verifier(config, &provider, &mut faults).unzip();
    if !faults.is_empty() {
        return Err(faults);
    }
    let of_suites = |text: String| vec![TlsFault { setting: setting::SUITES, text }];
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions(config, &provider))
        .map_err(|fault| of_suites(fault.to_string()))?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut made = builder.with_cert_resolver(Arc::new(Resolver { identities }));
    // Resumption by tickets alone: they cost no memory, and end when files change, so that what a
    // new CRL revokes does not resume.
    made.session_storage = Arc::new(NoServerSessionStorage {});
    made.ticketer = ring::Ticketer::new().map_err(|fault| of_suites(fault.to_string()))?;
    Ok(Served { config: Arc::new(made), anchors: anchors.unwrap_or_default() })
}

/// As the standard names it, and as JSSE and so TBMQ do: `TLS_AES_128_GCM_SHA256`.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.replacen("TLS13_", "TLS_", 1)
}

fn cipher_suites(
    config: &TlsConfig,
    provider: &CryptoProvider,
) -> Result<Vec<SupportedCipherSuite>, String> {
    if config.cipher_suites.is_empty() {
        return Ok(provider.cipher_suites.clone());
    }
    let known: Vec<String> = provider.cipher_suites.iter().map(suite_name).collect();
    let find = |name: &String| {
        let at = known.iter().position(|known| known == name);
        at.map(|at| provider.cipher_suites[at])
            .ok_or_else(|| format!("{name}: unknown; wanted names out of {}", known.join(", ")))
    };
    let suites: Vec<SupportedCipherSuite> =
        config.cipher_suites.iter().map(find).collect::<Result<_, _>>()?;
    let usable = |suite: &SupportedCipherSuite| {
        config.lowest == TlsVersion::V12 || suite.version() == &version::TLS13
    };
    if suites.iter().any(usable) {
        Ok(suites)
    } else {
        Err("wanted a cipher suite of the lowest protocol version or a higher one".to_owned())
    }
}

/// Those that are allowed and have a cipher suite.
fn versions(
    config: &TlsConfig,
    provider: &CryptoProvider,
) -> Vec<&'static SupportedProtocolVersion> {
    let mut versions = vec![&version::TLS13];
    if config.lowest == TlsVersion::V12 {
        versions.push(&version::TLS12);
    }
    versions
        .retain(|version| provider.cipher_suites.iter().any(|suite| suite.version() == *version));
    versions
}

fn verifier(
    config: &TlsConfig,
    provider: &Arc<CryptoProvider>,
    faults: &mut Vec<TlsFault>,
) -> Option<(Arc<dyn ClientCertVerifier>, Anchors)> {
    let ca_file = match (config.client_auth, &config.ca_file) {
        (ClientAuth::Off, _) => return None,
        (ClientAuth::Requested | ClientAuth::Required, Some(file)) => file,
        (ClientAuth::Requested | ClientAuth::Required, None) => {
            let text = "client certificates are wanted, and nobody is trusted".to_owned();
            faults.push(TlsFault { setting: setting::CA, text });
            return None;
        }
    };
    let roots = roots(ca_file).map_err(|text| TlsFault { setting: setting::CA, text });
    let crls = config.crl_file.as_deref().map_or(Ok(Vec::new()), revocations);
    let crls = crls.map_err(|text| TlsFault { setting: setting::CRL, text });
    let (roots, crls) = match (roots, crls) {
        (Ok(roots), Ok(crls)) => (roots, crls),
        (roots, crls) => {
            faults.extend(roots.err().into_iter().chain(crls.err()));
            return None;
        }
    };
    let roots = Arc::new(roots);
    let anchors = Anchors::new(&roots, provider);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
        .with_crls(crls)
        // An authority without a list in the file revokes nothing.
        .allow_unknown_revocation_status();
    let built = match config.client_auth {
        ClientAuth::Requested => builder.allow_unauthenticated().build(),
        ClientAuth::Required | ClientAuth::Off => builder.build(),
    };
    let fault = |fault: rustls::server::VerifierBuilderError| TlsFault {
        setting: setting::CRL,
        text: fault.to_string(),
    };
    built.map(|built| (built, anchors)).map_err(|error| faults.push(fault(error))).ok()
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added
            .map_err(|fault| format!("{}: no authority's certificate: {fault}", path.display()))?;
    }
    Ok(roots)
}

/// PEM or DER.
fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let bytes = std::fs::read(path).map_err(|fault| format!("{}: {fault}", path.display()))?;
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    match lists {
        Ok(lists) if !lists.is_empty() => Ok(lists),
        Ok(_) if !bytes.is_empty() && !bytes.starts_with(b"-----") => Ok(vec![bytes.into()]),
        Ok(_) | Err(_) => Err(format!("{}: no revocation list", path.display())),
    }
}

pub(super) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|fault| format!("{}: {fault}", path.display()))
}

/// At least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{}: no certificate in PEM", path.display())),
        Err(fault) => Err(format!("{}: bad PEM: {fault}", path.display())),
    }
}
