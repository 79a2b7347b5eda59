//! `pdbp-video`: the video quality monitor as a program. See the library for its parts.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser as _;
use pdbp::{Cluster, Launch, StartError, TransportKind};

use pdbp_video::account::RunClock;
use pdbp_video::cli::{Cli, Setup, SetupError};
use pdbp_video::direct;
use pdbp_video::frame::StreamClass;
use pdbp_video::live::Live;
use pdbp_video::outcome::Outcome;
use pdbp_video::pipeline::{self, PipelineError};
use pdbp_video::plan::{Mode, Side};
use pdbp_video::progress::{Bar, Observer, Shown};
use pdbp_video::report::{self, Facts, table};
use pdbp_video::streams::{StreamNo, Streams};

type Failed = Box<dyn Error + Send + Sync>;

/// That of the standard library panics if nobody reads the text: a run would lose its files.
macro_rules! eprintln {
    ($($text:tt)*) => {{ let _ = writeln!(io::stderr(), $($text)*); }};
}

/// Prints a line. A reader may close the pipe early (`pdbp-video | head -1`), which is no failure. Returns whether there was none.
fn print(line: &str) -> bool {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("pdbp-video: cannot write the output: {error}");
            false
        }
        _ => true,
    }
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = pdbp_video::decode::serve_isolated() {
        return code;
    }
    let launch = Launch::find().filter(|launch| launch.ranks > 1);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // All processes of a job have the same command line; the first one reports what is wrong with it.
        Err(error) => {
            match launch {
                Some(Launch { rank: 1.., .. }) if error.use_stderr() => let_first_report(),
                Some(Launch { rank: 1.., .. }) => {}
                // Nothing can be done if the message cannot be written.
                _ => drop(error.print()),
            }
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    match watch(&cli) {
        Ok(code) => code,
        Err(error) => {
            match launch {
                Some(Launch { rank: 1.., .. }) if is_reported_by_first(&*error) => let_first_report(),
                Some(Launch { rank, .. }) if !is_reported_by_first(&*error) => {
                    eprintln!("pdbp-video: rank {rank}: {error}")
                }
                _ => eprintln!("pdbp-video: {error}"),
            }
            ExitCode::FAILURE
        }
    }
}

/// Whether the first process of a job has the same error, or knows its cause.
fn is_reported_by_first(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StartError::NoMpi { .. } | StartError::Config(_)))
        || matches!(error.downcast_ref(), Some(SetupError::NodesOfJob { .. } | SetupError::DirectJob { .. }))
        || error.downcast_ref().is_some_and(PipelineError::is_of_another)
}

/// Gives the first process time to report. Launchers end all processes of a job when one has failed, including the one with the message, which may
/// be late on a busy machine. Once that process has failed, they end this one, too, and nobody waits.
fn let_first_report() {
    thread::sleep(Duration::from_secs(5));
}

