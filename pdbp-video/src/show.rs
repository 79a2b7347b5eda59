//! What a decoding thread shows in a pass, whether over PDBP or without transport.

use std::thread;
use std::time::{Duration, Instant};

use crate::decode::{Codec, DecodeError, Follower, Reel, Sampler, Yuv};
use crate::plan::{LIVE_PASS, Mode, Pool};
use crate::streams::{StreamNo, Streams};

/// How often live sources are checked for arrivals.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Where a picture goes, with its number.
pub(crate) type Take<'a> = dyn FnMut(u32, &Yuv<'_>) + 'a;
/// Decodes the picture of a stream that is due and hands it on; `None` if nothing has come out.
pub(crate) type Decode<'a> = dyn FnMut(&mut Take<'_>) -> Result<Option<()>, DecodeError> + 'a;

/// What the threads of a process show together.
#[derive(Clone, Copy)]
pub(crate) struct Program<'a> {
    pub(crate) streams: &'a Streams,
    pub(crate) pool: &'a Pool,
    pub(crate) reel: &'a Reel,
}

/// The source of a thread's pictures: one decoder for all streams, none, or one for each.
pub(crate) enum Shower {
    Sample(Sampler),
    Replay,
    Follow(Vec<(StreamNo, Follower)>),
    Live(Vec<(StreamNo, Follower)>),
}

impl Shower {
    /// That of thread `number` of `threads`. Those that follow streams follow an equal share each.
    pub(crate) fn new(mode: Mode, codec: Codec, streams: &Streams, number: u32, threads: u32) -> Self {
        let followers = || {
            let own = streams.share(number, threads).map(StreamNo);
            own.filter_map(|stream| Some((stream, Follower::of(codec, streams, stream)?))).collect()
        };
        match mode {
            Mode::Sample => Self::Sample(Sampler::new(codec)),
            Mode::Replay => Self::Replay,
            Mode::Continuous => Self::Follow(followers()),
            Mode::Live => Self::Live(followers()),
        }
    }

    /// Calls `each` for each picture that is due in a pass, until it returns an error.
    pub(crate) fn pass<E>(
        &mut self,
        program: Program<'_>,
        pass: u32,
        each: &mut dyn FnMut(StreamNo, &mut Decode<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Program { streams, pool, reel } = program;
        let mut due = std::iter::from_fn(|| pool.take(pass)).flatten().map(StreamNo);
        match self {
            Self::Sample(sampler) => due.try_for_each(|stream| {
                let Some((clip, entry)) = streams.entry(stream, pass) else { return Ok(()) };
                each(stream, &mut |take| {
                    sampler.sample(clip, entry, |picture| take(entry.picture, picture)).map(Some)
                })
            }),
            Self::Replay => {
                due.try_for_each(|stream| each(stream, &mut |take| reel.show(streams, stream, pass, take)))
            }
            Self::Follow(followers) => followers.iter_mut().try_for_each(|(stream, follower)| {
                let Some(clip) = streams.clip(*stream) else { return Ok(()) };
                each(*stream, &mut |take| follower.step(clip, take))
            }),
            Self::Live(followers) => attend(streams, followers, each),
        }
    }
}

/// Shows what live sources send while the pass lasts.
fn attend<E>(
    streams: &Streams,
    followers: &mut [(StreamNo, Follower)],
    each: &mut dyn FnMut(StreamNo, &mut Decode<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let end = Instant::now() + LIVE_PASS;
    loop {
        let mut found = 0;
        for (stream, follower) in &mut *followers {
            let Some((clip, source)) = streams.live(*stream) else { continue };
            for _ in 0..source.waiting() + follower.ready() {
                each(*stream, &mut |take| follower.step(clip, take))?;
                found += 1;
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if found == 0 {
            thread::sleep(POLL_INTERVAL.min(left));
        }
    }
}
