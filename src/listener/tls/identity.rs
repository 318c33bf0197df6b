//! Certificates with their keys, and which of them a client is shown.

use std::path::Path;
use std::sync::Arc;

use pkcs8::der::{Decode, Encode};
use pkcs8::spki::SubjectPublicKeyInfoRef;
use pkcs8::{EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef, SecretDocument};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::super::{Identity, Secret};
use super::files::{TlsFault, certificates, read, setting};

const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";
const OLD_FORM: &str = "Proc-Type: 4,ENCRYPTED";

/// Chooses by the name that a client asks for.
#[derive(Debug)]
pub(super) struct Resolver {
    /// The first is for everybody who asks for no name, or for one that nobody here has.
    pub(super) identities: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let usable = |identity: &&Arc<CertifiedKey>| {
            identity.key.choose_scheme(hello.signature_schemes()).is_some()
        };
        let fits = |identity: &&Arc<CertifiedKey>| {
            name.as_ref().is_some_and(|name| is_for(identity, name))
        };
        let mut usable = self.identities.iter().filter(usable);
        let chosen = usable.clone().find(fits).or_else(|| usable.next());
        chosen.cloned()
    }
}

fn is_for(identity: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = identity.end_entity_cert().and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}

/// Reads one identity; all that is wrong with it goes into `faults`.
pub(super) fn load(
    identity: &Identity,
    is_first: bool,
    provider: &CryptoProvider,
    faults: &mut Vec<TlsFault>,
) -> Option<Arc<CertifiedKey>> {
    let (of_cert, of_key) =
        if is_first { (setting::CERT, setting::KEY) } else { (setting::MORE, setting::MORE) };
    let chain = certificates(&identity.cert_file)
        .map_err(|text| faults.push(TlsFault { setting: of_cert, text }));
    let key = private_key(&identity.key_file, identity.key_password.as_ref())
        .map_err(|text| faults.push(TlsFault { setting: of_key, text }));
    let certified = certify(chain.ok()?, key.ok()?, provider);
    let named = |text: String| {
        let (key, cert) = (identity.key_file.display(), identity.cert_file.display());
        TlsFault { setting: of_key, text: format!("{key} for {cert}: {text}") }
    };
    certified.map(Arc::new).map_err(|text| faults.push(named(text))).ok()
}

fn certify(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    let whole = chain.first().and_then(|certificate| with_public_half(&key, certificate));
    let key = provider.key_provider.load_private_key(whole.unwrap_or(key));
    let key = key.map_err(|fault| format!("a key that can't be used: {fault}"))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|fault| match fault {
        rustls::Error::InconsistentKeys(_) => "the key is not the certificate's".to_owned(),
        fault => format!("a certificate that can't be used: {fault}"),
    })?;
    Ok(certified)
}

/// A key on an elliptic curve without its public half, as Java's key stores give them out, with
/// that of the certificate. `None`: it is none such.
fn with_public_half(
    key: &PrivateKeyDer<'_>,
    certificate: &CertificateDer<'_>,
) -> Option<PrivateKeyDer<'static>> {
    let PrivateKeyDer::Pkcs8(key) = key else { return None };
    let info = PrivateKeyInfoRef::try_from(key.secret_pkcs8_der()).ok()?;
    // ECPrivateKey (RFC 5915): a version, the secret, and nothing behind it.
    let [0x30, _, 2, 1, 1, 4, length, secret @ ..] = info.private_key.as_bytes() else {
        return None;
    };
    if secret.len() != usize::from(*length) {
        return None;
    }
    let certificate = ParsedCertificate::try_from(certificate).ok()?.subject_public_key_info();
    let spki = SubjectPublicKeyInfoRef::from_der(&certificate).ok()?;
    if spki.algorithm != info.algorithm {
        return None;
    }
    let public = tlv(0x03, &[&[0], spki.subject_public_key.raw_bytes()]);
    let own = tlv(0x30, &[&[2, 1, 1], &tlv(4, &[secret]), &tlv(0xA1, &[&public])]);
    let algorithm = info.algorithm.to_der().ok()?;
    let whole = tlv(0x30, &[&[2, 1, 0], &algorithm, &tlv(4, &[&own])]);
    Some(PrivatePkcs8KeyDer::from(whole).into())
}

/// One value in DER.
fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len() as u16;
    let [high, low] = length.to_be_bytes();
    let head = match length {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        0x100.. => vec![tag, 0x82, high, low],
    };
    [head, content].concat()
}

/// PKCS#8 (also encrypted), PKCS#1 or SEC1, whichever comes first in the file.
fn private_key(path: &Path, password: Option<&Secret>) -> Result<PrivateKeyDer<'static>, String> {
    let text = read(path)?;
    let fault = |what: &str| format!("{}: {what}", path.display());
    if text.contains(OLD_FORM) {
        let advice = "a key encrypted in the old form; make it PKCS#8 with \
                      `openssl pkcs8 -topk8 -v2 aes256 -in OLD -out NEW`";
        return Err(fault(advice));
    }
    if let Some(block) = encrypted_block(&text) {
        let Some(Secret(password)) = password else {
            return Err(fault("an encrypted key, and no key_password"));
        };
        return decrypt(block, password).map_err(|what| fault(&what));
    }
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| fault("no private key in PEM"))
}

/// The encrypted key, from its first line to its last.
fn encrypted_block(text: &str) -> Option<&str> {
    let from = text.find(&format!("-----BEGIN {ENCRYPTED}-----"))?;
    let end = format!("-----END {ENCRYPTED}-----");
    let to = text[from..].find(&end)? + end.len();
    Some(&text[from..from + to])
}

fn decrypt(block: &str, password: &str) -> Result<PrivateKeyDer<'static>, String> {
    let unreadable = |fault| format!("an encrypted key that can't be read: {fault}");
    let (_, document) = SecretDocument::from_pem(block).map_err(unreadable)?;
    let info: EncryptedPrivateKeyInfoRef<'_> = document.decode_msg().map_err(unreadable)?;
    let key = info
        .decrypt(password)
        .map_err(|fault| format!("the key can't be decrypted; is key_password right? ({fault})"))?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}
