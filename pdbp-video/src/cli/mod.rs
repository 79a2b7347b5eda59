//! The command line, and the run it asks for.

mod amount;
mod live;
mod room;

use std::env;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::thread;

use clap::{Parser, ValueEnum};
use pdbp::{Builder, ConfigError, Launch};

use crate::clips::{self, Clip, Loaded};
use crate::decode::memory::{self, Needs};
use crate::decode::{self, Codec, NoCodec, NotIsolated};
use crate::frame::StreamClass;
use crate::measure::{NoGpu, Place, Wanted};
use crate::plan::{Layout, Mode, Plan, Side};
use crate::streams::Streams;

/// The meaning of the exit status.
const STATUS: &str = "\
Exit status: 0 if everything was measured; 1 if a file or folder could not be used (which ends the run before it measures
anything, unless --keep-going is given), if a picture could not be decoded (the run continues), or for any other error; 2 for
an invalid command line. Whatever was not measured is listed on standard error.";

/// Watches many H.264 and H.265 streams: decodes them on some nodes of a cluster, sends the frames to others, which restore them to
/// RGB and measure blur, blockiness and smoothness, and collects the scores.
///
/// A pass samples one picture of every stream, at its next key frame. Each file is one stream, and each of its key frames is sampled,
/// unless --streams or --passes say otherwise. Without arguments the bundled clips are analysed, as many concurrent streams.
#[derive(Debug, Clone, Parser)]
#[command(name = "pdbp-video", version, max_term_width = 100, after_help = STATUS)]
pub struct Cli {
    /// H.264 and H.265 byte streams (.h264, .264, .avc, .h265, .265, .hevc), MP4 files with H.264, files that libavformat
    /// reads, where available (.mkv, .webm, .ts, .mts, H.265 in MP4), or folders of them; by default the bundled clips.
    /// Or live sources, whose pictures are all measured as they arrive: rtsp://HOST/PATH (rtspu:// for packets over UDP), where the host may be
    /// USER:PASSWORD@HOST:PORT, rtp://ADDRESS:PORT for RTP over UDP (append ?codec=h265 for H.265), and session descriptions (.sdp).
    #[arg(value_name = "FILE|FOLDER|URL")]
    pub paths: Vec<PathBuf>,

    /// Measure the usable files and folders even if others cannot be used; these are listed at the end, and the exit status is
    /// still 1.
    #[arg(short, long)]
    pub keep_going: bool,

    /// Number of concurrent streams; clips are repeated as needed [default: 2520 of the bundled clips; each file and each live source is one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub streams: Option<u32>,

    /// Nodes of the cluster: the first half decodes, the second half analyses. 0: no transport, for comparison [default: 4,
    /// with --decode-in and --analyse-in 2; over MPI each process is a node].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub nodes: Option<u16>,

    /// What connects the nodes: threads of this process (local), or the processes of a job (mpi) [default: the setting
    /// `transport`, which is auto unless PDBP_TRANSPORT sets another: mpi under a launcher such as mpirun, else local].
    #[arg(long, value_enum)]
    pub transport: Option<TransportChoice>,

    /// Passes over all streams [default: with files and without --streams to the end of the longest file, while shorter ones begin again;
    /// otherwise 1, with --continuous 50]. Over live sources a pass is a second [default: 60].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub passes: Option<u32>,

    /// Decode every picture of every stream, for as many streams as memory allows.
    #[arg(long)]
    pub continuous: bool,

    /// Only measure the memory of a live decoder, and print how many streams fit. Exit status 0 if all do.
    #[arg(long, requires = "continuous")]
    pub room: bool,

    /// Decode some pictures of each clip before the first pass, and send them repeatedly: for links that are faster than
    /// decoding.
    #[arg(long, conflicts_with = "continuous")]
    pub replay: bool,

    /// Use only clips of one picture size.
    #[arg(long, value_enum, default_value_t = ClassChoice::Mix)]
    pub class: ClassChoice,

    /// Decoding threads of all nodes together [default: one per core; over MPI one per decoding node; with --decode-in and --analyse-in 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub decoders: Option<u16>,

    /// The decoder: libav (libavcodec, loaded if available; takes half of the time and less than half of the memory), openh264
    /// (part of the program), auto (libav if available, else openh264), nvdec (the decoder of an NVIDIA GPU, by its driver's
    /// libnvcuvid), or the path of a libavcodec. All give the same pictures, except that openh264 gets some samples of B pictures slightly
    /// wrong.
    #[arg(long, value_name = "auto|libav|openh264|nvdec|PATH", default_value_t)]
    pub decoder: decode::Wanted,

    /// Run the decoders of each decoding thread in a separate process: a crash then loses only the pictures until the next key picture.
    /// Linux only; a key picture takes about 1.3 times as long to decode, any other about 3 times.
    #[arg(long)]
    pub isolate: bool,

