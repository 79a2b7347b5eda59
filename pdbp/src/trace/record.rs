//! One event, and how it is written.

use std::fmt::{self, Write as _};

use pdbp_core::cdu::{BlockClass, Malformed};
use pdbp_core::id::{BlockId, NodeId};

/// The tracks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Track {
    Polls = 1,
    Out,
    In,
    Rows,
    Events,
}

impl Track {
    pub(super) const ALL: [(Self, &'static str); 5] = [
        (Self::Polls, "polls"),
        (Self::Out, "blocks out"),
        (Self::In, "blocks in"),
        (Self::Rows, "rows"),
        (Self::Events, "events"),
    ];
}

/// SCBP or RCBP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Send,
    Recv,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "SCBP",
            Self::Recv => "RCBP",
        }
    }
}

/// A block's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) id: BlockId,
    pub(super) class: BlockClass,
    pub(super) sequence: u64,
    pub(super) messages: u32,
    pub(super) bytes: usize,
}

impl Block {
    fn class(&self) -> &'static str {
        match self.class {
            BlockClass::Message => "messages",
            BlockClass::Stream => "stream",
            BlockClass::Control => "control",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TraceEvent {
    Poll {
        nanos: u64,
        worked: u32,
    },
    Out {
        peer: NodeId,
        nanos: u64,
        block: Block,
    },
    Returned {
        id: BlockId,
    },
    In {
        peer: NodeId,
        nanos: u64,
        block: Block,
    },
    Released {
        id: BlockId,
    },
    Space {
        row: Row,
        peer: NodeId,
        real: u32,
    },
    Stalls {
        row: Row,
        peer: NodeId,
        count: u64,
    },
    Part {
        local: u16,
        name: Option<Box<str>>,
        accepted: bool,
    },
    Failed {
        peer: NodeId,
        undelivered: u64,
    },
    Restored {
        peer: NodeId,
    },
    Malformed {
        peer: NodeId,
        reason: Malformed,
    },
    Unroutable {
        peer: NodeId,
        part: u16,
        messages: u32,
    },
    Broken {
        peer: NodeId,
        stream: u32,
    },
    /// A relay stopped a stream of this node.
    Stopped {
        relay: NodeId,
        dest: NodeId,
        stream: u32,
    },
    /// As relay of two other nodes, this one could not forward something.
    NotForwarded {
        source: NodeId,
        dest: NodeId,
        messages: u32,
    },
}

impl TraceEvent {
    /// Whether it is one of the few events by which a run is understood: they stay when the many others have no room.
    pub(super) fn is_rare(&self) -> bool {
        matches!(self, Self::Part { .. } | Self::Failed { .. } | Self::Restored { .. })
    }
}

/// What happened, and when, in nanoseconds by the trace's clock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) at: u64,
    pub(super) what: TraceEvent,
}

/// Nanoseconds, printed as microseconds, as the format requires.
pub(super) struct Micros(pub(super) u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Text in quotes, escaped for JSON.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            // Writing to a String cannot fail.
            '\0'..' ' | '\x7f' => _ = write!(quoted, "\\u{:04x}", u32::from(character)),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

/// The id of an arrow: the block's sequence number on its link. Hexadecimal, as Perfetto reads it.
fn arrow(from: NodeId, to: NodeId, sequence: u64) -> String {
    format!("0x{:04x}{:04x}{:08x}", from.raw(), to.raw(), sequence as u32)
}

/// The id of the time for which a block is away or held.
fn holding(id: BlockId) -> String {
    format!("0x{:04x}{:08x}", id.segment.raw(), id.index)
}

impl Record {
    /// Appends the events of a record of `node`, each on a line that begins with a comma. Returns their number.
    pub(super) fn write(&self, node: NodeId, to: &mut String) -> usize {
        let mut lines = Lines { node, at: self.at, to, count: 0 };
        match &self.what {
            TraceEvent::Poll { nanos, worked } => {
                let args = format!("{{\"worked\":{worked}}}");
                lines.slice(Track::Polls, "poll", *nanos, &args);
            }
            TraceEvent::Out { peer, nanos, block } => lines.out(*peer, *nanos, block),
            TraceEvent::Returned { id } => lines.span('e', Track::Out, "away", "block away", &holding(*id)),
            TraceEvent::In { peer, nanos, block } => lines.arrived(*peer, *nanos, block),
            TraceEvent::Released { id } => lines.span('e', Track::In, "held", "block held", &holding(*id)),
            TraceEvent::Space { row, peer, real } => {
                let name = format!("{} {peer}: real space", row.name());
                lines.line("C", Track::Rows, &name, &format!("\"args\":{{\"blocks\":{real}}}"));
            }
            TraceEvent::Stalls { row, peer, count } => {
                let name = format!("stall {} {peer}", row.name());
                lines.instant(Track::Rows, 't', &name, &format!("{{\"count\":{count}}}"));
            }
            TraceEvent::Part { local, name, accepted } => {
                let name = match (name, accepted) {
                    (Some(name), _) => format!("part {name} registered"),
                    (None, true) => format!("part {local} freed"),
                    (None, false) => format!("part {local} refused: PTA is full"),
                };
                lines.instant(Track::Events, 't', &name, &format!("{{\"part\":{local}}}"));
            }
            TraceEvent::Failed { peer, undelivered } => {
                let args = format!("{{\"undelivered\":{undelivered}}}");
                lines.instant(Track::Events, 'p', &format!("{peer} failed"), &args);
            }
            TraceEvent::Restored { peer } => {
                lines.instant(Track::Events, 'p', &format!("{peer} restored"), "{}");
            }
            TraceEvent::Malformed { peer, reason } => {
                let args = format!("{{\"reason\":{}}}", quoted(&reason.to_string()));
                lines.instant(Track::Events, 't', &format!("refused a block of {peer}"), &args);
            }
            TraceEvent::Unroutable { peer, part, messages } => {
                let args = format!("{{\"part\":{part},\"messages\":{messages}}}");
                lines.instant(Track::Events, 't', &format!("unroutable from {peer}"), &args);
            }
            TraceEvent::Broken { peer, stream } => {
                let args = format!("{{\"stream\":{stream}}}");
                lines.instant(Track::Events, 't', &format!("stream of {peer} broken"), &args);
            }
            TraceEvent::Stopped { relay, dest, stream } => {
                let args = format!("{{\"stream\":{stream}}}");
                lines.instant(Track::Events, 't', &format!("stream to {dest} stopped at {relay}"), &args);
            }
            TraceEvent::NotForwarded { source, dest, messages } => {
                let args = format!("{{\"messages\":{messages}}}");
                let name = format!("not forwarded from {source} to {dest}");
                lines.instant(Track::Events, 't', &name, &args);
            }
        }
        lines.count
    }
}

/// Writes events of one node and time.
struct Lines<'a> {
    node: NodeId,
    at: u64,
    to: &'a mut String,
    count: usize,
}

impl Lines<'_> {
    /// Writes an event; `rest` has its other fields.
    fn line(&mut self, phase: &str, track: Track, name: &str, rest: &str) {
        self.count += 1;
        // Writing to a String cannot fail.
        let _ = write!(
            self.to,
            ",\n{{\"ph\":\"{phase}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{},{rest}}}",
            quoted(name),
            self.node.raw(),
            track as u8,
            Micros(self.at)
        );
    }

