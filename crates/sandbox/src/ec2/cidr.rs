//! Address blocks in the canonical form in which EC2 stores them.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// An IPv4 block without host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cidr {
    network: u32,
    length: u8,
}

impl Cidr {
    /// Reads a block and clears its host bits.
    pub(super) fn parse(text: &str) -> Option<Cidr> {
        let (address, length) = text.split_once('/')?;
        let (address, length) = (address.parse::<Ipv4Addr>().ok()?, length.parse::<u8>().ok()?);
        (length <= 32).then(|| Cidr { network: u32::from(address) & mask(length), length })
    }

    /// The prefix length.
    pub(super) fn length(self) -> u8 {
        self.length
    }

    /// Whether the other block lies in this one.
    pub(super) fn contains(self, other: Cidr) -> bool {
        self.length <= other.length && other.network & mask(self.length) == self.network
    }

    /// Whether the two have an address in common.
    pub(super) fn overlaps(self, other: Cidr) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// The addresses that a subnet of this block gives out: AWS keeps the first four and the last.
    pub(super) fn usable(self) -> impl Iterator<Item = Ipv4Addr> {
        let size = 1u64 << (32 - self.length);
        let first = u64::from(self.network);
        (4..size.saturating_sub(1)).map(move |offset| Ipv4Addr::from((first + offset) as u32))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.network), self.length)
    }
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// An IPv6 block in canonical form, as text.
pub(super) fn canonical_v6(text: &str) -> Option<String> {
    let (address, length) = text.split_once('/')?;
    let (address, length) = (address.parse::<Ipv6Addr>().ok()?, length.parse::<u32>().ok()?);
    let mask = u128::MAX.checked_shl(128u32.checked_sub(length)?).unwrap_or(0);
    Some(format!("{}/{length}", Ipv6Addr::from(u128::from(address) & mask)))
}
