//! A processor on a part: one thread that asks, runs and submits.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use pdbp::{Node, Part, PartKind, RecvError, SendError, Target};

use crate::error::Error;
use crate::kind::Kinds;
use crate::large::Link;
use crate::resources::Resources;
use crate::scope::Scope;
use crate::serve;
use crate::wire::{self, Assignment, Ending, Failure, SubTask, Up, pieces};
use crate::worker::{Over, Step, Worker};

/// How long a processor looks for the pool.
const MEETING: Duration = Duration::from_secs(60);
/// Least time between two looks for messages while there are tasks to run.
const LOOK: Duration = Duration::from_micros(200);

pub(crate) struct Slot {
    pub(crate) worker: Worker,
    pub(crate) joined: pieces::Joined,
}

/// Whether what runs is not wanted, for reasons of its process.
pub(crate) type Stops<'a> = &'a dyn Fn() -> bool;

/// Runs tasks of the pool until it says that the job is done.
pub(crate) fn run(
    node: &Node,
    name: &str,
    kinds: &Kinds,
    offer: &Resources,
    keeps_large: bool,
) -> Result<(), Error> {
    let part = node.register(name, PartKind::Cpu)?;
    let pool = part.find(serve::ADDRESS, MEETING)?;
    let only = |after: u64| (after == 0).then(|| (1, node.clone()));
    let large = keeps_large.then(|| Link::new(&only, name));
    let began = Instant::now();
    let slot = RefCell::new(Slot {
        worker: Worker::new(kinds.fingerprint(), offer.clone()),
        joined: pieces::Joined::default(),
    });
    let mut now = began.elapsed();
    let mut looked = now;
    loop {
        if now >= looked + LOOK {
            take_in(&part, &slot);
            looked = now;
        }
        let step = slot.borrow_mut().worker.step(now);
        match step {
            Step::Run(assignment) => {
                let (ending, tasks) =
                    call((Some(&part), large.as_ref()), &slot, kinds, &assignment, &|| false);
                now = began.elapsed();
                slot.borrow_mut().worker.ended(now, ending, tasks);
                continue;
            }
            Step::Send(up) => send(&part, pool, &up)?,
            Step::Wait(time) => match part.recv_timeout(time) {
                Ok(message) => {
                    receive(&slot, &message);
                    take_in(&part, &slot);
                }
                Err(RecvError::Timeout(_)) => {}
                Err(error) => return Err(error.into()),
            },
            Step::Over(Over::Done) => return Ok(()),
            Step::Over(Over::Refused(pool)) => {
                return Err(Error::OtherFunctions { own: kinds.fingerprint(), pool });
            }
        }
        now = began.elapsed();
    }
}

/// Takes in what has come.
pub(crate) fn take_in(part: &Part, slot: &RefCell<Slot>) {
    while let Some(message) = part.try_recv() {
        receive(slot, &message);
    }
}

pub(crate) fn receive(slot: &RefCell<Slot>, piece: &[u8]) {
    let Slot { worker, joined } = &mut *slot.borrow_mut();
    // What is no message of a pool changes nothing.
    if let Some(Some(Ok(message))) = joined.add(piece, |whole| wire::decode(whole)) {
        worker.receive(message);
    }
}

/// Waits for room as long as it takes: the pool always reads.
pub(crate) fn send(part: &Part, pool: Target, message: &Up) -> Result<(), Error> {
    let bytes = postcard::to_stdvec(message)?;
    for piece in pieces::cut(&bytes, part.longest()) {
        loop {
            match part.send(pool, &piece) {
                Ok(()) => break,
                Err(SendError::Timeout(_) | SendError::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    part.flush();
    Ok(())
}

/// Runs a task. Without a part there is no pool now that could say anything, and without a link it keeps no large values.
pub(crate) fn call(
    (part, large): (Option<&Part>, Option<&Link<'_>>),
    slot: &RefCell<Slot>,
    kinds: &Kinds,
    task: &Assignment,
    stops: Stops<'_>,
) -> (Ending, Vec<SubTask>) {
    let deadline = (task.limit_ms > 0).then(|| Instant::now() + Duration::from_millis(task.limit_ms.into()));
    let is_unwanted = || {
        if let Some(part) = part {
            take_in(part, slot);
        }
        stops()
            || slot.borrow().worker.is_dropped()
            || deadline.is_some_and(|deadline| Instant::now() >= deadline)
    };
    let mut scope = Scope::new(task, &is_unwanted, large.map(|large| large.of(task)));
    // What a function leaves half done of its own is its own: the next call is as good as in another process.
    let ending = catch_unwind(AssertUnwindSafe(|| kinds.call(task.kind, &mut scope, &task.input)));
    match (ending, scope.wrong) {
        (Err(panic), _) => (Ending::Failed(Failure::Panicked(words_of(&*panic))), Vec::new()),
        (Ok(_), Some(wrong)) => (Ending::Failed(wrong), Vec::new()),
        (Ok(failed @ Ending::Failed(_)), None) => (failed, Vec::new()),
        (Ok(ending), None) => (ending, scope.tasks),
    }
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