    /// The largest pictures to decode, in samples; files and sources with larger ones are refused. Otherwise a stream of a few bytes could
    /// demand gigabytes.
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value_t)]
    pub largest: decode::Largest,

    /// MiB of coded pictures that all live sources of a process may hold together: those waiting for decoders, those arriving, and with
    /// --serve the last key picture of each [default: a quarter of the available memory].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub live_memory: Option<u32>,

    /// Where frames are analysed. The devices visible through CUDA_VISIBLE_DEVICES are assigned to the analysing nodes in turn.
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    pub analyse: Wanted,

    /// Only analyse: the pictures are decoded in another cluster, of that name, which is joined to this one by a trunk (settings `grid`, `listen`,
    /// `trunks`) and runs with --analyse-in. All other options must be the same there; this cluster prints the table.
    #[cfg(feature = "net")]
    #[arg(long, value_name = "CLUSTER", conflicts_with = "analyse_in")]
    pub decode_in: Option<String>,

    /// Only decode: the frames go to another cluster, of that name, which runs with --decode-in.
    #[cfg(feature = "net")]
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["serve", "report", "csv"])]
    pub analyse_in: Option<String>,

    /// Show a page that follows the run in a browser: http://127.0.0.1:8080/. Port 0 picks a free one. There is no authentication: listen
    /// only where everyone who can connect may see the pictures.
    #[arg(long, value_name = "IP:PORT")]
    pub serve: Option<String>,

    /// Write an HTML page with plots, and CSV files, into this folder.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,

    /// Write the scores of every frame to this CSV file.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Print no progress bar and no table, only errors.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Which clips take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClassChoice {
    /// 176×144.
    Qcif,
    /// 352×288.
    Cif,
    /// 704×576 and the like.
    D1,
    /// All sizes.
    Mix,
}

impl ClassChoice {
    fn takes(self, class: StreamClass) -> bool {
        match self {
            Self::Qcif => class == StreamClass::Qcif,
            Self::Cif => class == StreamClass::Cif,
            Self::D1 => class == StreamClass::D1,
            Self::Mix => true,
        }
    }
}

/// What connects the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportChoice {
    /// MPI under a launcher such as mpirun, else threads.
    Auto,
    /// Threads of this process.
    Local,
    /// The processes of a job, one node each.
    Mpi,
}

impl TransportChoice {
    /// The value of the setting.
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Local => "local",
            Self::Mpi => "mpi",
        }
    }
}

/// Why a run cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// None of the given files and folders has a usable stream.
    #[error("nothing to analyse: what was given has no usable H.264 or H.265 stream (see above)")]
    NoClips,
    /// A file or folder cannot be used, and the others were not wanted without it.
    #[error("{first}{}. Nothing was measured: repair or omit what cannot be used, or measure the rest with --keep-going", more(*others))]
    Unusable {
        /// The first.
        first: String,
        /// How many more there are.
        others: usize,
    },
    /// There are clips, but none of the chosen class.
    #[error("nothing to analyse: no clip of class {wanted}; the clips given are {found}. Use --class mix")]
    NoneOfClass {
        /// The class asked for.
        wanted: String,
        /// Classes there are.
        found: String,
    },
    /// A number of nodes for a cluster that has one per process.
    #[error("--nodes {nodes}: each of the {ranks} processes is a node; omit --nodes")]
    NodesOfJob {
        /// Nodes asked for.
        nodes: u16,
        /// Processes of the job.
        ranks: usize,
    },
    /// No transport, and another cluster.
    #[error("--nodes 0 runs without transport, so it cannot use another cluster; omit --nodes")]
    DirectSide,
    /// No transport, in several processes.
    #[error(
        "--nodes 0 runs in one process without transport, but the launcher has started {ranks}; start the program without \
         the launcher, or omit --nodes"
    )]
    DirectJob {
        /// Processes of the job.
        ranks: usize,
    },
    /// No GPU can be used, and nothing else was wanted.
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    /// An option that live sources do not go with.
    #[error("{option} cannot be used with live sources; omit it")]
    NotLive {
        /// The option.
        option: &'static str,
    },
    /// Files beside live sources.
    #[error("{file} is a file and {source_name} a live source; use separate runs")]
    Mixed {
        /// The first file.
        file: String,
        /// The first live source.
        source_name: String,
    },
    /// The decoder that was wanted cannot be used.
    #[error(transparent)]
    NoCodec(#[from] NoCodec),
    /// Decoders cannot be put into other processes.
    #[error(transparent)]
    NotIsolated(#[from] NotIsolated),
    /// Not even one decoder fits.
    #[error(
        "not enough memory for one decoder: a stream takes {needed} bytes, but only {available} are available; free some memory"
    )]
    NoMemory {
        /// Bytes for the first stream.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more that cannot be used)") }
}

