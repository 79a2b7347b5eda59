//! The events of a node, for the program ([`Node::wait_event`] and the like) and for libraries ([`Node::watch`]).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pdbp_core::Event;
use pdbp_local::Doorbell;

use super::{Node, Shared, Waiter};
use crate::config::Progress;
use crate::error::WaitError;
use crate::sync::Tasks;

/// Events kept for each consumer.
const EVENTS: usize = 256;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    lost: u64,
    /// Wakes the task that waits for the next event.
    waker: Option<Waker>,
}

impl Queue {
    /// Keeps an event; the task that waits for it is then due.
    fn push(&mut self, event: Event, tasks: &Tasks) {
        if !self.merge(&event) {
            if self.events.len() == EVENTS {
                // A peer that sends to parts of before must not displace the event that says why.
                let discard = self.events.iter().position(Event::is_discard);
                self.events.remove(discard.unwrap_or(0));
                self.lost += 1;
            }
            self.events.push_back(event);
        }
        if let Some(waker) = self.waker.take() {
            tasks.make_due(waker);
        }
    }

    /// Adds the count of a discard to that of an earlier one for the same part, provided that only discards have happened since.
    fn merge(&mut self, event: &Event) -> bool {
        let mut discards = self.events.iter_mut().rev().take_while(|before| before.is_discard());
        event.is_discard() && discards.any(|before| before.merge(event))
    }
}

/// Locks a queue. No lock is held while foreign code runs, so a panic cannot have left it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The events of a node, and who waits for them.
#[derive(Default)]
pub(crate) struct Events {
    program: Mutex<Queue>,
    watches: Mutex<Vec<Weak<Mutex<Queue>>>>,
    /// Rung when an event was recorded.
    pub(super) bell: Doorbell,
    /// Whether a thread that waits for an event sleeps on the node's bell, as the leader.
    on_nodes_bell: AtomicBool,
}

impl Events {
    fn record(&self, event: Event, tasks: &Tasks) {
        lock(&self.watches).retain(|watch| {
            let watch = watch.upgrade();
            if let Some(queue) = &watch {
                lock(queue).push(event.clone(), tasks);
            }
            watch.is_some()
        });
        lock(&self.program).push(event, tasks);
    }

    fn watch(&self) -> Watch {
        let queue = Arc::default();
        let mut watches = lock(&self.watches);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&queue));
        Watch(queue)
    }

    /// Called by the leader, before and after it sleeps.
    pub(super) fn sleep_on_nodes_bell(&self, sleeps: bool) {
        // Pairs with the load in `Shared::record_event`.
        self.on_nodes_bell.store(sleeps, Ordering::Relaxed);
    }
}

impl Shared {
    /// Records an event, and wakes the threads that wait for one. The caller wakes the tasks that are due, as the engine's lock does.
    pub(crate) fn record_event(&self, event: Event) {
        let events = &self.events;
        events.record(event, &self.tasks);
        events.bell.ring();
        // Pairs with the store in `sleep_on_nodes_bell` through the fences of the bells, as in `Pipe::ring`.
        if events.on_nodes_bell.load(Ordering::Relaxed) {
            self.bell.ring();
        }
    }
}

/// The events of a node since [`Node::watch`] was called, independent of other consumers. It keeps the last 256 not yet taken;
/// when there are more, discarded messages ([`Event::is_discard`]) are forgotten first.
///
/// Its calls do what those of [`Node`] with the same names do. The node that they take is the one watched, or a clone of it.
#[derive(Debug)]
pub struct Watch(Arc<Mutex<Queue>>);

impl Drop for Watch {
    fn drop(&mut self) {
        // Its task may end here, which must not happen while `Events::record` holds the last reference to the queue.
        let waker = lock(&self.0).waker.take();
        drop(waker);
    }
}

impl Watch {
    /// Takes the oldest event. Does not wait, and does not let the node make progress, unlike receiving parts and [`Node::poll`].
    pub fn next_event(&self) -> Option<Event> {
        lock(&self.0).events.pop_front()
    }

    /// Waits up to `timeout` for the next event.
    ///
    /// # Errors
    /// As [`Node::wait_event`].
    pub fn wait_event(&self, node: &Node, timeout: Duration) -> Result<Event, WaitError> {
        node.wait_event_in(&self.0, timeout)
    }

    /// The next event, as [`Node::poll_event`]. If two tasks wait with one watch, only the last one is woken.
    ///
    /// # Errors
    /// As there.
    pub fn poll_event(&self, node: &Node, cx: &mut Context<'_>) -> Poll<Result<Event, WaitError>> {
        node.poll_event_in(&self.0, cx)
    }

