//! `pdbp-clips`: measures the pictures of video files on all available processors. See [`pdbp_video::elastic`].
#![forbid(unsafe_code)]

/// That of the standard library panics if nobody reads the text, as with `2>&1 | head -1`.
macro_rules! eprintln {
    ($($text:tt)*) => {{ let _ = writeln!(io::stderr(), $($text)*); }};
}

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use pdbp::Launch;
use pdbp_tasks::{Error, Limits, Program, Tasks, timeline};
use pdbp_video::clips::{self, Clip, ClipError};
use pdbp_video::decode::{Codec, Largest, Wanted};
use pdbp_video::elastic::{self, Kinds, Total};

/// Measures blur, blockiness and smoothness of all pictures of H.264 files, finds black and frozen ones, and writes a table.
///
/// Files are cut at their key frames, and the pieces are decoded and measured on all processors: here, under an MPI launcher, or over
/// sockets, where the process with PDBP_LISTEN reads and writes the files and those with PDBP_JOIN compute. Processes that compute may
/// be killed: what they were at is measured by others, and the table is the same.
#[derive(Debug, Parser)]
#[command(name = "pdbp-clips", version)]
struct Cli {
    /// Files or folders of .h264, .mp4 and similar files; by default the bundled clips
    paths: Vec<PathBuf>,
    /// The table to write; - for standard output
    #[arg(long, value_name = "FILE", default_value = "clips.csv")]
    csv: PathBuf,
    /// The decoder: libav (libavcodec, loaded if available), openh264 (part of the program), auto, or the path of a
    /// libavcodec. All give the same table for undamaged files without B pictures
    #[arg(long, value_name = "NAME", default_value_t)]
    decoder: Wanted,
    /// The largest pictures to decode, in samples; a piece with larger ones is reported and not measured
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value_t)]
    largest: Largest,
    /// Pieces that each computing process measures at a time [default: one per processor; one in a process of an MPI job]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Give up a piece after this many processes have died while measuring only it
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    crashes: u16,
    /// If this process computes: stay in reserve until this file exists
    #[arg(long, value_name = "FILE")]
    join_when: Option<PathBuf>,
    /// Write a page that shows which processor measured what, and what was lost
    #[arg(long, value_name = "FILE.html")]
    timeline: Option<PathBuf>,
    /// Print no progress bar and no summary
    #[arg(short, long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        // A process that computes has nothing to say.
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(total)) => {
            for fault in &total.faults {
                eprintln!("pdbp-clips: {fault}");
            }
            if total.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let rank = Launch::find().map_or_else(String::new, |launch| format!("rank {}: ", launch.rank));
            eprintln!("pdbp-clips: {rank}{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<Option<Total>, Error> {
    let mut program = Program::new("pdbp-clips");
    let codec = Codec::choose(&cli.decoder).map_err(Error::other)?.up_to(cli.largest);
    let kinds = elastic::kinds(&mut program, codec);
    if let Some(slots) = cli.slots {
        program.slots(slots);
    }
    program.limits(Limits { crashes: cli.crashes.into(), ..Limits::default() });
    if let Some(file) = cli.join_when.clone() {
        program.join_when(move || file.exists());
    }
    let mut total = None;
    program.run(|tasks| {
        total = Some(measure(tasks, kinds, cli)?);
        Ok(())
    })?;
    Ok(total)
}

fn measure(tasks: &Tasks<'_>, kinds: Kinds, cli: &Cli) -> Result<Total, Error> {
    let (clips, count): (Box<dyn Iterator<Item = Result<Clip, ClipError>>>, usize) = if cli.paths.is_empty() {
        let bundled = clips::bundled().clips;
        let count = bundled.len();
        (Box::new(bundled.into_iter().map(Ok)), count)
    } else {
        let files = clips::list(&cli.paths);
        let count = files.len();
        (Box::new(files.into_iter().flat_map(read)), count)
    };
    let mut table: Box<dyn Write> = if cli.csv.as_os_str() == "-" {
        Box::new(BufWriter::new(io::stdout()))
    } else {
        let file = File::create(&cli.csv)
            .map_err(|error| Error::other(format!("cannot write {}: {error}", cli.csv.display())))?;
        Box::new(BufWriter::new(file))
    };
    if cli.timeline.is_some() {
        tasks.record();
    }
    let bar = if cli.quiet { ProgressBar::hidden() } else { ProgressBar::new(count as u64) };
    // The template is right, or it looks as by default.
    if let Ok(style) = ProgressStyle::with_template("clips {elapsed:>5} {wide_bar} {pos}/{len}, {eta} left") {
        bar.set_style(style);
    }
    let total =
        elastic::measure(tasks, kinds, clips, &mut table, |total| bar.set_position(total.clips as u64))?;
    bar.finish_and_clear();
    if let Some(file) = &cli.timeline {
        std::fs::write(file, timeline::page("pdbp-clips: who has measured what", &tasks.spans()))
            .map_err(|error| Error::other(format!("cannot write {}: {error}", file.display())))?;
    }
    for refusal in tasks.refusals() {
        eprintln!("pdbp-clips: {refusal}");
    }
    if !cli.quiet && total.clips > 0 {
        let counts = tasks.counts();
        eprintln!(
            "{} clips, {} pieces, {} pictures, {} of them black and {} like the one before, {} in a row at most; {} pieces of processors that were lost, {} copies of late ones",
            total.clips,
            total.pieces,
            total.pictures,
            total.black,
            total.repeats,
            total.freeze,
            counts.lost,
            counts.copies
        );
    }
    Ok(total)
}

/// The clips of a file, and what is wrong with it.
fn read(file: Result<PathBuf, ClipError>) -> Vec<Result<Clip, ClipError>> {
    match file {
        Ok(file) => {
            let clips::Loaded { clips, refused } = clips::load(&[file]);
            refused.into_iter().map(Err).chain(clips.into_iter().map(Ok)).collect()
        }
        Err(error) => vec![Err(error)],
    }
}
