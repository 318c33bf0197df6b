//! The stream against another library's client: what one side writes, the other reads.

use std::io::{Read, Write};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{ClientRequestBuilder, Message, WebSocket};

use super::*;

type Client = WebSocket<std::net::TcpStream>;

fn config() -> WsConfig {
    WsConfig { sub_protocols: vec!["mqtt".into()], forwarded: false }
}

/// Runs `client` on a thread against one accepted connection.
async fn pair<T: Send + 'static>(
    client: impl FnOnce(Client) -> T + Send + 'static,
) -> (Ws<TcpStream>, tokio::task::JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = tokio::task::spawn_blocking(move || {
        let socket = std::net::TcpStream::connect(address).unwrap();
        let uri = format!("ws://{address}/mqtt").parse().unwrap();
        let request = ClientRequestBuilder::new(uri).with_sub_protocol("mqtt");
        client(tungstenite::client(request, socket).unwrap().0)
    });
    let (socket, _) = listener.accept().await.unwrap();
    let ws = Ws::accept(socket, &config(), &Networks::default(), None, 1 << 16).await;
    (ws.unwrap().0, client)
}

/// Large writes become frames that a client joins; many small frames become one stream.
#[tokio::test]
async fn bytes_go_both_ways_in_order() {
    let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let expected = sent.clone();
    let (mut ws, client) = pair(move |mut client: Client| {
        let mut got = Vec::new();
        while got.len() < expected.len() {
            match client.read().unwrap() {
                Message::Binary(bytes) => got.extend_from_slice(&bytes),
                other => panic!("{other:?}"),
            }
        }
        assert!(got == expected, "what came is not what was sent");
        for piece in got.chunks(997) {
            client.send(Message::binary(piece.to_vec())).unwrap();
        }
    })
    .await;
    ws.write_all(&sent).await.unwrap();
    let mut got = vec![0; sent.len()];
    ws.read_exact(&mut got).await.unwrap();
    assert!(got == sent, "what came back is not what was sent");
    client.await.unwrap();
}

/// WSS-04: a ping is answered by reading alone.
#[tokio::test]
async fn a_ping_is_answered_while_nothing_is_written() {
    let (mut ws, client) = pair(|mut client: Client| {
        client.send(Message::Ping("there?".into())).unwrap();
        assert_eq!(client.read().unwrap(), Message::Pong("there?".into()));
        client.send(Message::binary(b"x".to_vec())).unwrap();
    })
    .await;
    assert_eq!(ws.read_u8().await.unwrap(), b'x');
    client.await.unwrap();
}

/// A close of either side is answered; a broken rule has its code.
#[tokio::test]
async fn closes_are_answered() {
    let (mut ws, client) = pair(|mut client: Client| {
        client.close(None).unwrap();
        assert!(matches!(client.read().unwrap(), Message::Close(None)));
    })
    .await;
    assert_eq!(ws.read(&mut [0; 10]).await.unwrap(), 0);
    ws.shutdown().await.unwrap();
    client.await.unwrap();

    let code_of = |mut client: Client| match client.read().unwrap() {
        Message::Close(Some(close)) => close.code,
        other => panic!("{other:?}"),
    };
    let (mut ws, client) = pair(code_of).await;
    ws.shutdown().await.unwrap();
    assert_eq!(client.await.unwrap(), CloseCode::Normal);

    let (mut ws, client) = pair(move |mut client: Client| {
        client.send(Message::text("no text")).unwrap();
        code_of(client)
    })
    .await;
    assert!(ws.read(&mut [0; 10]).await.is_err());
    ws.shutdown().await.unwrap();
    assert_eq!(client.await.unwrap(), CloseCode::Unsupported);
}

/// Half a head, then the rest, then the end of the socket: nothing is lost, and the end is seen.
#[tokio::test]
async fn a_head_may_come_in_pieces() {
    let (mut ws, client) = pair(|client: Client| {
        let mut socket = client.get_ref().try_clone().unwrap();
        socket.set_nodelay(true).unwrap();
        for byte in [0x82, 0x83, 0, 0, 0, 0, 1, 2, 3] {
            socket.write_all(&[byte]).unwrap();
        }
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).unwrap();
        rest
    })
    .await;
    let mut got = Vec::new();
    ws.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, [1, 2, 3]);
    drop(ws);
    assert_eq!(client.await.unwrap(), b"");
}
