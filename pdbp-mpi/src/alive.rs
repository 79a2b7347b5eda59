//! Whether another process of this host lives.

#[cfg(target_os = "linux")]
pub(crate) use linux::Alive;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::Alive;

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::OwnedFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// Watches a process by a descriptor that becomes readable at its end, so that a number that is used again does no harm.
    pub(crate) struct Alive(Option<OwnedFd>);

    impl Alive {
        /// A process that cannot be seen from here (another PID namespace) counts as alive for ever.
        pub(crate) fn of(process: u32) -> Self {
            let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
            Self(pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()))
        }

        pub(crate) fn has_died(&self) -> bool {
            let Some(descriptor) = &self.0 else { return false };
            let mut events = [PollFd::new(descriptor, PollFlags::IN)];
            poll(&mut events, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    /// There is no way to tell here: counts as alive until it says that it leaves.
    pub(crate) struct Alive;

    impl Alive {
        pub(crate) fn of(_process: u32) -> Self {
            Self
        }

        pub(crate) fn has_died(&self) -> bool {
            false
        }
    }
}
