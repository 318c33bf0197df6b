//! Lists of networks: `10.0.0.0/8, ::1, 192.0.2.7`.

use std::net::IpAddr;

/// Addresses by prefix. An IPv4 address in its IPv6 form counts as IPv4.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<(IpAddr, u8)>);

impl Networks {
    /// `None`: a part is no address and no network. Bits behind a prefix must be 0, so that a
    /// slip does not pass.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(network).collect::<Option<Vec<_>>>().map(Self)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|(network, bits)| match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = mask(*bits, 32) as u32;
                network.to_bits() == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                network.to_bits() == address.to_bits() & mask(*bits, 128)
            }
            (IpAddr::V4(_) | IpAddr::V6(_), _) => false,
        })
    }
}

/// `bits` ones, then zeros, in the low `width` bits.
fn mask(bits: u8, width: u32) -> u128 {
    match width - u32::from(bits) {
        128 => 0,
        zeros => u128::MAX << zeros,
    }
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    let whole = Networks(vec![(address, bits)]);
    (bits <= width && whole.contains(address)).then_some((address, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_what_their_prefix_says() {
        let networks = Networks::parse("10.0.0.0/8, ::1,192.0.2.7 , fd00::/8").unwrap();
        for inside in ["10.255.0.1", "::1", "192.0.2.7", "fdff::1", "::ffff:10.1.2.3"] {
            assert!(networks.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "::2", "192.0.2.8", "fe00::1", "::10.0.0.1"] {
            assert!(!networks.contains(outside.parse().unwrap()), "{outside}");
        }
        let all = Networks::parse("0.0.0.0/0,::/0").unwrap();
        assert!(all.contains("203.0.113.9".parse().unwrap()));
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        assert!(!Networks::parse("").unwrap().contains("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in ["10.0.0.0/33", "10.0.0.1/8", "here", "::1/129", "10.0.0.0/", "10.0/8"] {
            assert_eq!(Networks::parse(bad), None, "{bad}");
        }
    }
}
