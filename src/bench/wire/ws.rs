//! The WebSocket of one connection: an upgrade, and frames. Ours are masked with zeros, which is
//! legal, costs us nothing, and a broker as much as any other mask.

use std::io;

const BINARY: u8 = 0x82;
const PONG: u8 = 0x8A;
const MASKED: u8 = 0x80;
/// A close frame with code 1000.
pub(super) const CLOSE: [u8; 8] = [0x88, MASKED | 2, 0, 0, 0, 0, 0x03, 0xE8];
/// Longer answers to an upgrade are none.
const ANSWER_MAX: usize = 16 * 1024;

/// The longest head: two bytes, eight of length, four of mask.
pub(super) fn head(length: usize) -> ([u8; 14], usize) {
    let mut head = [0; 14];
    head[0] = BINARY;
    if length < 126 {
        head[1] = MASKED | length as u8;
        (head, 6)
    } else if let Ok(short) = u16::try_from(length) {
        head[1] = MASKED | 126;
        head[2..4].copy_from_slice(&short.to_be_bytes());
        (head, 8)
    } else {
        head[1] = MASKED | 127;
        head[2..10].copy_from_slice(&(length as u64).to_be_bytes());
        (head, 14)
    }
}

#[derive(Debug)]
enum Stage {
    /// The upgrade's answer, as far as it came.
    Upgrade(Vec<u8>),
    /// A frame's head, as far as it came.
    Head([u8; 10], usize),
    /// Bytes of a frame's payload that are still to come.
    Payload(u64),
    /// The same of a ping, with what came of it.
    Ping(u64, Vec<u8>),
    /// The same of what says nothing.
    Skip(u64),
}

#[derive(Debug)]
pub(super) struct WsSide {
    request: Vec<u8>,
    stage: Stage,
    answers: Vec<u8>,
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl WsSide {
    pub(super) fn new(request: &str) -> WsSide {
        let request = request.as_bytes().to_vec();
        WsSide { request, stage: Stage::Upgrade(Vec::new()), answers: Vec::new() }
    }

    /// What asks for the upgrade.
    pub(super) fn request(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.request)
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.stage, Stage::Upgrade(_))
    }

    /// Frames that the last bytes ask of us.
    pub(super) fn answers(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.answers)
    }

    /// Moves the payload of binary frames to the front of `bytes`; how much there is.
    pub(super) fn decode(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut at, mut filled) = (0, 0);
        while at < bytes.len() {
            let rest = bytes.len() - at;
            match &mut self.stage {
                Stage::Upgrade(answer) => {
                    answer.push(bytes[at]);
                    at += 1;
                    if answer.ends_with(b"\r\n\r\n") {
                        let accepted = answer.starts_with(b"HTTP/1.1 101");
                        if !accepted {
                            return Err(bad(format!(
                                "no upgrade: {}",
                                String::from_utf8_lossy(answer).lines().next().unwrap_or_default()
                            )));
                        }
                        self.stage = Stage::Head([0; 10], 0);
                    } else if answer.len() > ANSWER_MAX {
                        return Err(bad("no end of the upgrade's answer"));
                    }
                }
                Stage::Head(head, length) => {
                    head[*length] = bytes[at];
                    *length += 1;
                    at += 1;
                    if let Some(stage) = begun(&head[..*length])? {
                        self.stage = stage;
                    }
                }
                Stage::Payload(left) => {
                    let taken = rest.min(*left as usize);
                    bytes.copy_within(at..at + taken, filled);
                    (at, filled, *left) = (at + taken, filled + taken, *left - taken as u64);
                }
                Stage::Ping(left, data) => {
                    let taken = rest.min(*left as usize);
                    data.extend_from_slice(&bytes[at..at + taken]);
                    (at, *left) = (at + taken, *left - taken as u64);
                }
                Stage::Skip(left) => {
                    let taken = rest.min(*left as usize);
                    (at, *left) = (at + taken, *left - taken as u64);
                }
            }
            self.end_frame();
        }
        Ok(filled)
    }

    fn end_frame(&mut self) {
        match &self.stage {
            Stage::Ping(0, data) => {
                self.answers.extend([PONG, MASKED | data.len() as u8, 0, 0, 0, 0]);
                self.answers.extend_from_slice(data);
            }
            Stage::Payload(0) | Stage::Skip(0) => {}
            Stage::Upgrade(_)
            | Stage::Head(..)
            | Stage::Payload(_)
            | Stage::Ping(..)
            | Stage::Skip(_) => return,
        }
        self.stage = Stage::Head([0; 10], 0);
    }
}

