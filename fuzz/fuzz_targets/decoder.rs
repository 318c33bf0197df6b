//! Any bytes, as any version and from either peer: no panic; what decodes is written and decodes
//! to the same packet; cut frames are never taken for whole ones.
//!
//! `cargo +nightly fuzz run decoder`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice::codec::{
    EncodeError, MAX_PACKET_SIZE, Packet, Peer, PublishHead, connect_level, decode, encode,
    forwarded_properties, frame_length,
};
use sluice::mqtt::ProtocolVersion;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, frame)) = data.split_first() else { return };
    let agreed = match choice & 3 {
        0 => None,
        1 => Some(ProtocolVersion::V31),
        2 => Some(ProtocolVersion::V311),
        _ => Some(ProtocolVersion::V5),
    };
    let from = if choice & 4 == 0 { Peer::Client } else { Peer::Server };
    let _ = connect_level(frame);
    let length = frame_length(frame, agreed, from, MAX_PACKET_SIZE);
    let Ok(Some(length)) = length else {
        assert!(decode(frame, agreed, from).is_err());
        return;
    };
    let Some(frame) = frame.get(..length.total) else { return };
    let Ok(packet) = decode(frame, agreed, from) else { return };
    assert!(decode(&frame[..frame.len() - 1], agreed, from).is_err());

    let version = match (&packet, agreed) {
        (Packet::Connect(connect), _) => connect.version,
        (_, Some(version)) => version,
        (other, None) => panic!("only a CONNECT comes first, not {other:?}"),
    };
    let mut again = Vec::new();
    match encode(&packet, version, &mut again) {
        Ok(()) => assert_eq!(decode(&again, agreed, from).as_ref(), Ok(&packet)),
        Err(error) => assert_eq!(error, EncodeError::InvalidFilter),
    }
    if let Packet::Publish(publish) = &packet {
        assert_eq!(PublishHead::of(publish, version).wire_len(), again.len());
        let properties = forwarded_properties(&publish.properties).count();
        assert!((properties == 0) == publish.properties.is_empty());
    }
});
