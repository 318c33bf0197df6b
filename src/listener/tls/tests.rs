//! Handshakes over real sockets, with certificates made here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, version};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use super::super::{ClientAuth, Identity, Secret, TlsConfig, TlsVersion};
use super::*;
use crate::telemetry::task;

type Issuer = CertifiedIssuer<'static, KeyPair>;

/// A folder with an authority, and what it signed.
struct Rig {
    folder: TempDir,
    authority: Issuer,
}

/// A certificate with its key, in PEM.
struct Made {
    cert: String,
    key: KeyPair,
    serial: SerialNumber,
}

impl Rig {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        Self { folder: TempDir::new().unwrap(), authority: authority.unwrap() }
    }

    fn sign(&self, name: &str, serial: u64) -> Made {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.authority).unwrap().pem();
        Made { cert, key, serial: serial.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Files of one identity.
    fn identity(&self, stem: &str, made: &Made) -> Identity {
        Identity {
            cert_file: self.write(&format!("{stem}.pem"), &made.cert),
            key_file: self.write(&format!("{stem}_key.pem"), &made.key.serialize_pem()),
            key_password: None,
        }
    }

    fn config(&self, identities: Vec<Identity>) -> TlsConfig {
        TlsConfig {
            lowest: TlsVersion::V12,
            cipher_suites: Vec::new(),
            identities,
            client_auth: ClientAuth::Off,
            ca_file: None,
            crl_file: None,
        }
    }

    fn wanting_clients(&self, client_auth: ClientAuth, revoked: &[&Made]) -> TlsConfig {
        let server = self.identity("server", &self.sign("localhost", 1));
        TlsConfig {
            client_auth,
            ca_file: Some(self.write("ca.pem", &self.authority.pem())),
            crl_file: Some(self.write("crl.pem", &self.crl(revoked))),
            ..self.config(vec![server])
        }
    }

    fn crl(&self, revoked: &[&Made]) -> String {
        let now = rcgen::date_time_ymd(2020, 1, 1);
        let of = |made: &&Made| RevokedCertParams {
            serial_number: made.serial.clone(),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now,
            next_update: rcgen::date_time_ymd(2099, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(of).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.authority).unwrap().pem().unwrap()
    }

    fn client(&self, shows: Option<&Made>) -> Arc<ClientConfig> {
        self.client_of(shows, &[&version::TLS13, &version::TLS12])
    }

    fn client_of(
        &self,
        shows: Option<&Made>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match shows {
            None => builder.with_no_client_auth(),
            Some(made) => {
                use rustls::pki_types::pem::PemObject;
                let chain = CertificateDer::pem_slice_iter(made.cert.as_bytes());
                let key = PrivateKeyDer::try_from(made.key.serialize_der()).unwrap();
                builder.with_client_auth_cert(chain.map(Result::unwrap).collect(), key).unwrap()
            }
        })
    }
}

/// What a handshake came to for the server; the client's kind of handshake.
type Shaken = (io::Result<TlsPeer>, Option<HandshakeKind>);

/// One connection: the client sends a byte and waits for it to come back, so that both sides have
/// seen the whole handshake, and the client its ticket.
async fn shake(server: Served, client: &Arc<ClientConfig>, name: &str) -> Shaken {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut tls, peer, _) = accept(stream, server, &Semaphore::new(1)).await?;
        let byte = tls.read_u8().await?;
        tls.write_u8(byte).await?;
        tls.flush().await?;
        Ok(peer)
    };
    let connect = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut tls = TlsConnector::from(Arc::clone(client)).connect(name, stream).await.ok()?;
        tls.write_u8(7).await.ok()?;
        let echoed = tls.read_u8().await.ok()?;
        assert_eq!(echoed, 7);
        tls.get_ref().1.handshake_kind()
    };
    tokio::join!(serve, connect)
}

fn certificates(current: &Arc<Current>) -> Certificates {
    let certificates = Certificates::default();
    certificates.add(current);
    certificates
}

fn only(faults: Vec<TlsFault>) -> (&'static str, String) {
    let [TlsFault { setting, text }] = faults.try_into().expect("one fault");
    (setting, text)
}

/// A client is shown the certificate of the name that it asks for, wildcards included, and the
/// first one for any other name.
#[tokio::test]
async fn the_certificate_fits_the_name_that_is_asked_for() {
    let rig = Rig::new();
    let made = ["localhost", "a.example", "*.b.example"].map(|name| rig.sign(name, 1));
    let identities = made.iter().zip(["s", "a", "b"]).map(|(made, stem)| rig.identity(stem, made));
    let server = load(&rig.config(identities.collect())).unwrap();
    for (name, trusted) in
        [("localhost", true), ("a.example", true), ("x.b.example", true), ("c.example", false)]
    {
        let (peer, kind) = shake(server.clone(), &rig.client(None), name).await;
        assert_eq!(kind.is_some(), trusted, "{name}");
        if trusted {
            let told = TlsPeer { server_name: Some(name.into()), chain: Vec::new() };
            assert_eq!(peer.unwrap(), told);
        }
    }
}

