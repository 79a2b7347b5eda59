//! A program's functions, and the cluster that runs them.

use std::fmt::Display;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use pdbp::config::{Entry, Origin};
use pdbp::{Builder, Event, Launch, Node, Progress, Settings, TransportKind, Watch};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::job::Tasks;
use crate::kind::{Kind, Kinds};
use crate::large;
use crate::pool::{Limits, Pool};
use crate::resources::Resources;
use crate::scope::{Given, Scope};
use crate::serve::{self, Served};
use crate::slot;

/// How often processors in reserve check whether they are wanted.
const LOOK: Duration = Duration::from_millis(20);
/// How long the processes of a job wait for each other at the end.
const FAREWELL: Duration = Duration::from_secs(10);

/// A program of tasks: its functions, by name, and how to run it. Every process of a cluster must create the same program.
///
/// ```
/// use pdbp_tasks::{Error, Program};
///
/// let mut program = Program::new("squares");
/// let square = program.kind("square", |n: u64| n * n);
/// program.run(|tasks| {
///     let mut job = tasks.job("demo");
///     job.each(square, 0..1000);
///     let mut sum = 0;
///     for done in job.results() {
///         sum += done?.value;
///     }
///     assert_eq!(sum, 332_833_500);
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
pub struct Program {
    pub(crate) kinds: Kinds,
    pub(crate) slots: Option<usize>,
    pub(crate) limits: Limits,
    pub(crate) offer: Resources,
    large: Option<PathBuf>,
    join_when: Box<dyn Fn() -> bool + Send + Sync>,
    progress: Progress,
}

impl Program {
    /// Creates a program without functions. Processes of programs with different names do not work for each other.
    pub fn new(name: &str) -> Self {
        Self {
            kinds: Kinds::new(name),
            slots: None,
            limits: Limits::default(),
            offer: Resources::none(),
            large: None,
            join_when: Box::new(|| true),
            progress: Progress::Thread,
        }
    }

