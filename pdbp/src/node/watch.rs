//! The events of a node, for the program ([`Node::take_events`]) and for libraries ([`Node::watch`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pdbp_core::Event;

use super::Node;
use crate::error::WaitError;

/// Events kept for each consumer.
const EVENTS: usize = 256;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    lost: u64,
}

impl Queue {
    fn push(&mut self, event: Event) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }
}

/// Locks a queue. No lock is held while foreign code runs, so a panic cannot have left it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events of a node.
#[derive(Default)]
pub(crate) struct Events {
    program: Mutex<Queue>,
    watches: Mutex<Vec<Weak<Mutex<Queue>>>>,
}

impl Events {
    pub(super) fn record(&self, event: Event) {
        lock(&self.watches).retain(|watch| {
            let watch = watch.upgrade();
            if let Some(queue) = &watch {
                lock(queue).push(event.clone());
            }
            watch.is_some()
        });
        lock(&self.program).push(event);
    }

    fn watch(&self) -> Watch {
        let queue = Arc::default();
        lock(&self.watches).push(Arc::downgrade(&queue));
        Watch(queue)
    }
}

/// The events of a node since [`Node::watch`] was called, independent of other consumers. It keeps the last 256 not yet taken.
#[derive(Debug)]
pub struct Watch(Arc<Mutex<Queue>>);

impl Watch {
    /// Takes the oldest event. Does not wait, and does not let the node make progress, unlike receiving parts and [`Node::poll`].
    pub fn next_event(&self) -> Option<Event> {
        lock(&self.0).events.pop_front()
    }

    /// Number of events that this watch has dropped because 256 had not been taken when another arrived.
    pub fn lost(&self) -> u64 {
        lock(&self.0).lost
    }
}

impl Node {
    /// Returns a watch that gets each event of this node from now on, without taking it from [`take_events`](Self::take_events) or
    /// other watches. A library can thus follow nodes that come and go while the program still gets its events.
    ///
    /// ```
    /// use pdbp::{Cluster, Event};
    ///
    /// let mut nodes = Cluster::local(3)?.into_nodes();
    /// let (first, second) = (nodes[0].watch(), nodes[0].watch());
    /// let gone = nodes.remove(2).id();
    /// for watch in [first, second] {
    ///     let is_it = |event: Event| matches!(event, Event::NodeDown { node } if node == gone);
    ///     while !watch.next_event().is_some_and(is_it) {
    ///         nodes[0].poll();
    ///         nodes[1].poll();
    ///     }
    ///     assert_eq!(watch.lost(), 0);
    /// }
    /// assert!(nodes[0].take_events().iter().any(|event| matches!(event, Event::NodeDown { .. })));
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    pub fn watch(&self) -> Watch {
        self.shared.events.watch()
    }

    /// Waits up to `timeout` for the next event of a [watch](Self::watch) of this node.
    ///
    /// ```
    /// use pdbp::{Cluster, Event};
    /// use std::time::Duration;
    ///
    /// let mut nodes = Cluster::local(3)?.into_nodes();
    /// let watch = nodes[0].watch();
    /// let gone = nodes.remove(2).id();
    /// while !matches!(nodes[0].wait_event(&watch, Duration::from_secs(5))?, Event::NodeDown { node } if node == gone) {}
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError::Timeout`], and [`WaitError::Interrupted`].
    pub fn wait_event(&self, watch: &Watch, timeout: Duration) -> Result<Event, WaitError> {
        let event = self.wait_for(timeout, "caused an event", |_| watch.next_event(), |_| Vec::new());
        Ok(event?)
    }

    /// Takes the events of this node (nodes came and went, peers failed, blocks were refused, messages arrived for parts that do
    /// not exist), oldest first, at most the last 256. All callers take from the same queue, so a library should use a
    /// [watch](Self::watch) instead.
    pub fn take_events(&self) -> Vec<Event> {
        lock(&self.shared.events.program).events.drain(..).collect()
    }

    /// Takes the oldest event, as [`take_events`](Self::take_events).
    pub fn next_event(&self) -> Option<Event> {
        lock(&self.shared.events.program).events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pdbp_core::id::NodeId;

    #[test]
    fn who_does_not_take_events_loses_the_oldest_and_hears_how_many_and_nobody_elses() {
        let events = Events::default();
        let event = |n| Event::NodeUp { node: NodeId::new(n).unwrap() };
        let number = |event: Event| match event {
            Event::NodeUp { node } => node.index(),
            other => panic!("{other:?}"),
        };
        events.record(event(0));
        let (slow, quick, gone) = (events.watch(), events.watch(), events.watch());
        drop(gone);
        for n in 1..=300 {
            events.record(event(n));
            assert_eq!(quick.next_event().map(number), Some(n.into()), "not that of before it began");
        }
        assert_eq!((quick.next_event().is_none(), quick.lost(), slow.lost()), (true, 0, 44));
        let taken: Vec<_> = std::iter::from_fn(|| slow.next_event().map(number)).collect();
        assert_eq!(taken, (45..=300).collect::<Vec<_>>());
        assert_eq!(lock(&events.program).events.len(), EVENTS);
        assert_eq!(lock(&events.watches).len(), 2);
    }
}
