//! Removes the sessions that a persistent run left in the broker.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::frame;
use super::handshake;
use super::plan::{Plan, Role};

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
    let mut socket = TcpStream::connect_timeout(&plan.target(role), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(&handshake::connect(plan, role, true))?;
    // Any answer will do: the session is gone before CONNACK leaves.
    socket.read_exact(&mut [0])?;
    socket.write_all(&frame::DISCONNECT)
}
