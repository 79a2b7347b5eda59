//! The command line, and what can be wrong with it.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser};
use pdbp_benches::mpi::Peer;
use pdbp_benches::scenario::Pattern;

use crate::collectives::Kind;

/// Variables that launchers give to ranks.
const LAUNCHED: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// Measures PDBP over MPI against MPI itself, each in jobs of its own, which it starts with a launcher
#[derive(Clone, Debug, Parser)]
#[command(name = "mpi", version)]
pub(crate) enum Arguments {
    /// Throughput per host of 1->n, n->1 and n<->n traffic
    Patterns(Patterns),
    /// n<->n among all ranks against `MPI_Alltoall`
    Alltoall(Between),
    /// One-way latency of messages between two ranks
    Latency(Between),
    /// Throughput from one rank to another
    Bandwidth(Between),
    /// Time of barrier, bcast, allreduce and the like, against MPI's own
    Collectives(Collectives),
}

/// What `patterns` takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Patterns {
    /// The n of 1->n, n->1 (n + 1 ranks) and n<->n (n ranks, at least 2); by default those of 1, 2, 4, 8 for which there are ranks
    #[arg(long, value_delimiter = ',')]
    hosts: Vec<usize>,
    /// Who sends to whom: 1-n, n-1, n-n
    #[arg(long, value_delimiter = ',', default_value = "1-n,n-1,n-n")]
    pattern: Vec<Pattern>,
    #[command(flatten)]
    between: Between,
}

/// What `collectives` takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Collectives {
    /// What is called: barrier, bcast, bcast-written, reduce, allreduce, gather, scatter, allgather, allgather-written, alltoall, alltoall-written; all by default
    #[arg(long, value_delimiter = ',')]
    calls: Vec<Kind>,
    /// Who is measured: mpi, pdbp, pdbp-messages (PDBP without shared memory); all by default
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Part>,
    #[command(flatten)]
    options: Options,
}

impl Collectives {
    /// In the order of the columns.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let is_named = |part: &Part| self.peers.is_empty() || self.peers.contains(part);
        Part::ALL.into_iter().filter(is_named).collect()
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        if self.calls.is_empty() { &Kind::ALL } else { &self.calls }
    }
}

/// What experiments with unit packets take.
#[derive(Clone, Debug, Args)]
pub(crate) struct Between {
    /// Who is measured: pdbp, pdbp-loan, pdbp-stream, alltoall, window, window-hot, window-write; for latency send-recv, send-recv-write
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    #[command(flatten)]
    options: Options,
}

/// What all experiments take.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Bytes of a unit packet, or of the data of a call
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Length of one run of one peer
    #[arg(long, default_value_t = 0.2)]
    seconds_per_point: f64,
    /// Runs per peer and point; the highest and the lowest are dropped
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// What a link carries in one direction, in Mb/s: adds a column with PDBP's share of it
    #[arg(long)]
    link_mbit: Option<f64>,
    /// Writes all results to this file
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Draws plots into this folder
    #[arg(long)]
    plots: Option<PathBuf>,
    /// What starts the ranks of a job; words are separated by spaces
    #[arg(long, default_value = "mpirun -n 2")]
    launcher: String,
    /// A setting of PDBP, such as `block_bytes=65600`
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Set for the ranks of the jobs
    #[arg(long, hide = true)]
    part: Option<Part>,
}

/// Which peers a job measures: MPI is initialised differently for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// MPI's own.
    Mpi,
    /// PDBP.
    Pdbp,
    /// PDBP, groups without shared memory; of `collectives`.
    Messages,
}

impl Part {
    pub(crate) const ALL: [Self; 3] = [Self::Mpi, Self::Pdbp, Self::Messages];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mpi => "mpi",
            Self::Pdbp => "pdbp",
            Self::Messages => "pdbp-messages",
        }
    }

    pub(crate) fn measures(self, peer: Peer) -> bool {
        self != Self::Messages && peer.is_pdbp() == (self == Self::Pdbp)
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = Self::ALL.into_iter().find(|part| part.name() == text);
        part.ok_or_else(|| format!("unknown peer `{text}`: use mpi, pdbp or pdbp-messages"))
    }
}

/// Pattern, n and ranks of a table.
pub(crate) type Series = (Pattern, usize, usize);

/// What is to be done, checked as far as it can be without ranks.
pub(crate) struct Task {
    /// Which experiment.
    pub(crate) arguments: Arguments,
    /// What all have.
    pub(crate) common: Common,
    /// For a rank of a job: what it measures.
    pub(crate) part: Option<Part>,
}

