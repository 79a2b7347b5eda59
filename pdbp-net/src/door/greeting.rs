//! The greeting at the start of a connection: both ends prove that they know the token, and identify themselves. Sans-IO.
//!
//! ```text
//!  who dials                                  who takes the call
//!  "PDBPnet1", nonce                     ──▶
//!                                        ◀──  "PDBPnet1", nonce
//!  proof, who I am and what I want       ──▶
//!                                        ◀──  proof, the answer
//! ```
//! Every message has a fixed length. A proof covers both nonces, the role of its maker, everything that was said, and a secret of the
//! encrypted channel, so that no proof can be replayed, reflected, or relayed by a man in the middle. Before
//! the first proof nothing is revealed that a stranger could use.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::error::Refusal;
use crate::options::Role;
use crate::token::{NONCE, PROOF, Token};

/// The version of the wire protocol. Ends of different versions do not talk to each other.
pub(crate) const VERSION: u16 = 7;
const MAGIC: [u8; 8] = *b"PDBPnet1";
/// Bytes of the first message of each end.
pub(crate) const HELLO: usize = MAGIC.len() + NONCE;
const BODY: usize = 72;
/// A secret that only the ends of an encrypted channel know; zeros if the channel is not encrypted.
pub(crate) type Channel = [u8; 32];
/// Bytes of the second message of the dialling end.
pub(crate) const CLAIM: usize = PROOF + BODY;
/// Bytes of the second message of the called end.
pub(crate) const ANSWER: usize = PROOF + BODY;

/// The unique id of a process or a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) [u8; 16]);

/// Why a call is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// It does not follow PDBP's greeting.
    Foreign,
    /// The other end does not know the token.
    Token,
}

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To become a node of a cluster that is being founded, or that is open.
    Join = 1,
    /// To connect two nodes.
    Link = 2,
}

/// What the dialling end states about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) purpose: Purpose,
    /// The role in which a process joins.
    pub(crate) role: Role,
    pub(crate) version: u16,
    /// The nodes at the dialling and the called end of a link.
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// The port on which others reach the dialling process.
    pub(crate) port: u16,
    /// Its address, if that is not the one that the call comes from.
    pub(crate) advertised: Option<IpAddr>,
    /// Bytes of the longest block.
    pub(crate) longest: u32,
    pub(crate) cluster: Id,
    pub(crate) process: Id,
    /// See [`Member::incarnation`](super::roster::Member::incarnation).
    pub(crate) incarnation: u64,
    /// Whether it joined earlier and has no connection: the called end, whose part it is to call, may not have noticed.
    pub(crate) is_cut: bool,
}

/// The decision on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Welcome = 0,
    Version = 1,
    Block = 2,
    Full = 3,
    Loopback = 4,
    /// The claim is too early; try again.
    Later = 5,
    /// No such link: it is for another cluster or another node, or from a process that is not a member.
    Unknown = 6,
    /// This process gives no places, since it is not the primary.
    Elsewhere = 7,
    /// All places of an open cluster are taken at present.
    NoPlace = 8,
    /// The caller joined earlier, so it is the other end's part to call. The caller now knows who listens here.
    Earlier = 9,
    /// All of an open cluster's places for masters are taken at present.
    NoMaster = 10,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) verdict: u8,
    pub(crate) version: u16,
    pub(crate) nodes: u16,
    pub(crate) longest: u32,
    pub(crate) process: Id,
    /// The address of the primary of an open cluster, which gives places, if that is another process and known here.
    pub(crate) primary: Option<SocketAddr>,
}

impl Answer {
    /// The refusal as the dialling end reports it, whose blocks have `own` bytes; `None` for a welcome.
    pub(crate) fn refusal(&self, own: usize) -> Option<Refusal> {
        let is = |verdict: Verdict| self.verdict == verdict as u8;
        if is(Verdict::Welcome) {
            None
        } else if is(Verdict::Later) {
            Some(Refusal::Elsewhere)
        } else if is(Verdict::Version) {
            Some(Refusal::Version { own: VERSION, theirs: self.version })
        } else if is(Verdict::Block) {
            Some(Refusal::Block { own, theirs: usize::try_from(self.longest).unwrap_or(usize::MAX) })
        } else if is(Verdict::Elsewhere) {
            Some(Refusal::Elsewhere)
        } else if is(Verdict::NoMaster) {
            Some(Refusal::NoMaster)
        } else if is(Verdict::Full) || is(Verdict::NoPlace) {
            Some(Refusal::Full { nodes: self.nodes })
        } else if is(Verdict::Loopback) {
            Some(Refusal::Loopback)
        } else {
            Some(Refusal::Other(self.verdict))
        }
    }

