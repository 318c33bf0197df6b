//! Ed25519 keys in the forms that `openssl genpkey -algorithm ed25519` writes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{SigningKey, VerifyingKey};

use super::PlanError;

/// What stands before the 32 bytes of a public key in DER (RFC 8410 section 4).
const PUBLIC_HEAD: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// And before those of a private key (RFC 8410 section 7, version 1).
const PRIVATE_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(pub(super) VerifyingKey);

/// Prints nothing of itself.
pub struct PrivateKey(pub(super) SigningKey);

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PublicKey {
    /// Base64 of the key or of its DER form, with or without PEM's lines around it.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let key = VerifyingKey::from_bytes(&secret_or_point(text, &PUBLIC_HEAD)?);
        key.map(PublicKey).map_err(|fault| PlanError::BadKey(fault.to_string()))
    }

    /// Base64 of its 32 bytes.
    pub fn text(&self) -> String {
        STANDARD.encode(self.0.as_bytes())
    }
}

impl PrivateKey {
    /// PKCS #8 in PEM, as openssl writes it, or base64 of the 32 bytes.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let seed = secret_or_point(text, &PRIVATE_HEAD)?;
        Ok(PrivateKey(SigningKey::from_bytes(&seed)))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }
}

/// The 32 bytes behind a known head, or alone.
fn secret_or_point(text: &str, head: &[u8]) -> Result<[u8; 32], PlanError> {
    let lines = text.lines().filter(|line| !line.starts_with("-----"));
    let base64: String = lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect();
    let bytes = STANDARD.decode(base64).map_err(|fault| PlanError::BadKey(fault.to_string()))?;
    let bare = bytes.strip_prefix(head).unwrap_or(&bytes);
    bare.try_into().map_err(|_| PlanError::BadKey("it has not the length of one".into()))
}
