//! Communicators.

use std::cell::RefCell;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::rc::Rc;
use std::task::Poll;

use pdbp_core::collective::{Call, Kind, Op, Refused};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Number;
use super::messages::PIECE;
use super::run::World;
use crate::rapidio::fabric::Event;
use crate::rapidio::operation::Key;
use crate::rapidio::{Error, HIGHEST};

/// A communicator: a process's view of a group of processes.
#[derive(Debug)]
pub struct Comm {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) id: u16,
    pub(super) group: u16,
    /// The ids of the members.
    pub(super) members: Rc<[u16]>,
    pub(super) priority: u8,
}

/// An operation in progress. If this is dropped, it continues, but its result is lost.
#[derive(Debug)]
#[must_use = "it is waited for with `wait`"]
pub struct Started<'c> {
    world: Rc<RefCell<World>>,
    id: u16,
    key: Key,
    end: Option<Result<Vec<u8>, Error>>,
    /// A group has one call in progress at a time.
    comm: PhantomData<&'c mut Comm>,
}

impl Started<'_> {
    /// Whether it has ended. Time does not pass here; call [`Comm::compute`] between polls.
    pub fn poll(&mut self) -> bool {
        if self.end.is_none() {
            self.end = self.world.borrow_mut().fabric.poll_op(self.id, self.key);
        }
        self.end.is_some()
    }

    /// Waits for its end, and returns its output.
    ///
    /// # Errors
    /// The error with which the operation failed.
    pub async fn wait(mut self) -> Result<Vec<u8>, Error> {
        poll_fn(|_| {
            self.poll();
            self.end.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Comm {
    pub(super) fn new(world: &Rc<RefCell<World>>, id: u16, group: u16) -> Self {
        let members = world.borrow().fabric.groups[usize::from(group)].ids.as_slice().into();
        Self { world: Rc::clone(world), id, group, members, priority: 0 }
    }

    /// The rank of this process in the group.
    pub fn rank(&self) -> usize {
        self.members.binary_search(&self.id).unwrap_or(0)
    }

    /// The number of members of the group.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The communicator of the processes on this one's switch.
    pub fn local(&self) -> Self {
        let switch = self.world.borrow().fabric.tree.home(self.id).0;
        let group = self.world.borrow().locals[switch];
        Self { priority: self.priority, ..Self::new(&self.world, self.id, group) }
    }

    /// The communicator of some members of this one, which keep their relative order whatever the order of the list. Processes that
    /// list the same members share a group. It keeps its masks in the switches until the program ends.
    ///
    /// # Errors
    /// Invalid ranks, a list that lacks this process or contains a rank twice, and [`Error::NoNumber`].
    pub fn of(&self, ranks: &[usize]) -> Result<Self, Error> {
        let members = self.size();
        if let Some(rank) = ranks.iter().copied().find(|rank| *rank >= members) {
            return Err(Refused::Rank { rank, members }.into());
        }
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        let twice = ranks.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(rank) = twice.or((!ranks.contains(&self.rank())).then_some(self.rank())) {
            return Err(Error::NotOfGroup { rank });
        }
        let ids: Vec<_> = ranks.into_iter().map(|rank| self.members[rank]).collect();
        let group = self.world.borrow_mut().group(ids).ok_or(Error::NoNumber)?;
        Ok(Self { priority: self.priority, ..Self::new(&self.world, self.id, group) })
    }

    /// Whether switches perform its calls. If a switch had no [mask](crate::rapidio::MASKS) left, members perform them by messages.
    pub fn in_switches(&self) -> bool {
        self.world.borrow().fabric.groups[usize::from(self.group)].in_switches
    }

    /// Sets the priority of messages sent from now on: from 0, the default, to one below [`HIGHEST`]. In switches they may overtake
    /// earlier messages of lower priority to the same process, even with the same tag.
    pub fn set_priority(&mut self, priority: u8) {
        self.priority = priority.min(HIGHEST - 1);
    }

    /// The time in cycles, including start-up.
    pub fn time(&self) -> u64 {
        self.world.borrow().fabric.now
    }

    /// Packets sent by all processes so far.
    pub fn traffic(&self) -> u64 {
        self.world.borrow().fabric.endpoints.iter().map(|endpoint| endpoint.sent).sum()
    }

    /// Computes for this many cycles.
    pub async fn compute(&self, cycles: u64) {
        let until = {
            let fabric = &mut self.world.borrow_mut().fabric;
            let until = fabric.now.saturating_add(cycles);
            fabric.plan(until, Event::Wakes(self.id));
            until
        };
        poll_fn(|_| if self.time() >= until { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Starts to send a message.
    ///
    /// # Errors
    /// An invalid rank, or the process itself.
    pub fn start_send<T: IntoBytes + Immutable>(
        &mut self,
        to: usize,
        tag: u32,
        data: &[T],
    ) -> Result<Started<'static>, Error> {
        let to = self.other(to)?;
        let (id, priority) = (self.id, self.priority);
        let data = data.as_bytes().to_vec();
        let key = self.world.borrow_mut().fabric.start_send(id, to, tag.into(), priority, data);
        Ok(self.started(key))
    }

    /// Posts a receive of a message with this tag and length.
    ///
    /// # Errors
    /// An invalid rank, or the process itself.
    pub fn start_recv(&mut self, from: usize, tag: u32, bytes: usize) -> Result<Started<'static>, Error> {
        let from = self.other(from)?;
        let key = self.world.borrow_mut().fabric.start_recv(self.id, from, tag.into(), bytes);
        Ok(self.started(key))
    }

    /// Sends a message; completes when all of it has been acknowledged.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send<T: IntoBytes + Immutable>(
        &mut self,
        to: usize,
        tag: u32,
        data: &[T],
    ) -> Result<(), Error> {
        self.start_send(to, tag, data)?.wait().await.map(drop)
    }

    /// Receives a message of the length of `data`.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn recv<T: FromBytes + IntoBytes>(
        &mut self,
        from: usize,
        tag: u32,
        data: &mut [T],
    ) -> Result<(), Error> {
        let bytes = self.start_recv(from, tag, size_of_val(data))?.wait().await?;
        data.as_mut_bytes().copy_from_slice(&bytes);
        Ok(())
    }

    /// Sends to one process and receives from another at the same time. If all processes of a ring `send` first, they deadlock wherever
    /// messages need buffers at the receiver.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn send_recv<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        to: usize,
        data: &[T],
        from: usize,
        into: &mut [T],
    ) -> Result<(), Error> {
        let out = self.start_send(to, 0, data)?;
        let bytes = self.start_recv(from, 0, size_of_val(into))?.wait().await?;
        into.as_mut_bytes().copy_from_slice(&bytes);
        out.wait().await.map(drop)
    }

    /// Starts a call of all members, performed by the switches, with this input and output ([`Call::lengths`]). [`Started::wait`]
    /// returns the output.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::NotInSwitches`] and [`Error::NoMask`]; the call then does not count.
    pub fn start(&mut self, call: Call, input: Vec<u8>, output: Vec<u8>) -> Result<Started<'_>, Error> {
        call.check(self.size(), self.rank(), input.len(), output.len())?;
        let in_switches = matches!(
            call.kind,
            Kind::Barrier | Kind::Broadcast | Kind::Scatter | Kind::Gather | Kind::Reduce | Kind::AllReduce
        );
        if !in_switches || call.op == Some(Op::Function) {
            return Err(Error::NotInSwitches { kind: call.kind });
        }
        if !self.in_switches() {
            return Err(Error::NoMask);
        }
        let mut world = self.world.borrow_mut();
        let count = world.calls.entry((self.id, self.group)).or_default();
        *count += 1;
        let number = *count;
        let key = world.fabric.start_call(self.id, (self.group, number), call, input, output);
        drop(world);
        Ok(self.started(key))
    }

    /// Returns once all members have called it.
    ///
    /// # Errors
    /// See [`Error`], here and below.
    pub async fn barrier(&mut self) -> Result<(), Error> {
        let call = Call::moving(Kind::Barrier, 0, 0);
        self.call(call, Vec::new(), Vec::new()).await.map(drop)
    }

    /// All members get the data of the root.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn broadcast<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        root: usize,
        data: &mut [T],
    ) -> Result<(), Error> {
        let call = Call::moving(Kind::Broadcast, root, size_of_val(data));
        self.in_place(call, data).await
    }

    /// Each member gets its block of the root's data; `all` is empty at others.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn scatter<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        root: usize,
        all: &[T],
        block: &mut [T],
    ) -> Result<(), Error> {
        let call = Call::moving(Kind::Scatter, root, size_of_val(block));
        let input = all.as_bytes().to_vec();
        let output = self.call(call, input, vec![0; call.bytes]).await?;
        block.as_mut_bytes().copy_from_slice(&output);
        Ok(())
    }

    /// The root gets a block from each member; `all` is empty at others.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn gather<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        root: usize,
        block: &[T],
        all: &mut [T],
    ) -> Result<(), Error> {
        let call = Call::moving(Kind::Gather, root, size_of_val(block));
        let output = vec![0; size_of_val(all)];
        let output = self.call(call, block.as_bytes().to_vec(), output).await?;
        all.as_mut_bytes().copy_from_slice(&output);
        Ok(())
    }

    /// The root gets the combined values of all; those of others are unchanged.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn reduce<T: Number>(&mut self, root: usize, data: &mut [T], op: Op) -> Result<(), Error> {
        self.in_place(Call::reducing(Kind::Reduce, root, T::ELEMENT, op, size_of_val(data)), data).await
    }

    /// All members get the combined values of all.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn all_reduce<T: Number>(&mut self, data: &mut [T], op: Op) -> Result<(), Error> {
        self.in_place(Call::reducing(Kind::AllReduce, 0, T::ELEMENT, op, size_of_val(data)), data).await
    }

    async fn in_place<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        call: Call,
        data: &mut [T],
    ) -> Result<(), Error> {
        let output = self.call(call, Vec::new(), data.as_bytes().to_vec()).await?;
        data.as_mut_bytes().copy_from_slice(&output);
        Ok(())
    }

    /// Performs a call by the switches, or by messages if the group has no masks.
    async fn call(&mut self, call: Call, input: Vec<u8>, output: Vec<u8>) -> Result<Vec<u8>, Error> {
        if self.in_switches() {
            return self.start(call, input, output)?.wait().await;
        }
        // The steps use the output as scratch space; a reduce leaves it unchanged except at the root.
        let own = (call.kind == Kind::Reduce && self.rank() != call.root).then(|| output.clone());
        let output = self.by_messages(call, None, PIECE, input, output).await?;
        Ok(own.unwrap_or(output))
    }

    /// The id of another member.
    fn other(&self, rank: usize) -> Result<u16, Error> {
        let members = self.size();
        match self.members.get(rank) {
            Some(id) if *id == self.id => Err(Refused::ToItself { rank }.into()),
            Some(id) => Ok(*id),
            None => Err(Refused::Rank { rank, members }.into()),
        }
    }

    pub(super) fn started<'c>(&self, key: Key) -> Started<'c> {
        Started { world: Rc::clone(&self.world), id: self.id, key, end: None, comm: PhantomData }
    }
}
