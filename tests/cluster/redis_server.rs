//! A real redis-server for one test: its own folder, a free port, gone with its guard.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluice::storage::{RedisAddress, RedisKind, RedisSettings};

/// How long a server may take to come up on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) struct RedisServer {
    folder: tempfile::TempDir,
    port: u16,
    options: Vec<String>,
    child: Option<Child>,
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits for a condition with patience.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl RedisServer {
    /// With a journal that is synced at every write.
    pub(crate) fn start() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub(crate) fn with(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = options.iter().map(|text| (*text).to_owned()).collect();
        let mut server = Self { folder, port: free_port(), options, child: None };
        server.run();
        server
    }

    /// A replica that has caught up.
    pub(crate) fn replica_of(master: &Self) -> Self {
        let to = format!("127.0.0.1 {}", master.port);
        let (host, port) = to.split_once(' ').expect("two words");
        let options = ["--appendonly", "yes", "--appendfsync", "always", "--replicaof", host, port];
        let replica = Self::with(&options);
        replica.in_step_with(master);
        replica
    }

    /// Waits until this replica has everything its master has.
    pub(crate) fn in_step_with(&self, master: &Self) {
        let field = |text: String, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned())
        };
        eventually("a replica in step", || {
            let ours = self.try_ask(&["INFO", "replication"])?;
            let theirs = master.try_ask(&["INFO", "replication"])?;
            let up = field(ours.clone(), "master_link_status")? == "up";
            let at = field(ours, "slave_repl_offset")?;
            (up && at == field(theirs, "master_repl_offset")?).then_some(())
        });
    }

    /// Runs as a master where another one was, with its own data: what a failover looks like.
    pub(crate) fn take_place_of(&mut self, other: &Self) {
        self.port = other.port;
        self.options.truncate(4);
        self.run();
    }

    pub(crate) fn settings(&self) -> RedisSettings {
        let address = RedisAddress { host: "127.0.0.1".into(), port: self.port };
        RedisSettings { kind: RedisKind::Standalone(address), ..RedisSettings::default() }
    }

    /// Starts the process; what its journal holds is there again.
    pub(crate) fn run(&mut self) {
        let log: PathBuf = self.folder.path().join("redis.log");
        let mut command = Command::new("redis-server");
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(self.folder.path()).arg("--logfile").arg(&log);
        command.args(&self.options).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("redis-server is installed (Debian: redis-server)");
        self.child = Some(child);
        eventually("a Redis that answers PING", || {
            (self.try_ask(&["PING"])? == "PONG").then_some(())
        });
    }

    /// As a loss of the process does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("its own child");
            child.wait().expect("its own child");
        }
    }

    /// Stops or continues the process where it stands.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(sent.success());
    }

    /// One command; the answer as text. `None`: nobody answers.
    pub(crate) fn try_ask(&self, words: &[&str]) -> Option<String> {
        ask(self.port, words)
    }

    pub(crate) fn ask(&self, words: &[&str]) -> String {
        self.try_ask(words).expect("a running Redis answers")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Speaks RESP by itself, so that no test trusts the client under test.
pub(crate) fn ask(port: u16, words: &[&str]) -> Option<String> {
    use std::io::{BufRead, BufReader, Read, Write};
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    (&stream).write_all(request.as_bytes()).ok()?;
    let mut reader = BufReader::new(&stream);
    let mut read = move || {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end().to_owned();
        let (kind, rest) = line.split_at_checked(1)?;
        match kind {
            "$" if rest != "-1" => {
                let mut body = vec![0; rest.parse::<usize>().ok()? + 2];
                reader.read_exact(&mut body).ok()?;
                body.truncate(body.len() - 2);
                Some((0, String::from_utf8_lossy(&body).into_owned()))
            }
            "*" => Some((rest.parse::<usize>().ok()?, String::new())),
            _ => Some((0, rest.to_owned())),
        }
    };
    let (mut owed, mut answer) = (1_usize, Vec::new());
    while owed > 0 {
        let (more, text) = read()?;
        owed += more;
        owed -= 1;
        if more == 0 {
            answer.push(text);
        }
    }
    Some(answer.join("\n"))
}
