//! Who belongs to a cluster, as its founder tells all of them when the last has come.
//!
//! ```text
//!  0        2        4                20
//!  +--------+--------+----------------+ - - - - - - - - - - - - - - - +
//!  | nodes  | place  | cluster        | nodes × process, address, port |
//!  +--------+--------+----------------+ - - - - - - - - - - - - - - - +
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::greeting::Id;

/// Bytes before the members.
pub(crate) const ROSTER: usize = 20;
/// Bytes of a member.
const MEMBER: usize = 34;

/// A node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) process: Id,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

/// The nodes of a cluster, as one of them knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roster {
    pub(crate) cluster: Id,
    /// The node that knows them.
    pub(crate) place: usize,
    pub(crate) members: Vec<Member>,
}

impl Roster {
    /// As it is told to the member in a place.
    pub(crate) fn to_bytes(&self, place: u16) -> Vec<u8> {
        let nodes = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(ROSTER + MEMBER * self.members.len());
        bytes.extend_from_slice(&nodes.to_le_bytes());
        bytes.extend_from_slice(&place.to_le_bytes());
        bytes.extend_from_slice(&self.cluster.0);
        for Member { process, address } in &self.members {
            bytes.extend_from_slice(&process.0);
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend_from_slice(&ip.octets());
            bytes.extend_from_slice(&address.port().to_le_bytes());
        }
        bytes
    }

    /// Bytes that follow the first [`ROSTER`] ones.
    pub(crate) fn rest(head: &[u8; ROSTER]) -> usize {
        let [n0, n1, ..] = *head;
        MEMBER * usize::from(u16::from_le_bytes([n0, n1]))
    }

    /// Reads what a founder tells, from where this process has reached it at `founder`. `None` if that is no place in a cluster.
    pub(crate) fn from_bytes(head: &[u8; ROSTER], rest: &[u8], founder: SocketAddr) -> Option<Self> {
        let [_, _, p0, p1, cluster @ ..] = *head;
        let place = usize::from(u16::from_le_bytes([p0, p1]));
        let mut members: Vec<_> = rest.chunks_exact(MEMBER).filter_map(member).collect();
        let whole = members.len() * MEMBER == Self::rest(head) && place > 0 && place < members.len();
        members.first_mut().filter(|_| whole)?.address = founder;
        Some(Self { cluster: Id(cluster), place, members })
    }
}

fn member(bytes: &[u8]) -> Option<Member> {
    let (process, rest) = bytes.split_first_chunk()?;
    let (ip, port) = rest.split_first_chunk::<16>()?;
    let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
    let port = u16::from_le_bytes(*port.first_chunk()?);
    Some(Member { process: Id(*process), address: SocketAddr::new(ip, port) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roster_is_read_as_it_was_told() {
        let member =
            |n: u8, address: &str| Member { process: Id([n; 16]), address: address.parse().unwrap() };
        let members = vec![member(1, "0.0.0.0:1"), member(2, "10.0.0.2:7210"), member(3, "[fe80::1]:3")];
        let told = Roster { cluster: Id([8; 16]), place: 0, members };
        let bytes = told.to_bytes(2);
        let (head, rest) = bytes.split_first_chunk().unwrap();
        assert_eq!(Roster::rest(head), rest.len());
        let founder = "10.0.0.1:7210".parse().unwrap();
        let read = Roster::from_bytes(head, rest, founder).unwrap();
        let mut expected = Roster { place: 2, ..told };
        expected.members[0].address = founder;
        assert_eq!(read, expected);
        assert_eq!(Roster::from_bytes(head, &rest[1..], founder), None, "one byte too few");
        let bytes = expected.to_bytes(3);
        let (head, rest) = bytes.split_first_chunk().unwrap();
        assert_eq!(Roster::from_bytes(head, rest, founder), None, "no such place");
    }
}
