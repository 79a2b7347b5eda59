//! How many streams and passes there are unless something else is asked for.

use super::Cli;
use crate::annexb::Index;
use crate::clips::Clip;
use crate::plan::Mode;

/// Concurrent streams of the bundled clips.
const OF_BUNDLED: u32 = 2_520;

/// Streams over these clips: each of the user's files and sources is one.
pub(super) fn streams(cli: &Cli, clips: &[Clip]) -> u32 {
    let each_once =
        || if cli.paths.is_empty() { OF_BUNDLED } else { u32::try_from(clips.len()).unwrap_or(u32::MAX) };
    cli.streams.unwrap_or_else(each_once)
}

/// Passes over these clips: each of the user's files is measured to its end, unless it stands for several streams.
pub(super) fn passes(cli: &Cli, mode: Mode, clips: &[Clip]) -> u32 {
    let is_each_once = cli.streams.is_none() && !cli.paths.is_empty();
    let longest = |pictures: fn(&Index) -> usize| {
        let most = clips.iter().map(|clip| pictures(clip.index())).max();
        u32::try_from(most.unwrap_or(1)).unwrap_or(u32::MAX)
    };
    cli.passes.unwrap_or_else(|| match mode {
        Mode::Live => 60,
        // Those before the first key picture cannot be decoded.
        Mode::Continuous if is_each_once => longest(|index| {
            index.pictures.len() - index.entries.first().map_or(0, |first| first.picture as usize)
        }),
        Mode::Sample if is_each_once => longest(|index| index.entries.len()),
        Mode::Continuous => 50,
        Mode::Sample | Mode::Replay => 1,
    })
}