/// Off, requested and required; revoked, foreign and missing certificates; the chain is told.
#[tokio::test]
async fn clients_show_certificates_as_they_are_asked() {
    let rig = Rig::new();
    let (good, revoked) = (rig.sign("good", 7), rig.sign("revoked", 8));
    let foreign = Rig::new().sign("foreign", 7);
    for (auth, bare_is_taken) in [(ClientAuth::Requested, true), (ClientAuth::Required, false)] {
        let server = load(&rig.wanting_clients(auth, &[&revoked])).unwrap();
        let shake = |client| {
            let server = server.clone();
            async move { shake(server, &client, "localhost").await.0 }
        };
        let peer = shake(rig.client(Some(&good))).await.unwrap();
        assert_eq!(peer.chain.len(), 1);
        assert_eq!(shake(rig.client(None)).await.is_ok(), bare_is_taken, "{auth:?}");
        for bad in [&revoked, &foreign] {
            let error = shake(rig.client(Some(bad))).await.unwrap_err();
            assert_eq!(cause(&error), Turned::Certificate, "{error}");
        }
    }
}

/// Both versions resume with a ticket; not over a reload, which may have revoked something.
#[tokio::test]
async fn sessions_resume_until_files_change() {
    let rig = Rig::new();
    let config = rig.config(vec![rig.identity("server", &rig.sign("localhost", 1))]);
    for versions in [[&version::TLS13], [&version::TLS12]] {
        let current = Arc::new(Current::load("test", &config).unwrap());
        let client = rig.client_of(None, &versions);
        let kind = || shake(current.get(), &client, "localhost");
        assert_eq!(kind().await.1, Some(HandshakeKind::Full));
        assert_eq!(kind().await.1, Some(HandshakeKind::Resumed));
        certificates(&current).reload().unwrap();
        assert_eq!(kind().await.1, Some(HandshakeKind::Full));
    }
}

