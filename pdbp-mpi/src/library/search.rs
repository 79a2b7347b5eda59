//! Finds and opens the library of an MPI.
//!
//! It searches, in this order: the libraries that the process has loaded already; the launcher's own folders, since the system's loader may not
//! search there; and where the loader searches. The library itself is asked what it is, since file names do not tell: Open MPI 1.10 had a
//! `libmpi.so.12`, too.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use super::abi::Abi;
use super::launcher::{Launched, Launcher};
pub(super) use super::system::Opened;
use super::system::{parent_program, path_of};
use super::{Kind, Library, Loaded, SUCCESS, abi};
use crate::error::LibraryError;

/// The file names of the libraries. `libmpi.so` serves installations with nothing but development files. The ABI of MPI 5 comes last, since
/// libraries that have it offer their own ABI, too, which is better known.
const KNOWN: [(Kind, &[&CStr]); 3] = [
    (Kind::OpenMpi, &[c"libmpi.so.40", c"libmpi.so", c"libmpi_abi.so.1", c"libmpi_abi.so.0"]),
    (
        Kind::Mpich,
        &[
            c"libmpich.so.12",
            c"libmpi.so.12",
            c"libmpi_cray.so.12",
            c"libmpi_gnu_123.so.12",
            c"libmpi.so",
            c"libmpi_abi.so.1",
            c"libmpi_abi.so.0",
        ],
    ),
    (Kind::Standard, &[c"libmpi_abi.so.1", c"libmpi_abi.so.0"]),
];
/// Names under which an MPI may have been loaded already.
const PRESENT: &[&CStr] = &[
    c"libmpi.so.40",
    c"libmpich.so.12",
    c"libmpi.so.12",
    c"libmpi_cray.so.12",
    c"libmpi_abi.so.1",
    c"libmpi_abi.so.0",
];

/// Whether the loaded MPI is the requested one.
pub(super) fn is_wanted(loaded: &Loaded, library: &Library) -> bool {
    match library {
        Library::Auto => true,
        Library::OpenMpi => loaded.kind == Kind::OpenMpi,
        Library::Mpich => loaded.kind == Kind::Mpich,
        Library::Linked => loaded.is_linked,
        Library::File(path) => is_present(path).is_some_and(|handle| loaded.handle == handle),
    }
}

/// The library at that path, if the process has loaded it.
fn is_present(path: &Path) -> Option<Opened> {
    let handle = Opened::present(path)?;
    // It was open before, and remains so.
    handle.close();
    Some(handle)
}

/// Opens the requested library.
pub(super) fn find(library: &Library) -> Result<Loaded, LibraryError> {
    let present = present()?;
    if let Library::File(path) = library {
        let file = path.display().to_string();
        let handle = Opened::open(path).map_err(|why| LibraryError::File { file: file.clone(), why })?;
        return match present {
            Some(present) if present.handle != handle => Err(second(library, &present)),
            _ => identify(handle, file),
        };
    }
    let launcher = Launched::find().map(|launched| launched.by);
    if let Some(present) = present {
        return if is_wanted(&present, library) { Ok(present) } else { Err(second(library, &present)) };
    }
    let wanted = match library {
        Library::OpenMpi => Some(Kind::OpenMpi),
        Library::Mpich => Some(Kind::Mpich),
        _ => launcher.and_then(Launcher::kind),
    };
    let known: Vec<_> =
        KNOWN.iter().filter(|(kind, _)| wanted.is_none_or(|wanted| wanted == *kind)).collect();
    search(&known, launcher, library)
}

fn second(library: &Library, present: &Loaded) -> LibraryError {
    LibraryError::Second { wanted: library.clone(), present: present.to_string() }
}

