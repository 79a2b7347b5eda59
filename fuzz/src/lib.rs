//! The readers of pdbp-video, compiled from its sources: the whole of it would bring video decoders in C++ and a runtime for sockets, which
//! take minutes to build and which no target here runs.

#[path = "../../pdbp-video/src/annexb/mod.rs"]
pub mod annexb;
#[path = "../../pdbp-video/src/clips/demux.rs"]
pub mod mp4;
#[path = "../../pdbp-video/src/sources/rtp/mod.rs"]
pub mod rtp;
