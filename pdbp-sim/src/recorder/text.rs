//! The text format of a recording.
//!
//! ```text
//! pdbp-recording 3
//! node 1 of 3, blocks of 2048 bytes, untrusted, links come back
//! link posted 2048 64 0 0 taken            one line per node: arrival, best block, capacity, session, life, place
//! send 0 1/17 512 9a3c…  taken             peer, segment/index, bytes, hash, answer
//! received 0 1/18 50440101…                peer, segment/index, bytes in hexadecimal
//! idle 3                                   polls
//! peer 0 ended 0                           peer, whether it has ended, life
//! ```

use std::fmt;

use pdbp_core::Arrival;
use pdbp_core::id::{BlockId, NodeId};

use super::entry::{Answer, Call, CallKind, Entry, Outcome};
use super::{Link, Recording};

const FIRST: &str = "pdbp-recording 3";

/// A text that is not a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong there, and what is expected instead.
    pub what: String,
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the recording: {}", self.line, self.what)
    }
}

impl std::error::Error for RecordingError {}

pub(super) fn write(recording: &Recording, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Recording { node, nodes, largest_block, trusted, restores_links, links, entries } = recording;
    let trust = name(&TRUST, *trusted);
    let outages = name(&OUTAGES, *restores_links);
    writeln!(
        f,
        "{FIRST}\nnode {} of {nodes}, blocks of {largest_block} bytes, {trust}, {outages}",
        node.raw()
    )?;
    for Link { arrival, best_block, capacity, session, life, is_vacant } in links {
        let (arrival, place) = (name(&ARRIVALS, *arrival), name(&PLACES, *is_vacant));
        writeln!(f, "link {arrival} {best_block} {capacity} {session} {life} {place}")?;
    }
    entries.iter().try_for_each(|entry| writeln!(f, "{entry}"))
}

const TRUST: [(&str, bool); 2] = [("trusted", true), ("untrusted", false)];
const OUTAGES: [(&str, bool); 2] = [("links come back", true), ("links stay down", false)];
const ARRIVALS: [(&str, Arrival); 2] = [("posted", Arrival::Posted), ("in-place", Arrival::InPlace)];
const PLACES: [(&str, bool); 2] = [("vacant", true), ("taken", false)];
const ENDS: [(&str, bool); 2] = [("ended", true), ("not-ended", false)];
const CALLS: [(&str, CallKind); 3] =
    [("send", CallKind::Send), ("recv", CallKind::Recv), ("return", CallKind::Return)];
const ANSWERS: [(&str, Answer); 5] = [
    ("taken", Answer::Taken),
    ("busy", Answer::Busy),
    ("peer-failed", Answer::PeerFailed),
    ("unsupported", Answer::Unsupported),
    ("other", Answer::Other),
];