/// The MPI that the process has already, linked or loaded; of several, the one that is initialised.
fn present() -> Result<Option<Loaded>, LibraryError> {
    let mut opened: Vec<(Opened, String)> = Vec::new();
    for name in PRESENT {
        if let Some(handle) = Opened::present(&path_of(name)) {
            opened.push((handle, name.to_string_lossy().into_owned()));
        }
    }
    // An MPI under another name, or as part of the program.
    if opened.is_empty() && !Opened::of_program().find(c"MPI_Init_thread").is_null() {
        opened.push((Opened::of_program(), "part of the program".to_owned()));
    }
    let initialised = opened.iter().position(|(handle, _)| is_initialised(*handle)).unwrap_or(0);
    if opened.is_empty() {
        return Ok(None);
    }
    let (handle, file) = opened.swap_remove(initialised);
    identify(handle, file).map(Some)
}

fn is_initialised(handle: Opened) -> bool {
    type Question = unsafe extern "C" fn(*mut c_int) -> c_int;
    let found = handle.find(c"MPI_Initialized");
    let mut flag = 0;
    if !found.is_null() {
        // SAFETY: the function of this name has this type in every MPI.
        let question = unsafe { std::mem::transmute::<*mut c_void, Question>(found) };
        // SAFETY: may be called at any time, with a place for the answer.
        unsafe { question(&raw mut flag) };
    }
    flag != 0
}

/// Opens the first usable library of one of these kinds.
pub(super) fn search(
    known: &[&(Kind, &[&CStr])],
    launcher: Option<Launcher>,
    library: &Library,
) -> Result<Loaded, LibraryError> {
    let folders = launcher.map(|_| launcher_folders()).unwrap_or_default();
    let mut tried = Vec::new();
    for (kind, names) in known {
        let beside = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(path_of(name))));
        let beside = beside.filter(|path| path.exists());
        let elsewhere = names.iter().map(|name| path_of(name));
        for path in beside.chain(elsewhere) {
            let file = path.display().to_string();
            match Opened::open(&path).map(|handle| identify(handle, file.clone())) {
                Ok(Ok(loaded)) if loaded.kind == *kind => return Ok(loaded),
                Ok(Ok(other)) => {
                    other.handle.close();
                    tried.push(format!("{file} is of {}", other.kind));
                }
                Ok(Err(why)) => tried.push(why.to_string()),
                Err(why) if path.exists() => tried.push(why),
                // The system's message adds nothing to this.
                Err(why) if why.contains("No such file") => tried.push(format!("{file} is not there")),
                Err(why) => tried.push(why),
            }
        }
    }
    let mut seen = Vec::new();
    tried.retain(|what: &String| {
        !seen.contains(what) && {
            seen.push(what.clone());
            true
        }
    });
    Err(LibraryError::NotFound { wanted: library.clone(), launcher, folders, tried })
}

