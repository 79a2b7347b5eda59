//! Open file descriptors: each live source takes some, and systems limit a process to 1,024 unless it asks for more.

use std::io;

use super::{Address, Carrier};

/// Descriptors for the rest of the program: files of reports, the live page and its readers, processes of decoders, devices.
const OTHERS: u64 = 256;

/// How many descriptors are needed, and how many are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// For all sources and the rest of the program.
    pub needed: u64,
    /// The limit of this process, after raising it as far as allowed.
    pub most: u64,
}

impl Descriptors {
    /// The warning if there are not enough.
    pub fn lack(&self) -> Option<String> {
        let Self { needed, most } = self;
        (needed > most).then(|| {
            format!(
                "the sources need {needed} open files and this process may have {most}: some will not be received; \
                 allow more (ulimit -Hn {needed} as root, LimitNOFILE={needed} of a systemd unit), or watch fewer sources in a process"
            )
        })
    }
}

/// Raises this process's limit to what `sources` need, as far as allowed. `None` where the system does not report it.
pub fn descriptors<'a>(sources: impl IntoIterator<Item = &'a Address>) -> Option<Descriptors> {
    let of_one = |address: &Address| match address {
        // Two for packets and reports, in addition to the connection.
        Address::Rtsp { carrier: Carrier::Udp, .. } => 3,
        Address::Rtsp { carrier: Carrier::Tcp, .. } | Address::Rtp { .. } => 1,
    };
    let needed = sources.into_iter().map(of_one).sum::<u64>() + OTHERS;
    Some(Descriptors { needed, most: raise(needed)? })
}

#[cfg(unix)]
fn raise(needed: u64) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None means no limit.
    let Some(usual) = current.filter(|usual| *usual < needed) else {
        return Some(current.unwrap_or(u64::MAX));
    };
    let wanted = maximum.map_or(needed, |most| most.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    Some(if raised.is_ok() { wanted } else { usual })
}

#[cfg(not(unix))]
fn raise(_needed: u64) -> Option<u64> {
    None
}

/// Advice for an error that reports a lack of descriptors.
pub(super) fn advice(error: &io::Error) -> Option<String> {
    advice_of(&error.to_string())
}

/// The same for the text of an error, also of a library's.
pub(super) fn advice_of(error: &str) -> Option<String> {
    let is_lack = error.contains("Too many open files");
    is_lack.then(|| {
        "let this process have more open files (ulimit -n), or watch fewer sources in a process".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be_and_what_is_missing_is_named() {
        let address = |text: &str| Address::parse(text).unwrap().unwrap();
        let all = [address("rtp://127.0.0.1:5004"), address("rtsp://cam/"), address("rtspu://cam/")];
        let Some(few) = descriptors(&all) else { return };
        assert_eq!(few.needed, OTHERS + 5);
        let several = all.iter().cycle().take(600);
        let Some(Descriptors { needed, most }) = descriptors(several) else { return };
        assert_eq!(needed, OTHERS + 1_000);
        #[cfg(unix)]
        {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            assert_eq!(limit.current.unwrap_or(u64::MAX), most);
            assert!(most >= needed || Some(most) == limit.maximum, "{limit:?}");
        }
        let lack = Descriptors { needed: 10_336, most: 4_096 }.lack().unwrap();
        assert!(
            lack.contains("10336 open files") && lack.contains("4096") && lack.contains("LimitNOFILE"),
            "{lack}"
        );
        assert_eq!(Descriptors { needed: 10, most: 10 }.lack(), None);
    }

    #[test]
    fn a_lack_of_descriptors_is_said_to_be_one() {
        let error = io::Error::from_raw_os_error(24);
        assert!(cfg!(not(unix)) || advice(&error).unwrap().contains("ulimit"), "{error}");
        assert_eq!(advice(&io::Error::from(io::ErrorKind::AddrInUse)), None);
    }
}
