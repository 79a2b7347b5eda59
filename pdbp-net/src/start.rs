//! How a cluster of several processes starts: one process founds it, the others join, and once all are present each has its links.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::door::greeting::Id;
use crate::door::join::{self, Tries};
use crate::door::roster::{Member, Roster};
use crate::door::{Door, Founding, Shared};
use crate::error::{StartError, TlsError};
use crate::net::Net;
use crate::options::{Options, Role, Tls};
use crate::tls::Sessions;
use crate::token::{self, Token};

/// A process that founds a cluster of a fixed number of nodes and listens for the others.
pub struct Founder {
    options: Options,
    nodes: u16,
    address: SocketAddr,
    pub(crate) door: Door,
    here: Arc<AtomicUsize>,
    complete: Receiver<Roster>,
}

impl Founder {
    /// Founds a cluster of `nodes` nodes, with this process as node 0. Others join at `listen`, a host and a port (0 for any free one).
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(listen: &str, nodes: u16, options: Options) -> Result<Self, StartError> {
        let listener = bind(listen)?;
        let address = protect(&listener, &options)?;
        let shared = shared(&options)?;
        let advertised = shared.advertised;
        let here = Arc::new(AtomicUsize::new(1));
        let (sender, complete) = channel();
        let (process, known_at) = (shared.process, advertised.unwrap_or(address));
        let own = Member { process, address: known_at, incarnation: 0 };
        let cluster = Id(token::random()?);
        let (nodes, advertises) = (nodes.max(1), advertised.is_some());
        let founding = Founding::new(nodes, (cluster, own), advertises, Arc::clone(&here), sender);
        let door = Door::open(shared, listener, Some(founding))?;
        Ok(Self { options, nodes, address, door, here, complete })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of processes that have joined so far, this one included.
    pub fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed)
    }

    /// Waits until all nodes have joined, for at most [`Options::timeout`].
    ///
    /// # Errors
    /// [`StartError::Missing`].
    pub fn wait(self) -> Result<Net, StartError> {
        let waited = self.options.timeout;
        let roster = self.complete.recv_timeout(waited).map_err(|_| StartError::Missing {
            here: self.here(),
            nodes: self.nodes,
            waited,
        })?;
        let deadline = after(waited);
        Ok(Net::assemble(roster, self.door, self.address, &self.options, deadline)?)
    }
}

/// How long a process that joins an open cluster waits for connections to the members.
const CONNECT: Duration = Duration::from_secs(2);

impl Net {
    /// Founds an open cluster of at most `places` nodes, alone, with this process as node 0. Others [join](Self::join) at `listen`, a host and
    /// a port (0 for any free one), and leave whenever they like. If [`masters`](Options::masters) is 1, the cluster ends with this process.
    ///
    /// With several masters it first waits for three seconds, since surviving masters of a cluster founded earlier at this address keep calling
    /// there. If one calls, this process [joins](Self::join) their cluster, as a master. If its
    /// [`founding_file`](Options::founding_file) shows that it has founded a cluster before, it waits for [`Options::timeout`] instead, and
    /// never founds another.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn found(listen: &str, places: u16, options: &Options) -> Result<Self, StartError> {
        let listener = bind(listen)?;
        let address = protect(&listener, options)?;
        let shared = shared(options)?;
        let door = Door::open(Arc::clone(&shared), listener, None)?;
        if options.masters > 1
            && let Some(summoner) = await_summoner(&shared, options)?
        {
            drop(door);
            let options = Options { role: Role::Master, ..options.clone() };
            return Self::enter(&summoner.to_string(), Some(&address.to_string()), &options, Reach::All);
        }
        let (process, advertised) = (shared.process, shared.advertised);
        let own = Member { process, address: advertised.unwrap_or(address), incarnation: 0 };
        let mut members = vec![None; usize::from(places.max(1))];
        if let Some(first) = members.first_mut() {
            *first = Some(own);
        }
        let cluster = Id(token::random()?);
        let masters = options.masters.clamp(1, places.max(1));
        let (place, generation, open, advertises, giver) = (0, 0, true, advertised.is_some(), 0);
        let roster = Roster { cluster, place, generation, open, advertises, masters, giver, members };
        Ok(Self::assemble(roster, door, address, options, Instant::now())?)
    }

    /// Joins the cluster that a process founds at `address`, a host and a port, and waits until all its nodes have joined, for at most
    /// [`Options::timeout`]; or joins an [open](Self::found) cluster, and waits for a place and for connections to the members.
    /// The founder need not be running yet. `address` may list several addresses, separated by commas, which are tried in turn, each for a
    /// second at first; in an open cluster any node knows the primary, which gives the places, and redirects to it. Other nodes reach this
    /// process at `listen`, or else at any free port of the local address from which it reached the founder.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn join(address: &str, listen: Option<&str>, options: &Options) -> Result<Self, StartError> {
        Self::enter(address, listen, options, Reach::All)
    }

    /// Joins a running open cluster, but with a single link, to the node at `address` that gives it its place (the founder), so no other
    /// node need be reachable. It still knows the other members, and they know it. Tries once, for at most [`Options::timeout`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn dial(address: &str, options: &Options) -> Result<Self, StartError> {
        Self::enter(address, None, options, Reach::Founder)
    }

    fn enter(
        address: &str,
        listen: Option<&str>,
        options: &Options,
        reach: Reach,
    ) -> Result<Self, StartError> {
        let deadline = after(options.timeout);
        let shared = shared(options)?;
        let tries = if reach == Reach::All { Tries::Again } else { Tries::Once };
        let (listener, mut roster) =
            join::join(address, &shared, (deadline, tries), options.notice, |own| {
                let listener = match listen {
                    Some(listen) => bind(listen)?,
                    None => TcpListener::bind((own.ip(), 0))
                        .map_err(|error| StartError::Address { address: own.ip().to_string(), error })?,
                };
                protect(&listener, options)?;
                Ok(listener)
            })?;
        // From now on it is this process that gives the roster to others.
        roster.advertises = shared.advertised.is_some();
        if reach == Reach::Founder {
            if !roster.open {
                return Err(StartError::NotOpen { address: address.to_owned() });
            }
            let (own, giver) = (roster.place, roster.giver);
            let others = roster.members.iter_mut().enumerate();
            let others = others.filter(|(place, _)| *place != giver && *place != own);
            others.for_each(|(_, member)| *member = None);
        }
        let own = listener.local_addr()?;
        let door = Door::open(shared, listener, None)?;
        let open = roster.open;
        let mut net = Self::assemble(roster, door, own, options, after(options.timeout))?;
        if open {
            // Before it is let in, so that others can reach it as soon as they learn of it.
            net.wait_for_links(deadline.min(Instant::now() + CONNECT));
        }
        Ok(net)
    }
}

