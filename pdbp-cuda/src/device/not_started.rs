//! Errors that hand back the memory given.

use std::fmt;

use super::DeviceError;

/// Memory that was given to an operation which could not begin, and the reason. Works with `?`, which drops the memory.
pub struct NotStarted<M, E = DeviceError> {
    /// The memory given.
    pub memory: M,
    /// The error.
    pub error: E,
}

impl<M, E> NotStarted<M, E> {
    /// The same memory, with another error.
    pub fn map_err<F>(self, to: impl FnOnce(E) -> F) -> NotStarted<M, F> {
        NotStarted { memory: self.memory, error: to(self.error) }
    }
}

impl<M, E: fmt::Debug> fmt::Debug for NotStarted<M, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotStarted").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M, E: fmt::Display> fmt::Display for NotStarted<M, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M, E: std::error::Error> std::error::Error for NotStarted<M, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
