//! `pdbp-video`: the video quality monitor as a program. See the library for its parts.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::process::ExitCode;

use clap::Parser as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pdbp::Cluster;

use pdbp_video::account::RunClock;
use pdbp_video::cli::{Cli, Setup};
use pdbp_video::direct;
use pdbp_video::frame::StreamClass;
use pdbp_video::outcome::Outcome;
use pdbp_video::pipeline;
use pdbp_video::plan::Mode;
use pdbp_video::report::{self, Facts, table};
use pdbp_video::streams::{StreamNo, Streams};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let setup = match cli.setup() {
        Ok(setup) => setup,
        Err((error, notices)) => {
            for notice in notices {
                eprintln!("pdbp-video: {notice}");
            }
            eprintln!("pdbp-video: {error}");
            return ExitCode::FAILURE;
        }
    };
    for notice in &setup.notices {
        eprintln!("pdbp-video: {notice}");
    }
    let title = describe(&setup);
    if !cli.quiet {
        println!("{title}");
    }
    let outcome = match run(&cli, &setup) {
        Ok(Some(outcome)) => outcome,
        // Another process hosts the console.
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pdbp-video: {error}");
            return ExitCode::FAILURE;
        }
    };
    for line in fault_lines(&setup.streams, &outcome) {
        eprintln!("pdbp-video: {line}");
    }
    if !cli.quiet {
        println!("\n{}", table::table(&setup.streams, &outcome));
    }
    let written = write_files(&cli, &setup, title, &outcome);
    if outcome.arrivals.is_empty() {
        eprintln!("pdbp-video: no stream gave a picture that could be analysed");
        return ExitCode::FAILURE;
    }
    written
}

/// A line that says what is going to be done.
fn describe(setup: &Setup) -> String {
    let streams = &setup.streams;
    let mut classes: BTreeMap<StreamClass, u64> = BTreeMap::new();
    for stream in 0..streams.count() {
        if let Some(clip) = streams.clip(StreamNo(stream)) {
            *classes.entry(clip.class()).or_default() += 1;
        }
    }
    let classes: Vec<_> =
        classes.iter().map(|(class, number)| format!("{} {}", table::count(*number), class.name())).collect();
    let plural = |number: u64, one: &str, many: &str| {
        format!("{} {}", table::count(number), if number == 1 { one } else { many })
    };
    format!(
        "{} ({}) from {}, {}, {}",
        plural(u64::from(streams.count()), "stream", "streams"),
        classes.join(", "),
        plural(streams.clips().len() as u64, "clip", "clips"),
        match setup.plan.mode {
            Mode::Sample => "one picture each per pass",
            Mode::Continuous => "every picture",
        },
        plural(u64::from(setup.plan.passes), "pass", "passes"),
    )
}

fn run(cli: &Cli, setup: &Setup) -> Result<Option<Outcome>, Box<dyn Error>> {
    let total = u64::from(setup.streams.count()) * u64::from(setup.plan.passes);
    let target =
        if cli.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let style = "{bar:40.cyan/blue} {human_pos}/{human_len} pictures · {per_sec} · {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let progress = |done| bar.inc(done);
    let outcome = if cli.nodes == 0 {
        Some(direct::run(&setup.streams, setup.plan, RunClock::start(), &progress))
    } else {
        let cluster = Cluster::builder()?.nodes(cli.nodes).start()?;
        pipeline::run(&cluster, &setup.streams, setup.plan, RunClock::start(), &progress)?
    };
    bar.finish_and_clear();
    Ok(outcome)
}

/// Kinds of faults that are listed one by one.
const MOST_LINES: usize = 12;

/// One line per clip and reason, with the number of streams and pictures it concerns.
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
            match numbers.len() {
                1 => format!("{clip} (stream {first}): {reason}"),
                many => format!("{clip} (stream {first} and others, {many} pictures): {reason}"),
            }
        })
        .collect();
    if kinds.len() > MOST_LINES {
        lines
            .push(format!("… and {} more kinds of faults; --report DIR lists all", kinds.len() - MOST_LINES));
    }
    lines
}

fn transport(cli: &Cli) -> String {
    match cli.nodes {
        0 => "none: every thread decodes and analyses its own frames".into(),
        nodes => format!("PDBP, {nodes} nodes in one process"),
    }
}

fn write_files(cli: &Cli, setup: &Setup, title: String, outcome: &Outcome) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    if let Some(file) = &cli.csv
        && let Err(error) = fs::write(file, report::frames_csv(&setup.streams, outcome))
    {
        eprintln!(
            "pdbp-video: {}: {error}; choose a file that can be written with --csv FILE",
            file.display()
        );
        code = ExitCode::FAILURE;
    }
    if let Some(directory) = &cli.report {
        let clips = setup.streams.clips().iter().map(|clip| format!("{} ({})", clip.name(), clip.size()));
        let settings = vec![
            ("Clips".to_owned(), clips.collect::<Vec<_>>().join(", ")),
            ("Decoding threads".to_owned(), setup.plan.decoders.to_string()),
            ("Transport".to_owned(), transport(cli)),
        ];
        match report::write(directory, &Facts { title, settings }, &setup.streams, outcome) {
            Ok(page) if cli.quiet => drop(page),
            Ok(page) => println!("report: {}", page.display()),
            Err(error) => {
                eprintln!("pdbp-video: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