    fn slice(&mut self, track: Track, name: &str, nanos: u64, args: &str) {
        self.line("X", track, name, &format!("\"dur\":{},\"args\":{args}", Micros(nanos)));
    }

    fn instant(&mut self, track: Track, scope: char, name: &str, args: &str) {
        self.line("i", track, name, &format!("\"s\":\"{scope}\",\"args\":{args}"));
    }

    fn span(&mut self, phase: char, track: Track, category: &str, name: &str, id: &str) {
        self.line(&phase.to_string(), track, name, &format!("\"cat\":\"{category}\",\"id\":\"{id}\""));
    }

    fn out(&mut self, peer: NodeId, nanos: u64, block: &Block) {
        let name = format!("{} to {peer}", block.class());
        self.slice(Track::Out, &name, nanos, &args(block));
        let id = arrow(self.node, peer, block.sequence);
        self.line("s", Track::Out, "block", &format!("\"cat\":\"block\",\"id\":\"{id}\""));
        self.span('b', Track::Out, "away", "block away", &holding(block.id));
    }

    fn arrived(&mut self, peer: NodeId, nanos: u64, block: &Block) {
        let name = format!("{} from {peer}", block.class());
        self.slice(Track::In, &name, nanos, &args(block));
        let id = arrow(peer, self.node, block.sequence);
        self.line("f", Track::In, "block", &format!("\"bp\":\"e\",\"cat\":\"block\",\"id\":\"{id}\""));
        self.span('b', Track::In, "held", "block held", &holding(block.id));
    }
}

fn args(block: &Block) -> String {
    let Block { id, sequence, messages, bytes, .. } = block;
    format!(
        "{{\"block\":\"{} of {}\",\"sequence\":{sequence},\"messages\":{messages},\"bytes\":{bytes}}}",
        id.index, id.segment
    )
}
