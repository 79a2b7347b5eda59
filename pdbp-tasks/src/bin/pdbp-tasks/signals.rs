//! Signals that end this process, after its commands.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::guard::Commands;

/// The signals that end it, except those that were ignored at its start, as under `nohup` and in shells without job control.
fn ending() -> Vec<c_int> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// Returns a flag that is set when it is time to end. A second signal ends this process at once.
#[cfg(feature = "net")]
pub(crate) fn stop() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// At the first signal, stops the commands, calls `last`, and lets this process die of the signal. A second signal kills it at once.
pub(crate) fn stop_commands(commands: Arc<Commands>, last: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let ending = ending();
    let mut signals = Signals::new(&ending)?;
    let watch = move || {
        let Some(signal) = signals.forever().next() else { return };
        for signal in ending {
            // Without this, a second signal would do nothing.
            let _ = flag::register_conditional_default(signal, Arc::new(AtomicBool::new(true)));
        }
        commands.stop();
        commands.wait_until_none();
        last();
        let _ = emulate_default_handler(signal);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}
