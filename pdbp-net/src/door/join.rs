//! Becoming a node of a cluster that another process founds.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::greeting::{ANSWER, Answer, Claim, Dialler, HELLO, Id, Purpose, VERSION};
use super::roster::{ROSTER, Roster};
use super::{PATIENCE, Shared};
use crate::error::{Refusal, StartError};
use crate::token;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a try to connect may take.
const CONNECT: Duration = Duration::from_secs(1);

/// Why a try has come to nothing.
enum Try {
    /// Nobody is there, or not yet.
    Again(io::Error),
    /// It is no use to try again.
    Never(StartError),
}

impl From<io::Error> for Try {
    fn from(error: io::Error) -> Self {
        Self::Again(error)
    }
}

/// Joins the cluster that is founded at `address`, and waits until all its nodes are there. `listen` makes the socket at which others
/// can reach this process, when it is known from where it has reached the founder.
///
/// # Errors
/// See [`StartError`].
pub(crate) fn join(
    address: &str,
    shared: &Shared,
    deadline: Instant,
    mut listen: impl FnMut(SocketAddr) -> Result<TcpListener, StartError>,
) -> Result<(TcpListener, Roster), StartError> {
    let began = Instant::now();
    loop {
        let error = match attempt(address, shared, deadline, &mut listen) {
            Ok(joined) => return Ok(joined),
            Err(Try::Never(error)) => return Err(error),
            Err(Try::Again(error)) => error,
        };
        if Instant::now() + PAUSE >= deadline {
            let (address, waited) = (address.to_owned(), began.elapsed());
            return Err(StartError::NoFounder { address, waited, error });
        }
        std::thread::sleep(PAUSE);
    }
}

fn attempt(
    address: &str,
    shared: &Shared,
    deadline: Instant,
    listen: &mut impl FnMut(SocketAddr) -> Result<TcpListener, StartError>,
) -> Result<(TcpListener, Roster), Try> {
    let mut stream = connect(address)?;
    let (own, founder) = (stream.local_addr()?, stream.peer_addr()?);
    let listener = listen(own).map_err(Try::Never)?;
    let claim = Claim {
        purpose: Purpose::Join,
        version: VERSION,
        from: 0,
        to: 0,
        port: listener.local_addr()?.port(),
        longest: shared.longest,
        cluster: Id([0; 16]),
        process: shared.process,
    };
    let answer = greet(&mut stream, address, shared, claim)?;
    if !answer.is_welcome() {
        let longest = usize::try_from(shared.longest).unwrap_or(usize::MAX);
        let refusal = answer.refusal(longest).unwrap_or(Refusal::Other(answer.verdict));
        return Err(Try::Never(StartError::Refused { address: address.to_owned(), refusal }));
    }
    let roster = read_roster(&mut stream, founder, deadline)?;
    Ok((listener, roster))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn greet(stream: &mut TcpStream, address: &str, shared: &Shared, claim: Claim) -> Result<Answer, Try> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let wrong = || Try::Never(StartError::WrongToken { address: address.to_owned() });
    let (mut dialler, hello) = Dialler::begin(token::random()?, claim);
    stream.write_all(&hello)?;
    let mut theirs = [0; HELLO];
    stream.read_exact(&mut theirs)?;
    let claim = dialler.hello(&theirs, &shared.token).map_err(|_| wrong())?;
    stream.write_all(&claim)?;
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer).map_err(|error| match error.kind() {
        // Who does not know the token is not told so.
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => wrong(),
        _ => Try::Again(error),
    })?;
    dialler.answer(&answer, &shared.token).map_err(|_| wrong())
}

/// Waits for the others, and reads who they are.
fn read_roster(stream: &mut TcpStream, founder: SocketAddr, deadline: Instant) -> Result<Roster, Try> {
    let left = || Some(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    stream.set_read_timeout(left())?;
    let mut head = [0; ROSTER];
    stream.read_exact(&mut head)?;
    let mut rest = vec![0; Roster::rest(&head)];
    stream.set_read_timeout(left())?;
    stream.read_exact(&mut rest)?;
    let roster = Roster::from_bytes(&head, &rest, founder);
    roster
        .ok_or_else(|| Try::Again(io::Error::new(ErrorKind::InvalidData, "the list of nodes makes no sense")))
}
