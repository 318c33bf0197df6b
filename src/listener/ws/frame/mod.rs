//! WebSocket frames (RFC 6455 section 5), both ways: a client's bytes become what its binary
//! frames carry, as they come and in place; ours get a head. Knows no socket and no clock.

use std::ops::ControlFlow;

/// The longest payload of a control frame.
const CONTROL_BYTES: usize = 125;

/// Close codes (section 7.4.1).
pub(super) mod code {
    pub(in crate::listener) const NORMAL: u16 = 1000;
    pub(in crate::listener) const PROTOCOL: u16 = 1002;
    pub(in crate::listener) const UNSUPPORTED: u16 = 1003;
    pub(in crate::listener) const TOO_BIG: u16 = 1009;
}

mod opcode {
    pub(super) const CONTINUATION: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const BINARY: u8 = 2;
    pub(super) const CLOSE: u8 = 8;
    pub(super) const PING: u8 = 9;
    pub(super) const PONG: u8 = 10;
}

/// How the client's side ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It sent a close frame; this one answers it.
    Closed(Vec<u8>),
    /// It broke a rule: the close code that tells it.
    Fault(u16),
}

/// What one piece of input came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decoded {
    /// So many bytes at the front of the piece are payload now.
    pub(super) payload: usize,
    /// The newest ping's payload, which wants a pong. Earlier ones need none (section 5.5.3).
    pub(super) ping: Option<Vec<u8>>,
    /// Nothing behind this counts.
    pub(super) end: Option<End>,
}

/// Takes frames apart. Holds no payload but that of a control frame.
#[derive(Debug)]
pub(super) struct Decoder {
    max_frame: u64,
    head: [u8; 14],
    /// Bytes of the head that are there.
    have: usize,
    /// Payload bytes that are still to come; `None`: the head is not whole.
    left: Option<u64>,
    mask: [u8; 4],
    /// Where in the mask the next byte is.
    at: usize,
    /// A message of several frames is open.
    in_message: bool,
    control: Vec<u8>,
}