/// New files are used for new connections; bad ones change nothing and are told.
#[tokio::test]
async fn files_are_taken_when_they_are_good() {
    let rig = Rig::new();
    let (good, other) = (rig.sign("good", 7), rig.sign("localhost", 2));
    let config = rig.wanting_clients(ClientAuth::Required, &[]);
    let current = Arc::new(Current::load("test", &config).unwrap());
    let watch = task::spawn("test", watch(certificates(&current), Duration::ZERO));
    let client = rig.client(Some(&good));
    assert!(shake(current.get(), &client, "localhost").await.0.is_ok());

    let before = current.get();
    rig.write("crl.pem", &rig.crl(&[&good]));
    let changed = || async {
        while Arc::ptr_eq(&before.config, &current.get().config) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    changed().await;
    let error = shake(current.get(), &client, "localhost").await.0.unwrap_err();
    assert_eq!(cause(&error), Turned::Certificate);
    watch.abort();

    let kept = current.get();
    rig.write("server_key.pem", &other.key.serialize_pem());
    let faults = certificates(&current).reload().unwrap_err();
    let [text] = &faults[..] else { panic!("one fault: {faults:?}") };
    assert!(text.starts_with(&format!("test.{}: ", files::setting::KEY)));
    assert!(text.contains("server_key.pem") && text.contains("not the certificate's"), "{text}");
    assert!(Arc::ptr_eq(&kept.config, &current.get().config));
}

/// The lowest version and the cipher list hold.
#[tokio::test]
async fn old_versions_and_other_suites_are_refused() {
    let rig = Rig::new();
    let config = rig.config(vec![rig.identity("server", &rig.sign("localhost", 1))]);
    let only_13 = load(&TlsConfig { lowest: TlsVersion::V13, ..config.clone() }).unwrap();
    let suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256".to_owned();
    let only_12 = load(&TlsConfig { cipher_suites: vec![suite], ..config.clone() }).unwrap();
    for (server, takes_13) in [(only_13, true), (only_12, false)] {
        for (versions, is_13) in [([&version::TLS13], true), ([&version::TLS12], false)] {
            let client = rig.client_of(None, &versions);
            let (peer, _) = shake(server.clone(), &client, "localhost").await;
            assert_eq!(peer.is_ok(), takes_13 == is_13);
            assert!(peer.is_ok() || peer.is_err_and(|error| cause(&error) == Turned::Tls));
        }
    }
    let names = |names: &[&str], lowest| {
        let cipher_suites = names.iter().map(|name| (*name).to_owned()).collect();
        faults(&TlsConfig { cipher_suites, lowest, ..config.clone() })
    };
    assert_eq!(names(&["TLS_AES_128_GCM_SHA256"], TlsVersion::V13), []);
    let (setting, text) = only(names(&["TLS_RSA_WITH_RC4_128_MD5"], TlsVersion::V12));
    assert_eq!(setting, files::setting::SUITES);
    assert!(text.contains("TLS_AES_256_GCM_SHA384"), "{text}");
    only(names(&["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], TlsVersion::V13));
}

/// Every fault at once, each with its setting and its file.
#[test]
fn faults_of_files_are_named_together() {
    let rig = Rig::new();
    let (one, other) = (rig.sign("localhost", 1), rig.sign("other", 2));
    let mismatched = Identity {
        key_file: rig.write("other_key.pem", &other.key.serialize_pem()),
        ..rig.identity("server", &one)
    };
    let missing = Identity {
        cert_file: rig.path("missing.pem"),
        key_file: rig.write("empty_key.pem", ""),
        key_password: None,
    };
    let config = TlsConfig {
        client_auth: ClientAuth::Required,
        ca_file: Some(rig.write("empty_ca.pem", "")),
        crl_file: Some(rig.write("bad_crl.pem", "-----BEGIN NOTHING-----\n")),
        ..rig.config(vec![mismatched, missing])
    };
    let faults = faults(&config);
    let settings: Vec<&str> = faults.iter().map(|fault| fault.setting).collect();
    use files::setting::{CA, CRL, KEY, MORE};
    assert_eq!(settings, [KEY, MORE, MORE, CA, CRL]);
    for (fault, file) in
        faults.iter().zip(["other_key", "missing", "empty_key", "empty_ca", "bad_crl"])
    {
        assert!(fault.text.contains(file), "{fault:?}");
    }
    let without_ca = TlsConfig { ca_file: None, crl_file: None, ..config };
    assert!(super::faults(&without_ca).iter().any(|fault| fault.setting == CA));
}

/// Keys that OpenSSL wrote: `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` and
/// `… genrsa 2048`, then `pkcs8 -topk8 -v2 aes256`, `rsa -traditional`, `ec` and so on; and one as
/// it comes out of a Java key store, without its public half.
#[test]
fn keys_are_read_in_every_form() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls");
    let config = |cert: &str, key: &str, password: Option<&str>| TlsConfig {
        identities: vec![Identity {
            cert_file: data.join(cert),
            key_file: data.join(key),
            key_password: password.map(|text| Secret(text.into())),
        }],
        lowest: TlsVersion::V12,
        cipher_suites: Vec::new(),
        client_auth: ClientAuth::Off,
        ca_file: None,
        crl_file: None,
    };
    let good = [
        ("ec.pem", "ec_pkcs8.key"),
        ("ec.pem", "ec_sec1.key"),
        ("ec.pem", "ec_java.key"),
        ("ec.pem", "ec_encrypted.key"),
        ("ec.pem", "ec_encrypted_scrypt.key"),
        ("ec.pem", "ec_encrypted_3des.key"),
        ("rsa.pem", "rsa_pkcs8.key"),
        ("rsa.pem", "rsa_pkcs1.key"),
        ("rsa.pem", "rsa_encrypted.key"),
    ];
    for (cert, key) in good {
        assert_eq!(faults(&config(cert, key, Some("server_key_password"))), [], "{key}");
    }
    let bad = [
        ("ec_encrypted.key", None, "no key_password"),
        ("ec_encrypted.key", Some("wrong"), "is key_password right?"),
        ("ec_old_encrypted.key", Some("server_key_password"), "openssl pkcs8 -topk8"),
        ("rsa_pkcs8.key", None, "not the certificate's"),
        ("ec.pem", None, "no private key"),
    ];
    for (key, password, text) in bad {
        let (setting, found) = only(faults(&config("ec.pem", key, password)));
        assert_eq!(setting, files::setting::KEY);
        assert!(found.contains(text) && found.contains(key), "{key}: {found}");
        assert!(!found.contains("wrong"), "a password is not for the log");
    }
}

/// Handshakes that wait for their client hold no turn, so others go on with a single one.
#[tokio::test]
async fn a_waiting_handshake_holds_no_turn() {
    let rig = Rig::new();
    let config = rig.config(vec![rig.identity("server", &rig.sign("localhost", 1))]);
    let server = load(&config).unwrap();
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let turns = Arc::new(Semaphore::new(1));
    let silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let (config, held) = (server.clone(), Arc::clone(&turns));
    let waiting = task::spawn("test", async move { accept(stream, config, &held).await });
    let stream = TcpStream::connect(listener.local_addr().unwrap());
    let (stream, accepted) = tokio::join!(stream, listener.accept());
    let name = ServerName::try_from("localhost").unwrap();
    let client = TlsConnector::from(rig.client(None));
    let client = client.connect(name, stream.unwrap());
    let (theirs, ours) = tokio::join!(client, accept(accepted.unwrap().0, server, &turns));
    assert!(theirs.is_ok() && ours.is_ok());
    assert!(!waiting.is_finished());
    drop(silent);
    assert_eq!(cause(&waiting.await.unwrap().err().unwrap()), Turned::Closed);
}