    /// The next event, as [`poll_event`](Self::poll_event).
    ///
    /// # Errors
    /// As there.
    pub async fn event_async(&self, node: &Node) -> Result<Event, WaitError> {
        poll_fn(|cx| self.poll_event(node, cx)).await
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
    /// use std::time::Duration;
    ///
    /// let mut nodes = Cluster::local(3)?.into_nodes();
    /// let (first, second) = (nodes[0].watch(), nodes[0].watch());
    /// let gone = nodes.remove(2).id();
    /// for watch in [first, second] {
    ///     let is_it = |event: Event| matches!(event, Event::NodeDown { node } if node == gone);
    ///     while !is_it(watch.wait_event(&nodes[0], Duration::from_secs(5))?) {}
    ///     assert_eq!(watch.lost(), 0);
    /// }
    /// assert!(nodes[0].take_events().iter().any(|event| matches!(event, Event::NodeDown { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(&self) -> Watch {
        self.shared.events.watch()
    }

    /// Takes the events of this node (nodes came and went, peers failed, blocks were refused, messages arrived for parts that do
    /// not exist), oldest first, at most the last 256. If there were more,
    /// reports of discarded messages ([`Event::is_discard`]) were forgotten first. All callers take from the same queue, so a library should use a
    /// [watch](Self::watch) instead.
    pub fn take_events(&self) -> Vec<Event> {
        lock(&self.shared.events.program).events.drain(..).collect()
    }

    /// Takes the oldest event, as [`take_events`](Self::take_events). Does not wait, and does not let the node make progress.
    pub fn next_event(&self) -> Option<Event> {
        lock(&self.shared.events.program).events.pop_front()
    }

