//! Groups made of some members of a group.

use std::time::Instant;

use pdbp_core::id::NodeId;

use super::join::{hash, join};
use super::switches::Switches;
use super::{Group, JoinError};

/// How many groups were made from this one: by `local`, which members elsewhere need not call equally often, and by `split`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    local: u32,
    split: u32,
}

impl Group {
    /// Makes the group of the members near this one, in the order of their ranks here: those whose nodes share memory with this
    /// one's (threads of a process, MPI processes of one host on Linux) and, on a [fabric](crate::Settings::fabric), those on its
    /// board. A member without neighbours, or connected by sockets, is in a group with those on its own node only.
    ///
    /// Collective: all those members must call it, and wait for each other as long as this group's [patience](Self::patience).
    /// This group is unaffected. It may be called again: each new group gets names of its own. Members meet in calls of the same
    /// number, and those that fail count, so if one member tries again, all others of the new group must too.
    ///
    /// ```
    /// use pdbp::{Cluster, collective::{Group, Sum}};
    /// use std::time::Duration;
    ///
    /// Cluster::local(4)?.run(|node| {
    ///     let mut all = Group::of_nodes(&node, "all", Duration::from_secs(60)).unwrap();
    ///     let mut here = all.local().unwrap(); // of all four: these are threads of one process
    ///     let mut sum = [1];
    ///     here.all_reduce(&mut sum, Sum).unwrap();
    ///     assert_eq!(sum, [4]);
    ///
    ///     let mut half = all.split(all.rank() as u64 / 2).unwrap();
    ///     half.all_reduce(&mut sum, Sum).unwrap();
    ///     assert_eq!((half.rank(), sum), (all.rank() % 2, [8]));
    /// });
    /// # Ok::<(), pdbp::StartError>(())
    /// ```
    ///
    /// # Errors
    /// See [`JoinError`]. [`JoinError::Register`] if the name, which grows by at least four bytes, becomes too long.
    pub fn local(&mut self) -> Result<Self, JoinError> {
        let node = self.line.part().node();
        let board = Switches::board(node, node.id());
        let is_near = |other| node.shared.engine().shares_memory(other);
        let ranks = self
            .ranks(|_, other| is_near(other) || (board.is_some() && Switches::board(node, other) == board));
        self.made.local += 1;
        self.of_ranks(&ranks, &format!("{}:{}", self.name, self.made.local - 1))
    }

    /// Splits the group: members that pass the same colour form a new group, in the order of their ranks here. Collective: all
    /// members must call it. This group is unaffected; the new one inherits its [patience](Self::patience).
    ///
    /// # Errors
    /// See [`JoinError`]; [`JoinError::Call`] if the colours could not be exchanged, as in a broken group, and
    /// [`JoinError::Register`] as for [`local`](Self::local).
    pub fn split(&mut self, colour: u64) -> Result<Self, JoinError> {
        let mut colours = vec![0; self.size()];
        self.all_gather(&[colour], &mut colours).map_err(JoinError::Call)?;
        let ranks = self.ranks(|rank, _| colours.get(rank) == Some(&colour));
        self.made.split += 1;
        self.of_ranks(&ranks, &format!("{}/{}", self.name, self.made.split - 1))
    }

    fn ranks(&self, is_member: impl Fn(usize, NodeId) -> bool) -> Vec<usize> {
        let nodes = self.line.nodes().iter().enumerate();
        nodes.filter(|(rank, node)| is_member(*rank, **node)).map(|(rank, _)| rank).collect()
    }

    /// Makes the group of the members with these ranks, of which this is one; all must pass the same list.
    fn of_ranks(&self, ranks: &[usize], name: &str) -> Result<Self, JoinError> {
        let node = self.line.part().node();
        let nodes: Vec<_> = ranks.iter().filter_map(|rank| self.line.nodes().get(*rank).copied()).collect();
        let own = self.rank();
        let rank = ranks.iter().position(|rank| *rank == own);
        let rank = rank.ok_or_else(|| JoinError::NotInList { part: self.line.part().name().to_owned() })?;
        // Its number distinguishes it from groups made before and after, its first member from groups made at the same time.
        let name = format!("{name}.{}", ranks.first().unwrap_or(&0));
        let list = hash(ranks.iter().map(|rank| *rank as u64));
        join(node, &name, &nodes, rank, list, (Instant::now(), self.patience))
    }
}
