//! Barriers of all nodes, and their requests for quiescence.

use pdbp_core::Transport;

use super::check::{Breach, Invariant};
use super::cluster::Cluster;
use super::host::{Host, Work};
use super::mix::Mix;
use super::payload::Way;

/// At which barrier a host is, and what it has asked for.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// Nanoseconds from one to the next.
    barriers: u64,
    quiescence: u64,
    /// The last barrier that it has arrived at.
    pub(super) arrived: u32,
    pub(super) passed: u32,
    /// The request that has not been answered.
    pub(super) asked: Option<u32>,
    next_ask: u64,
    pub(super) quiets: u64,
}

impl Meetings {
    pub(super) fn new(mix: Mix, start: u64) -> Self {
        let Mix { barriers, quiescence, .. } = mix;
        Self { barriers, quiescence, next_ask: start + quiescence, ..Self::default() }
    }

    /// Barriers that are due.
    fn due(&self, now: u64) -> u32 {
        now.checked_div(self.barriers).unwrap_or(0) as u32
    }

    /// What is under way, if it should end.
    fn unrest(&self, until: u64, (barriers, quiescence): (Ends, Ends)) -> Option<String> {
        let (passed, due) = (self.passed, self.due(until));
        if barriers == Ends::Certainly && passed < due {
            let arrived = self.arrived;
            return Some(format!("of {due} barriers it has arrived at {arrived} and passed {passed}"));
        }
        let asked = self.asked.filter(|_| quiescence == Ends::Certainly);
        asked.map(|number| format!("request {number} for quiescence has not been answered"))
    }
}

/// Whether something has to come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Certainly,
    Perhaps,
}

/// Messages of a life of a node to another that had been sent when somebody asked for quiescence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    source: u16,
    life: u32,
    dest: u16,
    way: Way,
    count: u64,
}

impl<T: Transport> Host<T> {
    /// Arrives at the barrier that is due, and asks for quiescence when that is due.
    pub(super) fn meet(&mut self, now: u64, until: u64, work: &mut Work) -> Result<(), Breach> {
        let meetings = &mut self.meetings;
        if meetings.arrived == meetings.passed {
            if meetings.arrived < meetings.due(now.min(until)) {
                meetings.arrived += 1;
                let number = self.engine.arrive();
                if number != meetings.arrived {
                    let what = format!("the engine calls barrier {} number {number}", meetings.arrived);
                    return Err(Breach::new(Invariant::Barriers, what));
                }
            } else if meetings.barriers > 0 {
                let next = (u64::from(meetings.arrived) + 1) * meetings.barriers;
                (next <= until).then(|| work.wants(next));
            }
        }
        if meetings.quiescence == 0 || meetings.asked.is_some() || meetings.next_ask > until {
            return Ok(());
        }
        if meetings.next_ask > now {
            work.wants(meetings.next_ask);
            return Ok(());
        }
        meetings.asked = Some(self.engine.ask_quiet());
        meetings.next_ask = now + meetings.quiescence;
        work.asked = true;
        Ok(())
    }

    /// What is under way and should end: barriers, which all nodes have to arrive at, and requests for quiescence when there is
    /// a primary that can be asked.
    pub(super) fn unmet(&self, until: u64, barriers: Ends) -> Option<String> {
        let me = self.engine.config().node;
        let primary = self.engine.master().filter(|node| *node == me || !self.engine.has_failed(*node));
        let quiescence = if primary.is_some() { Ends::Certainly } else { Ends::Perhaps };
        self.meetings.unrest(until, (barriers, quiescence))
    }

    /// Notes what has been answered.
    pub(super) fn part(&mut self, work: &mut Work) {
        let meetings = &mut self.meetings;
        let (arrived, passed) = (meetings.arrived, meetings.passed);
        if arrived > passed && self.engine.barrier_passed(arrived) {
            meetings.passed = arrived;
            work.passed = Some(arrived);
        }
        if let Some(number) = meetings.asked.take_if(|number| self.engine.is_quiet(*number)) {
            meetings.quiets += 1;
            work.quiet = Some(number);
        }
    }
}

impl<T: Transport> Cluster<T> {
    /// What a host has done must agree with what the others have.
    pub(super) fn compare(&mut self, node: u16, work: &Work) -> Result<(), Breach> {
        let at = usize::from(node);
        let Some(Some(host)) = self.hosts.get(at) else { return Ok(()) };
        if let Some(most) = self.arrivals.get_mut(at) {
            *most = (*most).max(host.meetings.arrived);
        }
        if let Some(passed) = work.passed
            && let Some(missing) = self.arrivals.iter().position(|arrived| *arrived < passed)
        {
            let what = format!("barrier {passed} was passed, and node{missing} had not arrived at it");
            return Err(Breach::new(Invariant::Barriers, what));
        }
        if work.asked {
            let sent = self.all_sent();
            if let Some(asked) = self.asked.get_mut(at) {
                *asked = sent;
            }
        }
        if work.quiet.is_some()
            && let Some(sent) = self.asked.get(at)
        {
            let primary = host.engine.master().and_then(|node| self.hosts.get(node.index())?.as_ref());
            let gone = |node| is_gone(host, node) || primary.is_none_or(|primary| is_gone(primary, node));
            self.check_quiet(sent.iter().filter(|sent| !gone(sent.source) && !gone(sent.dest)))?;
        }
        Ok(())
    }

    fn all_sent(&self) -> Vec<Sent> {
        let hosts = (0..).zip(&self.hosts).filter_map(|(node, host)| Some((node, host.as_ref()?)));
        let sent = hosts.flat_map(|(source, host)| {
            let life = host.life;
            host.sent.iter().map(move |((dest, way), count)| Sent {
                source,
                life,
                dest: *dest,
                way: *way,
                count: *count,
            })
        });
        sent.collect()
    }

    /// All that had been sent is in private pipes, but for what links that have failed since may have lost.
    fn check_quiet<'s>(&self, asked: impl Iterator<Item = &'s Sent>) -> Result<(), Breach> {
        for sent in asked {
            let Sent { source, life, dest, way, count } = *sent;
            let host = |node: u16| self.hosts.get(usize::from(node)).and_then(Option::as_ref);
            let (Some(from), Some(to)) = (host(source).filter(|h| h.life == life), host(dest)) else {
                continue;
            };
            let lost = from.doubtful.get(&(dest, way)).copied().unwrap_or(0);
            if count <= lost || to.gaps || is_gone(from, dest) || is_gone(to, source) {
                continue;
            }
            let given = to.inbox.given.as_ref().and_then(|given| given.get(&(source, way)));
            let next = given.filter(|(of, _)| *of == life).map_or(0, |(_, next)| *next);
            if next < count {
                let what = format!(
                    "quiet, and of {count} messages sent before by node{source} to node{dest} ({way:?}) \
                     {next} have come"
                );
                return Err(Breach::new(Invariant::Quiescence, what));
            }
        }
        Ok(())
    }

    /// Whether barriers end: all nodes arrive at them if none has crashed.
    pub(super) fn barriers_end(&self) -> Ends {
        let whole = self.hosts.iter().all(Option::is_some) && self.lives.iter().all(|lives| *lives == 1);
        if whole { Ends::Certainly } else { Ends::Perhaps }
    }
}

fn is_gone<T: Transport>(host: &Host<T>, peer: u16) -> bool {
    pdbp_core::id::NodeId::new(peer).is_none_or(|peer| host.engine.has_failed(peer))
}