    /// Takes the oldest event, as [`next_event`](Self::next_event); waits up to `timeout` for one. The thread sleeps until the event
    /// wakes it.
    ///
    /// ```
    /// use pdbp::{Cluster, Event};
    /// use std::time::Duration;
    ///
    /// let mut nodes = Cluster::local(3)?.into_nodes();
    /// let gone = nodes.remove(2).id();
    /// while !matches!(nodes[0].wait_event(Duration::from_secs(5))?, Event::NodeDown { node } if node == gone) {}
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError::Timeout`], and [`WaitError::Interrupted`].
    pub fn wait_event(&self, timeout: Duration) -> Result<Event, WaitError> {
        self.wait_event_in(&self.shared.events.program, timeout)
    }

    /// Takes the oldest event, as [`next_event`](Self::next_event); a task that finds none is woken when there is one. If two tasks wait
    /// with handles of the same node, only the last one is woken: let each have a [watch](Self::watch). For which thread wakes them, see
    /// [`Part::poll_recv`](crate::Part::poll_recv).
    ///
    /// # Errors
    /// [`WaitError::NobodyPolls`].
    pub fn poll_event(&self, cx: &mut Context<'_>) -> Poll<Result<Event, WaitError>> {
        self.poll_event_in(&self.shared.events.program, cx)
    }

    /// The next event, as [`poll_event`](Self::poll_event). Dropping a task that waits loses no event.
    ///
    /// ```
    /// use pdbp::{Cluster, Event};
    ///
    /// let mut nodes = Cluster::local(3)?.into_nodes();
    /// let gone = nodes.remove(2).id();
    /// tokio::runtime::Runtime::new()?.block_on(async {
    ///     while !matches!(nodes[0].event_async().await?, Event::NodeDown { node } if node == gone) {}
    ///     Ok::<_, pdbp::WaitError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub async fn event_async(&self) -> Result<Event, WaitError> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn wait_event_in(&self, queue: &Mutex<Queue>, timeout: Duration) -> Result<Event, WaitError> {
        let take = || lock(queue).events.pop_front();
        let pause = |waiter: &mut Waiter| waiter.pause_for_event(self, || lock(queue).events.is_empty());
        Ok(self.wait_by(timeout, "caused an event", |_| take(), |_| Vec::new(), pause)?)
    }

    fn poll_event_in(&self, queue: &Mutex<Queue>, cx: &mut Context<'_>) -> Poll<Result<Event, WaitError>> {
        let take = || lock(queue).events.pop_front();
        if let Some(event) = take() {
            return Poll::Ready(Ok(event));
        }
        self.poll();
        if let Some(event) = take() {
            return Poll::Ready(Ok(event));
        }
        if self.shared.settings.progress == Progress::Inline {
            return Poll::Ready(Err(WaitError::NobodyPolls));
        }
        let waker = cx.waker().clone();
        let mut queue = lock(queue);
        // One may have been recorded just before.
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Ok(event));
        }
        let before = queue.waker.replace(waker);
        drop(queue);
        // May hold the last reference to its task.
        drop(before);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::thread;
    use std::time::Instant;

    use pdbp_core::id::NodeId;

    use super::*;
    use crate::Cluster;
    use crate::node::waiting::sleep_until_event;

    const SOON: Duration = Duration::from_secs(60);

    fn up(n: u16) -> Event {
        Event::NodeUp { node: NodeId::new(n).unwrap() }
    }

    #[test]
    fn messages_to_parts_of_before_do_not_displace_other_events() {
        let (mut queue, tasks, peer) = (Queue::default(), Tasks::default(), NodeId::new(1).unwrap());
        let discard = |part: u16| Event::Unroutable { peer, part, messages: 2 };
        queue.push(up(1), &tasks);
        (0..1000).for_each(|_| queue.push(discard(7), &tasks));
        assert!(matches!(queue.events.back(), Some(Event::Unroutable { part: 7, messages: 2000, .. })));
        queue.push(up(2), &tasks);
        queue.push(discard(7), &tasks);
        // What was discarded before and after an event stays apart.
        assert_eq!((queue.events.len(), queue.lost), (4, 0));
        (0..1000).for_each(|part| queue.push(discard(part), &tasks));
        (3..=100).for_each(|node| queue.push(up(node), &tasks));
        let nodes = queue.events.iter().filter_map(|event| match event {
            Event::NodeUp { node } => Some(node.raw()),
            _ => None,
        });
        assert!(nodes.eq(1..=100));
        assert_eq!(queue.events.len(), EVENTS);
        (0..1000).for_each(|node| queue.push(up(node), &tasks));
        assert!(queue.events.iter().all(|event| matches!(event, Event::NodeUp { .. })));
    }

    #[test]
    fn an_event_ends_a_sleep_on_either_bell() {
        for is_led_by_another in [false, true] {
            let cluster = Cluster::builder().nodes(1).progress(Progress::Inline).start().unwrap();
            let (node, watch) = (&cluster.nodes()[0], cluster.nodes()[0].watch());
            let _leader = is_led_by_another.then(|| node.shared.leader.lock().unwrap());
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(50));
                    node.shared.record_event(up(1));
                });
                let began = Instant::now();
                // May wake without cause.
                while watch.next_event().is_none() {
                    sleep_until_event(&node.shared, || lock(&watch.0).events.is_empty(), SOON);
                    assert!(began.elapsed() < SOON, "nothing has woken the thread");
                }
            });
        }
    }

    #[test]
    fn who_waits_for_an_event_wakes_seldom() {
        let cluster = Cluster::local(1).unwrap();
        let (node, queue) = (&cluster.nodes()[0], &cluster.nodes()[0].shared.events.program);
        let pauses = AtomicUsize::new(0);
        // Another thread is the leader: this one, or the progress thread already.
        let _leader = node.shared.leader.try_lock();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let pause = |waiter: &mut Waiter| {
                    pauses.fetch_add(1, Ordering::Relaxed);
                    waiter.pause_for_event(node, || lock(queue).events.is_empty())
                };
                // Others come as the cluster starts.
                let is_it = |event: &Event| matches!(event, Event::NodeUp { node } if node.index() == 1);
                node.wait_by(SOON, "", |_| node.next_event().filter(is_it), |_| Vec::new(), pause)
            });
            // There were about 3000, of 100 µs. In one of these periods the thread is asleep from the beginning.
            let seldom = (0..50).any(|_| {
                let before = pauses.load(Ordering::Relaxed);
                thread::sleep(Duration::from_millis(500));
                (1..=125).contains(&(pauses.load(Ordering::Relaxed) - before))
            });
            node.shared.record_event(up(1));
            assert!(waiting.join().unwrap().is_ok());
            assert!(seldom, "a thread that waits for an event never sleeps");
        });
    }

    #[test]
    fn watches_that_were_dropped_leave_nothing_behind() {
        let events = Events::default();
        let kept = events.watch();
        (0..100).for_each(|_| drop(events.watch()));
        assert!(lock(&events.watches).len() <= 2);
        events.record(up(1), &Tasks::default());
        assert!(kept.next_event().is_some() && lock(&events.watches).len() == 1);
    }

    #[test]
    fn a_task_that_waited_with_a_watch_ends_with_it() {
        struct Task;
        impl Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        let cluster = Cluster::builder().nodes(1).progress(Progress::Host).start().unwrap();
        let (node, task) = (&cluster.nodes()[0], Arc::new(Task));
        node.poll();
        for _ in 0..100 {
            let watch = node.watch();
            assert!(watch.poll_event(node, &mut Context::from_waker(&Arc::clone(&task).into())).is_pending());
        }
        assert_eq!(Arc::strong_count(&task), 1, "wakers of watches that were dropped");
    }

    #[test]
    fn who_does_not_take_events_loses_the_oldest_and_hears_how_many_and_nobody_elses() {
        let (events, tasks) = (Events::default(), Tasks::default());
        let number = |event: Event| match event {
            Event::NodeUp { node } => node.index(),
            other => panic!("{other:?}"),
        };
        events.record(up(0), &tasks);
        let (slow, quick, gone) = (events.watch(), events.watch(), events.watch());
        drop(gone);
        for n in 1..=300 {
            events.record(up(n), &tasks);
            assert_eq!(quick.next_event().map(number), Some(n.into()), "not that of before it began");
        }
        assert_eq!((quick.next_event().is_none(), quick.lost(), slow.lost()), (true, 0, 44));
        let taken: Vec<_> = std::iter::from_fn(|| slow.next_event().map(number)).collect();
        assert_eq!(taken, (45..=300).collect::<Vec<_>>());
        assert_eq!(lock(&events.program).events.len(), EVENTS);
        assert_eq!(lock(&events.watches).len(), 2);
    }
}
