//! Messages, segments of streams and batches, as C has them: in memory of the caller's.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use pdbp::{Batch, Message, Returned, Segment, Shared};

use crate::call::{exports, named};
use crate::handle::forks;
use crate::node::TargetBits;
use crate::status::{Failure, Status};

/// `pdbp_message`. Nothing is in it if it is all zeroes.
///
/// **Invariant.** `held` is 0, or says what `owner` holds (see `Held`) and how often the process had forked by then.
#[repr(C)]
#[expect(missing_docs, reason = "the header says what they are")]
pub struct MessageInfo {
    pub data: *const c_void,
    pub size: usize,
    pub source: TargetBits,
    pub command: u16,
    pub flags: u16,
    pub held: u32,
    pub owner: [MaybeUninit<u64>; 4],
}

/// `pdbp_batch`, as [`MessageInfo`].
#[repr(C)]
#[expect(missing_docs, reason = "the header says what they are")]
pub struct BatchInfo {
    pub data: *const c_void,
    pub each: usize,
    pub count: usize,
    pub source: TargetBits,
    pub command: u16,
    pub flags: u16,
    pub held: u32,
    pub owner: [MaybeUninit<u64>; 4],
    pub reserved: u64,
}

const _: () = assert!(size_of::<MessageInfo>() == 64);
const _: () = assert!(size_of::<BatchInfo>() == 80);

/// `PDBP_COMMAND`: it was sent as a command.
pub const COMMAND: u16 = 1;

/// Something that a message or batch holds its bytes by.
trait Held: Sized {
    /// What `held` says of it.
    const KIND: u32;
    /// It fits there, and may be released on any thread.
    const FITS: () = {
        const fn any_thread<T: Send + Sync>() {}
        any_thread::<Message<Shared>>();
        any_thread::<Segment<Shared>>();
        any_thread::<Returned<Shared>>();
        any_thread::<Batch<Shared>>();
        assert!(size_of::<Self>() <= 32 && align_of::<Self>() <= 8);
    };
}

impl Held for Message<Shared> {
    const KIND: u32 = 1;
}

impl Held for Segment<Shared> {
    const KIND: u32 = 2;
}

impl Held for Box<Returned<Shared>> {
    const KIND: u32 = 3;
}

impl Held for Batch<Shared> {
    const KIND: u32 = 4;
}

/// Of `held`: what is held. The bits above say how often the process had forked.
const KIND_BITS: u32 = 4;

#[inline(always)]
fn held_now(kind: u32) -> u32 {
    kind | forks() << KIND_BITS
}

/// Puts what holds the bytes into `owner`.
#[inline(always)]
fn owned<H: Held>(holder: H) -> [MaybeUninit<u64>; 4] {
    const { H::FITS };
    let mut owner = [const { MaybeUninit::uninit() }; 4];
    // SAFETY: size and alignment fit.
    unsafe { owner.as_mut_ptr().cast::<H>().write(holder) }
    owner
}

impl MessageInfo {
    /// A message.
    #[inline(always)]
    pub(crate) fn of(message: Message<Shared>) -> Self {
        Self {
            data: message.as_ptr().cast(),
            size: message.len(),
            source: message.source().into(),
            command: message.command(),
            flags: if message.is_command() { COMMAND } else { 0 },
            held: held_now(Message::<Shared>::KIND),
            owner: owned(message),
        }
    }

    /// A segment of a stream.
    pub(crate) fn of_segment(segment: Segment<Shared>, source: TargetBits) -> Self {
        let (data, size) = (segment.as_ptr().cast(), segment.len());
        let held = held_now(Segment::<Shared>::KIND);
        Self { data, size, source, command: 0, flags: 0, held, owner: owned(segment) }
    }

    /// The end of a stream.
    pub(crate) fn of_end(source: TargetBits) -> Self {
        Self { source, ..Self::nothing() }
    }

    /// A message that has come back to its sender.
    pub(crate) fn of_returned(returned: Returned<Shared>, sender: TargetBits) -> Self {
        Self {
            data: returned.as_ptr().cast(),
            size: returned.len(),
            source: sender,
            command: returned.command(),
            flags: if returned.is_command() { COMMAND } else { 0 },
            held: held_now(Box::<Returned<Shared>>::KIND),
            owner: owned(Box::new(returned)),
        }
    }