/// How long a founder of several masters waits for calls from masters of an earlier cluster at its address, which call once a second.
const SUMMONS: Duration = Duration::from_secs(3);

/// Waits for a node that calls this process as a member of its cluster, and returns where that node listens. `None` if no such cluster
/// exists: this process may found one, and its founding file, if any, records that from now on.
fn await_summoner(shared: &Shared, options: &Options) -> Result<Option<SocketAddr>, StartError> {
    let path = options.founding_file.as_deref();
    let fail = |path: &Path, error| StartError::FoundingFile { path: path.to_path_buf(), error };
    let has_founded = match path {
        Some(path) => path.try_exists().map_err(|error| fail(path, error))?,
        None => false,
    };
    let waits = if has_founded { options.timeout } else { SUMMONS };
    let until = after(waits);
    let summoner = loop {
        let summoner = shared.summoner();
        if summoner.is_some() || Instant::now() >= until {
            break summoner;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    match path {
        Some(path) if has_founded && summoner.is_none() => {
            Err(StartError::FoundedBefore { path: path.to_path_buf(), waited: waits })
        }
        Some(path) if !has_founded => match note_founding(path) {
            Ok(()) => Ok(summoner),
            Err(error) => Err(fail(path, error)),
        },
        _ => Ok(summoner),
    }
}

/// Writes the file from which a restarted founder learns that it has founded before. The file is on disk before the cluster exists.
fn note_founding(path: &Path) -> io::Result<()> {
    create_whole(path, |file| {
        file.write_all(FOUNDED.as_bytes())?;
        file.sync_all()
    })
}

/// Creates a file and writes it. If that fails, for want of space for example, no file is left behind: the next start would believe it.
fn create_whole(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let written = write(&mut file).and_then(|()| sync_folder_of(path));
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Without it, a power cut may lose the entry of a new file.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

const FOUNDED: &str = "A process of PDBP has founded a cluster of several masters, and founds no other as long as this file is here:\n\
    started again, it joins that cluster. Remove the file when the cluster has ended.\n";

/// The nodes to which a process has links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    All,
    /// Only to the node that gave it its place.
    Founder,
}

/// The time `time` from now, or one too late for anybody to wait for it.
pub(crate) fn after(time: Duration) -> Instant {
    const LATE: Duration = Duration::from_secs(1 << 32);
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now + LATE)
}

fn shared(options: &Options) -> Result<Arc<Shared>, StartError> {
    let token = options.token.clone().unwrap_or_else(Token::none);
    let longest = u32::try_from(options.largest_block).unwrap_or(u32::MAX);
    let sessions = Sessions::new(&options.tls)?;
    let speaks = (options.role, options.framing);
    if sessions.is_some() && options.token.is_none() {
        return Err(TlsError::NoToken.into());
    }
    let advertised = options.advertise.as_deref().map(resolve).transpose()?;
    Ok(Arc::new(Shared::new(token, sessions, longest, speaks, advertised)?))
}

/// An address that others can call.
fn resolve(address: &str) -> Result<SocketAddr, StartError> {
    let wrong = |error| StartError::Address { address: address.to_owned(), error };
    let mut found = address.to_socket_addrs().map_err(wrong)?;
    let can_be_called = |found: &SocketAddr| found.port() > 0 && !found.ip().is_unspecified();
    let says = "other hosts cannot reach it; advertise a host and a port that they can";
    found.find(can_be_called).ok_or_else(|| wrong(io::Error::new(ErrorKind::AddrNotAvailable, says)))
}

fn bind(address: &str) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).map_err(|error| StartError::Address { address: address.to_owned(), error })
}

/// Refuses an address that other hosts can reach if there is no token, or if connections are neither encrypted nor allowed to be plain.
fn protect(listener: &TcpListener, options: &Options) -> Result<SocketAddr, StartError> {
    let address = listener.local_addr()?;
    let ip: IpAddr = address.ip().to_canonical();
    let has_token = options.token.is_some();
    if ip.is_loopback() || (has_token && (options.plain || options.tls != Tls::Off)) {
        Ok(address)
    } else {
        Err(StartError::Unprotected { address, has_token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("founded");
        let full = |file: &mut File| {
            file.write_all(b"half")?;
            Err(ErrorKind::StorageFull.into())
        };
        assert_eq!(create_whole(&path, full).unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(!path.exists());
        note_founding(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), FOUNDED);
        let again = create_whole(&path, |_| panic!("it is there")).unwrap_err();
        assert!(again.kind() == ErrorKind::AlreadyExists && path.exists());
    }
}
