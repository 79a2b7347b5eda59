//! The readers of pdbp-video, compiled from its sources: the whole of it would bring video decoders in C++ and a runtime for sockets, which
//! take minutes to build and which no target here runs.

#[path = "../../pdbp-video/src/annexb/mod.rs"]
pub mod annexb;
#[path = "../../pdbp-video/src/clips/demux.rs"]
pub mod mp4;
#[path = "../../pdbp-video/src/sources/rtp/mod.rs"]
pub mod rtp;

/// Makes a closure that takes `bytes: &[u8]` the target of a program.
#[macro_export]
macro_rules! target {
    (|$bytes:ident: &[u8]| $run:expr) => {
        libfuzzer_sys::fuzz_target!(|$bytes: &[u8]| {
            $crate::count($bytes);
            $run
        });
    };
}

/// Of a build that does not count which code an input reaches, as those of `ci/fuzz --built`: libFuzzer only changes inputs that have reached something
/// new, so each of 256 kinds of inputs reaches a counter of its own.
#[cfg(not(fuzzing))]
pub fn count(bytes: &[u8]) {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use std::sync::atomic::{AtomicU8, Ordering};

    #[unsafe(link_section = "__libfuzzer_extra_counters")]
    static COUNTERS: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

    let kind = BuildHasherDefault::<DefaultHasher>::new().hash_one(bytes) as u8;
    COUNTERS[usize::from(kind)].store(1, Ordering::Relaxed);
}

#[cfg(fuzzing)]
pub fn count(_: &[u8]) {}
