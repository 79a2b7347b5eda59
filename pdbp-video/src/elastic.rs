//! Files measured as tasks: the program `pdbp-clips`.
//!
//! A clip is cut at its entry points. Each piece, a self-contained group of pictures, is a task, which decodes and measures it on whichever
//! processor asks for one. A task for each clip receives the results of its pieces (a data dependency) and makes the lines of the table, which the
//! client writes in the order of the files. When a processor is lost, only its current piece is lost with it, and another processor measures that
//! piece again, with the same result: **the table is the same, byte for byte, whichever processors have measured it**. `ci/demo-tasks` shows it.
//!
//! ```
//! use pdbp_tasks::Program;
//! use pdbp_video::{clips, decode::Codec, elastic};
//!
//! let mut program = Program::new("clips");
//! let kinds = elastic::kinds(&mut program, Codec::default());
//! program.run(|tasks| {
//!     let mut table = Vec::new();
//!     let clips = clips::bundled().clips.into_iter().map(Ok);
//!     let total = elastic::measure(tasks, kinds, clips, &mut table, |_| {})?;
//!     assert_eq!((total.clips, total.pieces), (5, 25));
//!     assert!(table.starts_with(elastic::HEADER.as_bytes()));
//!     Ok(())
//! })?;
//! # Ok::<(), pdbp_tasks::Error>(())
//! ```

use core::fmt::Write as _;
use std::collections::VecDeque;
use std::io::Write;

use pdbp_tasks::wire::Bytes;
use pdbp_tasks::{Error, Handle, Job, Kind, Program, Tasks};
use serde::{Deserialize, Serialize};

use crate::clips::{Clip, ClipError};
use crate::decode::{self, Codec};
use crate::measure::{Analyser, Scores, Sight, Tally, Threads, Watcher};
use crate::report::csv::text;

/// The first line of the table. `change` is empty for the first picture of a piece, which is not compared with another.
pub const HEADER: &str = "clip,class,piece,picture,blur,blockiness,smoothness,black,change\n";

/// Bytes of clips whose pieces are in flight, unless a single clip has more.
const WINDOW: usize = 128 << 20;

/// A part of a clip that can be decoded by itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Piece {
    /// Number of its first picture in the clip.
    first: u32,
    /// Parameter sets and pictures.
    data: Bytes,
}

/// The result of a piece.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    first: u32,
    /// For each picture blur, blockiness, smoothness and blackness, and its difference from the previous one.
    scores: Vec<([f32; 4], Option<f32>)>,
    /// Why there are no more.
    fault: Option<String>,
}

/// The result of a clip.
#[derive(Debug, Serialize, Deserialize)]
pub struct Joined {
    lines: Bytes,
    pictures: u32,
    black: u32,
    repeats: u32,
    freeze: u32,
    faults: Vec<String>,
}

/// The functions that a program needs.
#[derive(Clone, Copy)]
pub struct Kinds {
    piece: Kind<Piece, Measured>,
    clip: Kind<(Head, Vec<Measured>), Joined>,
}

/// The beginning of each line of a clip.
#[derive(Debug, Serialize, Deserialize)]
pub struct Head {
    name: String,
    class: String,
}

/// Registers the functions, as every process of the cluster must. This process decodes with `codec`.
pub fn kinds(program: &mut Program, codec: Codec) -> Kinds {
    Kinds {
        piece: program.kind("piece", move |piece: Piece| measure_piece(codec, &piece)),
        clip: program.kind("clip", |(head, pieces): (Head, Vec<Measured>)| join(&head, &pieces)),
    }
}

/// The pieces of a clip: from each entry point to the next. Pictures before the first entry point are left out, since they cannot be decoded.
pub fn cut(clip: &Clip) -> impl Iterator<Item = Piece> {
    let index = clip.index();
    let ends = index.entries.iter().skip(1).map(|next| next.picture as usize).chain([index.pictures.len()]);
    index.entries.iter().zip(ends).map(|(entry, end)| {
        let headers = entry.pieces.split_last().map_or(&[][..], |(_, headers)| headers);
        let pictures = index.pictures.get(entry.picture as usize..end).unwrap_or_default();
        let parts = headers.iter().chain(pictures).filter_map(|range| clip.data().get(range.clone()));
        Piece { first: entry.picture, data: parts.collect::<Vec<_>>().concat().into() }
    })
}

