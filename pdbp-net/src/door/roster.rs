//! The members of a cluster, as the founder or the primary sends them to a joining process: to all at once when the last has joined, or, in
//! an open cluster, to each when it joins.
//!
//! ```text
//!  0        2        4          20           24      25     26        28      30     32
//!  +--------+--------+----------+------------+-------+------+---------+-------+------+ - - - - - - - - - - - - - - - - - -+
//!  | places | place  | cluster  | generation | open  | adv. | masters | giver | 0    | places × process, address, port, … |
//!  +--------+--------+----------+------------+-------+------+---------+-------+------+ - - - - - - - - - - - - - - - - - -+
//! ```
//! The giver is the node that sends the roster; unless it advertises its address, that is the one at which it was reached. The incarnation
//! follows the port. A vacant place is all zeros.

use std::net::SocketAddr;

use super::greeting::{Id, address, octets};

/// Bytes of the head, before the members.
pub(crate) const ROSTER: usize = 32;
/// Bytes of a member.
const MEMBER: usize = 42;

/// A node of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) process: Id,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Of two members the later one has the greater number, and dials. In a cluster of fixed size it is the number of processes that joined
    /// before; in an open one, the upper half is the term of the primary that gave the place, and the lower half a serial number in that term.
    pub(crate) incarnation: u64,
}

/// The members of a cluster, as known to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Roster {
    pub(crate) cluster: Id,
    /// The node that has this roster.
    pub(crate) place: usize,
    /// Distinguishes the processes that have had that place: no two have the same.
    pub(crate) generation: u32,
    /// Whether processes may come and go; if not, no place is vacant.
    pub(crate) open: bool,
    /// Whether the giver advertises its address, at which all are to call it.
    pub(crate) advertises: bool,
    /// The number of places for masters, from the first on.
    pub(crate) masters: u16,
    /// The node that sent the roster.
    pub(crate) giver: usize,
    pub(crate) members: Vec<Option<Member>>,
}

impl Roster {
    /// The member that has this roster.
    pub(crate) fn own(&self) -> Option<&Member> {
        self.members.get(self.place)?.as_ref()
    }

    /// The wire format, for the member in a place, of this generation.
    pub(crate) fn to_bytes(&self, place: u16, generation: u32) -> Vec<u8> {
        let nodes = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(ROSTER + MEMBER * self.members.len());
        bytes.extend_from_slice(&nodes.to_le_bytes());
        bytes.extend_from_slice(&place.to_le_bytes());
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&generation.to_le_bytes());
        bytes.extend_from_slice(&[u8::from(self.open), u8::from(self.advertises)]);
        bytes.extend_from_slice(&self.masters.to_le_bytes());
        let giver = u16::try_from(self.giver).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&giver.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        for member in &self.members {
            let Some(Member { process, address, incarnation }) = member else {
                bytes.extend_from_slice(&[0; MEMBER]);
                continue;
            };
            bytes.extend_from_slice(&process.0);
            bytes.extend_from_slice(&octets(address.ip()));
            bytes.extend_from_slice(&address.port().to_le_bytes());
            bytes.extend_from_slice(&incarnation.to_le_bytes());
        }
        bytes
    }

    /// Bytes that follow the head.
    pub(crate) fn rest(head: &[u8; ROSTER]) -> usize {
        let [n0, n1, ..] = *head;
        MEMBER * usize::from(u16::from_le_bytes([n0, n1]))
    }

    /// Parses the roster of a founder or primary that this process has reached at address `reached`. `None` if it makes no sense.
    pub(crate) fn from_bytes(head: &[u8; ROSTER], rest: &[u8], reached: SocketAddr) -> Option<Self> {
        let [_, _, p0, p1, cluster @ .., g0, g1, g2, g3, open, advertises, m0, m1, f0, f1, _, _] = *head;
        let giver = usize::from(u16::from_le_bytes([f0, f1]));
        let place = usize::from(u16::from_le_bytes([p0, p1]));
        let mut members: Vec<_> = rest.chunks_exact(MEMBER).map(member).collect();
        let open = open != 0;
        let whole =
            members.len() * MEMBER == Self::rest(head) && (open || members.iter().all(Option::is_some));
        let is_member = place != giver && members.get(place).is_some_and(Option::is_some);
        let told = members.get_mut(giver).filter(|_| whole && is_member)?.as_mut()?;
        let advertises = advertises != 0;
        if !advertises {
            told.address = reached;
        }
        let masters = u16::from_le_bytes([m0, m1]);
        let generation = u32::from_le_bytes([g0, g1, g2, g3]);
        Some(Self { cluster: Id(cluster), place, generation, open, advertises, masters, giver, members })
    }
}

