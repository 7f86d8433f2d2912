//! IPv4 blocks in canonical form.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 block. EC2 stores `10.0.0.18/24` as `10.0.0.0/24`, so blocks are compared and sent with
/// their host bits cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    network: u32,
    length: u8,
}

impl Cidr {
    /// Whether every address of the other block is one of this.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.length <= other.length && other.network & mask(self.length) == self.network
    }
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, length) = text.split_once('/').ok_or(())?;
        let address: Ipv4Addr = address.parse().map_err(|_| ())?;
        let length: u8 = length.parse().map_err(|_| ())?;
        if length > 32 {
            return Err(());
        }
        Ok(Cidr { network: u32::from(address) & mask(length), length })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.network), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_canonical() {
        for (text, expected) in [
            ("10.0.0.18/24", Some("10.0.0.0/24")),
            ("10.0.0.0/24", Some("10.0.0.0/24")),
            ("255.255.255.255/0", Some("0.0.0.0/0")),
            ("192.168.1.1/32", Some("192.168.1.1/32")),
            ("10.0.0.0/33", None),
            ("10.0.0.0", None),
            ("10.0.0/8", None),
            ("fd00::/8", None),
        ] {
            let read = text.parse::<Cidr>().ok().map(|cidr| cidr.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_block_covers_what_lies_in_it() {
        for (outer, inner, expected) in [
            ("10.0.0.0/16", "10.0.3.0/24", true),
            ("10.0.3.0/24", "10.0.3.0/24", true),
            ("0.0.0.0/0", "10.0.3.0/24", true),
            ("10.0.3.0/24", "10.0.0.0/16", false),
            ("10.1.0.0/16", "10.0.3.0/24", false),
        ] {
            let outer: Cidr = outer.parse().expect("block");
            assert_eq!(outer.covers(&inner.parse().expect("block")), expected, "{outer} {inner}");
        }
    }
}
