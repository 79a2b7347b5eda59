//! How this process was started.

use crate::config::TransportKind;

/// The place of this process in an MPI job, which the launcher (`mpirun`, `mpiexec`, `srun`) has put into the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank of this process.
    pub rank: usize,
    /// The number of processes in the job.
    pub ranks: usize,
}

impl Launch {
    /// Reads the environment; returns `None` if no launcher has started this process. MPI need not be initialised.
    pub fn find() -> Option<Self> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        // Open MPI; MPICH and its relatives, and srun --mpi=pmi2; srun --mpi=pmix.
        const NAMES: [(&str, &str); 3] = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
        ];
        let number = |name| variable(name)?.parse().ok();
        NAMES.into_iter().find_map(|(rank, ranks)| Some(Self { rank: number(rank)?, ranks: number(ranks)? }))
    }

    /// Returns the job that a cluster with this setting of `transport` spans, one node per process, by rank. `None` if all
    /// nodes are in this process: it was started without a launcher, or as the only process of a job, or the setting selects
    /// that.
    pub fn spanned(transport: TransportKind) -> Option<Self> {
        match transport {
            TransportKind::Local | TransportKind::Net | TransportKind::Rapidio => None,
            TransportKind::Auto | TransportKind::Mpi => Self::find().filter(|launch| launch.ranks > 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Launch> {
        Launch::read(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_launcher_is_recognised_by_rank_and_size() {
        let of_four = Some(Launch { rank: 2, ranks: 4 });
        assert_eq!(read(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")]), of_four);
        assert_eq!(read(&[("PMI_SIZE", "4"), ("PMI_RANK", "2")]), of_four);
        assert_eq!(read(&[("PMIX_RANK", "2"), ("SLURM_STEP_NUM_TASKS", "4")]), of_four);
    }

    #[test]
    fn half_of_a_pair_or_no_number_is_no_launch() {
        assert_eq!(read(&[]), None);
        // A shell in a batch job has a size but no rank.
        assert_eq!(read(&[("SLURM_STEP_NUM_TASKS", "4")]), None);
        assert_eq!(read(&[("PMI_RANK", "2")]), None);
        assert_eq!(read(&[("PMI_RANK", "two"), ("PMI_SIZE", "4")]), None);
        let pair = [("PMI_RANK", "?"), ("PMI_SIZE", "4"), ("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "3")];
        assert_eq!(read(&pair), Some(Launch { rank: 1, ranks: 3 }));
    }
}
