//! What a test does with a cluster, apart from operations.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

use pdbp_core::id::Time;

use super::host::digest;
use super::{Host, Net, Oracle, Setup};

pub struct Cluster {
    pub setup: Setup,
    pub hosts: Vec<Option<Host>>,
    pub net: Rc<RefCell<Net>>,
    pub oracle: Rc<RefCell<Oracle>>,
    pub now: Time,
    pub dead: Vec<usize>,
    /// The remains of nodes: the network may hold their blocks to the end.
    pub graves: Vec<Host>,
}

impl Cluster {
    pub fn host(&mut self, i: usize) -> &mut Host {
        self.hosts[i].as_mut().expect("the node lives")
    }

    pub fn live(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|i| self.hosts[*i].is_some()).collect()
    }

    pub fn poll(&mut self, i: usize) -> u32 {
        let now = self.now;
        let Some(host) = self.hosts[i].as_mut() else { return 0 };
        let worked = host.poll(now);
        self.close_streams(i);
        let ended = std::mem::take(&mut self.net.borrow_mut().ended);
        for (a, b) in ended {
            if self.net.borrow().is_cut(a, b) {
                self.mend(a, b);
            } else {
                self.net.borrow_mut().ended.push((a, b));
            }
        }
        self.check(i);
        worked
    }

    /// Polls all nodes in turn until `done`.
    pub fn run(&mut self, rounds: usize, done: impl Fn(&Self) -> bool) {
        for _ in 0..rounds {
            if done(self) {
                return;
            }
            for i in 0..self.hosts.len() {
                self.poll(i);
            }
            self.now = self.now.after(100);
        }
        assert!(done(self), "not done after {rounds} rounds");
    }

    pub fn read(&mut self, i: usize, local: u16, count: usize, keep: bool) {
        let Some(host) = self.hosts[i].as_mut() else { return };
        for _ in 0..count {
            let Some((delivery, sum)) =
                host.pipes.queues.get_mut(usize::from(local)).and_then(VecDeque::pop_front)
            else {
                return;
            };
            assert_eq!(digest(delivery.bytes()), sum, "a delivery's bytes changed while it waited");
            if keep {
                // By two readers; the second continues when the first is done.
                host.held.extend(host.engine.share(&delivery).map(|second| (second, sum)));
                host.held.push((delivery, sum));
            } else {
                host.engine.release(delivery);
            }
        }
    }

    pub fn release(&mut self, i: usize) {
        let Some(host) = self.hosts[i].as_mut() else { return };
        for (delivery, sum) in host.held.drain(..) {
            assert_eq!(digest(delivery.bytes()), sum, "a delivery's bytes changed while it was held");
            host.engine.release(delivery);
        }
    }

    pub fn kill(&mut self, dead: usize) {
        let Some(mut host) = self.hosts[dead].take() else { return };
        self.dead.push(dead);
        host.return_block();
        self.graves.push(host);
        self.net.borrow_mut().kill(dead);
        self.oracle.borrow_mut().forget(dead);
    }

    /// Cuts the link between two nodes, if it can be cut.
    pub fn cut(&mut self, a: usize, b: usize) {
        if self.net.borrow().is_up(a, b) {
            self.net.borrow_mut().cut(a, b);
            self.oracle.borrow_mut().doubt(a, b);
        }
    }

    /// Mends the link between two nodes, if it was cut.
    pub fn mend(&mut self, a: usize, b: usize) {
        if self.net.borrow().is_cut(a, b) {
            self.net.borrow_mut().mend(a, b);
        }
    }

    /// Stops all nodes.
    pub fn close(mut self) {
        self.hosts.iter_mut().flatten().for_each(Host::return_block);
        // An engine leaves its memory in place forever while anyone holds its blocks.
        self.net.borrow_mut().drop_blocks();
    }
}
