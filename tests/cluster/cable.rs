//! A cable between somebody and a TCP server, which can be cut: nothing comes through any more,
//! and nobody is told; when it is mended, what waited goes on.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    cut: AtomicBool,
    ended: AtomicBool,
}

pub(crate) struct Cable {
    state: Arc<State>,
}

impl Cable {
    /// From `port` of this machine to a server on it.
    pub(crate) fn lay(port: u16, server: u16) -> Cable {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(State::default());
        let seen = Arc::clone(&state);
        std::thread::spawn(move || accept(&listener, server, &seen));
        Cable { state }
    }

    pub(crate) fn cut(&self) {
        self.state.cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn mend(&self) {
        self.state.cut.store(false, Ordering::Relaxed);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
    }
}

impl State {
    /// Back when bytes may pass; `false`: never.
    fn passes(&self) -> bool {
        while self.cut.load(Ordering::Relaxed) && !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_AGAIN);
        }
        !self.ended.load(Ordering::Relaxed)
    }
}

fn accept(listener: &TcpListener, server: u16, state: &Arc<State>) {
    while state.passes() {
        let Ok((near, _)) = listener.accept() else {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        };
        // Whoever is refused by the server is refused here.
        let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { continue };
        for stream in [&near, &far] {
            stream.set_nonblocking(false).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(LOOK_AGAIN)).unwrap();
        }
        let pairs = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
        for (from, to) in pairs {
            let state = Arc::clone(state);
            std::thread::spawn(move || {
                pump(&from, &to, &state);
                let _gone = from.shutdown(Shutdown::Both);
                let _gone = to.shutdown(Shutdown::Both);
            });
        }
    }
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, state: &State) {
    let mut buffer = vec![0; 64 * 1024];
    while state.passes() {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if !state.passes() || to.write_all(&buffer[..count]).is_err() {
                    return;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}
