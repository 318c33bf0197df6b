//! What is deployed: the health command, the container's recipe, and the compose file with what
//! belongs to it. No container is started here; what can be checked without an engine is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_yaml_ng::{Mapping, Value};

use crate::support::Broker;

fn top() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(top().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn sluice(arguments: &[&str], environment: &BTreeMap<String, String>) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.env_clear().envs(environment).args(arguments).current_dir("/");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// `sluice health` is 0 as long as the node is up, and 1 with a reason when nobody answers.
#[test]
fn the_health_command_asks_the_node_on_this_machine() {
    let mut broker = Broker::start();
    let address = broker.http_address();
    let variables = [
        ("HTTP_BIND_ADDRESS".to_owned(), "0.0.0.0".to_owned()),
        ("HTTP_BIND_PORT".to_owned(), address.port().to_string()),
    ];
    let environment = BTreeMap::from(variables);
    let (code, text) = sluice(&["health"], &environment);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("\"status\":\"UP\""), "{text}");
    broker.stop();
    let (code, text) = sluice(&["health"], &environment);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with(&format!("sluice: no answer on {address}")), "{text}");
}

fn compose() -> Value {
    let mut file: Value = serde_yaml_ng::from_str(&read("docker-compose.yml")).unwrap();
    file.apply_merge().unwrap();
    file
}

fn services(file: &Value) -> &Mapping {
    file["services"].as_mapping().unwrap()
}

/// `${NAME:-default}` as compose reads it where NAME is not set.
fn resolved(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => panic!("quote this value: {other:?}"),
    };
    let variable = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    match variable.and_then(|rest| rest.split_once(":-")) {
        Some((_, default)) => default.to_owned(),
        None => text,
    }
}

/// The variables of each node are known ones with good values, and each node has a name of its
/// own.
#[test]
fn the_compose_file_configures_its_nodes() {
    let file = compose();
    let mut names = Vec::new();
    for (name, service) in services(&file) {
        if service["image"].as_str() != Some("sluice") {
            continue;
        }
        let environment: BTreeMap<String, String> = service["environment"]
            .as_mapping()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.as_str().unwrap().to_owned(), resolved(value)))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let known = read("docs/configuration.md");
        for variable in environment.keys() {
            assert!(known.contains(&format!("`{variable}`")), "{variable} is no setting");
        }
        let (code, text) = sluice(&["check-config"], &environment);
        assert_eq!(code, 0, "{name:?}: {text}");
        assert!(!text.contains("warning"), "{name:?}: {text}");
        assert!(text.contains("storage.type = cluster"), "{text}");
        names.push(environment["TB_SERVICE_ID"].clone());
    }
    names.sort();
    names.dedup();
    assert_eq!(names, ["sluice-1", "sluice-2", "sluice-3"]);
}

/// Files that are mounted exist, and balancer and Prometheus name every node.
#[test]
fn the_compose_file_has_what_it_mounts() {
    let file = compose();
    for (name, service) in services(&file) {
        let volumes = service.get("volumes").and_then(Value::as_sequence).into_iter().flatten();
        for volume in volumes.map(|volume| volume.as_str().unwrap()) {
            let source = volume.split(':').next().unwrap();
            let is_there = match source.strip_prefix("./") {
                Some(path) => top().join(path).exists(),
                None => file["volumes"].get(source).is_some(),
            };
            assert!(is_there, "{name:?} mounts {source}, which is not there");
        }
    }
    let (balancer, scrape) =
        (read("config/compose/haproxy.cfg"), read("config/compose/prometheus.yml"));
    for node in ["sluice-1", "sluice-2", "sluice-3"] {
        assert!(balancer.contains(&format!("{node}:1883")), "{node} gets no connections");
        assert!(balancer.contains(&format!("{node}:8084")), "{node} gets no WebSockets");
        assert!(scrape.contains(&format!("{node}:8083")), "{node} is not scraped");
    }
    check_by_tools();
}

/// With the tools themselves, where they are installed.
fn check_by_tools() {
    let checks: [(&str, &[&str]); 2] = [
        ("docker-compose", &["config", "--quiet"]),
        ("haproxy", &["-c", "-f", "config/compose/haproxy.cfg"]),
    ];
    for (tool, arguments) in checks {
        match Command::new(tool).args(arguments).current_dir(top()).output() {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{tool}: {text}");
            }
            Err(error) => eprintln!("SKIPPED: {tool} did not look at its file: {error}"),
        }
    }
}

/// The words of an expression that are no metric.
const WORDS: [&str; 14] = [
    "sum",
    "rate",
    "max",
    "by",
    "le",
    "instance",
    "histogram_quantile",
    "reason",
    "qos",
    "up",
    "job",
    "sluice",
    "1m",
    "min",
];

/// Every metric of the dashboard is one that a node has.
#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let page = Broker::start().scrape();
    let text = read("config/compose/grafana/dashboards/sluice.json");
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut metrics = 0;
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let named = words.filter(|word| word.chars().any(|c| c.is_ascii_alphabetic()));
            for metric in named.filter(|word| !WORDS.contains(word)) {
                let declared = metric.strip_suffix("_bucket").unwrap_or(metric);
                let line = format!("# TYPE {declared} ");
                assert!(page.contains(&line), "{metric} of {} is no metric", panel["title"]);
                metrics += 1;
            }
        }
    }
    assert!(metrics > 20, "{metrics} metrics were found");
}

/// What the recipe copies is all that a build needs, with the toolchain that is pinned; and the
/// binary needs nothing that a small image lacks.
#[test]
fn the_container_has_what_it_needs() {
    let recipe = read("Dockerfile");
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap();
    let image = format!("FROM rust:{}-", channel.trim_matches('"'));
    assert!(recipe.contains(&image), "the recipe compiles with another toolchain than {channel}");
    let folder = tempfile::tempdir().unwrap();
    let ignored = read(".dockerignore");
    for line in recipe.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let Some((sources, _)) = line.rsplit_once(' ').filter(|_| !line.starts_with("--")) else {
            continue;
        };
        for source in sources.split(' ') {
            assert!(ignored.contains(&format!("!{source}\n")), "{source} is not sent to the build");
            let mut copy = Command::new("cp");
            copy.arg("-r").arg(top().join(source)).arg(folder.path());
            assert!(copy.status().unwrap().success(), "{source} is not there");
        }
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    libraries_are_few(Path::new(env!("CARGO_BIN_EXE_sluice")));
}

/// Those of C, of unwinding, and zlib, which Debian's package manager itself needs.
fn libraries_are_few(binary: &Path) {
    let output = Command::new("ldd").arg(binary).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let known = ["linux-vdso", "libc.", "libm.", "libgcc_s.", "libz.", "ld-linux", "libpthread."];
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        assert!(known.iter().any(|name| line.contains(name)), "the binary needs {line}");
    }
}