/// What a frame is, once its head is whole.
fn begun(head: &[u8]) -> io::Result<Option<Stage>> {
    let [first, second, lengths @ ..] = head else { return Ok(None) };
    let left = match (second, lengths) {
        (126, [high, low]) => u64::from(u16::from_be_bytes([*high, *low])),
        (127, lengths) => match lengths.first_chunk() {
            Some(all) => u64::from_be_bytes(*all),
            None => return Ok(None),
        },
        (126, _) => return Ok(None),
        (short @ 0..126, _) => u64::from(*short),
        (128.., _) => return Err(bad("the broker masks its frames")),
    };
    match first & 0x0F {
        0 | 2 => Ok(Some(Stage::Payload(left))),
        8 => Err(bad("the broker closed the WebSocket")),
        9 if left < 126 => Ok(Some(Stage::Ping(left, Vec::new()))),
        0xA => Ok(Some(Stage::Skip(left))),
        other => Err(bad(format!("a frame of kind {other} from the broker"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_in_pieces(bytes: &[u8], size: usize) -> (Vec<u8>, Vec<u8>) {
        let mut side = WsSide::new("");
        let (mut payload, mut answers) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            let count = side.decode(&mut piece).unwrap();
            payload.extend_from_slice(&piece[..count]);
            answers.extend(side.answers());
        }
        assert!(side.is_open());
        (payload, answers)
    }

    /// Whatever pieces they come in, payloads are joined, pings are answered, pongs say nothing.
    #[test]
    fn frames_are_joined_and_pings_answered() {
        let long = [7; 300];
        let bytes = [
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n".as_slice(),
            &[0x02, 2, 1, 2, 0x89, 2, 8, 9, 0x80, 1, 3],
            &[0x82, 126, 1, 44],
            &long,
            &[0x8A, 1, 0, 0x82, 0, 0x89, 0, 0x82, 127, 0, 0, 0, 0, 0, 0, 0, 2, 5, 6],
        ]
        .concat();
        for size in [1, 2, 3, 7, 64, bytes.len()] {
            let (payload, answers) = decode_in_pieces(&bytes, size);
            assert_eq!(payload, [&[1, 2, 3][..], &long, &[5, 6]].concat(), "{size}");
            let pongs = [PONG, 0x82, 0, 0, 0, 0, 8, 9, PONG, 0x80, 0, 0, 0, 0];
            assert_eq!(answers, pongs, "{size}");
        }
    }

    #[test]
    fn what_is_no_upgrade_or_no_frame_for_us_is_told() {
        let refused = |bytes: &[u8]| WsSide::new("").decode(&mut bytes.to_vec()).unwrap_err();
        let error = refused(b"HTTP/1.1 404 Not Found\r\nServer: x\r\n\r\n");
        assert!(error.to_string().contains("404 Not Found"), "{error}");
        let open = b"HTTP/1.1 101 x\r\n\r\n".as_slice();
        for frame in [[0x82, 0x81], [0x81, 1], [0x88, 0]] {
            refused(&[open, &frame].concat());
        }
        refused(&[b'x'; ANSWER_MAX + 1]);
    }

    #[test]
    fn heads_say_the_length_in_as_few_bytes_as_can_be() {
        let head = |length| {
            let (head, end) = head(length);
            head[..end].to_vec()
        };
        assert_eq!(head(125), [0x82, 0x80 | 125, 0, 0, 0, 0]);
        assert_eq!(head(126), [0x82, 0x80 | 126, 0, 126, 0, 0, 0, 0]);
        assert_eq!(head(65_535)[..4], [0x82, 0x80 | 126, 255, 255]);
        assert_eq!(head(65_536), [0x82, 0x80 | 127, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
}