/// A run that is ready to start.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The streams.
    pub streams: Streams,
    /// How to go through them.
    pub plan: Plan,
    /// What decodes in this process.
    pub codec: Codec,
    /// What live decoders take and how many have room, if each stream keeps one.
    pub room: Option<String>,
    /// Where this process analyses frames.
    pub place: Place,
    /// What this cluster does.
    pub side: Side,
    /// Nodes of the cluster; 0 for a run without transport.
    pub nodes: u16,
    /// Files and folders that will not be measured, or not whole, and why.
    pub refused: Vec<String>,
    /// Things to tell the user before it starts: what was refused, and streams left out for lack of memory.
    pub notices: Vec<String>,
}

impl Setup {
    /// Whether it is known that each of the streams asked for has room for a live decoder.
    pub fn all_fit(&self, cli: &Cli) -> bool {
        self.room.is_some() && self.streams.count() == amount::streams(cli, self.streams.clips())
    }
}

impl Cli {
    /// Whether a progress bar and the table are wanted; a bar only makes sense on a terminal.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// The settings of the cluster: environment and file, and over them the command line.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names a setting that cannot be used.
    pub fn builder(&self) -> Result<Builder, ConfigError> {
        let builder = Builder::from_env()?;
        Ok(match self.transport {
            Some(transport) => builder.set("transport", transport.name()),
            None => builder,
        })
    }

    /// Loads the clips and decides how many streams to run, on how many nodes: as many as the job that the cluster spans has
    /// processes, if it does.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if there is nothing to analyse; the notices collected so far come with it.
    pub fn setup(&self, job: Option<Launch>) -> Result<Setup, (SetupError, Vec<String>)> {
        let nodes = self.nodes_in(job).map_err(|error| (error, Vec::new()))?;
        let codec = self.codec().map_err(|error| (error, Vec::new()))?;
        let Loaded { clips, refused } =
            if self.paths.is_empty() { clips::bundled() } else { clips::load(&self.paths) };
        let mut refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
        let (clips, foreign): (Vec<_>, Vec<_>) =
            clips.into_iter().partition(|clip| codec.decodes(clip.standard()));
        let reason = |clip: &Clip| decode::DecodeError::NotDecoded { standard: clip.standard() };
        refused.extend(foreign.iter().map(|clip| format!("{}: {}", clip.name(), reason(clip))));
        let (clips, large): (Vec<_>, Vec<_>) =
            clips.into_iter().partition(|clip| codec.admits_all(clip.index()).is_ok());
        let reasons = large.iter().filter_map(|clip| Some((clip, codec.admits_all(clip.index()).err()?)));
        refused.extend(reasons.map(|(clip, reason)| format!("{}: {reason}", clip.name())));
        if let (Some(first), false, false) = (refused.first(), clips.is_empty(), self.keep_going) {
            let (first, others) = (first.clone(), refused.len() - 1);
            return Err((SetupError::Unusable { first, others }, Vec::new()));
        }
        let mut notices = refused.clone();
        let (clips, mode) = match self.mode(&clips).and_then(|mode| Ok((self.of_class(clips)?, mode))) {
            Ok(both) => both,
            Err(error) => return Err((error, notices)),
        };
        let side = self.side();
        let threads = match job {
            // Both clusters must come to the same number, too.
            _ if side != Side::Whole => 2,
            // Every process must come to the same number, whatever its host has.
            Some(_) => usize::from(nodes / 2).max(1),
            None => thread::available_parallelism().map_or(1, usize::from),
        };
        let decoders = self.decoders.map_or(threads, usize::from);
        let count = amount::streams(self, &clips);
        let mut streams = Streams::new(clips, count);
        let mut room = None;
        if mode == Mode::Live {
            // How large their pictures are is known when they come.
            let needs = Needs::measure(codec, &clips::bundled().clips);
            room = Some(live::provide(&streams, needs, self.live_memory, &mut notices));
        }
        // Only decoders take memory for each stream.
        if mode == Mode::Continuous && (self.room || decodes(&side, nodes, decoders, job)) {
            let available = memory::available_bytes(codec);
            let needs = Needs::measure(codec, streams.clips());
            (streams, room) = match room::fit(streams, needs.zip(available), &mut notices) {
                Ok(fitted) => fitted,
                Err(error) => return Err((error, notices)),
            };
        }
        let inexact = streams.clips().iter().filter(|clip| clip.index().b_pictures > 0).count();
        if self.continuous && !codec.is_exact() && inexact > 0 {
            notices.push(format!(
                "{inexact} clips have B pictures, of which openh264 gets some samples slightly wrong; libavcodec decodes them exactly \
                 (--decoder libav)"
            ));
        }
        let passes = amount::passes(self, mode, streams.clips());
        let plan = Plan { mode, passes, decoders };
        let place = match self.place(&side, plan, nodes, job) {
            Ok(place) => place,
            Err(error) => return Err((error.into(), notices)),
        };
        Ok(Setup { streams, plan, codec, room, place, side, nodes, refused, notices })
    }

