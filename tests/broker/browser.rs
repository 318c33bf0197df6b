//! The npm package mqtt in a page of a real Chromium, over WebSocket, bare and over TLS. Where
//! there is no Chromium (Debian's package `chromium`), the test says that it is skipped.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::doors::House;
use crate::support::{Start, Transport};
use crate::web::Web;

/// A browser takes its time to start on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);

struct Browser(Child);

impl Drop for Browser {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn chromium() -> Option<&'static str> {
    let answers = |name: &&str| {
        let asked = Command::new(name).arg("--version").stdin(Stdio::null()).output();
        asked.is_ok_and(|output| output.status.success())
    };
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(answers)
}

fn library() -> Option<String> {
    let file = PathBuf::from("foreign/node_modules/mqtt/dist/mqtt.min.js");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    std::fs::read_to_string(target.join(file)).ok()
}

/// MQTT.js in a browser's page: levels 3, 4 and 5, every QoS, packets larger than a frame.
#[test]
fn mqttjs_in_a_browser_speaks_websocket() {
    let (Some(program), Some(library)) = (chromium(), library()) else {
        eprintln!("skipped: chromium, or the npm package mqtt, is missing");
        return;
    };
    let house = House::open(Start::new());
    let said: Arc<Mutex<Option<String>>> = Arc::default();
    let told = Arc::clone(&said);
    let web = Web::open(move |asked| {
        let path = asked.line.split(' ').nth(1).unwrap_or_default();
        match path.split('?').next().unwrap_or_default() {
            "/" => (200, include_str!("../foreign/page.html").to_owned()),
            "/mqtt.js" => (200, library.clone()),
            "/done" => {
                *told.lock() = Some(asked.body.clone());
                (200, String::new())
            }
            _ => (404, String::new()),
        }
    });
    let (bare, encrypted) = (house.port(Transport::Ws), house.port(Transport::Wss));
    let brokers =
        format!("broker=ws://127.0.0.1:{bare}/mqtt&broker=wss://localhost:{encrypted}/mqtt");
    let page = format!("http://127.0.0.1:{}/?{brokers}", web.port());
    let profile = tempfile::tempdir().unwrap();
    let browser = Command::new(program)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-extensions", "--ignore-certificate-errors"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(page)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _browser = Browser(browser.unwrap());
    let deadline = Instant::now() + PATIENCE;
    while said.lock().is_none() {
        assert!(Instant::now() < deadline, "the page never told: {:?}", web.asked());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(said.lock().as_deref(), Some("held"));
}
