//! What live sources are given.

use crate::decode::Codec;
use crate::decode::memory::{self, Needs};
use crate::sources::{Room, Source, descriptors};
use crate::streams::Streams;

/// Of the memory that is available.
const SHARE: u64 = 4;

/// Gives the sources of this process memory, `mebibytes` if that is said, and descriptors; says what they have, what a decoder takes, and
/// in `notices` what they lack.
pub(super) fn provide(
    streams: &Streams,
    needs: Option<Needs>,
    mebibytes: Option<u32>,
    notices: &mut Vec<String>,
) -> String {
    let addresses = streams.clips().iter().filter_map(|clip| clip.source()).map(Source::address);
    notices.extend(descriptors(addresses).and_then(|descriptors| descriptors.lack()));
    let room = Room::of_process();
    let said = mebibytes.map(|mebibytes| u64::from(mebibytes) << 20);
    // Pictures wait in the memory of the host, wherever they are decoded.
    let most = said.or_else(|| Some(memory::available_bytes(Codec::default())? / SHARE));
    if let Some(most) = most {
        room.limit(usize::try_from(most).unwrap_or(usize::MAX));
    }
    let held = format!("coded pictures of all sources may take {} MiB", room.most() >> 20);
    needs.map_or(held.clone(), |needs| format!("a live decoder takes {needs}; {held}"))
}
