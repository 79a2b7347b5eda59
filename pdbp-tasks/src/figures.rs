//! The figures of a pool at the endpoint of its node: the page `/tasks.json`, and `pdbp_tasks_…` in `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pdbp::Node;
use pdbp::monitor::{Family, Section, Showing};
use serde::Serialize;

use crate::error::Error;
use crate::pool::seen::Seen;

/// The pool's section of the endpoint.
const NAME: &str = "tasks";
/// The most jobs, nodes and lines on the page: the latest jobs, and the first of the others.
const MOST: usize = 1000;
/// The most characters of a job's name on the page.
const LONGEST: usize = 200;
/// Least time over which a rate is computed.
const SPAN: Duration = Duration::from_secs(1);
/// The most names of resources that are distinguished, since processes choose the names that they offer.
const NAMES: usize = 64;

/// Rate at which tasks end, updated when it is read.
struct Rate {
    since: Instant,
    ended: u64,
    each_second: f64,
}

impl Rate {
    fn sample(&mut self, ended: u64) -> f64 {
        let span = self.since.elapsed();
        if span >= SPAN {
            self.each_second = ended.saturating_sub(self.ended) as f64 / span.as_secs_f64();
            (self.since, self.ended) = (Instant::now(), ended);
        }
        self.each_second
    }
}

#[derive(Serialize)]
struct Page<'s> {
    #[serde(flatten)]
    seen: &'s Seen,
    /// Tasks that ended per second between the last two readings at least a second apart.
    ended_each_second: f64,
    /// All jobs, including those not on the page.
    jobs_in_all: usize,
}

/// Shows a pool at the endpoint of one of these nodes, if one has an endpoint, until the returned value is dropped.
///
/// # Errors
/// The endpoint already shows another pool's figures.
pub(crate) fn show<'n>(
    nodes: impl IntoIterator<Item = &'n Node>,
    snapshot: impl Fn() -> Seen + Send + Sync + 'static,
) -> Result<Option<Showing>, Error> {
    let Some(endpoint) = nodes.into_iter().find_map(Node::endpoint) else { return Ok(None) };
    let rate = Mutex::new(Rate { since: Instant::now(), ended: 0, each_second: 0.0 });
    let section = move || {
        let mut seen = snapshot();
        let each_second = rate.lock().unwrap_or_else(PoisonError::into_inner).sample(seen.ended);
        section(&mut seen, each_second)
    };
    endpoint.show(NAME, section).map(Some).map_err(Error::other)
}

fn section(seen: &mut Seen, ended_each_second: f64) -> Section {
    let families = families(seen);
    let jobs_in_all = seen.jobs.len();
    seen.jobs.drain(..jobs_in_all.saturating_sub(MOST));
    for job in seen.jobs.iter_mut().filter(|job| job.name.len() > LONGEST) {
        job.name = job.name.chars().take(LONGEST).chain("…".chars()).collect();
    }
    seen.nodes.truncate(MOST);
    seen.troubles.truncate(MOST);
    let page = Section::new(&Page { seen, ended_each_second, jobs_in_all });
    families.into_iter().fold(page, Section::family)
}

fn families(seen: &Seen) -> Vec<Family> {
    let Seen { counts, .. } = seen;
    let gauge = |name, help, value: u64| Family::gauge(name, help).value(value as f64);
    let counter = |name, help, value: u64| Family::counter(name, help).value(value as f64);
    let open = seen.jobs.iter().filter(|job| !job.is_over()).count();
    let mut families = vec![
        gauge("jobs", "Jobs that are not over", open as u64),
        gauge("queued", "Tasks that are not over and that no processor has", seen.queued),
        gauge("running", "Tasks that processors have", seen.running),
        counter("ended", "Tasks of clients that are over", seen.ended),
        counter("failed", "Tasks of clients that are over and have failed", seen.failed),
        gauge("processors", "Processors that have asked and not left", seen.processors),
        gauge("processors_busy", "Processors that have tasks", seen.busy),
        gauge("refused", "Processors and clients of which nothing is looked at any more", seen.refused),
        gauge("troubles", "Lines that say what is in the way", seen.troubles.len() as u64),
        gauge("memory", "Inputs, and results that nobody has taken", seen.bytes).unit("bytes"),
        gauge("unread", "Results that nobody has read, with 64 bytes for each", seen.unread_bytes)
            .unit("bytes"),
        counter("handed_out", "Tasks handed out, each time", counts.handed_out),
        counter("copies", "Tasks handed out a second time while they ran elsewhere", counts.copies),
        counter("taken", "Results that were taken, those of sub-tasks among them", counts.taken),
        counter("failures", "Attempts that have failed", counts.failures),
        counter("lost", "Tasks of processors that were lost", counts.lost),
        counter("adopted", "Tasks that processors went on with from an earlier pool", counts.adopted),
        counter("ignored", "Results that came late, twice or of nothing that was handed out", counts.ignored),
        counter("unknown", "Results of tasks that there never were", counts.unknown),
        counter("malformed", "Messages that are none", counts.malformed),
    ];
    families.extend(resources(seen));
    if let Some(journal) = &seen.journal {
        let is_up = u64::from(journal.stalled.is_none());
        families.push(gauge("journal_up", "Whether the journal can be written", is_up));
        families.push(gauge("journal_term", "How often the journal was taken up", journal.term.into()));
        let help = "Groups of changes that are not on the disk yet";
        families.push(gauge("journal_waiting_groups", help, journal.waiting_groups));
        if let Some(bytes) = journal.bytes {
            families.push(gauge("journal", "The file of the journal", bytes).unit("bytes"));
        }
    }
    families
}

/// The resources that nodes offer, and how much of them is in use.
fn resources(seen: &Seen) -> [Family; 4] {
    let mut offered = Family::gauge("offered", "Resources that nodes offer, by name");
    let mut used = Family::gauge("used", "Resources in use, by name");
    let (mut counts, mut memory) = (BTreeMap::<&str, (u64, u64)>::new(), (0u64, 0u64));
    for node in &seen.nodes {
        for (name, count) in node.offers.iter().flat_map(|offers| offers.counted()) {
            counts.entry(name).or_default().0 += count;
        }
        for (name, count) in node.in_use.counted() {
            counts.entry(name).or_default().1 += count;
        }
        let offered = node.offers.as_ref().map_or(0, |offers| offers.count_memory());
        memory = (memory.0.saturating_add(offered), memory.1.saturating_add(node.in_use.count_memory()));
    }
    for (name, (offers, uses)) in counts.into_iter().take(NAMES) {
        offered = offered.labelled([("resource", name)], offers as f64);
        used = used.labelled([("resource", name)], uses as f64);
    }
    let of_memory = |name, help, bytes: u64| Family::gauge(name, help).unit("bytes").value(bytes as f64);
    [
        offered,
        used,
        of_memory("offered_memory", "Memory that nodes offer", memory.0),
        of_memory("used_memory", "Memory in use by tasks, as they say", memory.1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::seen::Node;
    use crate::resources::Resources;

    #[test]
    fn nodes_that_offer_more_memory_than_can_be_counted_are_shown() {
        let offers = Resources::none().memory(u64::MAX);
        let node = |node| Node {
            node,
            processors: 1,
            busy: 0,
            offers: Some(offers.clone()),
            in_use: offers.clone(),
        };
        let seen = Seen { nodes: vec![node(1), node(2)], ..Seen::default() };
        assert_eq!(resources(&seen).len(), 4);
    }
}
