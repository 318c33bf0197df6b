//! Which of the certificates that a client showed lead from its own to one of our authorities. TLS
//! lets a client show any others besides, and nobody has looked at those.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// Whom clients' certificates must come from. Without: nobody's count.
#[derive(Clone, Debug, Default)]
pub(super) struct Anchors(Option<(Arc<RootCertStore>, WebPkiSupportedAlgorithms)>);

impl Anchors {
    pub(super) fn new(roots: &Arc<RootCertStore>, provider: &CryptoProvider) -> Self {
        Self(Some((Arc::clone(roots), provider.signature_verification_algorithms)))
    }

    /// The client's own certificate, which the handshake has verified, and behind it those through
    /// which it was. In DER.
    pub(super) fn path(&self, shown: &[CertificateDer<'_>]) -> Vec<Vec<u8>> {
        let (Some((roots, algorithms)), Some((own, others))) = (&self.0, shown.split_first())
        else {
            return Vec::new();
        };
        let mut path = vec![own.to_vec()];
        if others.is_empty() {
            return path;
        }
        let Ok(end) = EndEntityCert::try_from(own) else { return path };
        // Whether one is revoked was looked at in the handshake: it is the same way up.
        let verified = end.verify_for_usage(
            algorithms.all,
            &roots.roots,
            others,
            UnixTime::now(),
            KeyUsage::client_auth(),
            None,
            None,
        );
        if let Ok(verified) = verified {
            path.extend(verified.intermediate_certificates().map(|cert| cert.der().to_vec()));
        }
        path
    }
}
