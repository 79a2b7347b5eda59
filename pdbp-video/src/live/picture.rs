//! Pictures for a browser: decoded again on request, so that none have to be kept.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::clips::Clip;
use crate::decode::{Codec, Follower, Sampler, Yuv};
use crate::measure::restore::restore;

/// Widest picture that is shown as it is; of wider ones only every second sample, and so on.
const WIDEST: usize = 360;
/// Bytes of the two headers of a BMP file.
const HEADERS: u32 = 54;

/// What is shown of a clip.
pub(super) enum Wanted {
    /// The picture of this number.
    Picture(u32),
    /// The last key picture of a live source.
    Key(Vec<u8>),
}

impl Wanted {
    /// Picture `number`, or what there is instead of a live source, as far as this process receives it.
    pub(super) fn of(clip: &Clip, number: u32) -> Option<Self> {
        clip.source().map_or(Some(Self::Picture(number)), |source| Some(Self::Key(source.last_key()?.bytes)))
    }

    /// The same for the same picture.
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Picture(number) => (*number).into(),
            Self::Key(bytes) => {
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                hasher.finish()
            }
        }
    }
}

/// A picture of a clip as a `data:` URL. `None` if it cannot be decoded, or the clip has no such picture.
pub(super) fn url(codec: Codec, clip: &Clip, wanted: &Wanted) -> Option<String> {
    match wanted {
        Wanted::Picture(number) => picture(codec, clip, *number),
        Wanted::Key(bytes) => key(codec, bytes),
    }
}

fn picture(codec: Codec, clip: &Clip, number: u32) -> Option<String> {
    // A follower would begin anew at the end of the clip.
    clip.index().pictures.get(number as usize)?;
    let before = clip.index().entries.iter().rev().find(|entry| entry.picture <= number)?;
    let mut follower = Follower::new(codec, before);
    // A decoder keeps up to 16 pictures.
    let steps = (number - before.picture).saturating_add(17);
    (0..steps).find_map(|_| {
        let shown = follower.step(clip, |shown, picture| (shown == number).then(|| bitmap(picture)));
        shown.ok().flatten().flatten()
    })
}

fn key(codec: Codec, bytes: &[u8]) -> Option<String> {
    let clip = Clip::new("", bytes.to_vec()).ok()?;
    Sampler::new(codec).sample(&clip, clip.index().entries.first()?, bitmap).ok()
}

/// The picture as a BMP file, which needs no compression, in a `data:` URL.
fn bitmap(picture: &Yuv<'_>) -> String {
    let (rgb, size) = (restore(picture), picture.size());
    let planes = rgb.planes();
    let (width, height) = (usize::from(size.width), usize::from(size.height));
    let step = width.div_ceil(WIDEST).max(1);
    let (columns, rows) = (width.div_ceil(step), height.div_ceil(step));
    let row_len = (3 * columns).next_multiple_of(4);
    let length = row_len * rows;
    let mut file = Vec::with_capacity(length + HEADERS as usize);
    // Sides are at most 65,535.
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    file.extend_from_slice(b"BM");
    for value in [number(length) + HEADERS, 0, HEADERS, 40, number(columns), number(rows), 0x0018_0001, 0] {
        file.extend_from_slice(&value.to_le_bytes());
    }
    for value in [number(length), 2835, 2835, 0, 0] {
        file.extend_from_slice(&value.to_le_bytes());
    }
    // From the bottom to the top.
    for row in (0..rows).rev() {
        let before = file.len();
        for column in 0..columns {
            let place = row * step * width + column * step;
            file.extend(planes.iter().rev().map(|plane| plane.get(place).copied().unwrap_or_default()));
        }
        file.resize(before + row_len, 0);
    }
    format!("data:image/bmp;base64,{}", BASE64_STANDARD.encode(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clips::bundled;

    #[test]
    fn any_picture_of_a_clip_can_be_shown() {
        let clips = bundled().clips;
        for (clip, columns, rows) in [(&clips[0], 176, 144), (&clips[4], 352, 288)] {
            for number in [0, 1, 37] {
                let url = url(Codec::default(), clip, &Wanted::Picture(number)).unwrap();
                let file =
                    BASE64_STANDARD.decode(url.strip_prefix("data:image/bmp;base64,").unwrap()).unwrap();
                let at = |place: usize| u32::from_le_bytes(file[place..place + 4].try_into().unwrap());
                assert_eq!((at(2) as usize, at(18), at(22)), (file.len(), columns, rows));
                let (low, high) = (file[54..].iter().min().unwrap(), file[54..].iter().max().unwrap());
                assert!(high - low > 100, "a picture of one colour");
            }
        }
        assert!(url(Codec::default(), &clips[0], &Wanted::Picture(100_000)).is_none());
    }
}
