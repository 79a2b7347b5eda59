//! Video quality monitor: many H.264 streams, decoded on some nodes of a cluster and analysed on others.
//!
//! The modules, in the order in which a picture passes them:
//!
//! * [`clips`]: where streams come from — bundled clips, the user's files (Annex B, MP4);
//! * [`annexb`]: the structure of an H.264 stream; where decoding can begin;
//! * [`streams`]: thousands of concurrent streams served from a few clips;
//! * [`decode`]: H.264 to YUV with a small pool of decoders;
//! * [`frame`]: frames and score records as they travel between parts;
//! * [`measure`]: RGB restoration, blur, blockiness and smoothness;
//! * [`plan`], [`pipeline`]: who does what in a cluster, and the parts that do it over PDBP;
//! * [`direct`]: all of this on the threads of one process, without transport;
//! * [`account`], [`outcome`]: where the time went, and what a run produced;
//! * [`report`]: the table on the terminal, the HTML page and the CSV files;
//! * [`cli`]: the command line.

pub mod account;
pub mod annexb;
pub mod cli;
pub mod clips;
pub mod decode;
pub mod direct;
pub mod frame;
pub mod measure;
pub mod outcome;
pub mod pipeline;
pub mod plan;
pub mod report;
pub mod streams;
