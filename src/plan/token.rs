//! The token: a JSON Web Token in its compact form, signed with EdDSA and with nothing else.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer};
use serde::{Deserialize, Serialize};

use super::{Plan, PlanError, PrivateKey, PublicKey};

/// A token is a few hundred bytes; more is not looked at.
const TOKEN_BYTES_MAX: usize = 8192;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typ: Option<String>,
    /// Names of extensions that must be understood (RFC 7515 section 4.1.11): none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crit: Option<Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    name: String,
    /// PUBLISH packets a second.
    throughput: u32,
    /// 0: not limited.
    sessions: u32,
    exp: u64,
}

/// The plan in a token that was signed with the other half of the key.
pub(super) fn verify(token: &str, key: &PublicKey) -> Result<Plan, PlanError> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(malformed("it is too long"));
    }
    let (signed, signature) = token.rsplit_once('.').ok_or_else(|| malformed("it has no parts"))?;
    let (header, claims) = signed.split_once('.').ok_or_else(|| malformed("it has two parts"))?;
    let header: Header = json(header)?;
    // Whatever else a token names is not even tried: `none` and HMAC with our public key among it.
    if header.alg != "EdDSA" || header.crit.is_some() {
        return Err(malformed("its header asks for something else than EdDSA"));
    }
    let signature = Signature::from_slice(&decode(signature)?).map_err(|_| PlanError::Forged)?;
    key.0.verify_strict(signed.as_bytes(), &signature).map_err(|_| PlanError::Forged)?;
    let claims: Claims = json(claims)?;
    if claims.throughput == 0 {
        return Err(malformed("its throughput is 0"));
    }
    Ok(Plan {
        name: claims.name,
        throughput: claims.throughput,
        sessions: Some(claims.sessions).filter(|sessions| *sessions > 0),
        expires_at_s: claims.exp,
    })
}

/// The token of a plan.
pub fn sign(plan: &Plan, key: &PrivateKey) -> Result<String, PlanError> {
    let header = Header { alg: "EdDSA".into(), typ: Some("JWT".into()), crit: None };
    let claims = Claims {
        name: plan.name.clone(),
        throughput: plan.throughput,
        sessions: plan.sessions.unwrap_or(0),
        exp: plan.expires_at_s,
    };
    let signed = format!("{}.{}", encode(&header)?, encode(&claims)?);
    let signature = key.0.sign(signed.as_bytes());
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes())))
}

fn malformed(what: &str) -> PlanError {
    PlanError::Malformed(what.into())
}

fn decode(part: &str) -> Result<Vec<u8>, PlanError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|fault| malformed(&fault.to_string()))
}

fn json<T: for<'a> Deserialize<'a>>(part: &str) -> Result<T, PlanError> {
    serde_json::from_slice(&decode(part)?).map_err(|fault| malformed(&fault.to_string()))
}

fn encode<T: Serialize>(part: &T) -> Result<String, PlanError> {
    let json = serde_json::to_vec(part).map_err(|fault| malformed(&fault.to_string()))?;
    Ok(URL_SAFE_NO_PAD.encode(json))
}