fn name<K: Copy + PartialEq>(names: &[(&'static str, K)], kind: K) -> &'static str {
    names.iter().find(|(_, k)| *k == kind).map_or("?", |(name, _)| name)
}

fn named<K: Copy>(names: &[(&'static str, K)], text: &str) -> Option<K> {
    names.iter().find(|(name, _)| *name == text).map(|(_, k)| *k)
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = |id: &BlockId| format!("{}/{}", id.segment.raw(), id.index);
        match self {
            Self::Call(call, answer) => write!(f, "{call} {}", name(&ANSWERS, *answer)),
            Self::Idle(polls) => write!(f, "idle {polls}"),
            Self::Peer { peer, has_ended, life } => {
                write!(f, "peer {} {} {life}", peer.raw(), name(&ENDS, *has_ended))
            }
            Self::Outcome(outcome) => match outcome {
                Outcome::Sent(peer, id) => write!(f, "sent {} {}", peer.raw(), block(id)),
                Outcome::Failed(peer, id) => write!(f, "failed {} {}", peer.raw(), block(id)),
                Outcome::Unused(peer, id) => write!(f, "unused {} {}", peer.raw(), block(id)),
                Outcome::PeerFailed(peer) => write!(f, "down {}", peer.raw()),
                Outcome::PeerRestored(peer, session) => write!(f, "up {} {session}", peer.raw()),
                Outcome::Received(peer, id, bytes) => {
                    write!(f, "received {} {} ", peer.raw(), block(id))?;
                    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
                }
            },
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, peer, block, length, hash } = self;
        let (peer, segment) = (peer.raw(), block.segment.raw());
        write!(f, "{} {peer} {segment}/{} {length} {hash:016x}", name(&CALLS, *kind), block.index)
    }
}

pub(super) fn read(text: &str) -> Result<Recording, RecordingError> {
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    let missing =
        |what: &str| RecordingError { line: text.lines().count() + 1, what: format!("is missing; {what}") };
    let (_, first) = lines.next().ok_or_else(|| missing("a recording begins \"pdbp-recording 3\""))?;
    if first != FIRST {
        return Err(RecordingError {
            line: 1,
            what: format!("is \"{first}\"; a recording begins \"{FIRST}\""),
        });
    }
    let (line, head) = lines.next().ok_or_else(|| missing("the second line tells of the node"))?;
    let mut recording = read_head(head).ok_or_else(|| RecordingError {
        line,
        what: format!("is \"{head}\"; write \"node N of M, blocks of L bytes, trusted, links stay down\", or \"untrusted\", or \"links come back\"; N is below M"),
    })?;
    for (line, text) in lines {
        let wrong = || RecordingError { line, what: format!("\"{text}\" is no entry, or incomplete") };
        let (word, rest) = text.split_once(' ').ok_or_else(wrong)?;
        if word == "link" {
            recording.links.push(read_link(rest).ok_or_else(wrong)?);
        } else {
            recording.entries.push(read_entry(word, rest).ok_or_else(wrong)?);
        }
    }
    if recording.links.len() != usize::from(recording.nodes) {
        return Err(missing(&format!(
            "{} of {} nodes have a line \"link …\"",
            recording.links.len(),
            recording.nodes
        )));
    }
    Ok(recording)
}

fn read_head(head: &str) -> Option<Recording> {
    let (node, rest) = head.strip_prefix("node ")?.split_once(" of ")?;
    let (nodes, rest) = rest.split_once(", blocks of ")?;
    let (largest, rest) = rest.split_once(" bytes, ")?;
    let (trust, outages) = rest.split_once(", ")?;
    let (trusted, restores_links) = (named(&TRUST, trust)?, named(&OUTAGES, outages)?);
    let (nodes, largest_block) = (nodes.parse().ok()?, largest.parse().ok()?);
    let node = read_node(node).filter(|node| node.raw() < nodes)?;
    let (links, entries) = (Vec::new(), Vec::new());
    Some(Recording { node, nodes, largest_block, trusted, restores_links, links, entries })
}

fn read_link(rest: &str) -> Option<Link> {
    let mut words = rest.split(' ');
    let arrival = named(&ARRIVALS, words.next()?)?;
    let (best_block, capacity) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (session, life) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let is_vacant = named(&PLACES, words.next()?)?;
    words.next().is_none().then_some(Link { arrival, best_block, capacity, session, life, is_vacant })
}

fn read_node(text: &str) -> Option<NodeId> {
    NodeId::new(text.parse().ok()?)
}

fn read_block(text: &str) -> Option<BlockId> {
    let (segment, index) = text.split_once('/')?;
    Some(BlockId { segment: read_node(segment)?, index: index.parse().ok()? })
}

fn read_entry(word: &str, rest: &str) -> Option<Entry> {
    let mut fields = rest.split(' ');
    if word == "idle" {
        return Some(Entry::Idle(rest.parse().ok()?));
    }
    let peer = read_node(fields.next()?)?;
    let entry = if let Some(kind) = named(&CALLS, word) {
        let block = read_block(fields.next()?)?;
        let length = fields.next()?.parse().ok()?;
        let hash = u64::from_str_radix(fields.next()?, 16).ok()?;
        let answer = named(&ANSWERS, fields.next()?)?;
        Entry::Call(Call { kind, peer, block, length, hash }, answer)
    } else if word == "peer" {
        let (has_ended, life) = (named(&ENDS, fields.next()?)?, fields.next()?.parse().ok()?);
        Entry::Peer { peer, has_ended, life }
    } else if word == "down" {
        Entry::Outcome(Outcome::PeerFailed(peer))
    } else if word == "up" {
        Entry::Outcome(Outcome::PeerRestored(peer, fields.next()?.parse().ok()?))
    } else {
        let block = read_block(fields.next()?)?;
        Entry::Outcome(match word {
            "sent" => Outcome::Sent(peer, block),
            "failed" => Outcome::Failed(peer, block),
            "unused" => Outcome::Unused(peer, block),
            "received" => Outcome::Received(peer, block, read_bytes(fields.next()?)?),
            _ => return None,
        })
    };
    fields.next().is_none().then_some(entry)
}

fn read_bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let pairs = digits?;
    if pairs.len() % 2 == 1 {
        return None;
    }
    Some(pairs.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8)).collect())
}
