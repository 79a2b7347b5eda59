//! How this process was started.

use crate::config::TransportKind;

/// What the launcher of an MPI job (`mpirun`, `mpiexec`, `srun`) has told this process in its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Number of this process.
    pub rank: usize,
    /// Processes of the job.
    pub ranks: usize,
}

impl Launch {
    /// Looks into the environment; `None` for a process that was started by itself. MPI need not be initialised.
    pub fn find() -> Option<Self> {
        // Open MPI; MPICH and its relatives, and srun --mpi=pmi2; srun --mpi=pmix.
        const NAMES: [(&str, &str); 3] = [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
            ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
        ];
        let number = |name| std::env::var(name).ok()?.parse().ok();
        NAMES.into_iter().find_map(|(rank, ranks)| Some(Self { rank: number(rank)?, ranks: number(ranks)? }))
    }

    /// The job that a cluster with this setting of `transport` spans, each process with the node of its rank. `None` if all its
    /// nodes are those of this process: it was started by itself, as the only one of a job, or the setting says so.
    pub fn spanned(transport: TransportKind) -> Option<Self> {
        match transport {
            TransportKind::Local => None,
            TransportKind::Auto | TransportKind::Mpi => Self::find().filter(|launch| launch.ranks > 1),
        }
    }
}
