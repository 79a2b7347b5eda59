//! Parts: sending and receiving messages.
//!
//! A part and its streams are used by one thread at a time, its *owner*, without a lock. Who calls is compared with `owner` each time.
//! The part changes hands by two: the owner disowns it (a releasing store of nobody), then another adopts it (an acquiring exchange of
//! nobody for itself). So what the one has done is seen by the other, and never are two inside.

use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use pdbp::{
    Interest, Loan, Message, Part, PartKind, Ready, RecvError, SendError, Sender, Shared, Target, WakeFd,
};

use crate::call::{MaybeOut, Out, Text, Wait, bytes, exports, named, room, values};
use crate::device::Copiers;
use crate::freed::keep;
use crate::handle::{Foreign, Free, Handle, Header, In, Look, this_thread};
use crate::message::{BatchInfo, MessageInfo};
use crate::node::{self, NodeHandle, TargetBits};
use crate::status::{Failure, Status};
use crate::stream::End;
use crate::together::Together;

/// `pdbp_part`.
///
/// **Invariant.** All fields below `id` but `left` are used by the thread whose number `owner` is, or by the one that drops it.
#[repr(C)]
pub struct PartHandle {
    header: Header,
    /// The owner's number, or [`NOBODY`]; and [`LEFT`].
    owner: AtomicUsize,
    id: TargetBits,
    /// What other threads have freed, for the owner to drop.
    left: Mutex<Vec<End>>,
    /// From the first call that asks for it.
    wakes: OnceCell<WakeFd>,
    /// For operations with device memory.
    pub(crate) copiers: Copiers,
    /// The target that was found to be a part last: to look each time takes 34 instructions.
    checked: Cell<TargetBits>,
    /// From the first call that asks for it. Dropped before the part.
    together: RefCell<Option<Together>>,
    /// Dropped before the part.
    loan: RefCell<Option<Loan<&'static Part<Shared>>>>,
    part: Part<Shared>,
}

/// In [`PartHandle::owner`]: the part has none.
const NOBODY: usize = 0;
/// In [`PartHandle::owner`], beside the number: there is something in `left`.
const LEFT: usize = 1;

// SAFETY: a `Part<Shared>` may go to another thread, and the loan and the ends that point to it go along: they are in it, and used by the
// thread that uses it (invariant).
unsafe impl Send for PartHandle {}
// SAFETY: what is not made for several threads is used by one at a time (invariant).
unsafe impl Sync for PartHandle {}

impl PartHandle {
    /// The part, for ends of streams and loans that live no longer than this.
    ///
    /// # Safety
    /// What is made of it is dropped before this handle.
    pub(crate) unsafe fn part(&self) -> &'static Part<Shared> {
        let part = std::ptr::from_ref(&self.part);
        // SAFETY: it stays where it is, and lives as long as what is made of it (contract).
        unsafe { &*part }
    }

    fn wakes(&self) -> Result<&WakeFd, Failure> {
        if let Some(wakes) = self.wakes.get() {
            return Ok(wakes);
        }
        let wakes = node::descriptor()?;
        Ok(self.wakes.get_or_init(|| wakes))
    }

    pub(crate) fn node(&self) -> &pdbp::Node {
        self.part.node()
    }

    /// Calls `f` with the streams that are read together.
    pub(crate) fn together<R>(
        &self,
        f: impl FnOnce(&mut Together) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // SAFETY: what is made of the part is kept in the handle, where it is dropped before the part.
        let part = unsafe { self.part() };
        f(self.together.borrow_mut().get_or_insert_with(|| Together::new(part)))
    }

    /// The part that a number of C's is.
    ///
    /// # Errors
    /// A number that none has, as far as this node knows.
    #[inline(always)]
    pub(crate) fn target(&self, bits: TargetBits) -> Result<Target, Failure> {
        let target = bits.target()?;
        if bits != self.checked.get() {
            self.part.check(target)?;
            self.checked.set(bits);
        }
        Ok(target)
    }

    pub(crate) fn shared(&self) -> &Part<Shared> {
        &self.part
    }

    /// Drops something that was freed, or leaves it to the owner.
    pub(crate) fn let_go(&self, end: Option<End>) {
        let Some(end) = end else { return };
        if self.owner.load(Ordering::Relaxed) & !LEFT == this_thread() {
            return self.end(end);
        }
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        self.owner.fetch_or(LEFT, Ordering::Relaxed);
    }

    fn end(&self, end: End) {
        match end {
            End::Part => {
                drop((self.loan.take(), self.together.take()));
                // What is in one block with the loan.
                self.part.flush();
            }
            End::Writer(writer) => drop(writer),
            End::Reader(reader) => drop(reader),
        }
    }

    #[inline(always)]
    fn send(&self, to: Target, message: &[u8], wait: Wait) -> Result<(), SendError> {
        match wait.given() {
            None => self.part.send(to, message),
            Some(_) => self.send_within(to, message, wait),
        }
    }

    #[inline(never)]
    fn send_within(&self, to: Target, message: &[u8], wait: Wait) -> Result<(), SendError> {
        sender(&self.part, to, wait).send(message)
    }

    #[inline(always)]
    fn recv(&self, wait: Wait) -> Result<Message<Shared>, Failure> {
        if !wait.is_none() {
            return self.recv_within(wait);
        }
        // No `map` here: a message that goes through one lies in memory.
        match self.part.try_recv() {
            Some(message) => Ok(message),
            None => self.nothing(Part::try_recv),
        }
    }

    /// For a call that must not wait and has found nothing: looks once more if nobody is left, since by then all has arrived.
    #[cold]
    #[inline(never)]
    fn nothing<R>(&self, look: impl FnOnce(&Part<Shared>) -> Option<R>) -> Result<R, Failure> {
        if !self.part.is_alone() {
            return Err(Failure::WOULD_BLOCK);
        }
        look(&self.part).ok_or_else(|| RecvError::NobodyLeft.into())
    }

    #[inline(never)]
    fn recv_within(&self, wait: Wait) -> Result<Message<Shared>, Failure> {
        Ok(self.part.recv_timeout(wait.on(self.node()))?)
    }
}