/// Runs what the command line asks for.
fn watch(cli: &Cli) -> Result<ExitCode, Failed> {
    let builder = cli.builder()?;
    let job = Launch::spanned(builder.settings().transport);
    // The process with the console prints for its whole cluster.
    let speaks = job.is_none_or(|launch| launch.rank == 0);
    let say = |notices: &[String]| {
        for notice in notices.iter().filter(|_| speaks) {
            eprintln!("pdbp-video: {notice}");
        }
    };
    let setup = cli.setup(job).map_err(|(error, notices)| {
        say(&notices);
        error
    })?;
    say(&setup.notices);
    if cli.room {
        if let Some(room) = setup.room.as_ref().filter(|_| speaks) {
            print(room);
        }
        return Ok(if setup.all_fit(cli) { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let cluster = match setup.nodes {
        0 => None,
        nodes => Some(builder.nodes(nodes).start()?),
    };
    let title = describe(&setup);
    if speaks && !cli.quiet {
        print(&title);
        if let Some(room) = &setup.room {
            print(room);
        }
    }
    let live = match cli.serve.as_ref().filter(|_| speaks) {
        Some(address) => {
            let live = Live::new(title.clone(), setup.streams.clone(), setup.plan, setup.codec);
            let served = live.serve(address)?;
            // Even with --quiet: a user who asks for port 0 must learn the port.
            print(&format!("live page: http://{}/", served.address()));
            Some((live, served))
        }
        None => None,
    };
    let shown = if speaks && cli.shows_progress() { Shown::Yes } else { Shown::No };
    match run(cluster.as_ref(), &setup, shown, live.as_ref().map(|(live, _)| live))? {
        Some(outcome) => Ok(show(cli, &setup, cluster.as_ref(), title, &outcome)),
        // The console is in another process, or in another cluster.
        None => {
            if let (Side::Decodes(other), false) = (&setup.side, cli.quiet || !speaks) {
                print(&format!("decoded for cluster {other}"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the outcome, and writes the files.
fn show(cli: &Cli, setup: &Setup, cluster: Option<&Cluster>, title: String, outcome: &Outcome) -> ExitCode {
    let streams = setup.streams.first(outcome.streams);
    if streams.count() < setup.streams.count() {
        eprintln!(
            "pdbp-video: {} of these streams ran: another host of the cluster has memory for no more",
            streams.count()
        );
    }
    for note in &outcome.notes {
        eprintln!("pdbp-video: {note}");
    }
    for line in fault_lines(&streams, outcome) {
        eprintln!("pdbp-video: {line}");
    }
    let printed = cli.quiet || print(&format!("\n{}", table::table(&streams, outcome)));
    let transport = ("Transport".to_owned(), transport(cluster, &setup.side));
    let written = write_files(cli, (&streams, setup), title, transport, outcome);
    let measured = report_missing(setup, outcome);
    if printed && written && measured { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports at the end, where it is seen, what was not measured. Returns whether everything was.
fn report_missing(setup: &Setup, outcome: &Outcome) -> bool {
    let (pictures, faults) = outcome.totals();
    if pictures == 0 {
        eprintln!("pdbp-video: no stream gave a picture that could be analysed");
    } else if faults > 0 {
        let [missing, there] = [faults, pictures].map(pdbp_plots::count);
        match outcome.mode {
            Mode::Live => eprintln!(
                "pdbp-video: sources had {missing} faults (see above), {there} pictures were measured"
            ),
            _ => eprintln!(
                "pdbp-video: {missing} pictures could not be decoded (see above), {there} were measured"
            ),
        }
    }
    if !setup.refused.is_empty() {
        eprintln!("pdbp-video: not measured, or not whole:");
    }
    for refused in &setup.refused {
        eprintln!("  {refused}");
    }
    pictures > 0 && faults == 0 && setup.refused.is_empty()
}

fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", pdbp_plots::count(number), if number == 1 { one } else { many })
}

/// A line that describes the run.
fn describe(setup: &Setup) -> String {
    let streams = &setup.streams;
    if setup.plan.mode == Mode::Live {
        let (sources, seconds) = (streams.count().into(), setup.plan.passes.into());
        return format!(
            "{} for {}",
            plural(sources, "live source", "live sources"),
            plural(seconds, "second", "seconds")
        );
    }
    let mut classes: BTreeMap<StreamClass, u64> = BTreeMap::new();
    for stream in 0..streams.count() {
        if let Some(clip) = streams.clip(StreamNo(stream)) {
            *classes.entry(clip.class()).or_default() += 1;
        }
    }
    let classes: Vec<_> = classes
        .iter()
        .map(|(class, number)| format!("{} {}", pdbp_plots::count(*number), class.name()))
        .collect();
    format!(
        "{} ({}) from {}, {}, {}",
        plural(u64::from(streams.count()), "stream", "streams"),
        classes.join(", "),
        plural(streams.clips().len() as u64, "clip", "clips"),
        match setup.plan.mode {
            Mode::Sample => "one picture each per pass",
            Mode::Replay => "one picture each per pass, replayed: decoded only once",
            Mode::Continuous => "every picture",
            Mode::Live => "what they send",
        },
        plural(u64::from(setup.plan.passes), "pass", "passes"),
    )
}

fn run(
    cluster: Option<&Cluster>,
    setup: &Setup,
    shown: Shown,
    live: Option<&Live>,
) -> Result<Option<Outcome>, Failed> {
    let Setup { streams, plan, codec, place, side, .. } = setup;
    let bar = Bar::new(streams.count(), *plan, shown);
    let mut observers: Vec<&dyn Observer> = vec![&bar];
    observers.extend(live.map(|live| live as &dyn Observer));
    let clock = RunClock::start();
    let outcome = match cluster {
        None => Some(direct::run(streams, *plan, *codec, place, clock, &observers)?),
        Some(cluster) => pipeline::run((cluster, side), streams, *plan, *codec, place, clock, &observers)?,
    };
    bar.finish();
    Ok(outcome)
}

/// Kinds of faults that are listed one by one.
const MOST_LINES: usize = 12;

/// One line per clip and reason, with its streams, and how often it occurred.
fn fault_lines(streams: &Streams, outcome: &Outcome) -> Vec<String> {
    let mut kinds: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for fault in &outcome.faults {
        let clip = streams.clip(fault.stream).map_or("?", |clip| clip.name());
        kinds.entry((clip, &fault.reason)).or_default().push(fault.stream.0);
    }
    let mut lines: Vec<_> = kinds
        .iter()
        .take(MOST_LINES)
        .map(|((clip, reason), numbers)| {
            let first = numbers.iter().min().copied().unwrap_or_default();
            let others = if numbers.iter().all(|number| *number == first) { "" } else { " and others" };
            let items = if outcome.mode == Mode::Live { "times" } else { "pictures" };
            match numbers.len() {
                1 => format!("{clip} (stream {first}): {reason}"),
                many => format!("{clip} (stream {first}{others}, {many} {items}): {reason}"),
            }
        })
        .collect();
    if kinds.len() > MOST_LINES {
        lines
            .push(format!("… and {} more kinds of faults; --report DIR lists all", kinds.len() - MOST_LINES));
    }
    lines
}

fn transport(cluster: Option<&Cluster>, side: &Side) -> String {
    let Some(cluster) = cluster else {
        return "none: every thread decodes and analyses its own frames".into();
    };
    let connected = match cluster.settings().transport {
        TransportKind::Mpi => "nodes, processes over MPI",
        TransportKind::Net => "nodes, processes over sockets",
        TransportKind::Rapidio => "nodes on a simulated fabric in one process",
        _ => "nodes in one process",
    };
    let far =
        side.other().map_or_else(String::new, |other| format!("; decoding in cluster {other}, over a trunk"));
    format!("PDBP, {} {connected}{far}", cluster.size())
}

/// Writes all files that were asked for and reports failures. Returns whether all are written.
fn write_files(
    cli: &Cli,
    (streams, setup): (&Streams, &Setup),
    title: String,
    transport: (String, String),
    outcome: &Outcome,
) -> bool {
    let mut all = true;
    if let Some(file) = &cli.csv
        && let Err(error) = fs::write(file, report::frames_csv(streams, outcome))
    {
        eprintln!(
            "pdbp-video: {}: {error}; choose a file that can be written with --csv FILE",
            file.display()
        );
        all = false;
    }
    if let Some(directory) = &cli.report {
        let clips = streams.clips().iter().map(|clip| match clip.source() {
            Some(_) => clip.name().to_owned(),
            None => format!("{} ({})", clip.name(), clip.size()),
        });
        let mut settings = vec![
            ("Clips".to_owned(), clips.collect::<Vec<_>>().join(", ")),
            ("Decoding threads".to_owned(), setup.plan.decoders.to_string()),
            ("Analysis".to_owned(), table::shares(&outcome.analysed)),
            ("Decoder".to_owned(), table::shares(&outcome.decoded)),
            transport,
        ];
        let refused =
            setup.refused.iter().map(|refused| ("Not measured, or not whole".to_owned(), refused.clone()));
        settings.extend(refused);
        match report::write(directory, &Facts { title, settings }, streams, outcome) {
            Ok(page) if cli.quiet => drop(page),
            Ok(page) => all &= print(&format!("report: {}", page.display())),
            Err(error) => {
                eprintln!("pdbp-video: {error}");
                all = false;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use pdbp_video::clips;
    use pdbp_video::outcome::Fault;

    use super::*;

    #[test]
    fn faults_of_one_stream_name_no_others_and_those_of_sources_are_no_pictures() {
        let clips = clips::bundled().clips.into_iter().take(1).collect();
        let streams = Streams::new(clips, 9);
        let lines = |mode, numbers: &[u32]| {
            let mut outcome = Outcome::default();
            outcome.mode = mode;
            outcome.faults.extend(numbers.iter().map(|number| Fault {
                stream: StreamNo(*number),
                pass: 0,
                captured_ns: 0,
                reason: "cut".into(),
            }));
            fault_lines(&streams, &outcome)
        };
        assert_eq!(lines(Mode::Sample, &[3]), ["bbb_qcif (stream 3): cut"]);
        assert_eq!(lines(Mode::Continuous, &[3, 3]), ["bbb_qcif (stream 3, 2 pictures): cut"]);
        assert_eq!(lines(Mode::Sample, &[7, 3]), ["bbb_qcif (stream 3 and others, 2 pictures): cut"]);
        assert_eq!(lines(Mode::Live, &[3, 3, 3]), ["bbb_qcif (stream 3, 3 times): cut"]);
    }
}
