//! All pictures of a stream, from its first entry point to its end.

use core::ops::Range;

use crate::clips::Clip;

use super::decoder::Tenancy;
use super::{Codec, DecodeError, Yuv};

/// Decodes all pictures of `clip` from its first entry point on and hands them to `take` in the order in which they are shown.
///
/// # Errors
///
/// [`DecodeError`] with the number, in the clip, of the picture at which decoding ended; `take` has been given those before it.
///
/// ```
/// use pdbp_video::{clips, decode};
///
/// let clip = &clips::bundled().clips[0];
/// let mut pictures = 0;
/// decode::whole(decode::Codec::default(), clip, |_| pictures += 1)?;
/// assert_eq!(pictures, clip.index().pictures.len());
/// # Ok::<(), decode::DecodeError>(())
/// ```
pub fn whole(codec: Codec, clip: &Clip, mut take: impl FnMut(&Yuv<'_>)) -> Result<(), DecodeError> {
    let index = clip.index();
    let Some(entry) = index.entries.first() else { return Ok(()) };
    codec.admits_all(index)?;
    let mut decoder = codec.decoder(index.standard, Tenancy::Shared)?;
    let mut shown = entry.picture;
    let mut take = |yuv: &Yuv<'_>| {
        take(yuv);
        shown += 1;
    };
    let mut fed = entry.picture;
    // The entry point's pieces end with its picture.
    let rest =
        index.pictures.iter().skip(entry.picture as usize + 1).map(core::slice::from_ref::<Range<usize>>);
    for pieces in [&*entry.pieces].into_iter().chain(rest) {
        decoder
            .decode(clip.data(), pieces, &mut take)
            .map_err(|reason| decoder.fault().error(fed, reason))?;
        fed += 1;
    }
    let drained = decoder.drain(&mut take);
    drained.map_err(|reason| decoder.fault().error(shown, reason))?;
    if shown < fed { Err(DecodeError::Incomplete { picture: shown }) } else { Ok(()) }
}
