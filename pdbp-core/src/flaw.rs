//! Faults that tests plant in the part layer, to check that runs in virtual time find them: packing, flushing, segments, streams,
//! cursors, supersteps, pipes, copies. Without the feature `flaws` there are none, and the checks compile to nothing.

#![cfg_attr(
    not(feature = "flaws"),
    expect(unreachable_pub, reason = "with the feature tests of other packages plant them")
)]

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Packing: relayed messages lack their route.
    ForgetsWay,
    /// Packing: a full block is emptied before it is submitted.
    EmptiesFull,
    /// Packing: a train claims one message fewer than it took.
    CountsTrainShort,
    /// Packing: a train that another one follows behind it has one message fewer.
    CountsEndedShort,
    /// Packing: the first message to another part has the route of the one before.
    KeepsRoute,
    /// Packing: what was written beside a block is not copied into it.
    ForgetsStaged,
    /// Flushing: blocks that are due are emptied.
    EmptiesDue,
    /// Segmentation: two segments get the same number.
    RepeatsSegment,
    /// Segmentation: a segment has one byte fewer.
    CutsSegment,
    /// Segmentation: the reservation for a message that was sent is given up.
    GivesUpRoom,
    /// Reassembly: the bytes of a segment are not appended.
    SkipsSegment,
    /// Reassembly: the buffer of a message that was read is not returned.
    KeepsBuffer,
    /// Reassembly: nobody learns that a node failed in the middle of a message.
    WaitsForFailed,
    /// Streams: a write reports one byte fewer than it took.
    CountsWriteShort,
    /// Streams: a flush does nothing.
    KeepsWritten,
    /// Streams: the reader does not notice the end.
    MissesEnd,
    /// Streams: one that was given up is reported as ended.
    EndsGivenUp,
    /// Cursors: a message of a train is skipped.
    SkipsMessage,
    /// Cursors: a delivery read to its end is not released.
    KeepsDelivery,
    /// Cursors: the last message of a batch is read again.
    ReadsLastAgain,
    /// Supersteps: one ends without checking whether everything has arrived.
    EndsUncounted,
    /// Supersteps: one ends with unread messages.
    EndsUnread,
    /// Supersteps: messages of the next one are not held back.
    ReadsNext,
    /// Pipes: the content of a released pipe stays there.
    KeepsInPipe,
    /// Copies: one lacks its last byte.
    CutsCopy,
    /// Copies: the memory of one is reused before it has been read.
    FreesCopy,
    /// Copies: the memory of one that has been read is not released.
    KeepsCopy,
}

#[cfg(feature = "flaws")]
mod planted {
    use core::cell::Cell;

    use super::Flaw;

    std::thread_local! {
        static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    #[derive(Clone, Copy)]
    struct Planted {
        flaw: Flaw,
        every: u32,
        times: u32,
    }

    impl Flaw {
        /// Plants it on this thread until the guard is dropped, replacing any other. It strikes every `every`th time.
        pub fn plant(self, every: u32) -> Guard {
            PLANTED.set(Some(Planted { flaw: self, every: every.max(1), times: 0 }));
            Guard(())
        }

        /// Whether it strikes.
        pub(crate) fn strikes(self) -> bool {
            let Some(mut planted) = PLANTED.get().filter(|planted| planted.flaw == self) else {
                return false;
            };
            planted.times += 1;
            PLANTED.set(Some(planted));
            planted.times.is_multiple_of(planted.every)
        }
    }

    /// Keeps a [`Flaw`] planted.
    #[must_use = "the flaw is gone when the guard is dropped"]
    #[derive(Debug)]
    pub struct Guard(());

    impl Guard {
        /// How often it could have struck.
        pub fn times(&self) -> u32 {
            PLANTED.get().map_or(0, |planted| planted.times)
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(feature = "flaws")]
pub use planted::Guard;

#[cfg(not(feature = "flaws"))]
impl Flaw {
    #[inline(always)]
    pub(crate) const fn strikes(self) -> bool {
        false
    }
}