/// Library folders next to the launcher that started this process, and next to those in `PATH`.
fn launcher_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path)
        .flat_map(|folder| ["mpirun", "mpiexec"].map(|name| folder.join(name)))
        .filter(|program| program.exists())
        .flat_map(|program| [std::fs::canonicalize(&program).ok(), Some(program)]);
    let programs = parent_program().into_iter().chain(in_path.flatten());
    let mut folders = Vec::new();
    for prefix in programs.filter_map(|program| Some(program.parent()?.parent()?.to_owned())) {
        for folder in ["lib", "lib64"].map(|name| prefix.join(name)) {
            if folder.exists() && !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// Finds out what a library is and fills the table. An unusable library is closed.
fn identify(handle: Opened, file: String) -> Result<Loaded, LibraryError> {
    let found = version(&handle).ok_or_else(|| LibraryError::NoMpi { file: file.clone() });
    let filled = found.and_then(|version| {
        let find: abi::Find = &|name| {
            let is_function = name.to_bytes().starts_with(b"MPI_");
            if is_function { handle.find(name) } else { handle.find_variable(name) }
        };
        let (kind, abi) = kind(find, &version).map_err(|why| LibraryError::Unsupported {
            file: file.clone(),
            version: version.clone(),
            why,
        })?;
        // SAFETY: the library reports this interface, or is known to have it.
        let table = unsafe { abi.of(find) };
        let (functions, constants) =
            table.map_err(|missing| LibraryError::Incomplete { file: file.clone(), missing })?;
        Ok(Loaded {
            functions,
            constants,
            kind,
            abi: Some(abi),
            version,
            file: handle.place_of(c"MPI_Init_thread").unwrap_or(file),
            handle,
            is_linked: false,
            launched: Launched::find(),
        })
    });
    filled.inspect_err(|_| handle.close())
}

/// The first line of the version that an MPI reports; `None` if the library is no MPI.
pub(super) fn version(handle: &Opened) -> Option<String> {
    type Question = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    let found = handle.find(c"MPI_Get_library_version");
    if found.is_null() {
        return None;
    }
    // Longer than any MPI's.
    let (mut text, mut length) = ([0 as c_char; 16384], 0);
    // SAFETY: the function of this name has this type in every MPI.
    let question = unsafe { std::mem::transmute::<*mut c_void, Question>(found) };
    // SAFETY: may be called at any time, with room for the answer.
    let code = unsafe { question(text.as_mut_ptr(), &raw mut length) };
    let bytes: Vec<u8> = text.iter().take(length.max(0) as usize).map(|c| *c as u8).collect();
    let text = String::from_utf8_lossy(&bytes);
    let line = text.split(['\n', '\0', ',']).next().unwrap_or_default();
    (code == SUCCESS).then(|| line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The kind of an MPI and its interface, from its version text and its symbols; or why it cannot be used.
pub(super) fn kind(find: abi::Find, version: &str) -> Result<(Kind, Abi), String> {
    const RELATIVES: [&str; 5] = ["MPICH", "MVAPICH", "Intel(R) MPI", "ParaStation", "CRAY"];
    let is_of_mpich = RELATIVES.iter().any(|name| version.contains(name));
    // Checked first: a library may have the symbols of another interface for its own use.
    match standard_abi(find) {
        Some(1) if version.contains("Open MPI") => return Ok((Kind::OpenMpi, Abi::Standard)),
        Some(1) if is_of_mpich => return Ok((Kind::Mpich, Abi::Standard)),
        Some(1) => return Ok((Kind::Standard, Abi::Standard)),
        Some(other) => {
            return Err(format!(
                "it has version {other} of MPI's standard ABI, but only version 1 is supported; name the libmpi.so beside it"
            ));
        }
        None => {}
    }
    if !find(c"ompi_mpi_comm_world").is_null() {
        return match number_after(version, "Open MPI v") {
            Some((..3, _)) => Err("Open MPI 3 is the oldest that can be loaded".to_owned()),
            _ => Ok((Kind::OpenMpi, Abi::OpenMpi)),
        };
    }
    match number_after(version, "MPICH Version:") {
        Some(old) if old < (3, 1) => Err("MPICH 3.1 is the oldest that can be loaded".to_owned()),
        _ if is_of_mpich => Ok((Kind::Mpich, Abi::Mpich)),
        _ => Err("it is neither Open MPI nor an MPICH derivative, and lacks the MPI 5 ABI".to_owned()),
    }
}

/// The major version of the standard's ABI, if the library has it; incompatible changes always raise it.
fn standard_abi(find: abi::Find) -> Option<c_int> {
    type Question = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let found = find(c"MPI_Abi_get_version");
    if found.is_null() {
        return None;
    }
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the function of this name has this type, by the standard.
    let question = unsafe { std::mem::transmute::<*mut c_void, Question>(found) };
    // SAFETY: may be called at any time, with places for the answers, which are -1 if the ABI is another.
    let code = unsafe { question(&raw mut major, &raw mut minor) };
    (code == SUCCESS && major >= 0).then_some(major)
}

/// The first two numbers of a version, after `words`.
fn number_after(text: &str, words: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once(words)?;
    let mut numbers = rest.trim_start().split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next().unwrap_or(0)))
}
