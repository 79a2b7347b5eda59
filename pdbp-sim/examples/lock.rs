//! Tests a protocol in virtual time, on nodes that crash, stand still and lose each other: a lock that is lost after a while.
//!
//! ```console
//! $ cargo run --release -p pdbp-sim --example lock                # seeds 0 to 4999
//! $ cargo run --release -p pdbp-sim --example lock -- hasty       # the same with an error in the protocol, which a seed finds
//! $ cargo run --release -p pdbp-sim --example lock -- hasty 10    # that seed again, by itself
//! ```
use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use pdbp_core::endpoint::SendError;
use pdbp_core::engine::RegisterError;
use pdbp_core::id::PartId;
use pdbp_sim::network::{Actor, Context, Scenario, ScenarioError, ms, us};

/// How long a client has the lock.
const LEASE: u64 = us(400);
/// When a client asks again that has no answer.
const PATIENCE: u64 = us(150);
/// How often each client wants the lock.
const ROUNDS: u32 = 2;

/// Grants the lock to one client at a time. A request is a number, and so is the answer; without an answer it is refused.
#[derive(Default)]
struct Server {
    part: Option<PartId>,
    free_at: u64,
}

impl Actor for Server {
    fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
        self.part = Some(context.register("lock")?);
        // Somebody may have the lock from a server that crashed.
        self.free_at = context.now() + LEASE;
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let part = self.part.ok_or("it has not started")?;
        while let Some((client, number)) = context.recv(part) {
            if context.now() >= self.free_at {
                self.free_at = context.now() + LEASE;
                // An answer that does not arrive is a lock that nobody has for a while.
                let _ = context.send(part, client, &number);
            }
        }
        context.flush();
        Ok(None)
    }
}

/// Who has the lock, and until when. Clients do not know it: it is what the test checks.
type Board = Rc<Cell<(u16, u64)>>;

struct Client {
    part: Option<PartId>,
    board: Board,
    hasty: bool,
    /// The last request: its number and when it was sent.
    asked: (u64, u64),
    next: u64,
    rounds: u32,
}

impl Client {
    /// The lock is granted: checks that nobody else has it.
    fn hold(&mut self, context: &Context<'_>) -> Result<(), String> {
        let (me, now) = (context.node(), context.now());
        // The server counts from the moment it grants the lock, which is after the request was sent.
        let until = LEASE + if self.hasty { now } else { self.asked.1 };
        let (other, others_until) = self.board.get();
        if now < until && now < others_until && other != me {
            return Err(format!("it has the lock until {until} ns, and node{other} until {others_until} ns"));
        }
        if now < until {
            self.board.set((me, until));
            self.rounds += 1;
            self.next = until;
        }
        Ok(())
    }
}

impl Actor for Client {
    fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
        self.part = Some(context.register("client")?);
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let part = self.part.ok_or("it has not started")?;
        while let Some((_, number)) = context.recv(part) {
            if number == self.asked.0.to_le_bytes() {
                self.hold(context)?;
            }
        }
        if self.rounds >= ROUNDS {
            return Ok(None);
        }
        if context.now() >= self.next {
            self.next = context.now() + PATIENCE;
            self.asked = (self.asked.0 + 1, context.now());
            if let Some(server) = context.find("lock@n0") {
                match context.send(part, server, &self.asked.0.to_le_bytes()) {
                    // Without room or a link it asks again later.
                    Ok(()) | Err(SendError::WouldBlock | SendError::PeerFailed(_)) => context.flush(),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(Some(self.next))
    }

    fn unrest(&self) -> Option<String> {
        (self.rounds < ROUNDS).then(|| format!("it has had the lock {} of {ROUNDS} times", self.rounds))
    }
}

/// One run: a server and four clients, a network that delays and loses frames, and up to three faults. Returns the number of host runs.
fn run(seed: u64, hasty: bool) -> Result<u64, ScenarioError> {
    let board = Board::default();
    let scenario = Scenario::new(5).actor_parts(1).seed(seed).latency(us(20)).jitter(us(30));
    let scenario = scenario.loss(0.01).reorder(0.05).give_up(us(600)).random_faults(3);
    let cluster = scenario.run_actors(ms(5), move |node, _| match node {
        0 => Some(Box::<Server>::default()),
        _ => {
            let (board, asked) = (Rc::clone(&board), (0, 0));
            Some(Box::new(Client { part: None, board, hasty, asked, next: 0, rounds: 0 }))
        }
    })?;
    Ok(cluster.steps())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let hasty = arguments.next_if(|word| word == "hasty").is_some();
    let seeds = arguments.next().unwrap_or_else(|| "0..5000".to_owned());
    let (first, end) = seeds.split_once("..").map_or((&*seeds, None), |(first, end)| (first, Some(end)));
    let seeds = match (first.parse::<u64>(), end.map(str::parse).transpose()) {
        (Ok(first), Ok(end)) => first..end.unwrap_or(first + 1),
        _ => {
            eprintln!("usage: lock [hasty] [SEED | FIRST..END]");
            return ExitCode::from(2);
        }
    };
    let (start, many, mut steps) = (Instant::now(), seeds.clone().count(), 0);
    for seed in seeds {
        match run(seed, hasty) {
            Ok(of_run) => steps += of_run,
            Err(error) => {
                println!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{many} seeds: no two clients had the lock together; {steps} steps in {seconds:.2} s");
    ExitCode::SUCCESS
}
