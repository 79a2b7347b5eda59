//! The result of one frame, as it is sent to the console.

use bytemuck::{Pod, Zeroable};

use super::{FrameHeader, FrameId, StreamClass};
use crate::measure::{Scores, Sight};
use crate::streams::StreamNo;

/// Scores of one frame: a plain value of 56 bytes, sent as a typed message in the byte order of the cluster's machines.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct ScoreRecord {
    /// When decoding of the picture began, nanoseconds since the Unix epoch.
    pub captured_ns: u64,
    /// When its analysis was finished, same clock.
    pub scored_ns: u64,
    stream: u32,
    frame: u32,
    pass: u32,
    blur: f32,
    blockiness: f32,
    smoothness: f32,
    black: f32,
    /// Negative: none.
    change: f32,
    node: u16,
    class: u8,
    reserved: [u8; 5],
}

const _: () = assert!(size_of::<ScoreRecord>() == 56);

impl ScoreRecord {
    /// The record of a frame scored by node `node` at `scored_ns`.
    pub fn new(header: &FrameHeader, scores: Scores, sight: Sight, node: u16, scored_ns: u64) -> Self {
        let id = header.id();
        Self {
            captured_ns: id.captured_ns,
            scored_ns,
            stream: id.stream.0,
            frame: id.frame,
            pass: id.pass,
            blur: scores.blur,
            blockiness: scores.blockiness,
            smoothness: scores.smoothness,
            black: sight.black,
            change: sight.change.unwrap_or(-1.0),
            node,
            class: header.class() as u8,
            reserved: [0; 5],
        }
    }

    /// Which picture was scored.
    pub fn id(&self) -> FrameId {
        FrameId {
            stream: StreamNo(self.stream),
            frame: self.frame,
            pass: self.pass,
            captured_ns: self.captured_ns,
        }
    }

    /// Class of its stream.
    pub fn class(&self) -> StreamClass {
        StreamClass::from_number(self.class)
    }

    /// The node that scored it.
    pub fn node(&self) -> u16 {
        self.node
    }

    /// The three measures.
    pub fn scores(&self) -> Scores {
        Scores { blur: self.blur, blockiness: self.blockiness, smoothness: self.smoothness }
    }

    /// How black the picture is, and how much it differs from the previous one.
    pub fn sight(&self) -> Sight {
        Sight { black: self.black, change: (self.change >= 0.0).then_some(self.change) }
    }
}