    pub(crate) fn is_welcome(&self) -> bool {
        self.verdict == Verdict::Welcome as u8
    }

    fn to_body(self) -> [u8; BODY] {
        let (ip, port) = self.primary.map_or(([0; 16], 0), |primary| (octets(primary.ip()), primary.port()));
        body(&[
            &[self.verdict, 0],
            &self.version.to_le_bytes(),
            &self.nodes.to_le_bytes(),
            &[0; 4],
            &self.longest.to_le_bytes(),
            &port.to_le_bytes(),
            &ip,
            &self.process.0,
            &[0; 24],
        ])
    }

    fn from_body(bytes: &[u8; BODY]) -> Self {
        let [verdict, _, v0, v1, n0, n1, _, _, _, _, l0, l1, l2, l3, p0, p1, rest @ ..] = *bytes;
        let (Id(ip), process) = ids(&rest);
        let primary = SocketAddr::new(address(ip), u16::from_le_bytes([p0, p1]));
        Self {
            verdict,
            version: u16::from_le_bytes([v0, v1]),
            nodes: u16::from_le_bytes([n0, n1]),
            longest: u32::from_le_bytes([l0, l1, l2, l3]),
            process,
            primary: (primary.port() > 0).then_some(primary),
        }
    }
}

impl Claim {
    /// Where others reach the process whose call was seen to come from `seen`.
    pub(crate) fn address(&self, seen: IpAddr) -> SocketAddr {
        SocketAddr::new(self.advertised.unwrap_or(seen), self.port)
    }

    fn to_body(self) -> [u8; BODY] {
        body(&[
            &[self.purpose as u8, u8::from(self.role == Role::Master)],
            &self.version.to_le_bytes(),
            &self.from.to_le_bytes(),
            &self.to.to_le_bytes(),
            &self.port.to_le_bytes(),
            &self.longest.to_le_bytes(),
            &[u8::from(self.is_cut), 0],
            &self.cluster.0,
            &self.process.0,
            &self.incarnation.to_le_bytes(),
            &self.advertised.map_or([0; 16], octets),
        ])
    }

    fn from_body(bytes: &[u8; BODY]) -> Option<Self> {
        let [purpose, role, v0, v1, f0, f1, t0, t1, p0, p1, l0, l1, l2, l3, cut, _, rest @ ..] = *bytes;
        let (cluster, process) = ids(&rest);
        let (_, rest) = rest.split_first_chunk::<32>()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let advertised = address(*rest.first_chunk()?);
        let purpose = match purpose {
            1 => Purpose::Join,
            2 => Purpose::Link,
            _ => return None,
        };
        Some(Self {
            purpose,
            role: if role == 1 { Role::Master } else { Role::Worker },
            version: u16::from_le_bytes([v0, v1]),
            from: u16::from_le_bytes([f0, f1]),
            to: u16::from_le_bytes([t0, t1]),
            port: u16::from_le_bytes([p0, p1]),
            longest: u32::from_le_bytes([l0, l1, l2, l3]),
            cluster,
            process,
            incarnation: u64::from_le_bytes(*incarnation),
            advertised: Some(advertised).filter(|address| !address.is_unspecified()),
            is_cut: cut == 1,
        })
    }
}

/// An address as 16 bytes, with IPv4 mapped to IPv6.
pub(super) fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address that has these bytes.
pub(super) fn address(octets: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
}

/// The first two ids.
fn ids(bytes: &[u8; 56]) -> (Id, Id) {
    let (mut first, mut second) = ([0; 16], [0; 16]);
    first.iter_mut().chain(&mut second).zip(bytes).for_each(|(to, from)| *to = *from);
    (Id(first), Id(second))
}

