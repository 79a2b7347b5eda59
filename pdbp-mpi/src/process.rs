//! State that exists once per process: whether MPI is up, the lock that serialises its calls, and the remains of domains that have ended.
//!
//! # When memory is freed
//! Only all its processes together can free a window, and a process that drops its end of a domain must not wait for them: a peer may be
//! busy, or dead. So the remains of a domain are kept in a list, and freed at the next collective call: when the same processes start
//! another domain, or when MPI is finalised, if this library initialised it. The list also keeps the memory of requests that could not be
//! completed.

mod exit;

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{MpiError, StartError, Threads};
use crate::library::{self, Library, Loaded};
use crate::mapping::Mapping;
use crate::remote;
use crate::result::{self, Comm, Report, Request, Window};
use crate::window::Region;
use pdbp_core::BlockMemory;
use pdbp_core::umb::HeapMemory;

static PROCESS: Mutex<Process> =
    Mutex::new(Process { ours: false, over: false, watched: false, domains: Vec::new(), serial: 0 });
/// Set when MPI is being finalised, for threads that cannot wait for the lock.
static OVER: AtomicBool = AtomicBool::new(false);
/// Set when a process on this host has died without leaving its domain.
static DIED: AtomicBool = AtomicBool::new(false);
/// The process that initialised MPI, to tell it from forked children.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The right to call MPI: it is loaded and initialised, and no other thread of this library is calling it.
pub(crate) struct Gate(MutexGuard<'static, Process>, &'static Loaded);

struct Process {
    /// This library has initialised MPI.
    ours: bool,
    over: bool,
    /// `finalising` is registered.
    watched: bool,
    /// All domains of this process, in the order in which they were made, until they are freed.
    domains: Vec<Domain>,
    serial: u64,
}

/// MPI's resources for a domain.
struct Domain {
    serial: u64,
    comm: Comm,
    host: Option<Comm>,
    region: Weak<Region>,
    /// The memory, once only requests may still need it.
    backing: Option<Backing>,
    /// Requests that were not complete when the transport was dropped.
    requests: Vec<Request>,
}

/// Where blocks lie.
pub(crate) enum Backing {
    /// Shared with the processes of the host, whose parts are mapped in the order of their numbers.
    Window(Window, Vec<Mapping>),
    /// Of this process alone.
    Heap(HeapMemory),
    /// Freed already.
    Nothing,
}

impl Backing {
    /// The parts of the host's processes, valid as long as the value lives.
    pub(crate) fn parts(&self) -> Vec<NonNull<[u8]>> {
        match self {
            Self::Window(_, mappings) => mappings.iter().map(Mapping::bytes).collect(),
            Self::Heap(memory) => vec![NonNull::slice_from_raw_parts(memory.base(), memory.len())],
            Self::Nothing => Vec::new(),
        }
    }
}

/// Identifies a domain within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Serial(u64);

#[cfg(test)]
impl Serial {
    /// Of no domain.
    pub(crate) const NONE: Self = Self(0);
}

fn lock() -> MutexGuard<'static, Process> {
    // The list is consistent at every point, so a panic elsewhere does no harm.
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enters MPI; `None` when it is finalised or was never initialised.
pub(crate) fn enter() -> Option<Gate> {
    if OVER.load(Ordering::Relaxed) {
        return None;
    }
    let mpi = library::loaded()?;
    let process = lock();
    // The program may have finalised what it initialised.
    (!process.over && !result::is_finalised(mpi)).then_some(Gate(process, mpi))
}

/// Loads an MPI and initialises it, unless the program has. `need` is the thread support required.
pub(crate) fn begin(library: &Library, need: Threads) -> Result<Gate, StartError> {
    let mpi = library::load(library)?;
    let mut process = lock();
    if process.over || result::is_finalised(mpi) {
        return Err(StartError::Finalised);
    }
    if !result::is_initialised(mpi) {
        // SAFETY: MPI is neither initialised nor finalised, and threads of this library wait for the lock.
        unsafe { result::init(mpi, need.max(Threads::Serialised)) }?;
        process.ours = true;
        OWNER.store(std::process::id(), Ordering::Relaxed);
        exit::at_exit();
    }
    let mut gate = Gate(process, mpi);
    let have = result::query_threads(&gate)?;
    let ours = gate.0.ours;
    if have < need {
        return Err(StartError::Threads { have, need, ours });
    }
    if !ours && !gate.0.watched {
        result::at_finalise(&gate)?;
        gate.0.watched = true;
    }
    Ok(gate)
}

/// A process has died without leaving its domain.
pub(crate) fn record_death() {
    DIED.store(true, Ordering::Relaxed);
}

/// Whether MPI is finalised, and no longer touches any memory.
pub(crate) fn is_over() -> bool {
    library::loaded().is_some_and(|mpi| result::is_finalised(mpi))
}

/// Whether the program itself has initialised MPI, and so may call it as well. Loads the library if that has not been done.
///
/// # Errors
/// See [`LibraryError`](crate::LibraryError).
pub fn is_initialised_by_program(library: &Library) -> Result<bool, StartError> {
    let mpi = library::load(library)?;
    Ok(!lock().ours && result::is_initialised(mpi))
}

