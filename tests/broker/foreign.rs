//! Clients that others wrote: mosquitto_pub and mosquitto_sub (Debian), paho-mqtt (PyPI) and mqtt
//! (npm). `tests/run` installs them and sets `SLUICE_TESTS_REQUIRE_ALL`; without that, a client
//! that is missing is said to be skipped.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use crate::support::{Broker, Client, Connect, Start, Transport, free_port, papers};

/// Where `tests/run` puts what it installs.
fn installed() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(target).join("foreign")
}

/// Says that a client is missing; where all are required that is a failure.
fn skipped(what: &str) {
    let required = std::env::var_os("SLUICE_TESTS_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "{what} is missing, and every client is required");
    eprintln!("skipped: {what} is missing; tests/run installs it");
}

fn answers(program: &PathBuf, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).env("NODE_PATH", installed().join("node_modules"));
    command.output().is_ok_and(|output| output.status.success())
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/foreign").join(name)
}

/// Runs one scenario of a script against a broker of its own, over one transport.
fn scenario(program: PathBuf, file: &str, name: &str, transport: Transport) {
    let port = free_port();
    let settings = transport.settings(port).into_iter();
    let start = settings.fold(Start::new(), |start, (name, value)| start.env(&name, value));
    let broker = start.start();
    let (over, port) = match transport {
        Transport::Tcp => ("tcp", broker.address().port()),
        Transport::Tls => ("tls", port),
        Transport::Ws => ("ws", port),
        Transport::Wss => ("wss", port),
    };
    let output = Command::new(program)
        .args([script(file), port.to_string().into(), name.into(), over.into()])
        .arg(papers().file("server.pem"))
        .env("NODE_PATH", installed().join("node_modules"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{file} {name}: {}", text(&output));
}

fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&all).into_owned()
}

fn paho(name: &str) {
    paho_over(name, Transport::Tcp);
}

fn paho_over(name: &str, transport: Transport) {
    let python = installed().join("venv/bin/python");
    if answers(&python, &["-c", "import paho.mqtt"]) {
        scenario(python, "paho_client.py", name, transport);
    } else {
        skipped("paho-mqtt");
    }
}

fn mqttjs(name: &str) {
    mqttjs_over(name, Transport::Tcp);
}

fn mqttjs_over(name: &str, transport: Transport) {
    let node = PathBuf::from("node");
    if answers(&node, &["-e", "require('mqtt')"]) {
        scenario(node, "mqttjs_client.js", name, transport);
    } else {
        skipped("the npm package mqtt");
    }
}

