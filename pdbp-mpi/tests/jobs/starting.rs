//! Starts that fail: with a clear error on all ranks, and without harm to the next.

use std::ffi::CStr;

use pdbp::{Cluster, MpiLibrary, Progress, Routing};
use pdbp_mpi::{Hosts, Mpi, Options, StartError, Threads};

use crate::clusters::{SOON, builder, builder_apart, node};
use crate::launch;
use crate::program::Program;

fn message(started: Result<Cluster, pdbp::StartError>) -> String {
    started.err().map_or_else(|| "it has started".to_owned(), |e| e.to_string())
}

/// A progress thread calls MPI at any time, which the program must have asked for.
pub(crate) fn threads() -> Result<(), String> {
    let (program, _) = Program::start(Threads::Serialised)?;
    let world = program.world();
    for what in [message(builder().start_on_communicator(&world)), message(builder().start())] {
        assert!(what.contains("MPI_THREAD_SERIALIZED") && what.contains("MPI_THREAD_MULTIPLE"), "{what}");
    }
    // Without one it is enough.
    let cluster = builder().progress(Progress::Inline).start_on_communicator(&world).unwrap();
    node(&cluster).barrier(SOON).unwrap();
    Ok(())
}

pub(crate) fn single() -> Result<(), String> {
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    let level = [Threads::Single, Threads::Funnelled][rank % 2];
    let (program, have) = Program::start(level)?;
    let what = message(builder().progress(Progress::Inline).start_on_communicator(&program.world()));
    if have < Threads::Serialised {
        assert!(what.contains("the program initialised MPI with MPI_THREAD_"), "{what}");
        assert!(what.contains("MPI_THREAD_SERIALIZED"), "{what}");
    }
    Ok(())
}

pub(crate) fn disagree() -> Result<(), String> {
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    let first = rank == 0;
    for _ in 0..2 {
        let what = message(builder().block_bytes(if first { 4096 } else { 2048 }).start());
        assert!(what.contains("do not agree on the block size") && what.contains("4160"), "{what}");
        let what = message(builder().set("row_blocks", if first { "8" } else { "9" }).start());
        assert!(what.contains("do not agree on the blocks in flight"), "{what}");
        let what = message(if first { builder() } else { builder_apart() }.start());
        assert!(what.contains("do not agree on how memory is shared"), "{what}");
        let grid = || builder().routing(Routing::Grid);
        let what = message(if first { grid() } else { builder() }.start());
        let [own, other] = if first { ["grid", "direct"] } else { ["direct", "grid"] };
        assert!(what.contains(&format!("`routing` is {own} here and {other} at node")), "{what}");
        let what = message(grid().set("masters", if first { "2" } else { "3" }).start());
        let [own, other] = if first { [2, 3] } else { [3, 2] };
        assert!(what.contains(&format!("`masters` is {own} here and {other} at node")), "{what}");
    }
    let mut options = Options::new(1 << 20, 4096);
    options.hosts = if first { Hosts::Detected } else { Hosts::Coloured(1) };
    let error = Mpi::start(&options).err();
    assert!(matches!(error, Some(StartError::Disagree { .. })), "{error:?}");
    node(&builder().start().unwrap()).barrier(SOON).unwrap();
    Ok(())
}

pub(crate) fn memory() -> Result<(), String> {
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    // No system promises that, however freely it does.
    const TOO_MUCH: usize = 1 << 50;
    // On one rank only, on all, and more than there are addresses for.
    for wanted in [[TOO_MUCH, 1 << 20], [TOO_MUCH; 2], [usize::MAX / 2; 2]] {
        for apart in [false, true] {
            let wanted = wanted[usize::from(rank != 0)];
            let builder = if apart { builder_apart() } else { builder() };
            let what = message(builder.memory_bytes(wanted).start());
            if wanted == 1 << 20 {
                // It has room, and its neighbour on the host has not.
                assert!(what.contains("another process") || what.contains("cannot allocate"), "{what}");
            } else {
                assert!(what.contains(&format!("cannot allocate {wanted} bytes of block memory")), "{what}");
                assert_eq!(what.contains("/dev/shm"), !apart, "{what}");
            }
        }
    }
    node(&builder().start().unwrap()).barrier(SOON).unwrap();
    Ok(())
}

pub(crate) fn finalised() -> Result<(), String> {
    drop(Program::start(Threads::Multiple)?);
    let what = message(builder().start());
    assert!(what.contains("MPI was finalised already"), "{what}");
    Ok(())
}