/// Parses a member; `None` for a vacant place.
fn member(bytes: &[u8]) -> Option<Member> {
    let (process, rest) = bytes.split_first_chunk()?;
    let (ip, rest) = rest.split_first_chunk::<16>()?;
    let (port, rest) = rest.split_first_chunk()?;
    let incarnation = u64::from_le_bytes(*rest.first_chunk()?);
    let address = SocketAddr::new(address(*ip), u16::from_le_bytes(*port));
    (*process != [0; 16]).then_some(Member { process: Id(*process), address, incarnation })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(n: u8, address: &str) -> Option<Member> {
        let address = address.parse().unwrap();
        Some(Member { process: Id([n; 16]), address, incarnation: u64::from(n) << 40 })
    }

    fn roster(place: usize, generation: u32, members: Vec<Option<Member>>) -> Roster {
        let (cluster, masters, giver) = (Id([8; 16]), 1, 0);
        Roster { cluster, place, generation, open: false, advertises: false, masters, giver, members }
    }

    #[test]
    fn a_roster_is_read_as_it_was_told() {
        let members = vec![member(1, "0.0.0.0:1"), member(2, "10.0.0.2:7210"), member(3, "[fe80::1]:3")];
        let told = roster(0, 0, members);
        let bytes = told.to_bytes(2, 7);
        let (head, rest) = bytes.split_first_chunk().unwrap();
        assert_eq!(Roster::rest(head), rest.len());
        let founder = "10.0.0.1:7210".parse().unwrap();
        let read = Roster::from_bytes(head, rest, founder).unwrap();
        let mut expected = Roster { place: 2, generation: 7, ..told };
        expected.members[0].as_mut().unwrap().address = founder;
        assert_eq!(read, expected);
        assert_eq!(Roster::from_bytes(head, &rest[1..], founder), None, "one byte too few");
        let told = Roster { advertises: true, ..roster(0, 0, read.members) };
        let bytes = told.to_bytes(2, 0);
        let (head, rest) = bytes.split_first_chunk().unwrap();
        let elsewhere = "127.0.0.1:9".parse().unwrap();
        let read = Roster::from_bytes(head, rest, elsewhere).unwrap();
        assert_eq!(read, Roster { place: 2, ..told }, "a giver that advertises is called there by all");
        let bytes = expected.to_bytes(3, 0);
        let (head, rest) = bytes.split_first_chunk().unwrap();
        assert_eq!(Roster::from_bytes(head, rest, founder), None, "no such place");
    }

    #[test]
    fn places_are_vacant_in_an_open_cluster_only() {
        let members = vec![member(1, "127.0.0.1:1"), None, member(3, "127.0.0.1:3")];
        let roster = Roster { open: true, ..roster(2, 1, members) };
        let founder = "127.0.0.1:1".parse().unwrap();
        let read = |roster: &Roster, place| {
            let bytes = roster.to_bytes(place, 1);
            let (head, rest) = bytes.split_first_chunk().unwrap();
            Roster::from_bytes(head, rest, founder)
        };
        assert_eq!(read(&roster, 2).as_ref(), Some(&roster));
        assert_eq!(read(&roster, 1), None, "its own place is none that is vacant");
        assert_eq!(read(&Roster { open: false, ..roster }, 2), None);
    }
}
