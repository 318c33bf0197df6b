//! Wills over a storage that takes rows and refuses messages, and over what a crash leaves.

use std::time::Duration;

use super::tests::{Client, Node};
use crate::mqtt::ClientId;

/// Long enough for each retry, short enough for no expiry.
const A_WHILE: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(600);

/// A client of level 5 with a Will at QoS 1 on `t`.
async fn with_will(node: &Node, expiry_s: u8, will: u8) -> Client {
    let mut body = vec![0, 4, b'M', b'Q', b'T', b'T', 5, 0x0C, 0, 0];
    body.extend([5, 0x11, 0, 0, 0, expiry_s]);
    body.extend([0, 1, b'w', 0, 0, 1, b't', 0, 1, will]);
    node.connect_by(5, &body).await
}

/// WIL-09, INV-1: the session's row, or its end, does not come before its Will is stored; a crash
/// in between loses nothing.
#[tokio::test(start_paused = true)]
async fn a_will_that_waits_for_storage_outlives_a_crash() {
    for expiry_s in [0, 255] {
        let node = Node::new(1 << 20);
        node.connect(5, b's').await.subscribe().await;
        let client = with_will(&node, expiry_s, b'1').await;
        node.refuse_messages();
        drop(client);
        tokio::time::sleep(A_WHILE).await;
        let node = node.crash(Duration::ZERO);
        let tasks = node.sessions.start();
        let mut subscriber = node.connect(5, b's').await;
        assert_eq!(subscriber.take().await, b'1', "expiry {expiry_s}");
        tokio::time::sleep(A_WHILE).await;
        let node = node.restart();
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let tasks = node.sessions.start();
        node.connect(5, b's').await.expect_silence().await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// WIL-01: nor does the row of the connection that takes its session over hide it.
#[tokio::test(start_paused = true)]
async fn a_displaced_will_that_waits_for_storage_outlives_a_crash() {
    for expiry_s in [0, 255] {
        let node = Node::new(1 << 20);
        node.connect(5, b's').await.subscribe().await;
        let _first = with_will(&node, expiry_s, b'1').await;
        node.refuse_messages();
        let _second = with_will(&node, expiry_s, b'2').await;
        let _third = with_will(&node, expiry_s, b'3').await;
        tokio::time::sleep(A_WHILE).await;
        let node = node.crash(GRACE);
        let tasks = node.sessions.start();
        let mut subscriber = node.connect(5, b's').await;
        let mut got = [subscriber.take().await, subscriber.take().await];
        got.sort_unstable();
        assert_eq!(got, *b"12", "the third client may come back yet");
        subscriber.expect_silence().await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// What is tried again is stored at last, once, and forgotten then.
#[tokio::test(start_paused = true)]
async fn a_will_is_tried_again_until_it_is_stored() {
    for expiry_s in [0, 255] {
        let node = Node::new(1 << 20);
        let mut subscriber = node.connect(5, b's').await;
        subscriber.subscribe().await;
        let client = with_will(&node, expiry_s, b'1').await;
        node.refuse_messages();
        drop(client);
        tokio::time::sleep(A_WHILE).await;
        node.well();
        assert_eq!(subscriber.take().await, b'1');
        tokio::time::sleep(A_WHILE).await;
        let node = node.restart();
        let tasks = node.sessions.start();
        let mut subscriber = node.connect(5, b's').await;
        subscriber.expect_silence().await;
        let client_id = ClientId::new("w");
        let mut locked = node.sessions.context.registry.lock(&client_id).await;
        assert_eq!(locked.session().is_some(), expiry_s > 0);
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
