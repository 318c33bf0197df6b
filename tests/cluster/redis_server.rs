//! A real redis-server for one test: its own folder, a free port, gone with its guard.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sluice::storage::{RedisAddress, RedisKind, RedisSettings};

use crate::support::free_port;

/// How long a server may take to come up on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) struct RedisServer {
    folder: tempfile::TempDir,
    port: u16,
    options: Vec<String>,
    child: Option<Child>,
}

/// A cluster's nodes take the port 10000 above their own, too.
fn free_pair() -> u16 {
    eventually("a free pair of ports", || {
        let port = free_port();
        TcpListener::bind(("127.0.0.1", port.checked_add(10_000)?)).ok()?;
        Some(port)
    })
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
        let mut server = Self { folder, port: free_pair(), options, child: None };
        server.run();
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// One that takes only TLS, and only who has a certificate of its authority. The second answer
    /// is the folder of `ca.pem`, `me.pem` and `me.key`.
    pub(crate) fn with_tls() -> (Self, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let script = "
            new='req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
            openssl $new -x509 -days 3650 -subj /CN=authority -keyout ca.key -out ca.pem
            echo subjectAltName=DNS:localhost > names
            for who in me server; do
                openssl $new -subj /CN=localhost -keyout $who.key -out $who.csr
                openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial \\
                    -days 3650 -extfile names -out $who.pem
            done";
        let mut shell = Command::new("sh");
        shell.args(["-ec", script]).current_dir(&folder).stderr(Stdio::null());
        assert!(shell.status().expect("a shell").success(), "openssl is installed");
        let port = free_port();
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let (certificate, key) = (path("server.pem"), path("server.key"));
        let mut tls = vec!["--tls-port".to_owned(), port.to_string()];
        tls.extend(["--tls-cert-file".to_owned(), certificate, "--tls-key-file".to_owned(), key]);
        tls.extend(["--tls-ca-cert-file".to_owned(), path("ca.pem")]);
        let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
        let mut server = Self::with(&tls);
        server.port = port;
        (server, folder)
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

/// A Sentinel that watches one master, and is quick to judge.
pub(crate) struct Sentinel {
    port: u16,
    _folder: tempfile::TempDir,
    child: Child,
}

impl Sentinel {
    pub(crate) fn of(master: &RedisServer) -> Self {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("sentinel monitor queues 127.0.0.1 {} 1", master.port),
            "sentinel down-after-milliseconds queues 400".to_owned(),
            "sentinel failover-timeout queues 3000".to_owned(),
        ];
        let path = folder.path().join("sentinel.conf");
        std::fs::write(&path, lines.join("\n")).expect("its own folder");
        let mut command = Command::new("redis-server");
        command.arg(&path).arg("--sentinel").arg("--logfile").arg(folder.path().join("log"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.expect("redis-server is installed (Debian: redis-server)");
        let sentinel = Self { port, _folder: folder, child };
        eventually("a Sentinel that knows a replica", || {
            let told = ask(port, &["SENTINEL", "REPLICAS", "queues"])?;
            told.contains("slave-priority").then_some(())
        });
        sentinel
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Behind an address where nobody is.
    pub(crate) fn settings(&self) -> RedisSettings {
        let at = |port| RedisAddress { host: "127.0.0.1".into(), port };
        let sentinels = vec![at(free_port()), at(self.port)];
        let kind = RedisKind::Sentinel { master: "queues".into(), sentinels, password: None };
        RedisSettings { kind, ..RedisSettings::default() }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Three masters with a replica each.
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub(crate) fn start() -> Self {
        let options = [
            ["--appendonly", "yes", "--appendfsync", "everysec"],
            ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"],
            ["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"],
        ]
        .concat();
        let nodes: Vec<RedisServer> = (0..6).map(|_| RedisServer::with(&options)).collect();
        let mut words = vec!["--cluster".to_owned(), "create".to_owned()];
        words.extend(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        words.extend(["--cluster-replicas", "1", "--cluster-yes"].map(str::to_owned));
        let made = Command::new("redis-cli").args(&words).output().expect("redis-cli is there");
        let text = String::from_utf8_lossy(&made.stdout);
        assert!(made.status.success(), "no cluster: {text}");
        let cluster = Self { nodes };
        for node in &cluster.nodes {
            eventually("a whole cluster", || {
                let info = node.try_ask(&["CLUSTER", "INFO"])?;
                let replication = node.try_ask(&["INFO", "replication"])?;
                let linked = replication.contains("connected_slaves:1")
                    || replication.contains("master_link_status:up");
                (linked && info.contains("cluster_state:ok")).then_some(())
            });
        }
        cluster
    }

    pub(crate) fn settings(&self) -> RedisSettings {
        let at = |node: &RedisServer| RedisAddress { host: "127.0.0.1".into(), port: node.port };
        let nodes = self.nodes.iter().map(at).collect();
        let kind = RedisKind::Cluster { nodes, max_redirects: 12 };
        RedisSettings { kind, ..RedisSettings::default() }
    }

    /// Moves slots from one master to another, keys and all.
    pub(crate) fn reshard(&self, from: usize, to: usize, slots: usize) {
        let id = |node: usize| self.nodes[node].ask(&["CLUSTER", "MYID"]);
        let moved = Command::new("redis-cli")
            .args(["--cluster", "reshard", &format!("127.0.0.1:{}", self.nodes[from].port)])
            .args(["--cluster-from", &id(from), "--cluster-to", &id(to)])
            .args(["--cluster-slots", &slots.to_string(), "--cluster-yes"])
            .output()
            .expect("redis-cli is there");
        assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stdout));
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
