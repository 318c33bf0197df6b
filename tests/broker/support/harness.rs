//! One broker process for one test: its own folder, its own ports, its own log.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::link::Transport;

/// How long a start or a stop may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a broker is to be started. Nothing is read from the surroundings but `PATH`.
#[derive(Clone, Default)]
pub(crate) struct Start {
    environment: Vec<(String, String)>,
    allowed: Vec<String>,
}

impl Start {
    pub(crate) fn new() -> Self {
        Start::default()
    }

    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// A WARN or ERROR line with this text is expected; any other fails the test.
    pub(crate) fn allow_log(mut self, text: &str) -> Self {
        self.allowed.push(text.to_owned());
        self
    }

    #[track_caller]
    pub(crate) fn start(self) -> Broker {
        Broker::launch(self, Arc::new(TempDir::new().unwrap()))
    }

    /// Starts what may refuse to start: the exit status and the log in that case.
    pub(crate) fn try_start(self) -> Result<Broker, (ExitStatus, String)> {
        Broker::try_launch(self, Arc::new(TempDir::new().unwrap()))
    }
}

pub(crate) struct Broker {
    start: Start,
    folder: Arc<TempDir>,
    mqtt: u16,
    /// The listener of the transport that the tests run over.
    door: u16,
    http: u16,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Broker {
    /// A broker with its defaults.
    #[track_caller]
    pub(crate) fn start() -> Broker {
        Start::new().start()
    }

    #[track_caller]
    fn launch(start: Start, folder: Arc<TempDir>) -> Broker {
        match Broker::try_launch(start, folder) {
            Ok(broker) => broker,
            Err((status, log)) => panic!("the broker ended with {status}:\n{log}"),
        }
    }

    /// Free ports can be lost between the look and the start: then other ones are tried.
    fn try_launch(start: Start, folder: Arc<TempDir>) -> Result<Broker, (ExitStatus, String)> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut broker = Broker::spawn(&start, &folder, free_port(), free_port());
            let Some(status) = broker.await_listening() else { return Ok(broker) };
            let log = broker.finished_log();
            if tries == 5 || !log.to_lowercase().contains("address already in use") {
                broker.lines.lock().clear();
                return Err((status, log));
            }
            broker.lines.lock().clear();
        }
    }

    fn spawn(start: &Start, folder: &Arc<TempDir>, mqtt: u16, http: u16) -> Broker {
        let transport = Transport::chosen();
        let door = if transport == Transport::Tcp { mqtt } else { free_port() };
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "1")
            .env("RUST_LOG", "info")
            .env("LISTENER_TCP_BIND_ADDRESS", "127.0.0.1")
            .env("LISTENER_TCP_BIND_PORT", mqtt.to_string())
            .env("LISTENER_WS_ENABLED", "false")
            .env("HTTP_BIND_ADDRESS", "127.0.0.1")
            .env("HTTP_BIND_PORT", http.to_string())
            .env("STORAGE_EMBEDDED_PATH", folder.path().join("data"))
            // Each start fills its first segments: hundreds of large ones would be all that the
            // disk does.
            .env("STORAGE_EMBEDDED_SEGMENT_BYTES", (4 << 20).to_string())
            .envs(cluster(folder))
            // What a password costs an attacker, it would cost each start of a test.
            .env("SECURITY_PASSWORD_HASHING_MEMORY_KIB", "64")
            .env("SECURITY_PASSWORD_HASHING_ITERATIONS", "1")
            .envs(transport.settings(door))
            .envs(
                start
                    .environment
                    .iter()
                    .filter_map(|(name, value)| Some((transport.twin_of(name)?, value))),
            )
            .envs(start.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the broker's binary runs");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let out = child.stdout.take().expect("stdout is a pipe");
        let err = child.stderr.take().expect("stderr is a pipe");
        let readers = vec![keep_lines(out, &lines), keep_lines(err, &lines)];
        let (start, folder) = (start.clone(), Arc::clone(folder));
        Broker { start, folder, mqtt, door, http, child, lines, readers }
    }

    /// None once the MQTT port answers; the exit status if the process ended first.
    fn await_listening(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            if TcpStream::connect(self.address()).is_ok() {
                return None;
            }
            assert!(Instant::now() < deadline, "no listener after {PATIENCE:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where this broker keeps its data.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Where its data is, in a folder `data`.
    #[allow(dead_code, reason = "the crash tests need it")]
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Where it speaks MQTT over bare TCP.
    pub(crate) fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.mqtt)
    }

    pub(crate) fn http_address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.http)
    }

    /// Where it speaks what the tests run over.
    pub(crate) fn door(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.door)
    }

    // --- stopping and starting again

    /// SIGTERM, and an orderly end with exit code 0.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.await_exit();
        assert!(status.success(), "after SIGTERM: {status}\n{}", self.log());
    }

    /// SIGKILL: nothing that was not on the disk survives.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.await_exit();
    }

    /// Starts on the same folder what may refuse to: the exit status and the log in that case.
    pub(crate) fn try_start_again(&mut self) -> Result<(), (ExitStatus, String)> {
        let next = Broker::try_launch(self.start.clone(), Arc::clone(&self.folder))?;
        *self = next;
        Ok(())
    }

    /// Starts on the same folder after `stop` or `kill`; ports may differ.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        let earlier = std::mem::take(&mut *self.lines.lock());
        let next = Broker::launch(self.start.clone(), Arc::clone(&self.folder));
        next.lines.lock().splice(0..0, earlier);
        *self = next;
    }

    /// After `stop` or `kill`: starts, and is killed so soon that it may not be ready yet.
    #[allow(dead_code, reason = "the crash tests need it")]
    pub(crate) fn start_and_kill(&mut self, after: Duration) {
        let mut next = Broker::spawn(&self.start, &self.folder, free_port(), free_port());
        std::thread::sleep(after);
        next.kill();
        let lines = std::mem::take(&mut *next.lines.lock());
        self.lines.lock().extend(lines);
    }

    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    #[track_caller]
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// SIGSTOP: the process stands still, its sockets stay open. Each thread stops by itself, which
    /// takes a while on a busy machine.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        let stands = |task: &std::path::Path| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        let deadline = Instant::now() + PATIENCE;
        while !std::fs::read_dir(&tasks).unwrap().all(|task| stands(&task.unwrap().path())) {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the broker's process exists");
    }

    pub(crate) fn await_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.finished_log();
                return status;
            }
            assert!(Instant::now() < deadline, "still running after {PATIENCE:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    // --- looking at it

    pub(crate) fn log(&self) -> String {
        self.lines.lock().join("\n")
    }

    /// The log of a process that has ended, to its last line.
    fn finished_log(&mut self) -> String {
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.log()
    }

    /// True as long as it is the process that was started.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The body of a GET on the HTTP port, and its status code.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.request("GET", path)
    }

    /// The same with another method, and no body.
    #[track_caller]
    pub(crate) fn request(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.http)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: 0\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    pub(crate) fn scrape(&self) -> String {
        self.get("/actuator/prometheus").1
    }

    /// The sum of a metric's series; none if it has none.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let page = self.scrape();
        let of_it = |line: &&str| {
            line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}{{"))
        };
        let value = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        let values: Vec<f64> = page.lines().filter(of_it).filter_map(value).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Messages or copies that were dropped for this reason, on both sides.
    pub(crate) fn dropped(&self, reason: &str) -> usize {
        let page = self.scrape();
        let label = format!("reason=\"{reason}\"");
        let of_it =
            |line: &&str| line.starts_with("droppedMsgs_by_reason_total{") && line.contains(&label);
        let value = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        page.lines().filter(of_it).filter_map(value).sum::<f64>() as usize
    }

    /// Waits until something about it is so; gauges and counters may lag a moment behind.
    #[track_caller]
    pub(crate) fn eventually(&self, what: &str, mut so: impl FnMut(&Broker) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so(self) {
            assert!(Instant::now() < deadline, "never came: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a metric has this value: some are set by a sweep.
    #[track_caller]
    pub(crate) fn await_metric(&self, name: &str, value: f64) {
        let deadline = Instant::now() + PATIENCE;
        while self.metric(name) != Some(value) {
            let is = self.metric(name);
            assert!(Instant::now() < deadline, "{name} is {is:?}, not {value}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Resident memory in KiB.
    pub(crate) fn rss_kib(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
        number.expect("the process has a VmRSS line")
    }

    /// CPU time in clock ticks (usually 10 ms each).
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let after = stat.rsplit_once(')').expect("the name is in parentheses").1;
        after.split_whitespace().skip(11).take(2).map(|text| text.parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    fn unexpected(&self) -> Vec<String> {
        let lines = self.lines.lock();
        let bad = |line: &&String| {
            let level =
                line.split_whitespace().take(4).any(|word| matches!(word, "WARN" | "ERROR"));
            let panicked = line.contains("panicked at");
            let allowed = self.start.allowed.iter().any(|text| line.contains(text));
            (level || panicked) && !allowed
        };
        lines.iter().filter(bad).cloned().collect()
    }
}

impl Drop for Broker {
    /// Nothing stays behind; and what the broker complained about fails the test.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
        self.finished_log();
        if std::thread::panicking() {
            eprintln!("--- the broker's log ---\n{}\n---", self.log());
            return;
        }
        let unexpected = self.unexpected();
        assert!(
            unexpected.is_empty(),
            "unexpected in the broker's log:\n{}",
            unexpected.join("\n")
        );
    }
}

/// The cluster profile, where this binary has services for it. A folder is a cluster of its own
/// there, too.
fn cluster(folder: &TempDir) -> Vec<(String, String)> {
    let mut settings = crate::services();
    if !settings.is_empty() {
        let name = folder.path().file_name().expect("a folder has a name").to_string_lossy();
        let prefix = format!("{}.", name.trim_start_matches('.'));
        settings.push(("STORAGE_TYPE".into(), "cluster".into()));
        settings.push(("TB_KAFKA_PREFIX".into(), prefix.clone()));
        settings.push(("CACHE_PREFIX".into(), prefix));
    }
    settings
}

fn keep_lines(from: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            lines.lock().push(String::from_utf8_lossy(&line).into_owned());
        }
    })
}

/// A port below the range from which the system serves outgoing connections, so that no client
/// of another test can take it in between. A lock on a file of its number keeps it for this process
/// as long as that lives, free or not: brokers come back on their port, and other test processes
/// look for theirs meanwhile.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    const FIRST: u16 = 12_000;
    const PORTS: u16 = 4_500;
    let folder = std::env::temp_dir().join("sluice-test-ports");
    std::fs::create_dir_all(&folder).expect("a folder for the ports' locks");
    let start = std::process::id() % u32::from(PORTS);
    for _ in 0..PORTS {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + ((start * 37 + u32::from(step)) % u32::from(PORTS)) as u16;
        let lock = File::create(folder.join(port.to_string())).expect("a port's lock");
        let ours = lock.try_lock().is_ok();
        if ours && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            HELD.lock().push(lock);
            return port;
        }
    }
    panic!("no free port");
}
