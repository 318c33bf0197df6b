//! Who may come in, before anybody can: what the first start makes, and what it says about it.

use std::io::{self, Write};

use super::{Fault, Node};
use crate::config::Config;
use crate::security::{Anonymous, FirstAdministrator};
use crate::telemetry::Door;

/// Makes what is missing, and tells an operator loudly who gets in without proof.
pub(super) async fn prepare(node: &Node, config: &Config) -> Result<(), Fault> {
    if let Some(first) = node.security().prepare().await? {
        show(&first);
    }
    let security = &config.security;
    let proves = !security.order.is_empty() || security.scram;
    let listener = &config.listener;
    let doors = [&listener.tcp, &listener.ssl, &listener.ws, &listener.wss];
    let near = doors.into_iter().flatten().all(|door| door.bind.ip().is_loopback());
    let open = [listener.tcp.is_some(), listener.ssl.is_some(), listener.ws.is_some()]
        .into_iter()
        .chain([listener.wss.is_some(), listener.unix.is_some()]);
    let open = Door::ALL.into_iter().zip(open).filter(|(_, open)| *open).map(|(door, _)| door);
    let (own, others): (Vec<Door>, Vec<Door>) =
        open.partition(|door| security.anonymous_at.contains_key(door));
    for door in own {
        let listener = door.text();
        if security.anonymous_at.get(&door) == Some(&Anonymous::Allowed) {
            tracing::warn!(
                "ANONYMOUS ACCESS: every client that proves nothing may come in by \
                 listener.{listener} (listener.{listener}.allow_anonymous)"
            );
        }
    }
    match security.anonymous {
        _ if proves || others.is_empty() => {}
        Anonymous::Refused => tracing::warn!("no client can come in: no provider is on"),
        Anonymous::Allowed => tracing::warn!(
            "ANONYMOUS ACCESS: every client may publish and subscribe to everything \
             (SECURITY_ALLOW_ANONYMOUS=true)"
        ),
        Anonymous::Loopback if near => tracing::info!(
            "ANONYMOUS ACCESS for clients of this machine: no provider is on \
             (SECURITY_MQTT_BASIC_ENABLED)"
        ),
        Anonymous::Loopback => tracing::warn!(
            "ANONYMOUS ACCESS for clients of this machine, and no other client is let in: switch a \
             provider on (SECURITY_MQTT_BASIC_ENABLED=true) or let everybody in \
             (SECURITY_ALLOW_ANONYMOUS=true)"
        ),
    }
    Ok(())
}

/// On standard output, not in the log: logs are kept, and read by others.
fn show(first: &FirstAdministrator) {
    let FirstAdministrator { username, password } = first;
    let text = format!(
        "The administration has its first account; this is shown once:\n  \
         user name {username}\n  password  {password}\n"
    );
    // Without a standard output nobody is there to be told; SECURITY_ADMIN_PASSWORD is the way in.
    io::stdout().write_all(text.as_bytes()).ok();
}
