//! Gateways that have proven who they are, and misbehave.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::fuzzing::{Stage, gateway};
use super::super::wire::{COMMAND, bye};
use super::*;

fn frame(head: Head, bytes: &[u8]) -> Vec<u8> {
    [&head.to_bytes()[..], bytes].concat()
}

/// Data for the part that reads (`to` is 0), or for the one that does not (1), once the other gateway knows
/// both.
fn data(stage: &Stage, to: usize, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    frame(Head { length, count: 1, origin: 7, dest: stage.known()[to], ..Head::new(Kind::Data) }, bytes)
}

/// A session that the other gateway has begun, and in which it has asked for all parts.
fn begun(stage: &Stage) -> super::super::session::Session {
    let mut session = stage.session();
    assert!(stage.say(&mut session, &frame(Head { length: 64, count: 64, ..Head::new(Kind::Room) }, &[])));
    for (number, name) in ["here@node0", "full@node2", "inbox@node0"].iter().enumerate() {
        let head = Head { length: number as u32, ..Head::new(Kind::Find) };
        assert!(stage.say(&mut session, &frame(head, name.as_bytes())));
    }
    // This end's limits, and three answers.
    hears(stage, &mut session, 4);
    session
}

/// Waits until the other gateway has received exactly this many frames.
fn hears(stage: &Stage, session: &mut super::super::session::Session, frames: usize) {
    let (mut heard, began) = (0, Instant::now());
    while heard < frames {
        assert!(began.elapsed() < Duration::from_secs(60), "{heard} of {frames}");
        stage.turn(session);
        heard += stage.listen();
    }
    assert_eq!(heard, frames);
}

/// Repeats a frame until the gateway is ignored.
fn until_broken(
    stage: &Stage,
    session: &mut super::super::session::Session,
    said: &[u8],
    turns: bool,
) -> usize {
    for count in 1..100_000 {
        if !stage.say(session, said) {
            return count;
        }
        if turns {
            stage.turn(session);
        }
        assert!(session.holds() <= session.bounds.most_held(), "after {count}");
    }
    panic!("it was listened to for ever");
}

#[test]
fn a_message_without_end_is_no_message() {
    let stage = Stage::new().unwrap();
    let head = |length| Head { flags: MORE, length, count: 1, origin: 7, ..Head::new(Kind::Data) };
    let mut session = begun(&stage);
    assert!(stage.say(&mut session, &frame(head(8000), &[0; 3000])));
    assert!(stage.say(&mut session, &frame(head(8000), &[0; 3000])));
    assert!(!stage.say(&mut session, &frame(head(8000), &[0; 3000])), "more than it has said");
    assert!(
        stage.say(&mut session, &frame(head(8000), &[0; 3000])),
        "nothing is listened to, and it is said once"
    );
    for (named, piece) in [(u32::MAX, 3000), (1 << 20, 3000), (3000, 3000), (8000, 0)] {
        let mut session = begun(&stage);
        assert!(!stage.say(&mut session, &frame(head(named), &vec![0; piece])), "{named} {piece}");
    }
}

#[test]
fn pieces_of_a_message_make_it_and_nothing_comes_between() {
    let stage = Stage::new().unwrap();
    let to = stage.known()[0];
    let head = |flags, length| Head { flags, length, count: 1, origin: 7, dest: to, ..Head::new(Kind::Data) };
    let mut session = begun(&stage);
    assert!(stage.say(&mut session, &frame(head(MORE, 6000), &[1; 3000])));
    assert!(stage.say(&mut session, &frame(Head { count: 99, ..Head::new(Kind::Bye) }, &[])));
    assert!(stage.say(&mut session, &frame(head(0, 6000), &[2; 3000])));
    assert!(stage.say(&mut session, &frame(head(MORE, 6000), &[1; 3000])));
    assert!(!stage.say(&mut session, &frame(head(0, 3000), &[2; 3000])), "the end of another");
}

#[test]
fn more_than_the_window_for_a_part_that_does_not_read_is_not_taken() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    let count = until_broken(&stage, &mut session, &data(&stage, 1, &[0; 3000]), true);
    assert!(count > 20, "{count}");
}

#[test]
fn what_a_part_reads_is_taken_without_end() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    for _ in 0..2000 {
        assert!(stage.say(&mut session, &data(&stage, 0, &[0; 3000])));
        stage.turn(&mut session);
        stage.listen();
    }
}

/// The writer would send on for nothing.
#[test]
fn a_piece_of_a_stream_that_is_not_known_is_answered() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    let head = Head { length: 3, count: 5, origin: 7, dest: stage.known()[0], ..Head::new(Kind::Stream) };
    assert!(stage.say(&mut session, &frame(head, b"new")));
    // That it has been taken, and that it is not read.
    hears(&stage, &mut session, 2);
}