impl Task {
    /// The tables for a job of `ranks` ranks.
    pub(crate) fn series(&self, ranks: usize) -> Result<Vec<Series>, String> {
        if ranks < 2 {
            return Err(
                "there is one rank, and nobody to talk to: use --launcher \"mpirun -n 2\" or more".to_owned()
            );
        }
        Ok(match &self.arguments {
            Arguments::Patterns(patterns) => tables(patterns, ranks)?,
            Arguments::Alltoall(_) | Arguments::Collectives(_) => vec![(Pattern::AllToAll, ranks, ranks)],
            Arguments::Latency(_) | Arguments::Bandwidth(_) => vec![(Pattern::OneToMany, 1, 2)],
        })
    }
}

/// What all experiments have, with defaults filled in.
pub(crate) struct Common {
    /// Bytes of the unit packets.
    pub(crate) sizes: Vec<usize>,
    /// In the order of the columns.
    pub(crate) peers: Vec<Peer>,
    /// Of a run.
    pub(crate) length: Duration,
    /// Per peer and point.
    pub(crate) runs: usize,
    /// Of a link, in one direction.
    pub(crate) link_mbit: Option<f64>,
    /// Where to.
    pub(crate) csv: Option<PathBuf>,
    /// Where to.
    pub(crate) plots: Option<PathBuf>,
    /// Of PDBP.
    pub(crate) settings: Vec<(String, String)>,
    /// Words that start ranks.
    pub(crate) launcher: String,
}

