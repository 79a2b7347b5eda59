//! Elastic parallel computation: a pool of tasks that idle processors pull from (S4, "Elastic parallel computation").
//!
//! ```
//! use pdbp_tasks::{Error, Program};
//!
//! let mut program = Program::new("squares");
//! let square = program.kind("square", |n: u64| n * n);
//! program.run(|tasks| {
//!     // In one process of the cluster; all others work until it returns.
//!     let mut job = tasks.job("demo");
//!     job.each(square, 0..10_000);
//!     let mut sum = 0u128;
//!     for done in job.results().progress() {
//!         sum += u128::from(done?.value);
//!     }
//!     assert_eq!(sum, 333_283_335_000);
//!     Ok(())
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! The same program runs on the threads of one process; under an MPI launcher (with the feature `mpi`), where the first process has the
//! pool and the client and each other one computes; and over sockets (with the feature `net`), where the process with `PDBP_LISTEN` is the
//! first and those with `PDBP_JOIN` compute.
//!
//! # A pool that outlives its processes
//! With the feature `net` a pool keeps its jobs in a file, a *journal*, and goes on from there when it was killed; processes that compute come and go, and
//! run on while there is no pool. For people without Rust that is the program `pdbp-tasks`:
//!
//! ```console
//! $ pdbp-tasks serve --journal jobs.redb --token-file token                # one terminal; listens at 127.0.0.1:7210
//! $ pdbp-tasks work 127.0.0.1:7210 --token-file token                      # others, as many as you like; kill any, this and that
//! $ pdbp-tasks submit 127.0.0.1:7210 --token-file token --array 1-100 --wait -- sh -c 'sleep 0.1; echo {}'
//! $ pdbp-tasks output 127.0.0.1:7210 --token-file token 0 --keep-order
//! ```
//!
//! `status`, `wait`, `cancel`, `retry`, `forget`, `explain` and `report` are the other questions, and `--help` behind each says more. For programs
//! it is `Program::serve`, `Program::work` and `net::Remote`; `examples/kill.rs` has all three.
//!
//! * What a client adds is acknowledged when it is in the journal, and so is a result to who has computed it, who keeps it until then.
//! * Nothing is handed out that rests on what is not in the journal yet: neither a task, nor one that was added by another, nor what depends on either.
//! * Hand-outs are not recorded, since a task may be handed out again at any time; but for those that must not run twice at the same time
//!   (commands) or at all ([`New::once`]). After a start these wait half a minute for who has them, then run again, or have no result. What has run
//!   for a second is recorded as well, and nobody waits for that: after a start it waits five seconds for who has it, since to run it anew would take longer.
//! * A pool has a term, one above its predecessor's. A processor tells the next pool, by names that stay, what it holds and what it has; ids of an earlier
//!   term mean nothing.
//! * [`Large`] values lie in a folder beside the journal, `jobs.redb.large`, a file each: those of a result are synced and have their names before its record is
//!   written, so that a pool that is killed and started again has them; what runs that do not count have written goes when their task is over, and all
//!   of a job when it is forgotten. Who writes or reads one while there is no pool waits for the next and goes on. Clients have
//!   `RemoteJob::write_large` and `Remote::read_large`; a pool that is served without a journal keeps none, and says so.
//! * Clients add tasks that need others (data and order), as those in the pool's own process do: `net::RemoteJob`. Such a task comes into the pool when all
//!   that it needs is durable, and is given results from the journal. When one of them fails it is not run, and runs again together with that one by `retry`.
//! * Retries that are used up and nodes that were lost with a task are counted by each pool anew.
//! * While the file cannot be written (the disk is full) nothing is handed out or acknowledged; `status`, `wait` and `explain` say why, and it goes on by
//!   itself when there is room. They are answered from what is in the journal, and never wait for the disk. A file of somebody else or in use is refused and left as
//!   it is. One that is damaged is refused; what was torn at its end redb has taken back by then, so that a copy of it should be made before.
//! * A pool has a number, which no other has: what a processor has of another journal, or of an older copy of this one, is not taken for what has the same
//!   number here. A task that `retry` runs again has another name each time, so that what comes late of a run before counts as nothing.
//!
//! # What a program can say
//! * [`Program::kind`] registers a function by name; a task names it and has its encoded input (`serde`, by `postcard`). Processes with
//!   other functions than the pool's are refused.
//! * [`Job::each`] adds a task for each item of an iterator, which is read from within [`Job::results`] as there is room: a billion take no
//!   more memory than a thousand, and neither end can wait for the other. Results come [as they are](Job::results) or
//!   [in order](Results::in_order), with a [bar](Results::progress) if wanted (the feature `cli`, on by default).
//! * [`Job::add`] gives a [`Handle`]. [`Job::join`] is a task that is given the results of others (data dependencies), [`New::after`]
//!   lets one wait for another (order), and [`New`] has priority, retries, limit and [`once`](New::once).
//! * What a task [needs](New::needs) of its node, such as four processors, a GPU, memory or a licence, is set against what
//!   [each process offers](Program::offer): see [`Resources`].
//! * Inputs and results of any length are a [`Large`], which names what lies in a file beside the pool: [`Scope::write_large`] and
//!   [`Scope::read_large`] are `Write` and `Read`, and no end ever has more than a piece of it in memory: see [`Program::large_in`].
//! * A function that is [defined](Program::define) with a [`Scope`] adds sub-tasks; its result may be that of one of them:
//!
//! ```
//! # use pdbp_tasks::{Error, Program};
//! let mut program = Program::new("fibonacci");
//! let add = program.kind("add", |((), two): ((), Vec<u64>)| two[0] + two[1]);
//! let fib = program.declare::<u64, u64>("fib");
//! program.define(fib, move |scope, n| match n {
//!     0 | 1 => scope.done(n),
//!     _ => {
//!         let two = [scope.add(fib, n - 1), scope.add(fib, n - 2)];
//!         scope.join(add, (), &two)
//!     }
//! });
//! program.run(|tasks| {
//!     let mut job = tasks.job::<()>("numbers");
//!     let tenth = job.add(fib, 10)?;
//!     assert_eq!(job.wait(&tenth)?, 55);
//!     Ok(())
//! })?;
//! # Ok::<(), Error>(())
//! ```
//!
//! # What happens to a task
//! It is *not scheduled*, then *scheduled* (in the dynamic table, until it is submitted, whether somebody holds it or nobody does), then
//! *submitted*: the first result counts, whoever computed it, and any other is ignored. So a function may run more than once: when a
//! processor was lost, and when one takes twice as long as nine of ten of its kind, of which an idle processor is given a copy. A
//! result counts once all the same, and so do the tasks that it adds. What must not be started twice says [`New::once`], and what two must not run at the same
//! time [`New::exclusive`].
//!
//! | what | what it gets |
//! |---|---|
//! | a panic | is caught; the attempt fails with its message; retries, 0 unless asked for |
//! | a process that is lost, or over sockets stopped for more than two seconds | what it held is handed out again, before anything else; what is `once` fails as [`TaskError::MayHaveRun`] |
//! | a task that its process dies of | is kept apart from others; when three nodes were lost while they ran it and nothing else it fails as [`TaskError::Crashed`], with their names; who comes back with it has not died |
//! | a node on which ten tasks in a row fail while those of others go well | is given one at a time, after pauses of a second to a minute, until one goes well; `status` and [`Tasks::troubles`] name it |
//! | a task that needs what nobody offers | fails after half a minute ([`Limits::offer_wait`]) as [`TaskError::NoOffer`], which says what there is; `pdbp-tasks serve` waits for who offers it |
//! | a task above its limit | [`Scope::is_unwanted`] says so; when it has not ended 5 s later its processor is given nothing more until it does, `status` and [`Tasks::troubles`] name it, the attempt has failed, and another thread takes the processor's place, once |
//! | a client that asks and asks and does not read the answers | is refused, and named, when 64 MiB wait for it; an honest one asks again by another part |
//! | more jobs than [`Limits::jobs`], those that are over included | are refused: `forget` makes room |
//! | a duplicate, late, unknown or forged submission | is ignored and [counted](Counts); nothing more is looked at of who sends a hundred that make no sense, and it is [named](Tasks::refusals) |
//! | an input or result that does not fit its type | the attempt fails, without retry |
//! | an input, with the results that it joins, or a result above 960 MiB ([`Limits::input_bytes`]) | is refused, or the task ends as [`TaskError::TooLong`], with its size; what is long goes as a [`Large`] |
//! | a task that fails | what needs it is [not run](TaskError::NotRun) |
//!
//! [`timeline`] draws who has held which task when, and what was lost.
//!
//! # The map
//! [`Program`] starts pool and processors on a cluster; [`Tasks`], [`Job`] and [`Results`] are what the client sees, [`Scope`] what a running
//! task sees. [`pool`] and [`worker`] are the two sides as state machines, without clock, thread or part; [`wire`] is what they say to each
//! other. The modules `serve` and `slot` put them on parts: the pool on `tasks` of node 0, each processor on a part without a name, by a
//! thread of its own. `large` has values of any length: their file, a part `tasks.store` for processors, and what client and task write and read.
//! With a journal `durable` is the pool and what waits for the disk, a state machine as well, `store` where the journal lies, and
//! `net` puts both on a part and a thread that commits. Clients have parts without a name, too, so that only the pool's are in
//! the cluster's tables; and pool and processors watch their nodes ([`pdbp::Node::watch`]), whose events are the program's. The pool's thread
//! never waits to send: what finds no room waits in an outbox that is no longer than what the processor has asked for.
//!
//! # How it is made sure
//! Random worlds of the real pool and real processors, in which processors crash or are given up for lost and go on, and submissions come late, twice, from
//! others or of no task, are held against an oracle after each step (`src/tests`). Twelve flaws are planted into the pool, one at a time, and
//! each is found by a world of a fixed seed (`src/tests/flaws.rs`); a hostile processor changes nothing and is named (`hostile.rs`). Small worlds of
//! two processors, three tasks and a sub-task are searched whole, every order of messages and one fault (`exhaustive.rs`; one of each kind in
//! half a million states by its test that is ignored by default). Clusters in
//! virtual time have tasks that kill their nodes, large tasks among small ones, and processors that live for a second
//! (`tests/virtual_time.rs`); `ci/demo-tasks` kills real processes and compares results byte by byte.
//!
//! Journals have worlds of their own (`src/durable/tests`): the pool is killed, the disk loses what was not synced, links break, reports come late at the next pool, failed tasks
//! run again, and what is said is held against what is on the disk at that moment. Nine planted flaws are found, acknowledging and handing out before the sync
//! and using an id again among them; a pool that is killed, a processor that is and a link that is lost at any moment of a small world, with each moment at which the
//! disk may have synced, are searched whole up to there (`exhaustive.rs`); files are damaged byte by byte. `ci/kill` kills pool and processors, all of them processes, and checks
//! each result. Clean so far: 30,000 random worlds of journals; `ci/kill 1000`, 210 of the kills being the pool's, with 5,200 results that others rest on in part, each right and each once
//! (491 s beside other work).
//!
//! # Figures
//! `benches/tasks-peers`, all in one run on two processors that others wanted, too (load 4 to 5): compare within a table only.
//!
//! | functions, µs each | a task that does nothing | one there and back |
//! |---|---|---|
//! | pdbp-tasks | 1.09 | 31 |
//! | `rayon::spawn` and a channel | 0.38 | |
//! | Ray 2.60 | 678 | 1,572 |
//! | Dask 2026.8 | 2,341 | 12,656 |
//!
//! | a task of | time that was computed for it, pdbp-tasks / rayon, µs | ratio | ratio of the time that passed |
//! |---|---|---|---|
//! | nothing | 1.09 / 0.37 | 2.95 | 2.95 |
//! | 3.3 µs | 3.5 / 3.8 | 0.90 | 0.88 |
//! | 25 µs | 23 / 30 | 0.78 | 0.68 |
//! | 230 µs | 240 / 230 | 1.04 | 1.17 |
//!
//! | commands, `/bin/true`, two at a time, µs each | |
//! |---|---|
//! | two threads that spawn, and nothing else | 953 |
//! | `pdbp-tasks run` | 887 |
//! | `xargs -P2 -n1` | 2,157 (954 in the run before, beside 874) |
//! | HyperQueue 0.27, server and worker | 5,429 |
//!
//! Four results of 200 MiB by two processors, which the client adds up, all in one process, `cargo run --release -p pdbp-tasks --example large 4 200`:
//!
//! | | time | most memory |
//! |---|---|---|
//! | as [`Large`], in a file | 1.2 s | 28 MiB (16 MiB in each of three processes over sockets) |
//! | as `Vec<u8>` (`--plain`) | 3.9 s | 1,194 MiB |
//!
//! `cargo bench -p pdbp-tasks --bench pool`, a million tasks in virtual time on one thread of a machine with other work, µs computed for a
//! task:
//!
//! | processors | pool, processors and events | of these the pool |
//! |---|---|---|
//! | 10 | 1.1 | 0.6 |
//! | 1,000 | 1.8 | 0.9 |
//! | 10,000 | 3.1 | 1.3 |
//!
//! A million queued tasks with inputs of 8 bytes take 96 MB. Processors that live for a second each, with tasks of 10 ms: more than 0.95 of
//! their time is of use.
//!
//! Pools with a journal: `cargo bench -p pdbp-tasks --no-default-features --features net --bench journal`, one thread without sockets, by `chrt -r 1`, medians of
//! three rounds, on a machine with other work (load 9) and a disk whose sync takes 0.1 to 2 ms, which says nothing of the ratio to a plain log; so that is
//! taken from runs in which a library that is preloaded sleeps so long in place of each sync:
//!
//! | what | | aim |
//! |---|---|---|
//! | durable results a second, in groups of 1,000 and 4,000 | 427,000 and 546,000 | 100,000 |
//! | the same beside a plain log in the same groups, syncs of 5 ms | 164,000 / 196,000: 0.84 and 450,000 / 774,000: 0.58 | 0.7, **the second missed** |
//! | the same, syncs of 9 ms | 99,000 / 110,000: 0.90 and 312,000 / 439,000: 0.71 | 0.7 |
//! | instructions for a result, pool and redb | 8,400 (24,400 with a record for each) | |
//! | a million tasks loaded | 0.15 to 2.6 s | 3 s |
//! | a queued task | 23 bytes | 100 |
//! | a pool again, with 500,000 results in its journal | 0.07 s | 1 s |
//!
//! Results of tasks with numbers that follow each other are one record of the file (`src/store/runs.rs`): with tasks that end in no order each is one of its own, as before.
//!
//! From the start of `pdbp-tasks work` to its first command it takes 0.07 to 0.40 s, median 0.09 s (a build without
//! optimisation, load 16, 7 runs): the aim, 0.2 s, is reached in the median. The same 50 ms after another worker of the host was killed: 0.07 to 0.29 s, median
//! 0.10 s (it was 2.1 s). One that was killed on another host still costs who joins up to 2 s, for its lease.
//!
//! Of 600 commands of 20 ms, by two processes with two processors each, one of which lacked a variable without which they fail at once, 14 failed (a single run, by hand).
//!
//! # Goals
//! What was aimed at, and what came of it; what is not measured is said to be.
//!
//! | goal | |
//! |---|---|
//! | a task that does nothing: 1 µs | 1.09: **missed** |
//! | the same beside Ray, Dask and rayon: 150 and 500 times faster, 4 times slower | 622, 2,148, 2.9 |
//! | tasks of 10 and 100 µs: 0.9 and 0.97 of rayon's throughput | 1.28 of it at 25 µs; 0.96 at 230 µs, and 0.85 by the time that passed: **missed** |
//! | these with 1 and 8 slots | measured with 2 only |
//! | one task there and back: 20 µs, a 25th of Ray's | 31: **missed**; a 51st. It goes from thread to thread four times: client, pool, processor, pool, client |
//! | commands: 1.2 times a bare loop | 0.93 times one in Python; one in Rust is not measured |
//! | commands beside HyperQueue, xargs, GNU parallel: 4, 2, 15 times faster | 6.1; 2.4 in one run and 1.1 in another: **missed** there; GNU parallel was not installed |
//! | the pool's own work: 1 µs with 10, 1,000 and 10,000 processors, within 2 times of each other | 0.6, 0.9, 1.3: **missed** at 10,000, 2.2 times |
//! | 10,000 processors and a million tasks: 60 s of a core | 3.1 s |
//! | a million queued: 100 MB | 96 MB; the memory of others was not measured in that run |
//! | a file of 3,000,000 commands: the first within 1 s, 200 MB | not measured |
//! | durable results: 100,000 a second, 0.7 of a plain log | 427,000; 0.58 to 0.90: **missed** in groups of 4,000 with syncs of 5 ms |
//! | a million tasks loaded: 3 s | 0.15 to 2.6 s |
//! | from joining to the first task: 1 ms a slot | not measured |
//! | a process, from its start to its first task: 0.2 s | median 0.09 s, worst 0.40 s: **missed** by that |
//! | lives of 1 s: 0.95 of use | reached in virtual time; not measured with processes |
//! | half of all processors killed: no dip, lost tasks again within the outage and 0.1 s | not measured |
//! | a pool killed: outcomes 1 s after its start | it has read 500,000 results after 0.07 s; not measured from a client |
//! | one of 8 slots ten times slower: 1.1 times the time | not measured |
//! | 1,000 kills, 100,000 seeds, small worlds whole, all flaws found | 1,000 kills and 30,000 seeds, both before results had names with runs: **missed**; 60 kills, 300 seeds and all flaws since, in `ci/test` |
//!
//! # Not yet
//! A pool without a journal that is lost takes its jobs along, and its results are in its memory; all of them pass its node. There is no standby. Over MPI a process that is stopped, not dead,
//! keeps what it holds until that is copied. A function that never returns keeps its processor, and [`Program::run`] waits for it. Inputs and results
//! that are not [`Large`] are put together in memory, up to a gigabyte each. [`Program::run`] over sockets has all processes from the start.
#![forbid(unsafe_code)]

#[cfg(feature = "net")]
mod durable;
mod error;
mod job;
mod kind;
mod large;
mod losses;
#[cfg(feature = "net")]
pub mod net;
mod peers;
pub mod pool;
mod program;
mod resources;
mod scope;
mod serve;
mod slot;
#[cfg(feature = "net")]
mod store;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod wire;
pub mod worker;

pub use error::{AddError, Error};
#[cfg(feature = "cli")]
pub use job::Progress;
pub use job::{Done, Handle, InOrder, Job, New, Results, Tasks};
pub use kind::Kind;
pub use large::{Large, LargeReader, LargeWriter};
pub use pool::{Counts, Limits, Refusal, Refused, TaskError};
pub use program::Program;
pub use resources::{MOST_GPUS, NoResources, Resources};
pub use scope::{Given, NewSub, Scope, Sub};