    /// What decodes.
    fn codec(&self) -> Result<Codec, SetupError> {
        let codec = Codec::choose(&self.decoder)?.up_to(self.largest);
        if !self.isolate {
            return Ok(codec);
        }
        let program = env::current_exe().map_err(|error| NotIsolated { reason: error.to_string() })?;
        Ok(codec.isolated(&program)?)
    }

    /// What passes show: of live sources what they send, of files what is asked for.
    fn mode(&self, clips: &[Clip]) -> Result<Mode, SetupError> {
        let Some(source) = clips.iter().find(|clip| clip.source().is_some()) else {
            return Ok(match (self.continuous, self.replay) {
                (true, _) => Mode::Continuous,
                (false, true) => Mode::Replay,
                (false, false) => Mode::Sample,
            });
        };
        let options = [
            (self.replay, "--replay"),
            (self.room, "--room"),
            (self.streams.is_some(), "--streams"),
            (self.class != ClassChoice::Mix, "--class"),
        ];
        if let Some((_, option)) = options.into_iter().find(|(is_given, _)| *is_given) {
            return Err(SetupError::NotLive { option });
        }
        match clips.iter().find(|clip| clip.source().is_none()) {
            Some(file) => {
                Err(SetupError::Mixed { file: file.name().to_owned(), source_name: source.name().to_owned() })
            }
            None => Ok(Mode::Live),
        }
    }

    /// Where this process analyses frames; nowhere in particular if none of its nodes does.
    fn place(&self, side: &Side, plan: Plan, nodes: u16, job: Option<Launch>) -> Result<Place, NoGpu> {
        if nodes == 0 {
            return Place::choose(self.analyse, 0, plan.decoders.max(1));
        }
        let analysing = Layout::of(side.clone(), nodes, plan.decoders).analysing();
        let own = match job {
            Some(Launch { rank, .. }) if analysing.contains(&rank) => rank..rank + 1,
            Some(_) => 0..0,
            None => analysing,
        };
        Place::choose(self.analyse, own.start, own.len())
    }

    /// What this cluster does.
    fn side(&self) -> Side {
        #[cfg(feature = "net")]
        match (&self.decode_in, &self.analyse_in) {
            (Some(other), _) => return Side::Analyses(other.clone()),
            (_, Some(other)) => return Side::Decodes(other.clone()),
            _ => {}
        }
        Side::Whole
    }

    fn nodes_in(&self, job: Option<Launch>) -> Result<u16, SetupError> {
        match (job, self.nodes) {
            (_, Some(0)) if self.side() != Side::Whole => Err(SetupError::DirectSide),
            (None, None) if self.side() != Side::Whole => Ok(2),
            (None, nodes) => Ok(nodes.unwrap_or(4)),
            (Some(Launch { ranks, .. }), Some(0)) => Err(SetupError::DirectJob { ranks }),
            (Some(Launch { ranks, .. }), Some(nodes)) if usize::from(nodes) != ranks => {
                Err(SetupError::NodesOfJob { nodes, ranks })
            }
            // More than a cluster can have are refused when it starts.
            (Some(Launch { ranks, .. }), _) => Ok(u16::try_from(ranks).unwrap_or(u16::MAX)),
        }
    }

    fn of_class(&self, clips: Vec<Clip>) -> Result<Vec<Clip>, SetupError> {
        if clips.is_empty() {
            return Err(SetupError::NoClips);
        }
        let mut found: Vec<_> = clips.iter().map(Clip::class).collect();
        let clips: Vec<_> = clips.into_iter().filter(|clip| self.class.takes(clip.class())).collect();
        if clips.is_empty() {
            found.sort_unstable();
            found.dedup();
            let found = found.iter().map(|class| class.name()).collect::<Vec<_>>().join(", ");
            let wanted = format!("{:?}", self.class).to_lowercase();
            return Err(SetupError::NoneOfClass { wanted, found });
        }
        Ok(clips)
    }
}

/// Whether this process decodes.
fn decodes(side: &Side, nodes: u16, decoders: usize, job: Option<Launch>) -> bool {
    let decodes_at = |rank| {
        let pairs = Layout::of(side.clone(), nodes, decoders).pairs;
        pairs.iter().any(|pair| usize::from(pair.decodes) == rank)
    };
    side.decodes() && job.is_none_or(|job| decodes_at(job.rank))
}

#[cfg(test)]
mod tests;