    /// Registers a function. Tasks of this kind call it, in any process; it must not depend on anything but its input. Whatever it returns is
    /// the result of the task, even an `Err`, which is not tried again: for functions that may fail, use [`fallible`](Self::fallible).
    pub fn kind<I, O>(&mut self, name: &str, function: impl Fn(I) -> O + Send + Sync + 'static) -> Kind<I, O>
    where
        I: Serialize + DeserializeOwned,
        O: Serialize + DeserializeOwned,
    {
        let kind = self.kinds.declare(name);
        self.kinds.define_plain(kind, function);
        kind
    }

    /// As [`kind`](Self::kind), for a function that may fail. An `Err` ends the attempt, as a panic does: if the task has
    /// [retries](crate::New::retries) left, it runs again; otherwise it has failed, and the client gets the text of the error.
    ///
    /// ```
    /// use pdbp_tasks::{Error, Program};
    ///
    /// let mut program = Program::new("numbers");
    /// let number = program.fallible("number", |text: String| text.parse::<u64>());
    /// program.run(|tasks| {
    ///     let mut job = tasks.job("demo");
    ///     job.task().retries(2).each(number, ["1".to_owned(), "two".to_owned()]);
    ///     for done in job.results() {
    ///         match done {
    ///             Ok(done) => assert_eq!(done.value, 1),
    ///             Err(Error::Task { number, error }) => {
    ///                 assert_eq!(number, 1);
    ///                 assert!(error.to_string().contains("invalid digit found in string"));
    ///             }
    ///             Err(error) => return Err(error), // of the pool
    ///         }
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn fallible<I, O, E>(
        &mut self,
        name: &str,
        function: impl Fn(I) -> Result<O, E> + Send + Sync + 'static,
    ) -> Kind<I, O>
    where
        I: Serialize + DeserializeOwned,
        O: Serialize + DeserializeOwned,
        E: Display,
    {
        let kind = self.declare(name);
        self.define(kind, move |scope, input| match function(input) {
            Ok(value) => scope.done(value),
            Err(error) => scope.fail(error.to_string()),
        });
        kind
    }

    /// Registers the name and types of a function that is [defined](Self::define) later, so that it can add tasks of its own kind.
    pub fn declare<I, O>(&mut self, name: &str) -> Kind<I, O>
    where
        I: Serialize + DeserializeOwned,
        O: Serialize + DeserializeOwned,
    {
        self.kinds.declare(name)
    }

    /// Defines the function of a declared kind. It receives a [`Scope`]: it may add tasks, fail, and ask whether it is still wanted.
    pub fn define<I: DeserializeOwned, O>(
        &mut self,
        kind: Kind<I, O>,
        function: impl Fn(&mut Scope<'_>, I) -> Given<O> + Send + Sync + 'static,
    ) {
        self.kinds.define(kind, function);
    }

    /// Sets how many tasks run at a time in this process: by default one per processor, and one in a process of an MPI job.
    pub fn slots(&mut self, slots: usize) -> &mut Self {
        self.slots = Some(slots.max(1));
        self
    }

    /// Sets what each node of this process offers to tasks in addition to processors (by default nothing). It offers as many processors as there
    /// are [`slots`](Self::slots), unless the offer names a number.
    pub fn offer(&mut self, offer: Resources) -> &mut Self {
        self.offer = offer;
        self
    }

    /// Makes the processors of this process register and ask for tasks only once `when`, which is polled now and then, returns true. By default
    /// they do so at once. (The processes of a cluster are present from its start; this is how to keep some of them in reserve.)
    pub fn join_when(&mut self, when: impl Fn() -> bool + Send + Sync + 'static) -> &mut Self {
        self.join_when = Box::new(when);
        self
    }

    /// Keeps values of any length in an unnamed file in this folder, on the node with the pool: tasks and client read and write them in pieces,
    /// however little memory they have. (A folder such as `/tmp` may be memory.) The file disappears with the process. A pool served with a journal
    /// needs no such folder: its values lie beside the journal.
    ///
    /// ```
    /// use pdbp_tasks::{Error, Large, Program};
    /// use std::io::{Read, Write};
    ///
    /// let mut program = Program::new("large");
    /// program.large_in(std::env::temp_dir());
    /// let upper = program.declare::<Large, Large>("upper");
    /// program.define(upper, |scope, text| {
    ///     let copied = scope.read_large(&text).and_then(|mut from| {
    ///         let (mut to, mut bytes) = (scope.write_large()?, [0; 4096]);
    ///         loop {
    ///             match from.read(&mut bytes)? {
    ///                 0 => return to.finish(),
    ///                 count => to.write_all(&bytes[..count].to_ascii_uppercase())?,
    ///             }
    ///         }
    ///     });
    ///     match copied {
    ///         Ok(text) => scope.done(text),
    ///         Err(error) => scope.fail(error.to_string()),
    ///     }
    /// });
    /// program.run(|tasks| {
    ///     let mut job = tasks.job::<()>("text");
    ///     let mut text = job.write_large()?;
    ///     text.write_all(b"any length")?;
    ///     let done = job.add(upper, text.finish()?)?;
    ///     let mut read = String::new();
    ///     tasks.read_large(&job.wait(&done)?)?.read_to_string(&mut read)?;
    ///     assert_eq!(read, "ANY LENGTH");
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn large_in(&mut self, folder: impl Into<PathBuf>) -> &mut Self {
        self.large = Some(folder.into());
        self
    }

    /// Sets who makes progress where all nodes are threads of this process, unless the setting `progress` does: by default one thread per node.
    /// With [`Progress::Inline`] the waiting threads do, which saves thread switches where tasks wait more than they compute.
    pub fn progress(&mut self, progress: Progress) -> &mut Self {
        self.progress = progress;
        self
    }

    /// Sets the pool's limits.
    pub fn limits(&mut self, limits: Limits) -> &mut Self {
        self.limits = limits;
        self
    }

    /// Starts the cluster described by environment and file, and calls `client` in one process of it; all others compute until it returns. That
    /// process is the first one of an MPI job, or the one with `PDBP_LISTEN` and without `PDBP_JOIN` (with the feature `net`). A process that
    /// neither a launcher nor these settings make one of several is a cluster of threads.
    ///
    /// # Errors
    /// The error of `client`, or why cluster or pool could not be started; in computing processes only the latter.
    pub fn run(self, client: impl FnOnce(&Tasks<'_>) -> Result<(), Error>) -> Result<(), Error> {
        self.kinds.check()?;
        let builder = Builder::from_env()?;
        let in_job = Launch::spanned(builder.settings().transport).is_some();
        let spans = in_job || is_over_sockets(builder.settings());
        let local = thread::available_parallelism().map_or(1, usize::from);
        let slots = self.slots.unwrap_or(if in_job { 1 } else { local });
        // All slots of a node share one row of blocks: with fewer blocks they would wait for each other.
        let row_blocks = builder.settings().row_blocks.max(2 * slots as u32);
        let builder = builder.row_blocks(row_blocks);
        let is_said = |entry: &Entry<'_>| entry.key == "progress" && *entry.origin != Origin::Default;
        let is_said = builder.settings().entries().any(|entry| is_said(&entry));
        let builder = match (spans, is_said) {
            (true, _) => builder,
            (false, true) => builder.nodes(2).transport(TransportKind::Local),
            (false, false) => builder.nodes(2).transport(TransportKind::Local).progress(self.progress),
        };
        self.run_on(builder.start()?.nodes(), slots, client)
    }

    /// As [`run`](Self::run), on existing nodes, those of this process: node 0 holds pool and client, if it is among them; each other node computes
    /// `slots` tasks at a time.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_on(
        self,
        nodes: &[Node],
        slots: usize,
        client: impl FnOnce(&Tasks<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.kinds.check()?;
        let kinds = Arc::new(self.kinds);
        let (first, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.id().index() == 0);
        let first = first.first().copied();
        let all = nodes.first().map_or(0, |node| usize::from(node.settings().nodes));
        let spans = nodes.len() < all;
        // Separate watches, since the program may take the nodes' events itself.
        let watches: Vec<_> = nodes.iter().map(Node::watch).collect();
        let pool = Pool::new(kinds.len(), kinds.fingerprint(), self.limits);
        let served = Arc::new(Served::new(pool, self.large.map(large::Store::new)));
        #[cfg(feature = "metrics")]
        let _showing = match first {
            Some(_) => {
                let seen = Arc::clone(&served);
                crate::figures::show(nodes, move || seen.seen())?
            }
            None => None,
        };
        let served = &*served;
        let keeps_large = served.large.is_some();
        let offer = &self.offer.or_cpus(slots);
        let grace = self.limits.grace;
        let join_when = &self.join_when;
        thread::scope(|scope| {
            let server = first.map(|node| scope.spawn(move || host(node, served)));
            let keeper = first.zip(served.large.as_ref());
            let keeper = keeper.map(|(node, store)| {
                scope.spawn(move || {
                    let _guard = served.guard("the thread of large values");
                    large::keep(node, served, store).inspect_err(|e| served.fail(e.to_string()))
                })
            });
            let names = (0..slots).map(|i| format!("tasks.slot{i}"));
            let slots = others.iter().flat_map(|node| names.clone().map(|name| (*node, name)));
            let slots: Vec<_> = slots
                .flat_map(|(node, name)| {
                    let kinds = &kinds;
                    let run = move |name: &str, watch: &slot::Watch| {
                        compute(node, name, (kinds, offer, keeps_large), watch, served)
                    };
                    let watch = Arc::new(slot::Watch::new(grace));
                    let (watched, instead) = (Arc::clone(&watch), format!("{name}.instead"));
                    let first = scope.spawn(move || {
                        let _over = watched.thread();
                        while !join_when() {
                            thread::sleep(LOOK);
                        }
                        run(&name, &watched)
                    });
                    // A replacement is not replaced again.
                    let instead = move || match watch.hangs() {
                        true => run(&instead, &slot::Watch::new(grace)),
                        false => Ok(()),
                    };
                    [first, scope.spawn(instead)]
                })
                .collect();
            let result = first.map(|node| attend(node, served, client));
            let slots: Vec<_> = slots.into_iter().map(|slot| slot.join()).collect();
            // After the loss of a node the barrier could not complete.
            if spans && !served.has_lost.load(Ordering::Acquire) && !watches.iter().any(has_lost_one) {
                farewell(nodes);
            }
            served.over.store(true, Ordering::Release);
            first.into_iter().for_each(serve::wake);
            let server = server.map(|server| server.join());
            let keeper = keeper.map(|keeper| keeper.join());
            let result = result.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
            let ends = slots
                .into_iter()
                .chain(server)
                .chain(keeper)
                .map(|end| end.unwrap_or_else(|panic| resume_unwind(panic)));
            ends.fold(result.unwrap_or(Ok(())), Result::and)
        })
    }
}

/// Whether the settings name other processes, outside of an MPI job.
fn is_over_sockets(settings: &Settings) -> bool {
    match settings.transport {
        TransportKind::Net => true,
        TransportKind::Auto => settings.join.is_some() || settings.listen.is_some(),
        _ => false,
    }
}

/// The pool's thread.
fn host(node: &Node, served: &Served) -> Result<(), Error> {
    let _guard = served.guard("the pool's thread");
    serve::serve(node, served).inspect_err(|e| served.fail(e.to_string()))
}

/// The thread of a processor.
fn compute(
    node: &Node,
    name: &str,
    (kinds, offer, keeps_large): (&Kinds, &Resources, bool),
    watch: &slot::Watch,
    served: &Served,
) -> Result<(), Error> {
    let place = format!("{name}@{}", node.name());
    let _guard = served.guard(&place);
    slot::run(node, kinds, (offer, keeps_large), watch).inspect_err(|e| served.fail(format!("{place}: {e}")))
}

/// Calls the client, and closes the pool even if the client panics, since the other processes wait for that.
fn attend(
    node: &Node,
    served: &Served,
    client: impl FnOnce(&Tasks<'_>) -> Result<(), Error>,
) -> thread::Result<Result<(), Error>> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        Tasks::new(node, served).and_then(|tasks| {
            let result = client(&tasks);
            served.pool().close();
            tasks.wake();
            result
        })
    }));
    served.pool().close();
    result
}

/// Whether a node that computes has seen another fail.
fn has_lost_one(watch: &Watch) -> bool {
    // More events than are kept: some may have been failures.
    watch.lost() > 0
        || iter::from_fn(|| watch.next_event()).any(|event| matches!(event, Event::PeerFailed { .. }))
}

/// Waits until all nodes are ready to leave.
fn farewell(nodes: &[Node]) {
    // A failed node must not hold up the others for ever.
    nodes.iter().for_each(|node| drop(node.barrier(FAREWELL)));
}
