//! All pictures of a stream, from its first entry point to its end.

use crate::clips::Clip;

use super::{DecodeError, Yuv, borrow, new_decoder, piece_of, reason};

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
/// decode::whole(clip, |_| pictures += 1)?;
/// assert_eq!(pictures, clip.index().pictures.len());
/// # Ok::<(), decode::DecodeError>(())
/// ```
pub fn whole(clip: &Clip, mut take: impl FnMut(&Yuv<'_>)) -> Result<(), DecodeError> {
    let index = clip.index();
    let first = index.entries.first().map_or(0, |entry| entry.picture as usize);
    let mut decoder = new_decoder()?;
    let (mut fed, mut shown) = (first, first);
    let number = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
    let headers =
        index.entries.first().and_then(|entry| entry.pieces.split_last()).map_or(&[][..], |(_, h)| h);
    let units = index.pictures.iter().skip(first);
    for (piece, is_picture) in
        headers.iter().map(|piece| (piece, false)).chain(units.map(|unit| (unit, true)))
    {
        let decoded = decoder
            .decode(piece_of(clip.data(), piece))
            .map_err(|error| DecodeError::Damaged { picture: number(fed), reason: reason(&error) })?;
        fed += usize::from(is_picture);
        if let Some(picture) = decoded.as_ref().and_then(borrow) {
            take(&picture);
            shown += 1;
        }
    }
    let rest = decoder.flush_remaining();
    let rest =
        rest.map_err(|error| DecodeError::Damaged { picture: number(shown), reason: reason(&error) })?;
    for picture in rest.iter().filter_map(borrow) {
        take(&picture);
        shown += 1;
    }
    if shown < fed { Err(DecodeError::Incomplete { picture: number(shown) }) } else { Ok(()) }
}