#[test]
fn returns_of_what_was_never_sent_end_somewhere() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    let head = Head { length: 3000, count: 1, origin: stage.known()[1], dest: 7, ..Head::new(Kind::Return) };
    until_broken(&stage, &mut session, &frame(head, &[0; 3000]), true);
}

#[test]
fn questions_of_who_takes_no_answers_wait_and_then_end_it() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    let count = until_broken(&stage, &mut session, &frame(Head::new(Kind::List), &[]), true);
    assert!(count > QUESTIONS, "{count}");
    let mut session = stage.session();
    assert!(!stage.say(&mut session, &frame(Head::new(Kind::Find), &[b'a'; TEXT + 1])));
}

#[test]
fn a_frame_has_no_more_messages_without_bytes_than_a_block() {
    let stage = Stage::new().unwrap();
    let empties =
        |count, flags| Head { flags, count, origin: 7, dest: stage.known()[0], ..Head::new(Kind::Data) };
    for flags in [0, COMMAND] {
        let mut session = begun(&stage);
        assert!(stage.say(&mut session, &frame(empties(EMPTY, flags), &[])));
        assert!(!stage.say(&mut session, &frame(empties(u32::MAX, flags), &[])));
    }
}

#[test]
fn who_takes_nothing_is_given_up_when_much_waits_for_it() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    // All of it is returned, since no such part exists, and is acknowledged.
    let head = Head { length: 3000, count: 1, origin: 7, dest: 12_345, ..Head::new(Kind::Data) };
    until_broken(&stage, &mut session, &frame(head, &[0; 3000]), true);
}

/// Parts of the runtime obey anyone who knows them.
#[test]
fn parts_that_the_other_cluster_was_not_told_of_get_nothing_from_it() {
    let stage = Stage::new().unwrap();
    let mut session = stage.session();
    assert!(stage.say(&mut session, &data(&stage, 0, b"hello")));
    // The limits, the message itself, and its acknowledgement.
    hears(&stage, &mut session, 3);
    let mut session = begun(&stage);
    let find = Head { length: 9, ..Head::new(Kind::Find) };
    assert!(stage.say(&mut session, &frame(find, b"pdbp.flow@node0")));
    stage.turn(&mut session);
    assert_eq!(session.announced.len(), 3);
}

/// What comes back is a command to a part, which it may not expect.
#[test]
fn parts_that_the_other_cluster_was_not_told_of_get_nothing_back_from_it() {
    let stage = Stage::new().unwrap();
    let back = |to: usize| {
        let origin = stage.known()[to];
        frame(Head { length: 3, count: 1, origin, dest: 7, ..Head::new(Kind::Return) }, b"boo")
    };
    let mut session = stage.session();
    assert!(stage.say(&mut session, &back(1)));
    assert!(session.proxies.is_empty(), "it is about to be sent");
    let mut session = begun(&stage);
    assert!(stage.say(&mut session, &back(1)));
    assert_eq!(session.proxies.len(), 1);
}

/// Each piece waits for the asker, whether it has bytes or not.
#[test]
fn an_answer_in_ever_more_empty_pieces_ends_somewhere() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    stage.ask_for_all(&mut session);
    let piece = Head { flags: MORE, ..Head::new(Kind::Listed) };
    for _ in 0..1_000_000 {
        session.tell_some(&piece, &[]);
    }
    assert!(session.questions.is_empty() && session.answers.len() < 300_000, "{}", session.answers.len());
}

/// The node has 64 places, five of them taken.
#[test]
fn senders_that_are_invented_leave_places_free() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    let from = |origin| {
        let head = Head { length: 1, count: 1, origin, dest: stage.known()[0], ..Head::new(Kind::Data) };
        frame(head, &[1])
    };
    for origin in 100..400 {
        assert!(stage.say(&mut session, &from(origin)));
        stage.turn(&mut session);
        stage.listen();
    }
    let count = session.proxies.len();
    assert!((20..=32).contains(&count), "{count}");
    // Known senders continue.
    assert!(stage.say(&mut session, &from(100)));
    assert_eq!(session.proxies.len(), count);
}

#[test]
fn steps_of_a_farewell_that_are_said_again_are_not_answered_again() {
    let stage = Stage::new().unwrap();
    let mut session = begun(&stage);
    for _ in 0..1000 {
        for step in [bye::LEAVES, bye::DONE] {
            assert!(stage.say(&mut session, &frame(Head { count: step, ..Head::new(Kind::Bye) }, &[])));
        }
    }
    hears(&stage, &mut session, 2);
}

#[test]
fn the_seeds_are_survived() {
    gateway(include_bytes!("../../../../fuzz/seeds/grid_frame/asks"));
    gateway(include_bytes!("../../../../fuzz/seeds/grid_frame/sends"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_gateway_may_say_anything(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        gateway(&bytes);
    }
}