/// The MPI that this job's launcher is not of, by its setting and by the path of its library; `None` if the machine does not have it.
fn other_mpi() -> Option<(MpiLibrary, MpiLibrary)> {
    let (kind, names) = if std::env::var_os("OMPI_COMM_WORLD_RANK").is_some() {
        (MpiLibrary::Mpich, [c"libmpich.so.12", c"libmpi.so.12"])
    } else {
        (MpiLibrary::OpenMpi, [c"libmpi.so.40"; 2])
    };
    let place = |name: &CStr| {
        // SAFETY: a string; loading an MPI does nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: a library that is open, and a string.
        let function = unsafe { libc::dlsym(handle, c"MPI_Init_thread".as_ptr()) };
        // SAFETY: integers and pointers, for which zeros are values.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: an address, and a place for the answer.
        assert_ne!(unsafe { libc::dladdr(function, &raw mut found) }, 0);
        // SAFETY: a string, as long as the library is open.
        let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned();
        // SAFETY: was opened, and nothing of it is kept.
        unsafe { libc::dlclose(handle) };
        Some(path)
    };
    let path = names.into_iter().find_map(place)?;
    Some((kind, MpiLibrary::File(path.into())))
}

/// Asking for the MPI of another launcher fails before that is initialised, so that the right one can be had afterwards, and no second one then.
pub(crate) fn other_launcher() -> Result<(), String> {
    let Some((kind, _)) = other_mpi().filter(|_| !cfg!(feature = "mpi-linked")) else {
        println!("there is no second MPI, or the program is linked with one");
        return Ok(());
    };
    let what = message(builder().mpi(kind.clone()).start());
    let [launcher, remedy] = match kind {
        MpiLibrary::Mpich => ["started by the launcher of Open MPI", "start it with mpiexec of MPICH"],
        _ => ["started by a launcher of MPICH's family", "start it with mpirun of Open MPI"],
    };
    assert!(what.contains(launcher) && what.contains(remedy) && what.contains("PDBP_MPI"), "{what}");
    node(&builder().start().unwrap()).barrier(SOON).unwrap();
    let what = message(builder().mpi(kind).start());
    assert!(what.contains("already; a process can have one MPI"), "{what}");
    Ok(())
}

/// A library that is named is taken, and then says that each process is alone.
pub(crate) fn other_library() -> Result<(), String> {
    let (_, ranks) = launch::place().ok_or("not started by a launcher")?;
    let Some((_, file)) = other_mpi().filter(|_| !cfg!(feature = "mpi-linked")) else {
        println!("there is no second MPI, or the program is linked with one");
        return Ok(());
    };
    let what = message(builder().mpi(file).start());
    assert!(
        what.contains(&format!("as one of {ranks} by")) && what.contains("says that it is alone"),
        "{what}"
    );
    Ok(())
}

/// As a program would that was compiled for another MPI than the one that is loaded.
pub(crate) fn other_communicator() -> Result<(), String> {
    let (program, _) = Program::start(Threads::Multiple)?;
    // The third is MPICH's MPI_COMM_NULL.
    for bits in [0, 1, 0x0400_0000, 0x4400_0000, 0xffff_ffff_8400_0000, 0x7fff_0000_1238] {
        let is_open_mpi = std::env::var_os("OMPI_COMM_WORLD_RANK").is_some();
        if !is_open_mpi && (bits as u32) >= 0x4400_0000 {
            // A handle that may be one.
            continue;
        }
        // SAFETY: it is refused, which this is about.
        let what = message(unsafe { builder().start_on_raw_communicator(bits) });
        assert!(
            what.contains("is no communicator of") && what.contains("compiled for another MPI"),
            "{what}"
        );
    }
    program.barrier();
    Ok(())
}

/// MPI takes its mapping of a window away when it is finalised, while threads still use the window.
pub(crate) fn mappings() -> Result<(), String> {
    const BYTES: u64 = 64 << 20;
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    // So that MPI has what it needs for itself.
    drop(Mpi::start(&Options::new(1 << 20, 4096)).map_err(|e| e.to_string())?);
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut usual) }, 0);
    let limit = |bytes| {
        let limits = libc::rlimit { rlim_cur: bytes, ..usual };
        // SAFETY: gives numbers.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limits) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    if rank == 0 {
        // Room for the window, which has two such parts, and for one of the two again.
        limit(address_space() + 3 * BYTES);
    }
    let error = Mpi::start(&Options::new(BYTES as usize, 4096)).err();
    match error {
        Some(StartError::Memory { shared: true, cause: Some(cause), .. }) if rank == 0 => {
            assert!(cause.call == "mremap" && cause.text.contains("a second time"), "{cause}");
        }
        Some(StartError::Other) if rank != 0 => {}
        other => return Err(format!("{other:?}")),
    }
    limit(usual.rlim_cur);
    let before = address_space();
    for _ in 0..3 {
        drop(Mpi::start(&Options::new(BYTES as usize, 4096)).map_err(|e| e.to_string())?);
    }
    assert!(address_space() < before + 8 * BYTES, "the windows are freed");
    node(&builder().start().unwrap()).barrier(SOON).unwrap();
    Ok(())
}

/// Bytes of addresses that this process uses.
fn address_space() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