macro_rules! scenarios {
    ($client:ident: $($(#[$doc:meta])* $name:ident,)*) => {
        mod $client {
            $($(#[$doc])* #[test] fn $name() { super::$client(stringify!($name)); })*
        }
    };
}

scenarios! { paho:
    /// QoS 0, 1 and 2, in order, on every level.
    publish_and_subscribe,
    /// WIL-05, WIL-01: a Will on a broken connection, none after a goodbye.
    wills,
    /// RET-01, RET-02, RET-03.
    retained,
    /// SES-06: what came while away, in order, at its QoS.
    resume,
    /// PRP: every property of a PUBLISH arrives.
    properties,
}

scenarios! { mqttjs:
    /// QoS 0, 1 and 2, in order, on every level.
    publish_and_subscribe,
    /// WIL-05, WIL-01: a Will on a broken connection, none after a goodbye.
    wills,
    /// RET-01, RET-02, RET-03.
    retained,
    /// SES-06: what came while away, in order, at its QoS.
    resume,
    /// PRP: every property of a PUBLISH arrives.
    properties,
}

/// WSS-02, KAL-03: paho and mqtt (npm) over TLS, WebSocket and both; Wills on broken connections,
/// sessions that go on.
#[test]
fn paho_speaks_tls_and_websocket() {
    for transport in [Transport::Tls, Transport::Ws, Transport::Wss] {
        for name in ["publish_and_subscribe", "wills", "resume"] {
            paho_over(name, transport);
        }
    }
}

/// WSS-02: as above.
#[test]
fn mqttjs_speaks_tls_and_websocket() {
    for transport in [Transport::Tls, Transport::Ws, Transport::Wss] {
        for name in ["publish_and_subscribe", "wills", "resume"] {
            mqttjs_over(name, transport);
        }
    }
}

const VERSIONS: [&str; 3] = ["mqttv31", "mqttv311", "mqttv5"];

/// mosquitto's two clients against one broker; none when they are missing.
struct Mosquitto {
    broker: Broker,
}

impl Mosquitto {
    fn new() -> Option<Mosquitto> {
        let there = |name: &str| Command::new(name).arg("--help").output().is_ok();
        if there("mosquitto_pub") && there("mosquitto_sub") {
            return Some(Mosquitto { broker: Broker::start() });
        }
        skipped("mosquitto-clients");
        None
    }

    fn command(&self, program: &str, version: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        let port = self.broker.address().port().to_string();
        command.args(["-h", "127.0.0.1", "-p", &port, "-V", version]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }

    #[track_caller]
    fn publish(&self, version: &str, arguments: &[&str]) {
        let output = self.command("mosquitto_pub", version, arguments).output().unwrap();
        assert!(output.status.success(), "mosquitto_pub {arguments:?}: {}", text(&output));
    }

    fn spawn(&self, version: &str, arguments: &[&str]) -> Running {
        let mut child = self.command("mosquitto_sub", version, arguments).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Running { child, out }
    }

    /// Starts mosquitto_sub and waits until it shows a retained marker: its subscriptions stand.
    fn subscribe(&self, version: &str, arguments: &[&str]) -> Running {
        Client::connect(&self.broker, &Connect::v311("marker")).retain("marker", "subscribed");
        let more = ["-W", "15", "-t", "marker"];
        let mut running = self.spawn(version, &[arguments, &more[..]].concat());
        let mut line = String::new();
        running.out.read_line(&mut line).unwrap();
        assert!(line.contains("subscribed"), "mosquitto_sub's first line is {line:?}");
        running
    }
}

/// A mosquitto_sub; what it has not printed yet can still be read.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    /// Its remaining lines, when it has ended by itself and well.
    #[track_caller]
    fn lines(mut self) -> Vec<String> {
        let lines: Vec<String> = self.out.by_ref().lines().map(Result::unwrap).collect();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "mosquitto_sub: {status}: {lines:?}");
        lines
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// QoS 0, 1 and 2 with mosquitto_pub and mosquitto_sub.
#[test]
fn mosquitto_clients_publish_and_subscribe() {
    let Some(mosquitto) = Mosquitto::new() else { return };
    for version in VERSIONS {
        for qos in ["0", "1", "2"] {
            let arguments = ["-t", "m/#", "-q", qos, "-C", "4", "-F", "%t %q %p"];
            let subscriber = mosquitto.subscribe(version, &arguments);
            for number in ["1", "2", "3"] {
                mosquitto.publish(version, &["-t", "m/a", "-q", qos, "-m", number]);
            }
            let due = ["1", "2", "3"].map(|number| format!("m/a {qos} {number}"));
            assert_eq!(subscriber.lines(), due, "{version}, QoS {qos}");
        }
    }
}

/// Retained messages and their clearing.
#[test]
fn mosquitto_clients_see_retained_messages() {
    let Some(mosquitto) = Mosquitto::new() else { return };
    for version in VERSIONS {
        mosquitto.publish(version, &["-t", "r", "-q", "1", "-r", "-m", "kept"]);
        let arguments = ["-W", "15", "-t", "r", "-C", "1", "-F", "%r %p"];
        assert_eq!(mosquitto.spawn(version, &arguments).lines(), ["1 kept"]);
        mosquitto.publish(version, &["-t", "r", "-q", "1", "-r", "-n"]);
        let mut late = Client::connect(&mosquitto.broker, &Connect::v311("late"));
        late.subscribe("r", 1);
        late.ping();
        late.expect_silence(Duration::from_millis(100));
    }
}

/// WIL-01: the Will of a mosquitto_sub that is killed.
#[test]
fn the_will_of_a_killed_mosquitto_sub_is_published() {
    let Some(mosquitto) = Mosquitto::new() else { return };
    let mut watcher = Client::connect(&mosquitto.broker, &Connect::v311("watcher"));
    watcher.subscribe("will", 1);
    for version in VERSIONS {
        let will = ["--will-topic", "will", "--will-payload", version, "--will-qos", "1"];
        drop(mosquitto.subscribe(version, &will));
        assert_eq!(watcher.take().payload(), version);
    }
}

/// SES-06: a persistent mosquitto_sub finds what came while it was away, after a kill of the
/// broker too.
#[test]
fn mosquitto_sub_resumes_its_session() {
    let Some(mut mosquitto) = Mosquitto::new() else { return };
    for version in VERSIONS {
        let v5: &[&str] = if version == "mqttv5" { &["-x", "300"] } else { &[] };
        let session = [&["-c", "-i", version, "-q", "2", "-t", "s"], v5].concat();
        let mut first = mosquitto.command("mosquitto_sub", version, &session);
        let first = first.arg("-E").output().unwrap();
        assert!(first.status.success(), "{}", text(&first));
        for qos in ["1", "2"] {
            mosquitto.publish(version, &["-t", "s", "-q", qos, "-m", qos]);
        }
        mosquitto.broker.kill_and_restart();
        let more = ["-C", "2", "-W", "15", "-F", "%q %p"];
        let again = mosquitto.spawn(version, &[&session[..], &more[..]].concat());
        assert_eq!(again.lines(), ["1 1", "2 2"], "{version}");
    }
}

/// Properties from mosquitto_pub to mosquitto_sub.
#[test]
fn mosquitto_clients_exchange_properties() {
    let Some(mosquitto) = Mosquitto::new() else { return };
    let publish = [
        "-t",
        "p",
        "-q",
        "1",
        "-r",
        "-m",
        "with",
        "-D",
        "publish",
        "content-type",
        "text/plain",
        "-D",
        "publish",
        "response-topic",
        "answers",
        "-D",
        "publish",
        "correlation-data",
        "c-1",
        "-D",
        "publish",
        "user-property",
        "k",
        "v",
        "-D",
        "publish",
        "user-property",
        "k",
        "w",
    ];
    mosquitto.publish("mqttv5", &publish);
    let arguments = ["-W", "15", "-t", "p", "-C", "1", "-F", "%p|%C|%R|%D|%P"];
    assert_eq!(
        mosquitto.spawn("mqttv5", &arguments).lines(),
        ["with|text/plain|answers|c-1|k:v k:w"]
    );
}

/// mosquitto's clients with certificates: let in with one of our authority's, refused without, with
/// a stranger's and with a revoked one.
#[test]
fn mosquitto_clients_show_certificates() {
    let there = |name: &str| Command::new(name).arg("--help").output().is_ok();
    if !there("mosquitto_pub") {
        return skipped("mosquitto-clients");
    }
    let authority = Authority::new();
    let port = free_port();
    let broker = Start::new()
        .env("LISTENER_SSL_ENABLED", true)
        .env("LISTENER_SSL_BIND_PORT", port)
        .env("LISTENER_SSL_PEM_CERT", papers().file("server.pem"))
        .env("LISTENER_SSL_PEM_KEY", papers().file("server_key.pem"))
        .env("LISTENER_SSL_CLIENT_AUTH", "required")
        .env("LISTENER_SSL_PEM_CA", authority.file("ca.pem"))
        .env("LISTENER_SSL_PEM_CRL", authority.file("crl.pem"))
        .start();
    let publish = |version: &str, tls: &str, shown: Option<&str>| {
        let mut command = Command::new("mosquitto_pub");
        command.args(["-h", "localhost", "-p", &port.to_string(), "-V", version]);
        command.args(["--cafile", &papers().file("server.pem"), "--tls-version", tls]);
        command.args(["-t", "t", "-q", "1", "-r", "-m", version]);
        if let Some(name) = shown {
            command.args(["--cert", &authority.file(&format!("{name}.pem"))]);
            command.args(["--key", &authority.file(&format!("{name}_key.pem"))]);
        }
        command.output().unwrap()
    };
    for version in VERSIONS {
        for tls in ["tlsv1.2", "tlsv1.3"] {
            let output = publish(version, tls, Some("good"));
            assert!(output.status.success(), "{version} {tls}: {}", text(&output));
        }
    }
    let mut watcher = Client::connect(&broker, &Connect::v311("watcher"));
    watcher.subscribe("t", 1);
    assert_eq!(watcher.take().payload(), "mqttv5");
    for tls in ["tlsv1.2", "tlsv1.3"] {
        for shown in [None, Some("stranger"), Some("revoked")] {
            let output = publish("mqttv311", tls, shown);
            assert!(!output.status.success(), "{shown:?} {tls}: {}", text(&output));
        }
    }
    broker.eventually("all six are counted", |broker| {
        let line = "listenerHandshakeFailures_total{listener=\"ssl\",cause=\"certificate\"} 6\n";
        broker.scrape().contains(line)
    });
}

/// Signs certificates of clients: good, revoked; a stranger's is another's.
struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Authority {
        use rcgen::{
            BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
            IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, date_time_ymd,
        };
        let issuer = || {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
        };
        let (ours, other) = (issuer(), issuer());
        let authority = Authority { folder: tempfile::tempdir().unwrap() };
        for (name, serial, by) in
            [("good", 1_u64, &ours), ("revoked", 2, &ours), ("stranger", 1, &other)]
        {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.serial_number = Some(serial.into());
            let key = KeyPair::generate().unwrap();
            authority.write(&format!("{name}.pem"), &params.signed_by(&key, by).unwrap().pem());
            authority.write(&format!("{name}_key.pem"), &key.serialize_pem());
        }
        let crl = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: 2_u64.into(),
                revocation_time: date_time_ymd(2020, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        authority.write("ca.pem", &ours.pem());
        authority.write("crl.pem", &crl.signed_by(&ours).unwrap().pem().unwrap());
        authority
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }
}
