//! Which launcher has started this process, and whether that launcher belongs to the loaded MPI.

use std::fmt;

use super::{Kind, Library, Loaded};
use crate::error::LibraryError;

/// The launcher of a job, as found in the processes' environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `mpirun` of Open MPI, which sets `OMPI_COMM_WORLD_RANK`.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives, which sets `PMI_RANK`.
    Mpich,
    /// `srun`, which starts either.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "the launcher of Open MPI (there is the variable OMPI_COMM_WORLD_RANK)",
            Self::Mpich => "a launcher of MPICH's family (there is the variable PMI_RANK)",
            Self::Slurm => "srun",
        })
    }
}

/// What the environment reports, read before MPI is initialised, since MPI may change it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launched {
    pub(super) by: Launcher,
    /// How many processes were started.
    ranks: Option<usize>,
}

impl Launched {
    pub(super) fn find() -> Option<Self> {
        let by = Launcher::read(|name| std::env::var_os(name).is_some())?;
        let names: &[&str] = match by {
            Launcher::OpenMpi => &["OMPI_COMM_WORLD_SIZE"],
            Launcher::Mpich => &["PMI_SIZE"],
            Launcher::Slurm => &["PMI_SIZE", "SLURM_STEP_NUM_TASKS"],
        };
        let ranks = names.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        Some(Self { by, ranks })
    }
}

impl Launcher {
    fn read(has: impl Fn(&str) -> bool) -> Option<Self> {
        if has("OMPI_COMM_WORLD_RANK") {
            return Some(Self::OpenMpi);
        }
        let is_rank = has("PMI_RANK") || has("PMIX_RANK");
        // Within a batch job, MPICH's launcher starts its ranks by srun; Hydra's own variables tell. Open MPI also sets
        // `PMIX_RANK` for itself when no launcher of its own has started it. `srun --mpi=pmi2` sets `PMI_FD`, as Hydra does, and the
        // path of a socket.
        let is_hydra = has("HYDI_CONTROL_FD") || has("MPI_LOCALRANKID");
        let is_of_step = has("PMI2_SUN_PATH") || has("SLURM_PROCID") && !has("PMI_FD");
        let is_slurm = (has("PMIX_RANK") || is_of_step) && !is_hydra;
        is_rank.then_some(if is_slurm { Self::Slurm } else { Self::Mpich })
    }

    /// The MPI that it starts; `None` if it starts any.
    pub(super) fn kind(self) -> Option<Kind> {
        match self {
            Self::OpenMpi => Some(Kind::OpenMpi),
            Self::Mpich => Some(Kind::Mpich),
            Self::Slurm => None,
        }
    }
}

/// Checks that the launcher belongs to this MPI. Started by the launcher of another one, an MPI would take each process
/// for a job of its own, or end it. A file that was named explicitly is left to [`check_ranks`].
pub(super) fn check(mpi: &Loaded, library: &Library) -> Result<(), LibraryError> {
    let Some(launcher) = mpi.launched.map(|launched| launched.by) else { return Ok(()) };
    let is_of_any = matches!(mpi.kind, Kind::Standard | Kind::Other);
    let is_other = launcher.kind().is_some_and(|kind| kind != mpi.kind && !is_of_any);
    if is_other && !matches!(library, Library::File(_)) {
        let is_linked = mpi.is_linked;
        return Err(LibraryError::Launcher { launcher, library: mpi.to_string(), kind: mpi.kind, is_linked });
    }
    Ok(())
}

/// Compares the number of ranks that the launcher reports with MPI's.
pub(crate) fn check_ranks(mpi: &Loaded, size: usize) -> Result<(), LibraryError> {
    match mpi.launched {
        Some(Launched { by: launcher, ranks: Some(ranks) }) if size == 1 && ranks > 1 => {
            Err(LibraryError::Ranks { launcher, ranks, library: mpi.to_string() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        let find = |names: &[&str]| Launcher::read(|name| names.contains(&name));
        assert_eq!(find(&["OMPI_COMM_WORLD_RANK", "PMIX_RANK"]), Some(Launcher::OpenMpi));
        assert_eq!(find(&["PMI_RANK", "PMI_FD"]), Some(Launcher::Mpich));
        assert_eq!(find(&["PMI_RANK", "PMI_FD", "SLURM_PROCID"]), Some(Launcher::Mpich));
        assert_eq!(find(&["PMI_RANK", "SLURM_PROCID"]), Some(Launcher::Slurm));
        assert_eq!(find(&["PMIX_RANK", "SLURM_PROCID"]), Some(Launcher::Slurm));
        let of_pmi2 = ["PMI_RANK", "PMI_FD", "PMI_JOBID", "PMI2_SUN_PATH", "SLURM_PROCID"];
        assert_eq!(find(&of_pmi2), Some(Launcher::Slurm));
        // Hydra's ranks may have inherited that from the step in which srun has started its proxy.
        for of_hydra in ["HYDI_CONTROL_FD", "MPI_LOCALRANKID"] {
            assert_eq!(find(&[&of_pmi2[..], &[of_hydra]].concat()), Some(Launcher::Mpich));
        }
        assert_eq!(find(&["PMI_RANK", "HYDI_CONTROL_FD", "PMIX_RANK"]), Some(Launcher::Mpich));
        assert_eq!(find(&["SLURM_PROCID"]), None);
        assert_eq!(find(&[]), None);
    }
}
