//! Kafka and Redis for this test binary: a child process that ends when this one does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use sluice::storage::{RedisAddress, RedisKind};

/// Running services, and how they are reached.
pub(crate) struct Services {
    settings: BTreeMap<String, String>,
    prefixes: AtomicU32,
    /// The services end when it closes.
    _held: (Child, ChildStdin),
}

/// `None`: there are none, and it was said why.
pub(crate) fn services() -> Option<&'static Services> {
    static SERVICES: OnceLock<Option<Services>> = OnceLock::new();
    SERVICES.get_or_init(start).as_ref()
}

fn start() -> Option<Services> {
    match Services::start(&[]) {
        Ok(services) => Some(services),
        Err(why) => {
            let required = std::env::var_os("SLUICE_TESTS_REQUIRE_ALL").is_some();
            assert!(!required, "no services, and SLUICE_TESTS_REQUIRE_ALL is set: {why}");
            eprintln!("SKIPPED: the tests of the cluster profile have no services: {why}");
            None
        }
    }
}

impl Services {
    pub(crate) fn start(options: &[&str]) -> Result<Self, String> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let folder = tempfile::Builder::new().prefix("sluice-services").tempdir();
        let folder = folder.map_err(|error| error.to_string())?.keep();
        let mut child = Command::new(root.join("tests/services"))
            .arg("serve")
            .arg("--dir")
            .arg(&folder)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| format!("tests/services does not run: {error}"))?;
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut settings = BTreeMap::new();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == "READY=1" {
                let prefixes = AtomicU32::new(0);
                return Ok(Self { settings, prefixes, _held: (child, input) });
            }
            if let Some((name, value)) = line.split_once('=') {
                settings.insert(name.to_owned(), value.to_owned());
            }
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        Err(format!("tests/services ended with {status}; what it said stands above"))
    }

    /// The variables by which a broker finds them.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        self.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// `kill`, `stop`, `cont` or `start` of one service, such as `kafka1`.
    pub(crate) fn act(&self, action: &str, name: &str) {
        let folder = &self.settings["SERVICES_DIR"];
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/services");
        let status = Command::new(script).args(["node", action, name, "--dir", folder]).status();
        assert!(status.unwrap().success(), "{action} {name}");
    }

    /// The port of each `redis1`, `redis2`, ….
    pub(crate) fn redis_ports(&self) -> Vec<u16> {
        let state = PathBuf::from(&self.settings["SERVICES_DIR"]).join("state.json");
        let state: Value = serde_json::from_str(&std::fs::read_to_string(state).unwrap()).unwrap();
        let port = |name: String| {
            let words = state["commands"][name].as_array()?;
            let at = words.iter().position(|word| word == "--port")? + 1;
            words[at].as_str()?.parse().ok()
        };
        (1..).map_while(|number| port(format!("redis{number}"))).collect()
    }

    pub(crate) fn kafka(&self) -> &str {
        &self.settings["TB_KAFKA_SERVERS"]
    }

    pub(crate) fn redis(&self) -> RedisKind {
        let host = self.settings["REDIS_HOST"].clone();
        let port = self.settings["REDIS_PORT"].parse().unwrap();
        RedisKind::Standalone(RedisAddress { host, port })
    }

    /// A name that no other test of this run has.
    pub(crate) fn prefix(&self) -> String {
        format!("t{}.", self.prefixes.fetch_add(1, Ordering::Relaxed))
    }
}
