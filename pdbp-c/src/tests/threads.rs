//! Whose a part is.

use std::ptr;

use super::{World, done, error};
use crate::message::{self, MessageInfo};
use crate::part::{self, PartHandle};
use crate::status::Status;
use crate::stream;

/// A pointer for another thread.
struct Passed<T>(*mut T);
// SAFETY: the tests pass what the header lets any thread use.
unsafe impl<T> Send for Passed<T> {}

impl<T> Passed<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

fn on_another_thread<T, R: Send>(pointer: *mut T, f: impl FnOnce(*mut T) -> R + Send) -> R {
    let passed = Passed(pointer);
    std::thread::scope(|scope| scope.spawn(move || f(passed.get())).join().unwrap())
}

fn flush(part: *mut PartHandle) -> Status {
    // SAFETY: a handle.
    unsafe { part::pdbp_flush(part) }
}

fn adopt(part: *mut PartHandle) -> Status {
    // SAFETY: a handle.
    unsafe { part::pdbp_adopt(part) }
}

#[test]
fn a_part_changes_hands_by_two() {
    let world = World::new();
    let part = world.part.get();
    let (refused, why) = on_another_thread(part, |part| (flush(part), error()));
    assert_eq!(refused, Status::E_THREAD);
    assert!(why.contains("pdbp_disown"), "{why}");
    // To adopt is not enough.
    assert_eq!(on_another_thread(part, adopt), Status::E_THREAD);
    // Its owner may, which changes nothing.
    assert_eq!((adopt(part), flush(part)), (Status::DONE, Status::DONE));

    done!(part::pdbp_disown(part));
    assert_eq!(flush(part), Status::E_THREAD);
    assert!(error().contains("pdbp_adopt"), "{}", error());
    let there = on_another_thread(part, |part| {
        let taken = adopt(part);
        let used = flush(part);
        done!(part::pdbp_disown(part));
        [taken, used]
    });
    assert_eq!(there, [Status::DONE; 2]);
    assert_eq!((adopt(part), flush(part)), (Status::DONE, Status::DONE));
}

#[test]
fn streams_go_with_their_part() {
    let world = World::new();
    let refused = on_another_thread(world.writer.get(), |writer| {
        // SAFETY: a handle.
        unsafe { stream::pdbp_writer_flush(writer) }
    });
    assert_eq!(refused, Status::E_THREAD);
}

#[test]
fn a_message_is_released_on_another_thread() {
    let world = World::new();
    let (part, to) = (world.part.get(), world.target.get());
    for _ in 0..3 {
        done!(part::pdbp_send(part, to, c"bytes".as_ptr().cast(), 5, -1));
        let mut message = std::mem::MaybeUninit::<MessageInfo>::uninit();
        done!(part::pdbp_recv(part, message.as_mut_ptr(), -1));
        on_another_thread(message.as_mut_ptr(), |message| {
            // SAFETY: it was received.
            assert_eq!(unsafe { (*message).size }, 5);
            // SAFETY: it was received, and is given to this call.
            unsafe { message::pdbp_release(message, 1) };
            // SAFETY: zeroes.
            assert!(unsafe { (*message).data }.is_null());
            // SAFETY: zeroes, which are nothing.
            unsafe { message::pdbp_release(message, 1) };
        });
    }
}

#[test]
fn a_writer_that_another_thread_frees_is_given_up_by_the_next_call_of_its_part() {
    let world = World::new();
    let writer = world.writer.replace(ptr::null_mut());
    on_another_thread(writer, |writer| {
        // SAFETY: a handle, and its end.
        unsafe { stream::pdbp_writer_free(writer) };
    });
    let mut bytes = [0_u8; 16];
    let mut got = 0;
    done!(stream::pdbp_read(world.reader.get(), bytes.as_mut_ptr().cast(), 16, &mut got, -1));
    assert_eq!(&bytes[..got], b"bytes");
    // SAFETY: a handle and room.
    let end = unsafe { stream::pdbp_read(world.reader.get(), bytes.as_mut_ptr().cast(), 16, &mut got, -1) };
    assert_eq!((end, got), (Status::E_STREAM, 0));
}
