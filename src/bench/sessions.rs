//! Removes the sessions that a persistent run left in the broker.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::Duration;

use tokio::time::Instant;

use super::frame;
use super::handshake;
use super::plan::{Plan, Role};
use super::wire::Wire;

const PATIENCE: Duration = Duration::from_secs(5);

/// Connects once more with a clean session for each kept one. A session that can't be removed
/// is left to the broker's expiry: the run is over and its numbers stand.
pub(super) fn remove(plan: &Plan) {
    let roles = (0..plan.args.threads).flat_map(|thread| plan.roles(u32::from(thread)));
    for role in roles.filter(|role| plan.keeps_session(*role)) {
        if remove_one(plan, role).is_err() {
            return;
        }
    }
}

fn remove_one(plan: &Plan, role: Role) -> io::Result<()> {
    let socket = TcpStream::connect_timeout(&plan.target(role), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut wire = Wire::new(socket, &plan.carrier)?;
    let mut answer = [0; 64];
    wire.begin()?;
    let deadline = Instant::now() + PATIENCE;
    let mut hear = |wire: &mut Wire| match wire.read(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => Ok(0),
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        heard => heard,
    };
    while !wire.is_open() {
        hear(&mut wire)?;
    }
    wire.write(&handshake::connect(plan, role, true))?;
    // Any answer will do: the session is gone before CONNACK leaves.
    while hear(&mut wire)? == 0 {}
    wire.write(&frame::DISCONNECT).map(|_| ())
}
