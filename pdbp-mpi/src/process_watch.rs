//! Watches whether another process of this host is alive.
//!
//! A process is watched through a descriptor of the operating system, which becomes readable when the process ends. The descriptor is
//! opened by the process ID, which may name another process: in another PID namespace (containers that share memory), or once the process
//! has ended. So a process publishes its namespace and start time with its ID, and is watched only if the descriptor's process has the same.
//!
//! A process that is not watched counts as alive until it leaves. If it dies, its links hang: waiting calls end with their timeout, and
//! leases, if set, declare the node down. Launchers end a job when one of its processes dies, unless told not to.

/// Identifies a process more reliably than its ID. Zeros mean unknown, and are never watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its ID in its PID namespace.
    pub(crate) number: u32,
    /// The namespace: the inode of `/proc/self/ns/pid`.
    pub(crate) namespace: u64,
    /// Its start time, in ticks since the host booted: field 22 of `/proc/PID/stat`.
    pub(crate) started: u64,
}

#[cfg(target_os = "linux")]
pub(crate) use linux::ProcessWatch;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::ProcessWatch;

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::Identity;

    impl Identity {
        /// Of this process.
        pub(crate) fn own() -> Self {
            let number = std::process::id();
            let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
            // Not by the ID, which belongs to another process if /proc shows another namespace.
            Self { number, namespace, started: started("self").unwrap_or(0) }
        }
    }

    /// The start time of the process with this folder in `/proc`.
    fn started(folder: &str) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{folder}/stat")).ok()?;
        // The second field is the program's name in parentheses, and may itself contain spaces and parentheses.
        let (_, from_third) = text.rsplit_once(')')?;
        from_third.split_whitespace().nth(22 - 3)?.parse().ok()
    }

    /// Watches a process.
    pub(crate) struct ProcessWatch(Option<OwnedFd>);

    impl ProcessWatch {
        /// Watches the process, if it can be identified.
        pub(crate) fn of(process: Identity) -> Self {
            let known = process.started != 0 && process.namespace != 0;
            Self((known && process.namespace == Identity::own().namespace).then(|| watch(process)).flatten())
        }

        #[cfg(test)]
        pub(crate) fn is_watched(&self) -> bool {
            self.0.is_some()
        }

        pub(crate) fn has_died(&self) -> bool {
            let Some(descriptor) = &self.0 else { return false };
            let mut events = [PollFd::new(descriptor, PollFlags::IN)];
            poll(&mut events, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        }
    }

    fn watch(process: Identity) -> Option<OwnedFd> {
        let number = i32::try_from(process.number).ok().and_then(Pid::from_raw)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty()).ok()?;
        // In this order: the descriptor refers to the process that has the ID now, or to one that had it before and has died.
        (started(&process.number.to_string()) == Some(process.started)).then_some(descriptor)
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use super::Identity;

    impl Identity {
        /// Of this process, which cannot be watched.
        pub(crate) fn own() -> Self {
            Self { number: std::process::id(), ..Self::default() }
        }
    }

    /// This system offers no way to tell.
    pub(crate) struct ProcessWatch;

    impl ProcessWatch {
        pub(crate) fn of(_process: Identity) -> Self {
            Self
        }

        pub(crate) fn has_died(&self) -> bool {
            false
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_is_watched_to_its_end() {
        let own = ProcessWatch::of(Identity::own());
        assert!(own.is_watched() && !own.has_died());
        // `cat` waits for the end of its input.
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let started = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
        let identity = Identity { number: child.id(), started, ..Identity::own() };
        let watched = ProcessWatch::of(identity);
        assert!(watched.is_watched() && !watched.has_died());
        drop(child.stdin.take());
        let since = Instant::now();
        while !watched.has_died() {
            assert!(since.elapsed() < Duration::from_secs(100), "nobody has noticed");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!ProcessWatch::of(identity).is_watched(), "nobody has the number");
    }

    /// A process that has the ID of a process in another container, or of one that has died, is a different process.
    #[test]
    fn a_stranger_with_the_number_of_a_peer_is_not_watched() {
        let own = Identity::own();
        assert!(own.namespace != 0 && own.started != 0, "{own:?}");
        let strangers = [
            Identity { namespace: own.namespace + 1, ..own },
            Identity { started: own.started + 1, ..own },
            Identity { namespace: 0, ..own },
            Identity { started: 0, ..own },
            Identity { number: 0, ..own },
            Identity { number: u32::MAX, ..own },
        ];
        for stranger in strangers {
            let watch = ProcessWatch::of(stranger);
            assert!(!watch.is_watched() && !watch.has_died(), "{stranger:?}");
        }
    }
}