fn body(pieces: &[&[u8]]) -> [u8; BODY] {
    joined(pieces)
}

fn joined<const BYTES: usize>(pieces: &[&[u8]]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.iter_mut().zip(pieces.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
    bytes
}

fn hello(nonce: &[u8; NONCE]) -> [u8; HELLO] {
    joined(&[&MAGIC, nonce])
}

fn read_hello(bytes: &[u8; HELLO]) -> Result<[u8; NONCE], Rejection> {
    let (magic, nonce) = bytes.split_at(MAGIC.len());
    let nonce = nonce.first_chunk().ok_or(Rejection::Foreign)?;
    if magic == MAGIC { Ok(*nonce) } else { Err(Rejection::Foreign) }
}

fn split(bytes: &[u8; CLAIM]) -> (&[u8], [u8; BODY]) {
    let (proof, rest) = bytes.split_at(PROOF);
    (proof, joined(&[rest]))
}

/// The end that dials.
pub(crate) struct Initiator {
    nonce: [u8; NONCE],
    theirs: [u8; NONCE],
    channel: Channel,
    claim: Claim,
}

impl Initiator {
    /// Starts a greeting, and returns its first message.
    pub(crate) fn begin(nonce: [u8; NONCE], claim: Claim) -> (Self, [u8; HELLO]) {
        (Self { nonce, theirs: [0; NONCE], channel: [0; 32], claim }, hello(&nonce))
    }

    /// What it says to the other end's first message.
    ///
    /// # Errors
    /// [`Rejection::Foreign`].
    pub(crate) fn hello(
        &mut self,
        bytes: &[u8; HELLO],
        channel: Channel,
        token: &Token,
    ) -> Result<[u8; CLAIM], Rejection> {
        self.channel = channel;
        self.theirs = read_hello(bytes)?;
        let body = self.claim.to_body();
        let proof = token.prove(&[b"PDBP dials", &self.nonce, &self.theirs, &self.channel, &body]);
        Ok(joined(&[&proof, &body]))
    }

    /// Checks the other end's answer.
    ///
    /// # Errors
    /// [`Rejection::Token`].
    pub(crate) fn answer(&self, bytes: &[u8; ANSWER], token: &Token) -> Result<Answer, Rejection> {
        let (proof, body) = split(bytes);
        let claim = self.claim.to_body();
        if !token.is_proven(proof, &[b"PDBP takes", &self.nonce, &self.theirs, &self.channel, &claim, &body])
        {
            return Err(Rejection::Token);
        }
        Ok(Answer::from_body(&body))
    }
}

/// The end that takes the call.
pub(crate) struct Responder {
    nonce: [u8; NONCE],
    theirs: [u8; NONCE],
    channel: Channel,
    claim: [u8; BODY],
}

impl Responder {
    pub(crate) fn new(nonce: [u8; NONCE]) -> Self {
        Self { nonce, theirs: [0; NONCE], channel: [0; 32], claim: [0; BODY] }
    }

    /// What it says to the other end's first message.
    ///
    /// # Errors
    /// [`Rejection::Foreign`].
    pub(crate) fn hello(&mut self, bytes: &[u8; HELLO], channel: Channel) -> Result<[u8; HELLO], Rejection> {
        self.channel = channel;
        self.theirs = read_hello(bytes)?;
        Ok(hello(&self.nonce))
    }

    /// Checks the other end's claim.
    ///
    /// # Errors
    /// [`Rejection`].
    pub(crate) fn claim(&mut self, bytes: &[u8; CLAIM], token: &Token) -> Result<Claim, Rejection> {
        let (proof, body) = split(bytes);
        if !token.is_proven(proof, &[b"PDBP dials", &self.theirs, &self.nonce, &self.channel, &body]) {
            return Err(Rejection::Token);
        }
        self.claim = body;
        Claim::from_body(&body).ok_or(Rejection::Foreign)
    }

    /// Makes the answer to the claim.
    pub(crate) fn answer(&self, answer: Answer, token: &Token) -> [u8; ANSWER] {
        let body = answer.to_body();
        let proof =
            token.prove(&[b"PDBP takes", &self.theirs, &self.nonce, &self.channel, &self.claim, &body]);
        joined(&[&proof, &body])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Channel = [0; 32];
    const CLAIMED: Claim = Claim {
        purpose: Purpose::Link,
        role: Role::Master,
        version: VERSION,
        from: 3,
        to: 1,
        port: 7210,
        advertised: Some(IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 5))),
        longest: 131_136,
        cluster: Id([7; 16]),
        process: Id([9; 16]),
        incarnation: 0x0102_0304_0506_0708,
        is_cut: true,
    };
    const ANSWERED: Answer = Answer {
        verdict: 0,
        version: 1,
        nodes: 4,
        longest: 131_136,
        process: Id([5; 16]),
        primary: Some(SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7210)),
    };

    fn tokens() -> [Token; 2] {
        ["1", "2"].map(|text| Token::from_text(&text.repeat(32)).unwrap())
    }

    #[test]
    fn two_that_know_the_token_understand_each_other() {
        let [token, _] = tokens();
        let (mut initiator, first) = Initiator::begin([1; NONCE], CLAIMED);
        let mut responder = Responder::new([2; NONCE]);
        let second = responder.hello(&first, PLAIN).unwrap();
        let third = initiator.hello(&second, PLAIN, &token).unwrap();
        assert_eq!(responder.claim(&third, &token).unwrap(), CLAIMED);
        assert_eq!(initiator.answer(&responder.answer(ANSWERED, &token), &token).unwrap(), ANSWERED);
    }

    #[test]
    fn another_token_convinces_neither_end() {
        let [token, other] = tokens();
        let (mut initiator, first) = Initiator::begin([1; NONCE], CLAIMED);
        let mut responder = Responder::new([2; NONCE]);
        let second = responder.hello(&first, PLAIN).unwrap();
        assert_eq!(
            responder.claim(&initiator.hello(&second, PLAIN, &other).unwrap(), &token),
            Err(Rejection::Token)
        );
        responder.claim(&initiator.hello(&second, PLAIN, &token).unwrap(), &token).unwrap();
        assert_eq!(initiator.answer(&responder.answer(ANSWERED, &other), &token), Err(Rejection::Token));
    }

    #[test]
    fn a_proof_cannot_be_sent_back_or_used_again() {
        let [token, _] = tokens();
        let (mut initiator, first) = Initiator::begin([1; NONCE], CLAIMED);
        let mut responder = Responder::new([2; NONCE]);
        let claim = initiator.hello(&responder.hello(&first, PLAIN).unwrap(), PLAIN, &token).unwrap();
        responder.claim(&claim, &token).unwrap();
        assert_eq!(initiator.answer(&claim, &token), Err(Rejection::Token), "sent back");
        let mut later = Responder::new([3; NONCE]);
        later.hello(&first, PLAIN).unwrap();
        assert_eq!(later.claim(&claim, &token), Err(Rejection::Token), "used again");
    }

    #[test]
    fn who_sits_between_two_channels_convinces_neither_end() {
        let [token, _] = tokens();
        let (mut initiator, first) = Initiator::begin([1; NONCE], CLAIMED);
        let mut responder = Responder::new([2; NONCE]);
        let second = responder.hello(&first, [8; 32]).unwrap();
        let claim = initiator.hello(&second, [9; 32], &token).unwrap();
        assert_eq!(responder.claim(&claim, &token), Err(Rejection::Token));
        assert_eq!(initiator.answer(&responder.answer(ANSWERED, &token), &token), Err(Rejection::Token));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let [token, _] = tokens();
        let (mut initiator, first) = Initiator::begin([1; NONCE], CLAIMED);
        let mut responder = Responder::new([2; NONCE]);
        let claim = initiator.hello(&responder.hello(&first, PLAIN).unwrap(), PLAIN, &token).unwrap();
        for at in 0..CLAIM {
            let mut changed = claim;
            changed[at] ^= 1;
            assert_eq!(responder.claim(&changed, &token), Err(Rejection::Token), "byte {at}");
        }
        let mut other = first;
        other[0] = b'G';
        assert_eq!(responder.hello(&other, PLAIN), Err(Rejection::Foreign));
    }
}
