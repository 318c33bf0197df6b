//! SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677), the server's side: two steps, of which the
//! second proves the client to us and us to the client. Pure but for random numbers. Names and
//! passwords are compared byte by byte: no SASLprep.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;

use super::credential::{Credential, Proof, Scram, ScramHash, random};
use super::rules::AuthRules;

/// What RFC 7677 asks for at least.
const ITERATIONS: u32 = 4096;
const SALT_BYTES: usize = 16;
/// Longest message taken from a client.
const MESSAGE_BYTES: usize = 4096;

impl Scram {
    /// What a server keeps of a password. Thousands of hashes: not for a network thread.
    pub fn of_password(username: &str, hash: ScramHash, password: &str, rules: AuthRules) -> Self {
        let salt = random::<SALT_BYTES>().to_vec();
        let salted = hash.pbkdf2(password.as_bytes(), &salt, ITERATIONS);
        Self {
            username: username.to_owned(),
            hash,
            stored_key: hash.digest(&hash.hmac(&salted, b"Client Key")),
            server_key: hash.hmac(&salted, b"Server Key"),
            salt,
            iterations: ITERATIONS,
            rules,
        }
    }
}

/// An exchange behind its first step.
#[derive(Debug)]
pub(super) struct Exchange {
    hash: ScramHash,
    pub(super) username: String,
    /// `None`: nobody knows the user, which it is told only at the end.
    credential: Option<Arc<Credential>>,
    header: String,
    first_bare: String,
    server_first: String,
    nonce: String,
}

/// The client's first message, taken apart.
#[derive(Debug)]
pub(super) struct First<'m> {
    header: &'m str,
    bare: &'m str,
    pub(super) username: String,
    nonce: &'m str,
}

impl<'m> First<'m> {
    pub(super) fn parse(message: &'m [u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok().filter(|text| text.len() <= MESSAGE_BYTES)?;
        // No channel binding, and nobody speaks for somebody else.
        let bare = text.strip_prefix("n,,").or_else(|| text.strip_prefix("y,,"))?;
        let header = &text[..text.len() - bare.len()];
        let mut parts = bare.split(',');
        let name = parts.next()?.strip_prefix("n=")?;
        let nonce = parts.next()?.strip_prefix("r=").filter(|nonce| !nonce.is_empty())?;
        let username = unescape(name)?;
        Some(Self { header, bare, username, nonce })
    }
}

fn unescape(name: &str) -> Option<String> {
    let plain = name.replace("=2C", ",").replace("=3D", "\0");
    (!plain.contains('=') && !name.is_empty()).then(|| plain.replace('\0', "="))
}

impl Exchange {
    /// The first step. `secret` makes the salt of users that do not exist, so that it is the same
    /// each time they are asked for.
    pub(super) fn begin(
        hash: ScramHash,
        first: &First<'_>,
        credential: Option<Arc<Credential>>,
        secret: &[u8],
    ) -> Self {
        let nonce = format!("{}{}", first.nonce, STANDARD.encode(random::<18>()));
        let known = credential.as_deref().and_then(scram_of);
        let (salt, iterations) = match known {
            Some(scram) => (STANDARD.encode(&scram.salt), scram.iterations),
            None => {
                let made = hash.hmac(secret, first.username.as_bytes());
                (STANDARD.encode(&made[..SALT_BYTES]), ITERATIONS)
            }
        };
        Self {
            hash,
            username: first.username.clone(),
            credential,
            header: first.header.to_owned(),
            first_bare: first.bare.to_owned(),
            server_first: format!("r={nonce},s={salt},i={iterations}"),
            nonce,
        }
    }

    /// What the client is answered in the first step.
    pub(super) fn challenge(&self) -> &[u8] {
        self.server_first.as_bytes()
    }

