//! A watchdog that names the peer, for runs that hang where none of our loops checks the clock: inside MPI.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What runs, and until when.
type Current = Option<(String, Instant)>;

/// Ends the process when a run takes far longer than it should; `mpirun` then ends the others.
pub struct Watch {
    current: Arc<Mutex<Current>>,
    limit: Duration,
}

impl Watch {
    /// Starts the watching thread. It makes no MPI calls.
    ///
    /// # Errors
    ///
    /// When there can be no such thread.
    pub fn start(limit: Duration) -> std::io::Result<Self> {
        let current = Arc::new(Mutex::new(None));
        let seen = Arc::downgrade(&current);
        thread::Builder::new().name("watch".to_owned()).spawn(move || {
            while let Some(current) = seen.upgrade() {
                let now = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
                drop(current);
                if let Some(what) = overdue(&now, Instant::now()) {
                    eprintln!("{what}: does not come to an end within {limit:.0?}");
                    std::process::abort();
                }
                thread::sleep(Duration::from_millis(500));
            }
        })?;
        Ok(Self { current, limit })
    }

    /// A run begins.
    pub fn begin(&self, what: &str) {
        self.set(Some((what.to_owned(), Instant::now() + self.limit)));
    }

    /// It has ended.
    pub fn end(&self) {
        self.set(None);
    }

    fn set(&self, current: Current) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = current;
    }
}

fn overdue(current: &Current, now: Instant) -> Option<&str> {
    current.as_ref().filter(|(_, until)| now > *until).map(|(what, _)| what.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overdue_is_named() {
        let now = Instant::now();
        let current = Some(("window, 64 bytes".to_owned(), now));
        assert_eq!(overdue(&current, now), None);
        assert_eq!(overdue(&current, now + Duration::from_secs(1)), Some("window, 64 bytes"));
        assert_eq!(overdue(&None, now), None);
    }
}
