//! Starts that fail: with a clear error on all ranks, and without harm to the next start.

use std::ffi::CStr;

use pdbp::{Cluster, MpiLibrary, Progress, Routing};
use pdbp_mpi::{Hosts, Mpi, Options, StartError, Threads};

use crate::clusters::{SOON, builder, builder_apart, node};
use crate::launch;
use crate::program::Program;

fn message(started: Result<Cluster, pdbp::StartError>) -> String {
    started.err().map_or_else(|| "it has started".to_owned(), |e| e.to_string())
}

/// A progress thread may call MPI at any time, so the program must have requested that level of thread support.
pub(crate) fn threads() -> Result<(), String> {
    let (program, _) = Program::start(Threads::Serialised)?;
    let world = program.world();
    for what in [message(builder().start_on_communicator(&world)), message(builder().start())] {
        assert!(what.contains("MPI_THREAD_SERIALIZED") && what.contains("MPI_THREAD_MULTIPLE"), "{what}");
    }
    // Without a progress thread, this level is enough.
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
        assert!(what.contains(&format!("`routing` is {own} here but {other} at node")), "{what}");
        let what = message(grid().set("masters", if first { "2" } else { "3" }).start());
        let [own, other] = if first { [2, 3] } else { [3, 2] };
        assert!(what.contains(&format!("`masters` is {own} here but {other} at node")), "{what}");
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
    // More than any system promises, even one that overcommits.
    const TOO_MUCH: usize = 1 << 50;
    // On one rank only, on all, and more than the address space.
    for wanted in [[TOO_MUCH, 1 << 20], [TOO_MUCH; 2], [usize::MAX / 2; 2]] {
        for apart in [false, true] {
            let wanted = wanted[usize::from(rank != 0)];
            let builder = if apart { builder_apart() } else { builder() };
            let what = message(builder.memory_bytes(wanted).start());
            if wanted == 1 << 20 {
                // This rank has room, but its neighbour on the host does not.
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

/// As happens when what is free changes between the looks of two ranks: here one has a file system of its own for shared memory.
pub(crate) fn little_memory_on_one() -> Result<(), String> {
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    let start = || Mpi::start(&Options::new(1 << 20, 4096));
    // First, MPI allocates what it needs itself.
    drop(start().map_err(|e| e.to_string())?);
    // SAFETY: affects only which file systems this process sees.
    let own = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    if !own || !mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, c"") {
        println!("this user may not mount file systems");
        return Ok(());
    }
    if rank == 1 {
        assert!(mount(c"tmpfs", c"/dev/shm", 0, c"size=64k"), "{}", std::io::Error::last_os_error());
    }
    let error = start().err();
    assert!(matches!(error, Some(StartError::Memory { shared: true, cause: None, .. })), "{error:?}");
    if rank == 1 {
        // SAFETY: a path that ends with a null byte.
        assert_eq!(unsafe { libc::umount(c"/dev/shm".as_ptr()) }, 0, "{}", std::io::Error::last_os_error());
    }
    node(&builder().start().unwrap()).barrier(SOON).unwrap();
    Ok(())
}

fn mount(kind: &CStr, at: &CStr, flags: libc::c_ulong, options: &CStr) -> bool {
    // SAFETY: strings that end with null bytes; affects only which file systems this process sees.
    unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) == 0 }
}

pub(crate) fn finalised() -> Result<(), String> {
    drop(Program::start(Threads::Multiple)?);
    let what = message(builder().start());
    assert!(what.contains("MPI was finalised already"), "{what}");
    Ok(())
}

/// The MPI that the job's launcher does not belong to, by its setting and by its library's path; `None` if it is not installed.
fn other_mpi() -> Option<(MpiLibrary, MpiLibrary)> {
    let (kind, names) = if std::env::var_os("OMPI_COMM_WORLD_RANK").is_some() {
        (MpiLibrary::Mpich, [c"libmpich.so.12", c"libmpi.so.12"])
    } else {
        (MpiLibrary::OpenMpi, [c"libmpi.so.40"; 2])
    };
    let place = |name: &CStr| {
        // SAFETY: the name ends with a null byte, and loading an MPI has no effects.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: the library is open, and the name ends with a null byte.
        let function = unsafe { libc::dlsym(handle, c"MPI_Init_thread".as_ptr()) };
        // SAFETY: it consists of integers and pointers, which may be zero.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `function` is an address, and `found` can be written.
        assert_ne!(unsafe { libc::dladdr(function, &raw mut found) }, 0);
        // SAFETY: it is a string as long as the library is open.
        let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned();
        // SAFETY: the library is open, and nothing of it is used any more.
        unsafe { libc::dlclose(handle) };
        Some(path)
    };
    let path = names.into_iter().find_map(place)?;
    Some((kind, MpiLibrary::File(path.into())))
}

/// Asking for the MPI of another launcher fails before it is initialised, so the right one can still be used; after that, no second one.
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
    assert!(what.contains("a process can have only one MPI"), "{what}");
    Ok(())
}

/// A library named by its file is used, even though it then says that each process is alone.
pub(crate) fn other_library() -> Result<(), String> {
    let (rank, ranks) = launch::place().ok_or("not started by a launcher")?;
    let Some((_, file)) = other_mpi().filter(|_| !cfg!(feature = "mpi-linked")) else {
        println!("there is no second MPI, or the program is linked with one");
        return Ok(());
    };
    // Each rank starts an Open MPI of its own; one of two that make the same folder at the same time fails.
    let folder = std::env::temp_dir().join(rank.to_string());
    std::fs::create_dir(&folder).map_err(|e| e.to_string())?;
    // SAFETY: this process has no other thread yet.
    unsafe { std::env::set_var("TMPDIR", folder) }
    let what = message(builder().mpi(file).start());
    assert!(
        what.contains(&format!("as one of {ranks} by")) && what.contains("reports a single process"),
        "{what}"
    );
    Ok(())
}

/// Like a program compiled for another MPI than the one that is loaded.
pub(crate) fn other_communicator() -> Result<(), String> {
    let (program, _) = Program::start(Threads::Multiple)?;
    // The third is MPICH's MPI_COMM_NULL.
    for bits in [0, 1, 0x0400_0000, 0x4400_0000, 0xffff_ffff_8400_0000, 0x7fff_0000_1238] {
        let is_open_mpi = std::env::var_os("OMPI_COMM_WORLD_RANK").is_some();
        if !is_open_mpi && (bits as u32) >= 0x4400_0000 {
            // This could be a valid handle.
            continue;
        }
        // SAFETY: the handle is refused, which is what this tests.
        let what = message(unsafe { builder().start_on_raw_communicator(bits) });
        assert!(
            what.contains("is not a communicator of") && what.contains("compiled for another MPI"),
            "{what}"
        );
    }
    program.barrier();
    Ok(())
}

/// MPI unmaps its window when it is finalised, while threads may still use the memory.
pub(crate) fn mappings() -> Result<(), String> {
    const BYTES: u64 = 64 << 20;
    let (rank, _) = launch::place().ok_or("not started by a launcher")?;
    // So that MPI has allocated what it needs itself.
    drop(Mpi::start(&Options::new(1 << 20, 4096)).map_err(|e| e.to_string())?);
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `usual` can be written.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut usual) }, 0);
    let limit = |bytes| {
        let limits = libc::rlimit { rlim_cur: bytes, ..usual };
        // SAFETY: `limits` can be read.
        let done = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limits) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    if rank == 0 {
        // Room for the window, which has two such parts, and for a second mapping of one of them.
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

/// Address space of this process, in bytes.
fn address_space() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().next().and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