    /// The second step: the credential, and what proves us to the client.
    pub(super) fn finish(&self, message: &[u8]) -> Result<(Arc<Credential>, Vec<u8>), String> {
        let text = std::str::from_utf8(message).map_err(|_| "SCRAM: no text")?;
        if text.len() > MESSAGE_BYTES {
            return Err("SCRAM: the message is too long".into());
        }
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or("SCRAM: no proof")?;
        let mut parts = without_proof.split(',');
        let header = parts.next().and_then(|part| part.strip_prefix("c="));
        if header != Some(STANDARD.encode(&self.header).as_str()) {
            return Err("SCRAM: another channel binding than at the beginning".into());
        }
        if parts.next().and_then(|part| part.strip_prefix("r=")) != Some(self.nonce.as_str()) {
            return Err("SCRAM: another nonce than ours".into());
        }
        let proof = STANDARD.decode(proof).map_err(|_| "SCRAM: the proof is no base64")?;
        let credential = self.credential.as_ref().ok_or("SCRAM: nobody knows the user name")?;
        let scram = scram_of(credential).ok_or("SCRAM: the credential is of another kind")?;
        let said = format!("{},{},{without_proof}", self.first_bare, self.server_first);
        let signature = self.hash.hmac(&scram.stored_key, said.as_bytes());
        if proof.len() != signature.len() {
            return Err("SCRAM: the proof has another length".into());
        }
        let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let right = self.hash.digest(&client_key).ct_eq(&scram.stored_key);
        if !bool::from(right) {
            return Err("SCRAM: the password is not the credential's".into());
        }
        let ours = self.hash.hmac(&scram.server_key, said.as_bytes());
        Ok((Arc::clone(credential), format!("v={}", STANDARD.encode(ours)).into_bytes()))
    }
}

fn scram_of(credential: &Credential) -> Option<&Scram> {
    match &credential.proof {
        Proof::Scram(scram) => Some(scram),
        Proof::Basic(_) | Proof::Certificate(_) => None,
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], data: &[u8]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

impl ScramHash {
    fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        match self {
            ScramHash::Sha256 => hmac::<Hmac<Sha256>>(key, data),
            ScramHash::Sha512 => hmac::<Hmac<Sha512>>(key, data),
        }
    }

    fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            ScramHash::Sha256 => Sha256::digest(data).to_vec(),
            ScramHash::Sha512 => Sha512::digest(data).to_vec(),
        }
    }

    fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        match self {
            ScramHash::Sha256 => {
                pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password, salt, iterations).to_vec()
            }
            ScramHash::Sha512 => {
                pbkdf2::pbkdf2_hmac_array::<Sha512, 64>(password, salt, iterations).to_vec()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::credential::{ClientType, new_id};

    fn credential(scram: Scram) -> Arc<Credential> {
        Arc::new(Credential {
            id: new_id(),
            name: "s".into(),
            created_ms: 0,
            client_type: ClientType::Device,
            proof: Proof::Scram(scram),
        })
    }

    /// The exchange that RFC 7677 prints, with its nonce and salt.
    #[test]
    fn the_example_of_rfc_7677_is_reproduced() {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        let hash = ScramHash::Sha256;
        let salted = hash.pbkdf2(b"pencil", &salt, 4096);
        let scram = Scram {
            username: "user".into(),
            hash,
            stored_key: hash.digest(&hash.hmac(&salted, b"Client Key")),
            server_key: hash.hmac(&salted, b"Server Key"),
            salt,
            iterations: 4096,
            rules: AuthRules::default(),
        };
        let first = First::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").expect("it is good");
        let mut exchange = Exchange::begin(hash, &first, Some(credential(scram)), b"");
        exchange.nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".into();
        exchange.server_first = format!("r={},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", exchange.nonce);
        let last =
            format!("c=biws,r={},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", exchange.nonce);
        let (_, ours) = exchange.finish(last.as_bytes()).expect("the proof is right");
        assert_eq!(ours, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let wrong = last.replace("p=dH", "p=eH");
        assert!(exchange.finish(wrong.as_bytes()).is_err());
    }

    #[test]
    fn odd_messages_are_refused() {
        let bad: [&[u8]; 8] = [
            b"",
            b"n=user,r=x",
            b"p=tls-unique,,n=user,r=x",
            b"n,a=other,n=user,r=x",
            b"n,,n=,r=x",
            b"n,,n=u=x,r=x",
            b"n,,n=user,r=",
            b"n,,n=\xff,r=x",
        ];
        for message in bad {
            assert!(First::parse(message).is_none(), "{message:?}");
        }
        let first = First::parse(b"n,,n=a=2Cb=3Dc,r=x").expect("it is good");
        assert_eq!(first.username, "a,b=c");
        let exchange = Exchange::begin(ScramHash::Sha512, &first, None, b"secret");
        let again = Exchange::begin(ScramHash::Sha512, &first, None, b"secret");
        let salt = |exchange: &Exchange| exchange.server_first.split(',').nth(1).map(str::to_owned);
        assert_eq!(salt(&exchange), salt(&again), "an unknown user looks like a known one");
        let nonce = exchange.nonce.clone();
        for message in ["", ",p=", "c=biws,r=x,p=AAAA", &format!("c=eSws,r={nonce},p=AAAA")] {
            assert!(exchange.finish(message.as_bytes()).is_err(), "{message}");
        }
    }
}