impl Decoder {
    pub(super) fn new(max_frame: u64) -> Self {
        Self {
            max_frame,
            head: [0; 14],
            have: 0,
            left: None,
            mask: [0; 4],
            at: 0,
            in_message: false,
            control: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream; the payload among them is moved to their front.
    pub(super) fn decode(&mut self, bytes: &mut [u8]) -> Decoded {
        let mut decoded = Decoded::default();
        let mut from = 0;
        while from < bytes.len() || self.left == Some(0) {
            let step = match self.left {
                None => self.head_byte(bytes[from]).map_continue(|()| 1),
                Some(left) => self.payload(&mut bytes[decoded.payload..], from, left, &mut decoded),
            };
            match step {
                ControlFlow::Continue(taken) => from += taken,
                ControlFlow::Break(end) => {
                    decoded.end = Some(end);
                    break;
                }
            }
        }
        decoded
    }

    fn opcode(&self) -> u8 {
        self.head[0] & 0x0F
    }

    fn head_byte(&mut self, byte: u8) -> ControlFlow<End> {
        self.head[self.have] = byte;
        self.have += 1;
        if self.have < 2 {
            return ControlFlow::Continue(());
        }
        let head = &self.head;
        if self.have == 2 {
            check(head[0], head[1], self.in_message)?;
        }
        let (length_bytes, short) = match head[1] & 0x7F {
            126 => (2, 0),
            127 => (8, 0),
            short => (0, u64::from(short)),
        };
        if self.have < 2 + length_bytes {
            return ControlFlow::Continue(());
        }
        let long = head[2..2 + length_bytes].iter();
        let length = short + long.fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let wasteful = length_bytes == 2 && length < 126 || length_bytes == 8 && length < 65_536;
        if wasteful || length >> 63 == 1 {
            return ControlFlow::Break(End::Fault(code::PROTOCOL));
        }
        if length > self.max_frame {
            return ControlFlow::Break(End::Fault(code::TOO_BIG));
        }
        if self.have == 6 + length_bytes {
            self.mask.copy_from_slice(&head[2 + length_bytes..6 + length_bytes]);
            (self.left, self.at, self.have) = (Some(length), 0, 0);
        }
        ControlFlow::Continue(())
    }

    /// Takes payload that begins at `from` of the whole piece; `rest` is what is behind the
    /// payload that was found before.
    fn payload(
        &mut self,
        rest: &mut [u8],
        from: usize,
        left: u64,
        decoded: &mut Decoded,
    ) -> ControlFlow<End, usize> {
        let start = from - decoded.payload;
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len() - start);
        let piece = &mut rest[start..start + taken];
        unmask(piece, self.mask, self.at);
        self.at = (self.at + taken) % 4;
        if self.opcode() < opcode::CLOSE {
            rest.copy_within(start..start + taken, 0);
            decoded.payload += taken;
        } else {
            self.control.extend_from_slice(piece);
        }
        let left = left - taken as u64;
        self.left = Some(left);
        if left == 0 {
            self.left = None;
            self.frame_ends(decoded)?;
        }
        ControlFlow::Continue(taken)
    }

    fn frame_ends(&mut self, decoded: &mut Decoded) -> ControlFlow<End> {
        let is_final = self.head[0] & 0x80 != 0;
        match self.opcode() {
            opcode::CLOSE => return ControlFlow::Break(closed(std::mem::take(&mut self.control))),
            opcode::PING => decoded.ping = Some(std::mem::take(&mut self.control)),
            opcode::PONG => self.control = Vec::new(),
            _ => self.in_message = !is_final,
        }
        ControlFlow::Continue(())
    }
}

/// The first two bytes of a head.
fn check(first: u8, second: u8, in_message: bool) -> ControlFlow<End> {
    let (is_final, reserved) = (first & 0x80 != 0, first & 0x70);
    let control_fits = is_final && usize::from(second & 0x7F) <= CONTROL_BYTES;
    let fault = match first & 0x0F {
        // No extension was agreed on, and a client has to mask.
        _ if reserved != 0 || second & 0x80 == 0 => Some(code::PROTOCOL),
        opcode::BINARY if !in_message => None,
        opcode::CONTINUATION if in_message => None,
        // MQTT-6.0.0-1.
        opcode::TEXT if !in_message => Some(code::UNSUPPORTED),
        opcode::CLOSE | opcode::PING | opcode::PONG if control_fits => None,
        _ => Some(code::PROTOCOL),
    };
    fault.map_or(ControlFlow::Continue(()), |code| ControlFlow::Break(End::Fault(code)))
}

/// A close frame is answered with its own code.
fn closed(payload: Vec<u8>) -> End {
    match payload.as_slice() {
        [] => End::Closed(Vec::new()),
        [high, low, ..] => {
            let sent = u16::from_be_bytes([*high, *low]);
            let may_be_sent = matches!(sent, 1000..=1003 | 1007..=1014 | 3000..=4999);
            let reason_fits = std::str::from_utf8(&payload[2..]).is_ok();
            if may_be_sent && reason_fits {
                End::Closed(vec![*high, *low])
            } else {
                End::Fault(code::PROTOCOL)
            }
        }
        [_] => End::Fault(code::PROTOCOL),
    }
}

/// XOR with the mask, from its byte `at` on; eight bytes at a time.
fn unmask(bytes: &mut [u8], mut mask: [u8; 4], at: usize) {
    mask.rotate_left(at);
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (chunks, rest) = bytes.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// The head of a binary frame of ours, which is a whole message; ours are not masked.
pub(super) fn binary_head(length: usize) -> ([u8; 10], usize) {
    let mut head = [0; 10];
    head[0] = 0x80 | opcode::BINARY;
    let used = if length < 126 {
        head[1] = length as u8;
        2
    } else if let Ok(short) = u16::try_from(length) {
        head[1] = 126;
        head[2..4].copy_from_slice(&short.to_be_bytes());
        4
    } else {
        head[1] = 127;
        head[2..10].copy_from_slice(&(length as u64).to_be_bytes());
        10
    };
    (head, used)
}

/// A control frame of ours; `payload` came in one, so it fits.
fn control(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let payload = &payload[..payload.len().min(CONTROL_BYTES)];
    [&[0x80 | opcode, payload.len() as u8], payload].concat()
}

pub(super) fn pong(payload: &[u8]) -> Vec<u8> {
    control(opcode::PONG, payload)
}

pub(super) fn close(payload: &[u8]) -> Vec<u8> {
    control(opcode::CLOSE, payload)
}

#[cfg(test)]
mod tests;
