//! Panics of tasks: each is reported to the pool, and only the first at each place is printed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

thread_local! {
    /// Whether this thread runs a task.
    static RUNS_TASK: Cell<bool> = const { Cell::new(false) };
    /// Where the task of this thread panicked last.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Calls a task's function.
///
/// # Errors
/// The message and the place, if it panics. The first panic at each place is also passed to the panic hook that the program had when
/// it ran its first task. By default that hook prints the panic: a million tasks with the same error would print it a million times.
pub(crate) fn catch<R>(task: impl FnOnce() -> R) -> Result<R, String> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if is_worth_saying(info) {
                before(info);
            }
        }));
    });
    let outer = RUNS_TASK.replace(true);
    PLACE.take();
    // State that a function leaves inconsistent is its own: the next call fares as well as one in another process.
    let ended = catch_unwind(AssertUnwindSafe(task));
    RUNS_TASK.set(outer);
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("without a message");
        // A panic of another thread that the task passes on has no place here.
        PLACE.take().map_or_else(|| text.to_owned(), |place| format!("{text}, at {place}"))
    })
}

/// Notes the place of a task's panic. Returns whether none was at this place before, or the panic is not a task's.
fn is_worth_saying(info: &PanicHookInfo<'_>) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if !RUNS_TASK.get() {
        return true;
    }
    let place = info.location().map_or_else(String::new, ToString::to_string);
    let is_new = SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(place.clone());
    // A hook must not panic, not even in a thread that ends.
    let _ = PLACE.try_with(|slot| slot.replace(Some(place)));
    is_new
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[ignore = "for a process of its own, which the test below starts"]
    fn panics_a_thousand_times() {
        for number in 0..1000 {
            let failed = catch(|| assert!(number >= 1000, "no good: {number}")).unwrap_err();
            assert!(failed.starts_with(&format!("no good: {number}, at ")), "{failed}");
            assert!(failed.contains("panics.rs:"), "{failed}");
        }
    }

    #[test]
    fn a_thousand_panics_at_one_place_are_printed_once_and_all_are_reported() {
        let name = "panics::tests::panics_a_thousand_times";
        let ran = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--ignored", "--nocapture"])
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        let (said, result) = (String::from_utf8_lossy(&ran.stderr), String::from_utf8_lossy(&ran.stdout));
        assert!(ran.status.success() && result.contains("1 passed"), "{result}\n{said}");
        assert_eq!((said.matches("no good: ").count(), said.matches("no good: 0").count()), (1, 1), "{said}");
    }
}