/// Reads and checks the command line.
pub(crate) fn read() -> Result<Task, clap::Error> {
    let arguments = Arguments::try_parse()?;
    let wrong = |what: String| Arguments::command().error(ErrorKind::ValueValidation, what);
    check(arguments).map_err(wrong)
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` has no `=`: use KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn check(arguments: Arguments) -> Result<Task, String> {
    let (common, part) = common(&arguments)?;
    if part.is_none() && LAUNCHED.iter().any(|name| std::env::var_os(name).is_some()) {
        return Err(
            "started by a launcher: start it without, and name the launcher with --launcher \"mpirun …\"; \
                    it starts the jobs itself"
                .to_owned(),
        );
    }
    Ok(Task { arguments, common, part })
}

/// The tables of `patterns`: each pattern with each n, but none twice.
fn tables(patterns: &Patterns, ranks: usize) -> Result<Vec<Series>, String> {
    let mut series: Vec<Series> = Vec::new();
    for &pattern in &patterns.pattern {
        if pattern == Pattern::Skewed {
            return Err("--pattern skewed: use 1-n, n-1 or n-n".to_owned());
        }
        let takes = |n: usize| if pattern == Pattern::AllToAll { n.max(2) } else { n + 1 };
        let mut hosts = patterns.hosts.clone();
        if hosts.is_empty() {
            hosts = [1, 2, 4, 8].into_iter().filter(|&n| takes(n) <= ranks).collect();
        }
        for n in hosts {
            if n == 0 || takes(n) > ranks {
                return Err(format!(
                    "--hosts {n}: {pattern} takes {} ranks then, and there are {ranks}: use 1 or more, or start more ranks",
                    takes(n)
                ));
            }
            if !series.iter().any(|&(p, _, r)| (p, r) == (pattern, takes(n))) {
                series.push((pattern, n, takes(n)));
            }
        }
    }
    Ok(series)
}

fn common(arguments: &Arguments) -> Result<(Common, Option<Part>), String> {
    let (options, sizes, peers) = defaults(arguments);
    let or = |given: &Vec<usize>| if given.is_empty() { sizes } else { given.clone() };
    let common = Common {
        sizes: or(&options.sizes),
        peers,
        length: Duration::try_from_secs_f64(options.seconds_per_point)
            .map_err(|error| format!("--seconds-per-point {}: {error}", options.seconds_per_point))?,
        runs: options.runs,
        link_mbit: options.link_mbit,
        csv: options.csv.clone(),
        plots: options.plots.clone(),
        settings: options.settings.clone(),
        launcher: options.launcher.clone(),
    };
    if let Some(size) = common.sizes.iter().find(|&&size| !(1..=1 << 26).contains(&size)) {
        return Err(format!("--sizes {size}: use 1 byte to 64 MiB"));
    }
    if common.runs == 0 {
        return Err("--runs 0 measures nothing: use at least 1, and 3 or more to drop extremes".to_owned());
    }
    if common.length > Duration::from_secs(3600) {
        return Err(format!("--seconds-per-point {}: use at most 3600", options.seconds_per_point));
    }
    if let Some(rate) = common.link_mbit.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
        return Err(format!("--link-mbit {rate}: use a positive rate, such as 1000"));
    }
    if matches!(arguments, Arguments::Collectives(_))
        && let Some(size) = common.sizes.iter().find(|size| !size.is_multiple_of(size_of::<f32>()))
    {
        return Err(format!("--sizes {size}: use multiples of 4, the bytes of a value"));
    }
    let latency = matches!(arguments, Arguments::Latency(_));
    let fits = |peer: Peer| peer == Peer::Pdbp || peer.is_for_latency() == latency;
    if let Some(peer) = common.peers.iter().find(|&&peer| !fits(peer)) {
        let instead = if latency {
            "pdbp, send-recv and send-recv-write"
        } else {
            "any but send-recv and send-recv-write"
        };
        return Err(format!("--peers {peer}: not for this experiment; use {instead}"));
    }
    Ok((common, options.part))
}

/// The options of an experiment, the sizes it has by default, and its peers.
fn defaults(arguments: &Arguments) -> (&Options, Vec<usize>, Vec<Peer>) {
    let powers = |last: u32| (3..=last).map(|power| 1 << power).collect();
    let (between, sizes, peers) = match arguments {
        Arguments::Patterns(patterns) => (
            &patterns.between,
            vec![64, 128, 291, 512, 1024, 2048, 4096, 16384, 65536],
            vec![Peer::Pdbp, Peer::Alltoall, Peer::Window],
        ),
        Arguments::Collectives(collectives) => return (&collectives.options, powers(20), Vec::new()),
        Arguments::Alltoall(between) => (between, powers(16), vec![Peer::Pdbp, Peer::Alltoall, Peer::Window]),
        Arguments::Latency(between) => {
            (between, powers(22), vec![Peer::Pdbp, Peer::SendRecv, Peer::SendRecvWrite])
        }
        Arguments::Bandwidth(between) => (
            between,
            powers(22),
            vec![
                Peer::Pdbp,
                Peer::Loan,
                Peer::Stream,
                Peer::Write,
                Peer::Window,
                Peer::WindowHot,
                Peer::WindowWrite,
            ],
        ),
    };
    let peers = if between.peers.is_empty() { peers } else { between.peers.clone() };
    (&between.options, sizes, peers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(line: &str) -> Result<Task, String> {
        check(Arguments::try_parse_from(line.split_whitespace()).unwrap())
    }

    fn tables_of(line: &str, ranks: usize) -> Result<Vec<Series>, String> {
        checked(line)?.series(ranks)
    }

    #[test]
    fn tables_are_those_for_which_there_are_ranks() {
        let series = tables_of("mpi patterns", 9).unwrap();
        let of = |pattern| series.iter().filter(|s| s.0 == pattern).map(|s| s.2).collect::<Vec<_>>();
        assert_eq!(of(Pattern::OneToMany), [2, 3, 5, 9]);
        assert_eq!(of(Pattern::ManyToOne), [2, 3, 5, 9]);
        assert_eq!(of(Pattern::AllToAll), [2, 4, 8]);
        assert_eq!(tables_of("mpi patterns", 2).unwrap().len(), 3);
        assert_eq!(tables_of("mpi alltoall", 3).unwrap(), [(Pattern::AllToAll, 3, 3)]);
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |line, ranks| tables_of(line, ranks).err().unwrap();
        assert!(wrong("mpi patterns --hosts 8", 4).contains("takes 9 ranks then, and there are 4"));
        assert!(wrong("mpi alltoall", 1).contains("mpirun -n 2"));
        assert!(wrong("mpi latency --peers window", 2).contains("use pdbp, send-recv"));
        assert!(wrong("mpi alltoall --peers send-recv", 2).contains("--peers send-recv"));
        assert!(wrong("mpi bandwidth --sizes 0", 2).contains("--sizes 0"));
        assert!(wrong("mpi alltoall --runs 0", 2).contains("--runs 0"));
        assert!(wrong("mpi patterns --link-mbit=-1", 2).contains("--link-mbit"));
        assert!(wrong("mpi patterns --pattern skewed", 2).contains("skewed"));
        assert!(wrong("mpi alltoall --seconds-per-point=-1", 2).contains("--seconds-per-point"));
    }

    #[test]
    fn calls_are_measured_with_the_peers_that_are_named() {
        let parts = |line| match checked(line).unwrap().arguments {
            Arguments::Collectives(calls) => calls.parts(),
            other => panic!("{other:?}"),
        };
        assert_eq!(parts("mpi collectives --peers pdbp"), [Part::Pdbp]);
        assert_eq!(parts("mpi collectives --peers pdbp-messages,mpi,mpi"), [Part::Mpi, Part::Messages]);
        assert_eq!(parts("mpi collectives"), Part::ALL);
        let wrong = "mpi collectives --peers window".split_whitespace();
        let error = Arguments::try_parse_from(wrong).unwrap_err().to_string();
        assert!(error.contains("use mpi, pdbp or pdbp-messages"), "{error}");
    }

    #[test]
    fn every_peer_is_measured_in_one_part() {
        for peer in Peer::ALL {
            assert_eq!(Part::Pdbp.measures(peer), !Part::Mpi.measures(peer));
        }
        assert_eq!(checked("mpi alltoall --part mpi").unwrap().part, Some(Part::Mpi));
        assert_eq!(checked("mpi alltoall").unwrap().part, None);
    }

    #[test]
    fn settings_are_pairs() {
        assert_eq!(setting("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(setting("ab").is_err());
    }
}
