//! Faults that tests plant in what a part has, to see that runs in virtual time find them: packing, flushing, segments, streams, cursors,
//! supersteps, pipes. Without the feature `flaws` there are none, and asking for one is nothing that is compiled.

#![cfg_attr(
    not(feature = "flaws"),
    expect(unreachable_pub, reason = "with the feature tests of other packages plant them")
)]

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Packing: messages by a relay do not say their way.
    ForgetsWay,
    /// Packing: a full block is emptied before it is submitted.
    EmptiesFull,
    /// Packing: a train says one message fewer than it has taken.
    CountsTrainShort,
    /// Flushing: blocks that are due are emptied.
    EmptiesDue,
    /// Segmentation: two segments get the same number.
    RepeatsSegment,
    /// Segmentation: a segment has one byte fewer.
    CutsSegment,
    /// Segmentation: the room of a message that was sent is given up.
    GivesUpRoom,
    /// Reassembly: the bytes of a segment are not appended.
    SkipsSegment,
    /// Reassembly: the memory of a message that was read is not given back.
    KeepsBuffer,
    /// Reassembly: nobody hears that a node has failed half-way through a message.
    WaitsForFailed,
    /// Streams: a write says one byte fewer than it has taken.
    CountsWriteShort,
    /// Streams: what is flushed stays.
    KeepsWritten,
    /// Streams: the end is not noted at the reader.
    MissesEnd,
    /// Streams: one that was given up is said to have ended.
    EndsGivenUp,
    /// Cursors: a message of a train is left out.
    SkipsMessage,
    /// Cursors: a delivery that is read to its end is kept.
    KeepsDelivery,
    /// Cursors: the last message of a batch is read again.
    ReadsLastAgain,
    /// Supersteps: one ends without asking whether all has arrived.
    EndsUncounted,
    /// Supersteps: one ends though there is something left to read.
    EndsUnread,
    /// Supersteps: messages of the next one are not withheld.
    ReadsNext,
    /// Pipes: what lies in one that is given back stays there.
    KeepsInPipe,
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
        /// Plants it on this thread until the guard is dropped, in place of any other. It strikes each `every`th time.
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

    /// The time for which a [`Flaw`] is planted.
    #[must_use = "the flaw is gone when the guard is dropped"]
    #[derive(Debug)]
    pub struct Guard(());

    impl Guard {
        /// How often there was an opportunity.
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