    /// All zeroes.
    fn nothing() -> Self {
        let owner = [MaybeUninit::new(0); 4];
        Self { data: std::ptr::null(), size: 0, source: TargetBits(0), command: 0, flags: 0, held: 0, owner }
    }

    /// Gives back what it holds, and leaves zeroes.
    ///
    /// # Safety
    /// It was given out by this library and not copied, or is all zeroes.
    #[inline(always)]
    unsafe fn release(&mut self) -> Result<(), Failure> {
        let Self { held, owner, .. } = std::mem::replace(self, Self::nothing());
        if held == held_now(Message::<Shared>::KIND) {
            // SAFETY: that is what it holds (invariant), and now no longer.
            drop(unsafe { owner.as_ptr().cast::<Message<Shared>>().read() });
            return Ok(());
        }
        // SAFETY: as the contract says.
        unsafe { release_other(held, &owner) }
    }
}

/// Gives back what is no message.
///
/// # Safety
/// `owner` has it (the invariant of [`MessageInfo`]), and the caller forgets it.
#[cold]
#[inline(never)]
unsafe fn release_other(held: u32, owner: &[MaybeUninit<u64>; 4]) -> Result<(), Failure> {
    let at = owner.as_ptr();
    if held == 0 || held >> KIND_BITS != forks() << KIND_BITS >> KIND_BITS {
        // Nothing, or a block of the process that this one is a fork of.
        return Ok(());
    }
    match held & ((1 << KIND_BITS) - 1) {
        // SAFETY: that is what it holds (contract).
        Segment::<Shared>::KIND => drop(unsafe { at.cast::<Segment<Shared>>().read() }),
        // SAFETY: as above.
        Box::<Returned<Shared>>::KIND => drop(unsafe { at.cast::<Box<Returned<Shared>>>().read() }),
        // SAFETY: as above.
        Batch::<Shared>::KIND => drop(unsafe { at.cast::<Batch<Shared>>().read() }),
        _ => {
            let text = "not a message of this library; set the struct to zeroes before its first use, and do not copy it";
            return Err(Failure::new(Status::E_ARGUMENT, text.to_owned()));
        }
    }
    Ok(())
}

impl BatchInfo {
    /// A batch.
    pub(crate) fn of(batch: Batch<Shared>) -> Self {
        Self {
            data: batch.bytes().as_ptr().cast(),
            each: batch.message_len(),
            count: batch.len(),
            source: batch.source().into(),
            command: batch.command(),
            flags: if batch.is_command() { COMMAND } else { 0 },
            held: held_now(Batch::<Shared>::KIND),
            owner: owned(batch),
            reserved: 0,
        }
    }

    /// All zeroes.
    fn nothing() -> Self {
        Self {
            data: std::ptr::null(),
            each: 0,
            count: 0,
            source: TargetBits(0),
            command: 0,
            flags: 0,
            held: 0,
            owner: [MaybeUninit::new(0); 4],
            reserved: 0,
        }
    }
}

exports! {
    /// Gives messages back.
    fn pdbp_release(messages: crate::call::MaybeOut<MessageInfo>, count: usize) -> () {
        let messages = messages.pointer();
        if messages.is_null() {
            return Ok(());
        }
        for i in 0..count {
            // SAFETY: there are so many (the header's promise).
            let message = unsafe { messages.add(i) };
            // SAFETY: it is the caller's, who gives it to this call.
            let message = unsafe { &mut *message };
            // SAFETY: the header's promise.
            unsafe { message.release() }?;
        }
        Ok(())
    }

    /// Gives a batch back.
    fn pdbp_release_batch(batch: crate::call::MaybeOut<BatchInfo>) -> () {
        let batch = batch.pointer();
        if batch.is_null() {
            return Ok(());
        }
        // SAFETY: it is the caller's, who gives it to this call (the header's promise).
        let BatchInfo { held, owner, .. } = unsafe { batch.replace(BatchInfo::nothing()) };
        // SAFETY: it is a batch that this library has given out, or zeroes (the header's promise).
        unsafe { release_other(held, &owner) }
    }
}

named! {
    MessageInfo, "pdbp_message";
    BatchInfo, "pdbp_batch";
}
