//! An authority of the tests, and what it signs: certificates of brokers, devices, services.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber,
};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

use crate::support::{Link, PATIENCE, encrypt, roots_of};

/// Who signs, in a folder for what others read.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate, with whatever its owner shows behind it, and its key.
#[derive(Clone)]
pub(crate) struct Paper {
    pub(crate) pem: String,
    pub(crate) key: Arc<KeyPair>,
    serial: SerialNumber,
}

/// An authority between the root and devices.
pub(crate) struct Intermediate(CertifiedIssuer<'static, KeyPair>);

fn signing(cn: &str) -> CertificateParams {
    let mut params = named(cn, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(cn: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, cn);
    params
}

fn sign(
    mut params: CertificateParams,
    serial: u64,
    by: &CertifiedIssuer<'static, KeyPair>,
) -> Paper {
    params.serial_number = Some(serial.into());
    let key = KeyPair::generate().unwrap();
    let pem = params.signed_by(&key, by).unwrap().pem();
    Paper { pem, key: Arc::new(key), serial: serial.into() }
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(signing("authority"), key).unwrap();
        let authority = Authority { folder: TempDir::new().unwrap(), issuer };
        authority.write("ca.pem", &authority.issuer.pem());
        let server = authority.server();
        authority.write("server.pem", &server.pem);
        authority.write("server_key.pem", &server.key.serialize_pem());
        authority
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For whoever is asked as `localhost`.
    pub(crate) fn server(&self) -> Paper {
        sign(named("a server", &["localhost", "127.0.0.1"]), 1, &self.issuer)
    }

    pub(crate) fn device(&self, cn: &str, serial: u64) -> Paper {
        sign(named(cn, &["device"]), serial, &self.issuer)
    }

    pub(crate) fn intermediate(&self, cn: &str) -> Intermediate {
        let key = KeyPair::generate().unwrap();
        Intermediate(CertifiedIssuer::signed_by(signing(cn), key, &self.issuer).unwrap())
    }

    /// A file in the folder; its path.
    /// Whole or not at all: a broker may be looking.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The list of what it has revoked.
    pub(crate) fn revocations(&self, revoked: &[&Paper]) -> String {
        let at = rcgen::date_time_ymd(2020, 1, 1);
        let of = |paper: &&Paper| RevokedCertParams {
            serial_number: paper.serial.clone(),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: at,
            next_update: rcgen::date_time_ymd(2099, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(of).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    /// A TLS client that trusts this authority and shows `paper`, if there is one.
    pub(crate) fn client(&self, paper: Option<&Paper>) -> Arc<ClientConfig> {
        let builder = roots_of(&self.pem());
        let Some(paper) = paper else { return Arc::new(builder.with_no_client_auth()) };
        let chain = CertificateDer::pem_slice_iter(paper.pem.as_bytes()).map(Result::unwrap);
        let key = PrivateKeyDer::try_from(paper.key.serialize_der()).unwrap();
        Arc::new(builder.with_client_auth_cert(chain.collect(), key).unwrap())
    }

    /// A connection to a TLS port on which `paper` was shown; none: the handshake failed.
    pub(crate) fn link(&self, port: u16, paper: Option<&Paper>) -> Option<Link> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let encrypted = encrypt(socket, self.client(paper)).ok()?;
        Some(Link::Tls(Box::new(encrypted)))
    }
}

impl Paper {
    /// Shows this behind its own.
    pub(crate) fn behind(&self, other: &str) -> Paper {
        Paper { pem: self.pem.clone() + other, ..self.clone() }
    }
}

impl Intermediate {
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn device(&self, cn: &str, serial: u64) -> Paper {
        let paper = sign(named(cn, &["device"]), serial, &self.0);
        paper.behind(&self.pem())
    }
}
