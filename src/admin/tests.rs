use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::telemetry::task;

struct Said(Mutex<Vec<Component>>);

impl HealthSource for Said {
    fn components(&self) -> Vec<Component> {
        self.0.lock().clone()
    }
}

fn config() -> Config {
    Config {
        tls: None,
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        health: true,
        info: true,
        prometheus: true,
        health_details: true,
        health_disk: true,
    }
}

struct Door {
    address: SocketAddr,
    health: Arc<Said>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn open(config: Config) -> Door {
    let health = Arc::new(Said(Mutex::new(vec![Component::up("storage")])));
    let info = Info { node_id: "node-1".into(), storage: "embedded" };
    let admin = Admin::bind(&config, info, health.clone(), None).await.unwrap();
    let address = admin.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = task::spawn(
        "admin",
        admin.run(async move {
            let _ended: Result<(), oneshot::error::RecvError> = stopped.await;
        }),
    );
    Door { address, health, stop, task }
}

/// Status code, head and body.
async fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\r\n");
    send(address, &request).await
}

async fn send(address: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn health_is_up_while_every_component_is_well() {
    let door = open(config()).await;
    let (code, _, body) = get(door.address, "/actuator/health").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body["status"]), (200, &"UP".into()));
    assert_eq!(body["components"]["storage"]["status"], "UP");

    door.health.0.lock().push(Component::down("disk", "it is full"));
    let (code, _, body) = get(door.address, "/actuator/health").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body["status"]), (503, &"DOWN".into()));
    assert_eq!(body["components"]["disk"]["details"]["trouble"], "it is full");
}

#[tokio::test]
async fn health_without_details_names_no_component() {
    let door = open(Config { health_details: false, ..config() }).await;
    door.health.0.lock().push(Component::down("disk", "a secret"));
    let (code, _, body) = get(door.address, "/actuator/health").await;
    assert_eq!((code, body.as_str()), (503, "{\"status\":\"DOWN\"}"));
}

/// MET-1
#[tokio::test]
async fn info_and_metrics_are_answered() {
    let door = open(config()).await;
    let (code, _, body) = get(door.address, "/actuator/info").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &body["node"]["id"]), (200, &"node-1".into()));
    assert_eq!(body["build"]["version"], env!("CARGO_PKG_VERSION"));
    let (code, head, body) = get(door.address, "/actuator/prometheus").await;
    assert_eq!(code, 200);
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\ndroppedMsgs_total "), "{body}");
}

#[tokio::test]
async fn what_is_not_exposed_or_not_there_is_404() {
    let door = open(Config { prometheus: false, ..config() }).await;
    for path in ["/actuator/prometheus", "/", "/actuator/env"] {
        assert_eq!(get(door.address, path).await.0, 404, "{path}");
    }
    let post = "POST /actuator/info HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\
                Content-Length: 0\r\n\r\n";
    assert_eq!(send(door.address, post).await.0, 405);
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_settings() {
    let door = open(config()).await;
    let info = Info { node_id: "node-2".into(), storage: "embedded" };
    let taken = Config { bind: door.address, ..config() };
    let fault = Admin::bind(&taken, info, door.health.clone(), None).await.unwrap_err().to_string();
    assert!(fault.contains(&door.address.to_string()) && fault.contains("server.port"), "{fault}");
}

#[tokio::test]
async fn a_stop_ends_the_door_although_a_connection_is_open() {
    let door = open(config()).await;
    let idle = TcpStream::connect(door.address).await.unwrap();
    assert_eq!(get(door.address, "/actuator/health").await.0, 200);
    door.stop.send(()).unwrap();
    door.task.await.unwrap();
    drop(idle);
    assert!(TcpStream::connect(door.address).await.is_err());
}

/// Silent peers take the permits for a bounded time only.
#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_so_that_others_get_in() {
    let door = open(config()).await;
    let mut idle = Vec::new();
    for _ in 0..limits::ADMIN_CONNECTIONS {
        idle.push(TcpStream::connect(door.address).await.unwrap());
    }
    let late = task::spawn("late", get(door.address, "/actuator/info"));
    let all_closed = async {
        for stream in &mut idle {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).await.unwrap_or(0), 0, "closed, nothing was said");
        }
    };
    let patience = 4 * Duration::from_millis(limits::ADMIN_IDLE_MS);
    tokio::time::timeout(patience, all_closed).await.expect("idle connections are closed");
    assert_eq!(late.await.unwrap().0, 200);
}

#[test]
fn the_disk_is_down_below_its_bound_or_when_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(disk(folder.path(), 1).trouble, None);
    let full = disk(folder.path(), u64::MAX).trouble.unwrap();
    assert!(full.contains("bytes are free"), "{full}");
    assert!(disk(Path::new("/nowhere/at/all"), 1).trouble.is_some());
}