impl Gate {
    /// The MPI that is used.
    pub(crate) fn mpi(&self) -> &'static Loaded {
        self.1
    }

    /// Adds a new domain to the list.
    pub(crate) fn open_domain(&mut self, comm: Comm, host: Option<Comm>) -> Serial {
        let process = &mut *self.0;
        process.serial += 1;
        let (serial, region) = (process.serial, Weak::new());
        process.domains.push(Domain { serial, comm, host, region, backing: None, requests: Vec::new() });
        Serial(serial)
    }

    /// Marks a domain that failed to start, on all of its processes, and takes its memory.
    pub(crate) fn abandon(&mut self, serial: Serial, backing: Backing) {
        if let Some(domain) = self.0.domains.iter_mut().find(|d| d.serial == serial.0) {
            domain.backing = Some(backing);
        }
    }

    /// Records the memory of a domain.
    pub(crate) fn attach(&mut self, serial: Serial, region: Weak<Region>) {
        if let Some(domain) = self.0.domains.iter_mut().find(|d| d.serial == serial.0) {
            domain.region = region;
        }
    }

    /// Keeps requests that could not be completed. Their memory must reach [`retire`] eventually.
    pub(crate) fn keep_requests(&mut self, serial: Serial, requests: Vec<Request>) {
        if let Some(domain) = self.0.domains.iter_mut().find(|d| d.serial == serial.0) {
            domain.requests.extend(requests);
        }
    }

    /// Frees the domains that all processes of `comm` are done with. Collective.
    pub(crate) fn reap(&mut self, comm: Comm) -> Result<(), MpiError> {
        let mut candidates = Vec::new();
        for domain in std::mem::take(&mut self.0.domains) {
            let congruent = comm.is_congruent(self, domain.comm).unwrap_or(false);
            if congruent { candidates.push(domain) } else { self.0.domains.push(domain) }
        }
        // All processes have made the same domains on these processes, in the same order.
        let mut done: Vec<u64> = candidates.iter_mut().map(|d| u64::from(self.is_done(d))).collect();
        let agreed = if done.is_empty() { Ok(()) } else { comm.least(self, &mut done) };
        for (domain, done) in candidates.into_iter().zip(done) {
            if done == 1 && agreed.is_ok() {
                self.free(domain);
            } else {
                self.0.domains.push(domain);
            }
        }
        self.0.domains.sort_by_key(|d| d.serial);
        agreed
    }

    fn is_done(&self, domain: &mut Domain) -> bool {
        let mut report = Report::default();
        if !domain.requests.is_empty() {
            // A request that failed is complete as well.
            let _ = result::test_some(self, &mut domain.requests, &mut report, |_| ());
            domain.requests.retain(|request| !request.is_null(self));
        }
        domain.backing.is_some() && domain.requests.is_empty()
    }

    fn free(&self, domain: Domain) {
        match domain.backing {
            Some(Backing::Window(window, mappings)) => {
                drop(mappings);
                // SAFETY: all processes have given up their part (`retire`).
                unsafe { window.free(self) }
            }
            Some(Backing::Heap(memory)) => drop(memory),
            Some(Backing::Nothing) | None => {}
        }
        domain.host.iter().for_each(|host| host.free(self));
        domain.comm.free(self);
    }
}

/// Takes the memory of a domain whose blocks are no longer in use, except perhaps by requests.
pub(crate) fn retire(serial: Serial, backing: Backing) {
    let mut process = lock();
    let Some(domain) = process.domains.iter_mut().find(|d| d.serial == serial.0) else {
        // MPI is being finalised, and may still complete requests.
        std::mem::forget(backing);
        return;
    };
    domain.backing = Some(match backing {
        // MPI no longer points here.
        Backing::Heap(_) if domain.requests.is_empty() => Backing::Nothing,
        backing => backing,
    });
}

/// Runs when the process exits with this status, if this library initialised MPI: launchers take a process that did not finalise for a failed
/// one. Returns once all processes have got here, as `MPI_Finalize` does.
///
/// A process that fails does not finalise, since the others may never get here; its launcher ends them once it has exited.
fn end(status: c_int) {
    // A forked child owns neither the domains nor MPI, nor does it have the threads that may hold the lock.
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    let Some(mpi) = library::loaded() else { return };
    let process = lock();
    if process.over || result::is_finalised(mpi) {
        return;
    }
    let mut gate = Gate(process, mpi);
    // Others see no more of the status than its last byte.
    let fails = status & 0xff != 0 && result::world(&gate).size(&gate).is_ok_and(|ranks| ranks > 1);
    if !fails {
        leave_domains(&gate);
    }
    close(&mut gate);
    // The dead never call `MPI_Finalize`, and Open MPI would wait for them. The launcher already knows that the job has failed.
    if fails || DIED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: this library initialised MPI, and no thread enters any more. Both MPIs accept this call from any thread.
    let _ = unsafe { result::finalise(mpi) };
}

/// Leaves domains whose transports were not dropped: their peers must not wait for them.
fn leave_domains(gate: &Gate) {
    let left: Vec<_> = gate.0.domains.iter().filter_map(|d| Some((d.comm, d.region.upgrade()?))).collect();
    for (comm, region) in &left {
        region.leave();
        remote::write_goodbyes(gate, *comm, region);
    }
    // The upgraded references are leaked, since dropping them would take the lock.
    std::mem::forget(left);
}

/// Runs at the beginning of an `MPI_Finalize` that the program calls: waits until no other thread of this library is in MPI, and bars it
/// from then on.
pub(crate) fn finalising() {
    // When this library finalises, it holds the lock already.
    if !OVER.load(Ordering::Relaxed)
        && let Some(mpi) = library::loaded()
    {
        close(&mut Gate(lock(), mpi));
    }
}

/// Bars all threads from here on.
fn close(gate: &mut Gate) {
    OVER.store(true, Ordering::Relaxed);
    gate.0.over = true;
    // MPI may complete requests while it is finalised, so the memory of live domains must stay.
    for region in gate.0.domains.iter().filter_map(|d| d.region.upgrade()) {
        std::mem::forget(region);
    }
    // And so must that of domains that have ended.
    std::mem::forget(std::mem::take(&mut gate.0.domains));
}
