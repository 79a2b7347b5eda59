//! Parts without a name, each of which sends one question.

use std::collections::VecDeque;

use pdbp_core::engine::RegisterError;
use pdbp_core::id::PartId;

use super::actors::restless;
use crate::network::{Actor, Cluster, Context, ScenarioError, ms, us};

const NODES: u16 = 6;
const ANSWERED: u64 = 30;

/// Echoes messages, some of them late.
#[derive(Default)]
struct Echo {
    part: Option<PartId>,
    /// Pending answers, with their times.
    answers: VecDeque<(u64, PartId, Vec<u8>)>,
    heard: u64,
}

impl Actor for Echo {
    fn start(&mut self, context: &mut Context<'_>) -> Result<(), RegisterError> {
        self.part = Some(context.register("echo")?);
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let part = self.part.ok_or("it has not started")?;
        let now = context.now();
        while let Some((from, question)) = context.recv(part) {
            self.heard += 1;
            let late = if self.heard.is_multiple_of(3) { us(700) } else { 0 };
            if let Some(from) = context.endpoint().engine().resolve(from.address()) {
                self.answers.push_back((now + late, from, question));
            }
        }
        self.answers.retain(|(due, to, answer)| {
            let engine = context.endpoint().engine();
            let is_gone = engine.recurrence() != 0 && !engine.has_part(*to);
            // A message that cannot be sent now is tried again later.
            *due > now || !(is_gone || context.send(part, *to, answer).is_ok() || now > due + ms(1))
        });
        context.flush();
        Ok(self.answers.iter().map(|(due, ..)| (*due).max(now + us(20))).min())
    }
}

/// Uses a new part for each question, and removes it when the answer arrives, or when none does for a while.
#[derive(Default)]
struct Asker {
    part: Option<(PartId, u64)>,
    answered: u64,
    parts: u64,
}

impl Actor for Asker {
    fn start(&mut self, _: &mut Context<'_>) -> Result<(), RegisterError> {
        Ok(())
    }

    fn run(&mut self, context: &mut Context<'_>) -> Result<Option<u64>, String> {
        let now = context.now();
        if let Some((part, asked)) = self.part {
            let mut ends = now >= asked + us(300);
            while let Some((_, answer)) = context.recv(part) {
                if answer != asked.to_le_bytes() {
                    return Err(format!("{part} has asked {asked} and is told {answer:?}"));
                }
                self.answered += 1;
                ends = true;
            }
            if !ends {
                return Ok(Some(asked + us(300)));
            }
            context.unregister(part).map_err(|error| error.to_string())?;
            self.part = None;
        }
        if self.answered >= ANSWERED {
            return Ok(None);
        }
        if let Some(echo) = context.find("echo@n0") {
            match context.attach() {
                Ok(part) => {
                    self.parts += 1;
                    // Nobody has sent this question before: not even an earlier life of this node.
                    self.part = Some((part, now));
                    let _ = context.send(part, echo, &now.to_le_bytes());
                    context.flush();
                }
                Err(RegisterError::Busy) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(Some(now + us(50)))
    }

    fn unrest(&self) -> Option<String> {
        (self.answered < ANSWERED).then(|| format!("{} of {ANSWERED} are answered", self.answered))
    }
}

fn run(seed: u64) -> Result<Cluster, ScenarioError> {
    restless(seed).run_actors(ms(6), move |node, _| match node {
        0 => Some(Box::new(Echo::default()) as Box<dyn Actor>),
        _ => Some(Box::new(Asker::default())),
    })
}

#[test]
fn an_answer_reaches_the_part_that_has_asked_or_nobody() {
    let mut parts = 0;
    for seed in 0..10 {
        let mut cluster = run(seed).unwrap_or_else(|e| panic!("{e}"));
        for node in 1..NODES {
            let asker = cluster.actor_mut::<Asker>(node).unwrap();
            assert!(asker.answered >= ANSWERED, "seed {seed}, node {node}: {}", asker.answered);
            parts += asker.parts - asker.answered;
        }
    }
    assert!(parts > 100, "{parts} were gone before their answer");
}