fn measure_piece(codec: Codec, piece: &Piece) -> Measured {
    let (mut analyser, mut watcher) = (Analyser::new(Threads::Caller), Watcher::default());
    let mut scores = Vec::new();
    let clip = Clip::new("piece", piece.data.to_vec()).map_err(|error| error.to_string());
    let end = clip.and_then(|clip| {
        let each = |picture: &decode::Yuv<'_>| {
            let Scores { blur, blockiness, smoothness } = analyser.analyse(picture);
            let Sight { black, change } = watcher.look(picture);
            scores.push(([blur, blockiness, smoothness, black], change));
        };
        decode::whole(codec, &clip, each).map_err(|error| error.to_string())
    });
    Measured { first: piece.first, scores, fault: end.err() }
}

fn join(head: &Head, pieces: &[Measured]) -> Joined {
    let (mut lines, mut pictures, mut faults) = (String::new(), 0, Vec::new());
    let mut tally = Tally::default();
    let name = text(&head.name);
    for (number, piece) in pieces.iter().enumerate() {
        for (picture, ([blur, blockiness, smoothness, black], change)) in (piece.first..).zip(&piece.scores) {
            let class = &head.class;
            // Nothing can fail in memory.
            let _ = writeln!(
                lines,
                "{name},{class},{number},{picture},{blur:.4},{blockiness:.4},{smoothness:.4},{black:.4},{}",
                change.map_or_else(String::new, |change| format!("{change:.4}"))
            );
            let sight = Sight { black: *black, change: *change };
            pictures += 1;
            tally.add(picture, sight);
        }
        faults.extend(piece.fault.as_ref().map(|fault| {
            format!(
                "{}: piece {number}, counted from picture {} of the clip: {fault}",
                head.name, piece.first
            )
        }));
    }
    let freeze = if tally.froze() { tally.freeze } else { 0 };
    let Tally { black, repeats, .. } = tally;
    Joined { lines: lines.into_bytes().into(), pictures, black, repeats, freeze, faults }
}

/// The totals.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Total {
    /// Clips that were measured.
    pub clips: usize,
    /// Their pieces.
    pub pieces: usize,
    /// Pictures that were measured.
    pub pictures: u64,
    /// Those that are black.
    pub black: u64,
    /// Repeats of the previous picture: freezes, if there are several in a row.
    pub repeats: u64,
    /// Most repeats in a row; 0 if there is no freeze.
    pub freeze: u32,
    /// What is missing, and why.
    pub faults: Vec<String>,
}

/// A clip whose pieces are in flight.
struct Pending<'t> {
    name: String,
    job: Job<'t>,
    joined: Handle<Joined>,
    bytes: usize,
    pieces: usize,
}

/// Measures clips and writes a line for each picture to `table`, in the order of the clips, after [`HEADER`]. Clips are read as there is room, so
/// there may be more than fit into memory. [`Total::faults`] lists what cannot be read or decoded. `progress` receives the total after each clip.
///
/// # Errors
/// The error that has ended the cluster, or that of writing `table`.
pub fn measure(
    tasks: &Tasks<'_>,
    kinds: Kinds,
    clips: impl IntoIterator<Item = Result<Clip, ClipError>>,
    table: &mut dyn Write,
    mut progress: impl FnMut(&Total),
) -> Result<Total, Error> {
    let mut total = Total::default();
    let mut pending = VecDeque::new();
    let mut bytes = 0;
    table.write_all(HEADER.as_bytes())?;
    for clip in clips {
        let clip = match clip {
            Ok(clip) => clip,
            Err(error) => {
                total.faults.push(error.to_string());
                continue;
            }
        };
        if clip.source().is_some() {
            total
                .faults
                .push(format!("{}: a live source, which only pdbp-video watches; give files", clip.name()));
            continue;
        }
        while bytes > 0 && bytes + clip.data().len() > WINDOW {
            bytes -= finish(pending.pop_front(), table, &mut total)?;
            progress(&total);
        }
        bytes += clip.data().len();
        pending.push_back(begin(tasks, kinds, &clip)?);
    }
    while !pending.is_empty() {
        finish(pending.pop_front(), table, &mut total)?;
        progress(&total);
    }
    table.flush()?;
    Ok(total)
}

fn begin<'t>(tasks: &'t Tasks<'t>, kinds: Kinds, clip: &Clip) -> Result<Pending<'t>, Error> {
    let mut job = tasks.job(clip.name());
    let pieces: Vec<_> = cut(clip).map(|piece| job.add(kinds.piece, piece)).collect::<Result<_, _>>()?;
    let head = Head { name: clip.name().to_owned(), class: clip.class().name().to_owned() };
    let joined = job.join(kinds.clip, head, &pieces)?;
    Ok(Pending { name: clip.name().to_owned(), job, joined, bytes: clip.data().len(), pieces: pieces.len() })
}