/// A share of the part that C has a handle of.
pub(crate) fn share_of(part: &PartHandle) -> Arc<PartHandle> {
    // SAFETY: `pdbp_register` has made it of an `Arc`, of which the handle is a share.
    unsafe { Arc::increment_strong_count(part) };
    // SAFETY: the share that was just counted.
    unsafe { Arc::from_raw(part) }
}

/// A way to a part that waits for room as long as a call may.
fn sender(part: &Part<Shared>, to: Target, wait: Wait) -> Sender<'_, Shared> {
    let sender = part.sender(to);
    match wait.given() {
        None => sender,
        Some(_) if wait.is_none() => sender.no_wait(),
        Some(timeout) => sender.timeout(timeout),
    }
}

// SAFETY: see the struct.
unsafe impl Handle for PartHandle {
    const TAG: u32 = 0x5041_5254;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_part *";

    fn header(&self) -> &Header {
        &self.header
    }

    #[inline(always)]
    fn is_callers(&self) -> bool {
        // Pairs with nothing: the number of this thread was written by this thread.
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    fn enter(&self) -> Result<(), Failure> {
        match self.owner.load(Ordering::Relaxed) & !LEFT {
            owner if owner == this_thread() => {
                self.owner.fetch_and(!LEFT, Ordering::Relaxed);
                // Dropped when the lock is free again.
                let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
                left.into_iter().for_each(|end| self.end(end));
                Ok(())
            }
            NOBODY => Err(Failure::new(
                Status::E_THREAD,
                "no thread owns the part; take it over with pdbp_adopt".to_owned(),
            )),
            _ => Err(Failure::new(
                Status::E_THREAD,
                "another thread owns the part; call pdbp_disown there, then pdbp_adopt here".to_owned(),
            )),
        }
    }

    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut Self {
        world.part.get()
    }
}

/// `PDBP_STREAM`: of what is ready.
pub const STREAM: u32 = 4;

/// What is to be received, or sent: bits of `interest`.
pub const INTEREST: [u32; 2] = [1, 2];

fn interest(part: &PartHandle, bits: u32, to: TargetBits) -> Result<Interest, Failure> {
    match bits {
        1 => Ok(Interest::Recv),
        2 => Ok(Interest::Send(part.target(to)?)),
        3 => Ok(Interest::Either(part.target(to)?)),
        _ => Err(Failure::new(
            Status::E_ARGUMENT,
            format!("{bits} is not an interest; use PDBP_RECV, PDBP_SEND or both"),
        )),
    }
}

fn kind(number: u32) -> Result<PartKind, Failure> {
    match number {
        0 => Ok(PartKind::Cpu),
        1 => Ok(PartKind::Gpu),
        2 => Ok(PartKind::Communication),
        _ => Err(Failure::new(
            Status::E_ARGUMENT,
            format!("{number} is not a kind of part; use PDBP_CPU, PDBP_GPU or PDBP_COMMUNICATION"),
        )),
    }
}

/// What is ready, as C has it.
fn bits(found: Ready) -> u32 {
    let [recv, send, stream] = [(found.recv, 1), (found.send, 2), (found.stream, STREAM)]
        .map(|(is_ready, bit)| if is_ready { bit } else { 0 });
    recv | send | stream
}

exports! {
    /// Registers a part. The calling thread owns it.
    fn pdbp_register(node: In<NodeHandle>, name: Text, kind_of: u32, out: Out<*mut PartHandle>) -> Status {
        let part = node.node.register_shared(name, kind(kind_of)?)?;
        let part = Arc::new(PartHandle {
            header: Header::new::<PartHandle>(),
            owner: AtomicUsize::new(this_thread()),
            id: part.id().into(),
            left: Mutex::default(),
            wakes: OnceCell::new(),
            copiers: Copiers::default(),
            checked: Cell::new(node::NOBODY),
            together: RefCell::default(),
            loan: RefCell::default(),
            part,
        });
        out.put(Arc::into_raw(part).cast_mut());
        Ok(Status::DONE)
    }

    /// The part as a target, for any thread.
    fn pdbp_self(part: Look<PartHandle>) -> TargetBits {
        Ok(part.id)
    }

    /// Lets another thread adopt the part with its streams.
    fn pdbp_disown(part: In<PartHandle>) -> Status {
        // Pairs with the exchange in `pdbp_adopt`.
        part.owner.fetch_and(LEFT, Ordering::Release);
        Ok(Status::DONE)
    }

    /// Makes a part that was disowned the calling thread's.
    fn pdbp_adopt(part: Foreign<PartHandle>) -> Status {
        // Pairs with the store in `pdbp_disown`.
        let adopted = part.owner.fetch_update(Ordering::Acquire, Ordering::Relaxed, |owner| {
            (owner & !LEFT == NOBODY).then_some(owner | this_thread())
        });
        match adopted {
            Ok(_) => Ok(Status::DONE),
            // Its owner may adopt it; anybody else is told that there is one.
            Err(_) => part.enter().map(|()| Status::DONE),
        }
    }

    /// Frees a part; it stays registered while it has open streams.
    fn pdbp_part_free(part: Free<PartHandle>) -> () {
        let Some(part) = part else { return Ok(()) };
        // SAFETY: `pdbp_register` has made it of an `Arc`, and this is the end of its share.
        let part = unsafe { Arc::from_raw(part.as_ptr()) };
        // Nobody adopts it any more. Its streams may keep it. Pairs with the store in `pdbp_disown`.
        let is_nobodys = |owner| (owner & !LEFT == NOBODY).then_some(owner | this_thread());
        let _ = part.owner.fetch_update(Ordering::Acquire, Ordering::Relaxed, is_nobodys);
        part.let_go(Some(End::Part));
        keep(Box::new(Arc::downgrade(&part)));
        Ok(())
    }

    /// Sends a message.
    fn pdbp_send(part: In<PartHandle>, to: TargetBits, data: *const c_void, size: usize, wait: Wait) -> Status {
        // SAFETY: the header's promise.
        let message = unsafe { bytes(data, size) }?;
        part.send(part.target(to)?, message, wait).map_err(|e| wait.failure(e))?;
        Ok(Status::DONE)
    }

    /// Sends a command.
    fn pdbp_send_command(
        part: In<PartHandle>, to: TargetBits, command: u16, data: *const c_void, size: usize, wait: Wait
    ) -> Status {
        // SAFETY: the header's promise.
        let message = unsafe { bytes(data, size) }?;
        sender(&part.part, part.target(to)?, wait).command(command).send(message)?;
        Ok(Status::DONE)
    }

    /// Sends a message to several parts.
    fn pdbp_send_all(
        part: In<PartHandle>, to: *const TargetBits, targets: usize, data: *const c_void, size: usize
    ) -> Status {
        // SAFETY: the header's promise.
        let to = unsafe { values(to, targets) }?;
        // SAFETY: the header's promise.
        let message = unsafe { bytes(data, size) }?;
        let to = to.iter().map(|to| part.target(*to)).collect::<Result<Vec<_>, _>>()?;
        part.part.send_all(&to, message)?;
        Ok(Status::DONE)
    }

    /// Sends messages of one length, one behind the other.
    fn pdbp_send_train(
        part: In<PartHandle>, to: TargetBits, data: *const c_void, each: usize, count: usize, sent: MaybeOut<usize>, wait: Wait
    ) -> Status {
        if each == 0 && count > 0 {
            let text = "a train of messages without bytes; send such messages with pdbp_send, one by one";
            return Err(Failure::new(Status::E_ARGUMENT, text.to_owned()));
        }
        let all = each.saturating_mul(count);
        // SAFETY: the header's promise.
        let messages = unsafe { bytes(data, all) }?;
        let done = sender(&part.part, part.target(to)?, wait).send_train(messages, each)?;
        sent.put(done);
        if done < count { Err(Failure::WOULD_BLOCK) } else { Ok(Status::DONE) }
    }

    /// Lends room for a message, to be filled in place.
    fn pdbp_loan(part: In<PartHandle>, to: TargetBits, size: usize, wait: Wait, out: Out<*mut c_void>) -> Status {
        // SAFETY: the loan is kept in the handle, where it is dropped before the part.
        let lender = unsafe { part.part() };
        let mut loan = sender(lender, part.target(to)?, wait).loan(size)?;
        out.put(loan.as_mut_ptr().cast());
        part.loan.replace(Some(loan));
        Ok(Status::DONE)
    }

    /// Sends the loan.
    fn pdbp_commit(part: In<PartHandle>) -> Status {
        let text = "the part has no loan; take one with pdbp_loan";
        let loan = part.loan.take().ok_or_else(|| Failure::new(Status::E_NO_LOAN, text.to_owned()))?;
        loan.send();
        Ok(Status::DONE)
    }

    /// Gives the loan up.
    fn pdbp_abandon(part: In<PartHandle>) -> () {
        part.loan.take();
        Ok(())
    }

    /// Lets what was packed leave.
    fn pdbp_flush(part: In<PartHandle>) -> Status {
        part.part.flush();
        Ok(Status::DONE)
    }

    /// Receives a message.
    fn pdbp_recv(part: In<PartHandle>, message: Out<MessageInfo>, wait: Wait) -> Status {
        message.put(MessageInfo::of(part.recv(wait)?));
        Ok(Status::DONE)
    }

    /// Receives messages: one, for which it may wait, and what else there is.
    fn pdbp_recv_many(
        part: In<PartHandle>, messages: MaybeOut<MessageInfo>, rooms: usize, got: Out<usize>, wait: Wait
    ) -> Status {
        // SAFETY: the header's promise.
        let places = unsafe { room(messages.pointer(), rooms) }?;
        let mut count = 0;
        if let Some((first, others)) = places.split_first_mut() {
            first.write(MessageInfo::of(part.recv(wait)?));
            count = 1;
            for place in others {
                let Some(message) = part.part.try_recv() else { break };
                place.write(MessageInfo::of(message));
                count += 1;
            }
        }
        got.put(count);
        Ok(Status::DONE)
    }

    /// Receives the rest of a train.
    fn pdbp_recv_batch(part: In<PartHandle>, batch: Out<BatchInfo>, wait: Wait) -> Status {
        let found = match wait.is_none() {
            true => match part.part.try_recv_batch() {
                Some(found) => found,
                None => part.nothing(Part::try_recv_batch)?,
            },
            false => part.part.recv_batch(wait.on(part.node()))?,
        };
        batch.put(BatchInfo::of(found));
        Ok(Status::DONE)
    }

    /// The next message that has come back, and the parts that it was for.
    fn pdbp_returned(
        part: In<PartHandle>, message: Out<MessageInfo>, to: MaybeOut<TargetBits>, rooms: usize, targets: MaybeOut<usize>
    ) -> Status {
        // SAFETY: null, or the header's promise.
        let places = unsafe { room(to.pointer(), if to.pointer().is_null() { 0 } else { rooms }) }?;
        let returned = part.part.try_returned()?.ok_or(Failure::WOULD_BLOCK)?;
        for (place, target) in places.iter_mut().zip(returned.targets()) {
            place.write((*target).into());
        }
        targets.put(returned.targets().len());
        message.put(MessageInfo::of_returned(returned, part.id));
        Ok(Status::DONE)
    }

    /// Waits until something can be received or sent.
    fn pdbp_wait(part: In<PartHandle>, interest_in: u32, to: TargetBits, wait: Wait, ready: MaybeOut<u32>) -> Status {
        let interest = interest(part, interest_in, to)?;
        let found = part.part.wait(interest, wait.on(part.node())).map_err(|e| wait.failure(e))?;
        ready.put(bits(found));
        Ok(Status::DONE)
    }

    /// The descriptor that `pdbp_arm` arms.
    fn pdbp_fd(part: In<PartHandle>, fd: Out<c_int>) -> Status {
        fd.put(part.wakes()?.as_fd().as_raw_fd());
        Ok(Status::DONE)
    }

    /// Looks for what can be received or sent, and lets the descriptor say when there is some.
    fn pdbp_arm(part: In<PartHandle>, interest_in: u32, to: TargetBits, ready: MaybeOut<u32>) -> Status {
        let interest = interest(part, interest_in, to)?;
        let wakes = part.wakes()?;
        wakes.clear();
        match part.part.poll_ready(interest, &mut wakes.context()) {
            Poll::Ready(found) => {
                ready.put(bits(found?));
                Ok(Status::DONE)
            }
            Poll::Pending => {
                ready.put(0);
                Ok(Status::WOULD_BLOCK)
            }
        }
    }
}

named! {
    PartHandle, "pdbp_part";
}
