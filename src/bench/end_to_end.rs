//! Whole runs against a broker of a few lines, on `mqttbytes`, that can be told to misbehave:
//! a checker that finds nothing has to be shown something to find.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use bytes::BytesMut;
use clap::Parser;
use mqttbytes::v4::{self, Packet};
use mqttbytes::{Error, QoS};
use parking_lot::Mutex;

use super::args::BenchArgs;
use super::report::Report;

/// The message, counted over a run, that the broker mistreats.
const VICTIM: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mischief {
    None,
    Drop,
    Double,
    /// Delivers the victim after its successor.
    Swap,
}

#[derive(Debug, Default)]
struct Routes {
    by_filter: HashMap<String, TcpStream>,
    seen: u64,
    held: Option<Vec<u8>>,
}

#[derive(Debug)]
struct TinyBroker {
    port: u16,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    acceptor: Option<thread::JoinHandle<()>>,
}

impl TinyBroker {
    fn start(mischief: Mischief) -> TinyBroker {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let sockets = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&sockets);
        let acceptor = thread::spawn(move || {
            let routes = Arc::new(Mutex::new(Routes::default()));
            // The stop is a connection that says nothing.
            for socket in listener.incoming().map_while(Result::ok) {
                let mut first = [0];
                if !matches!(socket.peek(&mut first), Ok(1)) {
                    return;
                }
                kept.lock().push(socket.try_clone().unwrap());
                let routes = Arc::clone(&routes);
                thread::spawn(move || serve(socket, &routes, mischief));
            }
        });
        TinyBroker { port, sockets, acceptor: Some(acceptor) }
    }
}

impl Drop for TinyBroker {
    fn drop(&mut self) {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap().shutdown(Shutdown::Both).unwrap();
        self.acceptor.take().unwrap().join().unwrap();
        for socket in self.sockets.lock().drain(..) {
            socket.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Serves one client until it goes.
fn serve(mut socket: TcpStream, routes: &Mutex<Routes>, mischief: Mischief) {
    let (mut stream, mut chunk) = (BytesMut::new(), [0; 4096]);
    loop {
        let packet = match v4::read(&mut stream, 1 << 20) {
            Ok(packet) => packet,
            Err(Error::InsufficientBytes(_)) => match socket.read(&mut chunk) {
                Ok(count @ 1..) => {
                    stream.extend_from_slice(&chunk[..count]);
                    continue;
                }
                Ok(0) | Err(_) => return,
            },
            Err(error) => panic!("the generator sent what does not decode: {error:?}"),
        };
        let mut answer = BytesMut::new();
        match packet {
            Packet::Connect(_) => {
                let code = v4::ConnectReturnCode::Success;
                v4::ConnAck { session_present: false, code }.write(&mut answer).unwrap();
            }
            Packet::Subscribe(packet) => {
                let filter = &packet.filters[0];
                let route = socket.try_clone().unwrap();
                routes.lock().by_filter.insert(filter.path.clone(), route);
                let granted = vec![v4::SubscribeReasonCode::Success(filter.qos)];
                v4::SubAck::new(packet.pkid, granted).write(&mut answer).unwrap();
            }
            Packet::Publish(publish) => {
                if publish.qos == QoS::AtLeastOnce {
                    v4::PubAck::new(publish.pkid).write(&mut answer).unwrap();
                }
                routes.lock().forward(&publish, mischief);
            }
            Packet::Disconnect => return,
            _ => {}
        }
        if socket.write_all(&answer).is_err() {
            return;
        }
    }
}

impl Routes {
    fn forward(&mut self, publish: &v4::Publish, mischief: Mischief) {
        let mut bytes = BytesMut::new();
        publish.write(&mut bytes).unwrap();
        self.seen += 1;
        let mut out = bytes.to_vec();
        match (mischief, self.seen == VICTIM) {
            (Mischief::Drop, true) => return,
            (Mischief::Double, true) => out.extend_from_slice(&bytes),
            (Mischief::Swap, true) => {
                self.held = Some(out);
                return;
            }
            _ => out.extend(self.held.take().unwrap_or_default()),
        }
        let Some(route) = self.by_filter.get_mut(&publish.topic) else { return };
        route.write_all(&out).ok();
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn report(mischief: Mischief, words: &str) -> Report {
    let broker = TinyBroker::start(mischief);
    let port = broker.port;
    let line = format!("bench --port {port} --warm 0 --secs 1 --drain 1 --rate 200 {words}");
    let args = Line::try_parse_from(line.split_whitespace()).unwrap().bench;
    super::run_once(args).unwrap()
}

#[test]
fn a_correct_broker_has_no_faults_at_qos_0_and_1_and_over_two_threads() {
    for words in ["--clients 3 --qos 0", "--clients 3 --qos 1 --threads 2"] {
        let report = report(Mischief::None, words);
        assert!(report.faultless(), "{report}");
        assert!(report.delivered() > VICTIM, "{report}");
    }
}

#[test]
fn one_message_dropped_doubled_or_swapped_is_found() {
    let cases =
        [(Mischief::Drop, (1, 0, 0)), (Mischief::Double, (0, 1, 0)), (Mischief::Swap, (0, 0, 1))];
    for (mischief, faults) in cases {
        let report = report(mischief, "--clients 1 --qos 1");
        assert_eq!(report.faults(), faults, "{mischief:?}: {report}");
        assert!(!report.faultless());
    }
}