/// Writes the lines of a clip. Returns how many bytes it had.
fn finish(pending: Option<Pending<'_>>, table: &mut dyn Write, total: &mut Total) -> Result<usize, Error> {
    let Some(Pending { name, job, joined, bytes, pieces }) = pending else { return Ok(0) };
    match job.wait(&joined) {
        Ok(Joined { lines, pictures, black, repeats, freeze, faults }) => {
            table.write_all(&lines)?;
            total.clips += 1;
            total.pieces += pieces;
            total.pictures += u64::from(pictures);
            total.black += u64::from(black);
            total.repeats += u64::from(repeats);
            total.freeze = total.freeze.max(freeze);
            total.faults.extend(faults);
        }
        Err(Error::Task { error, .. }) => total.faults.push(format!("{name}: {error}")),
        Err(error) => return Err(error),
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clips::BUNDLED;

    #[test]
    fn pieces_give_the_scores_of_the_whole_clip() {
        give_the_scores_of(&Clip::new(BUNDLED[0].name, BUNDLED[0].data).unwrap());
    }

    /// Undamaged pieces were reported as damaged.
    #[test]
    fn pieces_have_the_parameter_sets_of_all_their_pictures() {
        give_the_scores_of(&Clip::new("x", crate::annexb::tests::with_two_pps()).unwrap());
    }

    fn give_the_scores_of(clip: &Clip) {
        let pieces: Vec<_> = cut(clip).map(|piece| measure_piece(Codec::default(), &piece)).collect();
        let mut whole = Vec::new();
        let mut analyser = Analyser::new(Threads::Caller);
        decode::whole(Codec::default(), clip, |picture| whole.push(analyser.analyse(picture))).unwrap();
        let firsts: Vec<_> = pieces.iter().map(|piece| piece.first).collect();
        let entries: Vec<_> = clip.index().entries.iter().map(|entry| entry.picture).collect();
        assert_eq!(firsts, entries);
        let apart: Vec<_> = pieces.iter().flat_map(|piece| piece.scores.iter().copied()).collect();
        let scores = |([blur, blockiness, smoothness, _], _): &([f32; 4], _)| Scores {
            blur: *blur,
            blockiness: *blockiness,
            smoothness: *smoothness,
        };
        assert_eq!(apart.iter().map(scores).collect::<Vec<_>>(), whole);
        assert!(pieces.iter().all(|piece| piece.scores.iter().skip(1).all(|(_, change)| change.is_some())));
        assert_eq!(apart.len(), clip.index().pictures.len());
    }

    /// It has no pieces: it counted as a clip that was measured, of no pictures.
    #[test]
    fn a_live_source_is_refused_and_the_others_are_measured() {
        let source = crate::clips::load(&["rtsp://127.0.0.1/one"]).clips.remove(0);
        let clips = [source, Clip::new("x", BUNDLED[0].data).unwrap()];
        let mut program = Program::new("clips");
        let kinds = kinds(&mut program, Codec::default());
        let (mut table, mut total) = (Vec::new(), Total::default());
        program
            .run(|tasks| {
                total = measure(tasks, kinds, clips.map(Ok), &mut table, |_| {})?;
                Ok(())
            })
            .unwrap();
        assert_eq!(total.clips, 1);
        let [fault] = &total.faults[..] else { panic!("{:?}", total.faults) };
        assert!(fault.starts_with("rtsp://127.0.0.1/one: a live source"), "{fault}");
    }

    #[test]
    fn a_piece_that_is_damaged_says_where_and_the_others_are_measured() {
        let mut data = BUNDLED[0].data.to_vec();
        let clip = Clip::new("x", data.clone()).unwrap();
        let of_third = clip.index().pictures[clip.index().entries[2].picture as usize + 1].clone();
        data[of_third.start + 8..of_third.end].fill(0x55);
        let clip = Clip::new("x,y", data).unwrap();
        let pieces: Vec<_> = cut(&clip).map(|piece| measure_piece(Codec::default(), &piece)).collect();
        let head = Head { name: clip.name().to_owned(), class: "QCIF".to_owned() };
        let joined = join(&head, &pieces);
        assert_eq!(joined.faults.len(), 1);
        // Its number is that in the piece.
        let words = "x,y: piece 2, counted from picture 60 of the clip: picture 1 is";
        assert!(joined.faults[0].starts_with(words), "{:?}", joined.faults);
        assert!(joined.pictures > 100 && joined.lines.starts_with(b"\"x,y\",QCIF,0,0,"));
    }
}
