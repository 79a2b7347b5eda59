//! How many live decoders have room.

use super::SetupError;
use crate::decode::memory::Needs;
use crate::streams::{StreamNo, Streams};

/// As many of the streams as have room for a decoder each; says how many that is, and what decoders take.
pub(super) fn fit(
    streams: Streams,
    known: Option<(Needs, u64)>,
    notices: &mut Vec<String>,
) -> Result<(Streams, Option<String>), SetupError> {
    let Some((needs, available)) = known else {
        notices.push(
            "this system does not tell how much memory is free and what a decoder takes; all streams are tried"
                .into(),
        );
        return Ok((streams, None));
    };
    let sizes = (0..streams.count()).filter_map(|stream| Some(streams.clip(StreamNo(stream))?.size()));
    let count = needs.streams_that_fit(sizes.clone(), available);
    if count == 0 {
        let needed = sizes.clone().next().map_or(0, |size| needs.bytes(size));
        return Err(SetupError::NoMemory { needed, available });
    }
    let gibibytes = available as f64 / f64::from(1 << 30);
    let most = needs.streams_that_fit(sizes.clone().cycle().take(ENOUGH), available);
    let most = if most as usize == ENOUGH {
        "a million and more".to_owned()
    } else {
        pdbp_plots::count(most.into())
    };
    let room = format!("a live decoder takes {needs}; {gibibytes:.1} GiB are available, room for {most}");
    let wanted = streams.count();
    if count < wanted {
        notices.push(format!("{count} of {wanted} streams run continuously: {room}"));
    }
    Ok((Streams::new(streams.clips().to_vec(), count), Some(room)))
}

/// More decoders than that are not counted.
const ENOUGH: usize = 1_000_000;
