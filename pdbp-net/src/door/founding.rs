//! A cluster being founded: the processes that have joined so far.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use super::greeting::{Id, Verdict};
use super::roster::{Member, Roster};

/// The founder's state until all nodes have joined.
pub(crate) struct Founding {
    nodes: u16,
    /// The founder first, then the others in the order of joining.
    roster: Roster,
    is_complete: bool,
    /// The number of nodes so far, for [`Founder::here`](crate::Founder::here).
    here: Arc<AtomicUsize>,
    complete: Sender<Roster>,
}

impl Founding {
    /// Founds a cluster of `nodes` nodes, in which this process is `founder`.
    pub(crate) fn new(
        nodes: u16,
        (cluster, founder): (Id, Member),
        advertises: bool,
        here: Arc<AtomicUsize>,
        complete: Sender<Roster>,
    ) -> Self {
        let roster = Roster {
            cluster,
            place: 0,
            generation: 0,
            open: false,
            advertises,
            masters: 0,
            giver: 0,
            members: vec![Some(founder)],
        };
        let mut founding = Self { nodes, roster, is_complete: false, here, complete };
        founding.update_count();
        founding
    }

    pub(crate) fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Decides whether a process that is reached at `address` may join. It may do so again, since it gives up an attempt that is answered
    /// late; once the cluster is complete, only if the others know its address.
    pub(crate) fn judge(&self, process: Id, address: SocketAddr) -> Verdict {
        let is_loopback = |address: SocketAddr| address.ip().is_loopback();
        let mut joined = self.roster.members.iter().skip(1).flatten();
        if self.is_complete {
            if joined.any(|member| member.process == process && member.address == address) {
                Verdict::Welcome
            } else {
                Verdict::Full
            }
        } else if joined
            .any(|member| member.process != process && is_loopback(member.address) != is_loopback(address))
        {
            Verdict::Loopback
        } else {
            Verdict::Welcome
        }
    }

    /// Adds a process, which may have joined before. If it is the last, returns the roster for each of them. Once the cluster is complete,
    /// returns the roster for this one.
    pub(crate) fn enrol(&mut self, process: Id, address: SocketAddr) -> Vec<(Id, Vec<u8>)> {
        let was_complete = self.is_complete;
        if !was_complete {
            self.strike(Some(process));
            let incarnation = self.roster.members.len() as u64;
            self.roster.members.push(Some(Member { process, address, incarnation }));
            self.update_count();
        }
        if !self.is_complete {
            return Vec::new();
        }
        let others = self.roster.members.iter().zip(0u16..).skip(1);
        let others = others.filter_map(|(member, place)| Some((member.as_ref()?.process, place)));
        let told = others.filter(|(other, _)| !was_complete || *other == process);
        told.map(|(other, place)| (other, self.roster.to_bytes(place, 0))).collect()
    }

    /// Removes a process that has gone again. Once the cluster is complete, its links will find out instead.
    pub(crate) fn strike(&mut self, process: Option<Id>) {
        if !self.is_complete {
            let stays = |member: &Option<Member>| member.map(|member| member.process) != process;
            self.roster.members.retain(stays);
            for (member, place) in self.roster.members.iter_mut().flatten().zip(0..) {
                member.incarnation = place;
            }
            self.update_count();
        }
    }

    fn update_count(&mut self) {
        self.here.store(self.roster.members.len(), Ordering::Relaxed);
        if self.roster.members.len() == usize::from(self.nodes) {
            self.is_complete = true;
            // Sending fails if the waiting thread has given up.
            let _ = self.complete.send(self.roster.clone());
        }
    }
}
