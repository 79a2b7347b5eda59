//! Requirements on groups over any transport: each node of a cluster calls these functions, in its own thread or process.

#[path = "suite/values.rs"]
mod values;

use std::time::Duration;

use pdbp::Node;
use pdbp::collective::{Cause, Group, GroupError, JoinError, Max, Op, Refused, Request, Sum, Xor};

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(200);
/// For waits that are expected to end without success.
const BRIEFLY: Duration = Duration::from_millis(50);

/// Everything, one test after another.
pub(crate) fn all(node: &Node, lengths: &[usize]) {
    calls(node, lengths);
    tagged(node);
    started(node);
    refused(node);
    mismatch(node);
    opposite_roots(node);
    nothing(node);
    tagged_of_another_length(node);
    late(node);
    late_for_a_root(node);
    in_another_order(node);
    left(node);
    given_up(node);
    panicked(node);
    join(node);
}

fn group(node: &Node, name: &str) -> Group {
    Group::of_nodes(node, name, SOON).unwrap()
}

/// A final barrier: no member leaves before the others have everything.
fn together(node: &Node) {
    node.barrier(SOON).unwrap();
}

fn value(rank: usize, i: usize) -> u32 {
    (rank as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add(i as u32 * 40_503)
}

/// Every call with each length, compared with its expected result.
fn calls(node: &Node, lengths: &[usize]) {
    let mut all = group(node, "calls");
    let (me, size) = (all.rank(), all.size());
    assert_eq!((me, size), (node.id().index(), usize::from(node.settings().nodes)));
    let own = |rank: usize, length: usize| (0..length).map(|i| value(rank, i)).collect::<Vec<_>>();
    let block = |from: usize, to: usize, length: usize| own(from * 31 + to, length);
    for &length in lengths {
        all.barrier().unwrap();
        let sums: Vec<u32> =
            (0..length).map(|i| (0..size).fold(0u32, |sum, rank| sum.wrapping_add(value(rank, i)))).collect();
        for root in [0, size / 2, size - 1] {
            let mut data = if me == root { own(root, length) } else { vec![0; length] };
            all.broadcast(root, &mut data).unwrap();
            assert_eq!(data, own(root, length), "broadcast of {length} from {root}");

            let give: Vec<u32> = (0..size).flat_map(|to| block(root, to, length)).collect();
            let mut data = vec![0; length];
            all.scatter(root, (me == root).then_some(&give), &mut data).unwrap();
            assert_eq!(data, block(root, me, length), "scatter of {length} from {root}");

            let mut got = vec![0; size * length];
            all.gather(root, &own(me, length), Some(&mut got).filter(|_| me == root).map(|v| &mut v[..]))
                .unwrap();
            let blocks: Vec<u32> = (0..size).flat_map(|from| own(from, length)).collect();
            assert!(me != root || got == blocks, "gather of {length} to {root}");

            let mut data = own(me, length);
            all.reduce(root, &mut data, Sum).unwrap();
            assert!(me != root || data == sums, "reduce of {length} to {root}");
        }
        let mut data = own(me, length);
        all.all_reduce(&mut data, Sum).unwrap();
        assert_eq!(data, sums, "all_reduce of {length}");

        let mut data = own(me, length);
        let share = all.reduce_scatter(&mut data, Sum).unwrap().to_vec();
        let (each, more) = (length / size, length % size);
        let start = me * each + me.min(more);
        assert_eq!(share, sums[start..start + each + usize::from(me < more)], "reduce_scatter of {length}");

        let mut got = vec![0; size * length];
        all.all_gather(&own(me, length), &mut got).unwrap();
        assert_eq!(
            got,
            (0..size).flat_map(|from| own(from, length)).collect::<Vec<_>>(),
            "all_gather of {length}"
        );

        let give: Vec<u32> = (0..size).flat_map(|to| block(me, to, length)).collect();
        all.all_to_all(&give, &mut got).unwrap();
        assert_eq!(
            got,
            (0..size).flat_map(|from| block(from, me, length)).collect::<Vec<_>>(),
            "all_to_all of {length}"
        );
        values::floats(&mut all, length);
    }
    values::other_types(&mut all);
    all.barrier().unwrap();
    let stats = all.stats();
    assert!(stats.calls > 0 && (size == 1 || stats.messages > 0), "{stats:?}");
    together(node);
}

fn tagged(node: &Node) {
    let mut all = group(node, "tagged");
    let (me, size) = (all.rank(), all.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    // Longer than everything that may be in flight: with `send` and `recv` all would wait.
    for length in [0, 1, 100, 30_000] {
        let (give, mut got) = (vec![me as u64; length], vec![u64::MAX; length]);
        all.send_recv((next, &give), (before, &mut got), 5).unwrap();
        assert_eq!(got, vec![before as u64; length]);
    }
    if size > 1 {
        for tag in [3, 1, 2] {
            all.send(next, tag, &[tag; 2]).unwrap();
        }
        // A call in between does not take them.
        let mut sum = [1u32];
        all.all_reduce(&mut sum, Sum).unwrap();
        assert_eq!(sum, [size as u32]);
        for tag in [1, 2, 3] {
            let mut got = [0; 2];
            all.recv(before, tag, &mut got).unwrap();
            assert_eq!(got, [tag; 2]);
        }
        if me == 0 {
            all.send(1, 9, &vec![7u16; 20_000]).unwrap();
        } else if me == 1 {
            let mut got = vec![0u16; 20_000];
            all.recv(0, 9, &mut got).unwrap();
            assert!(got.iter().all(|value| *value == 7));
        }
    }
    together(node);
}

/// Calls that are started, polled while something else is done, and waited for.
fn started(node: &Node) {
    let (mut one, mut two) = (group(node, "one"), group(node, "two"));
    let size = one.size();
    let (mut a, mut b) = (vec![1u32; 5000], vec![2u32; 5000]);
    let mut first = one.start(Request::all_reduce(&mut a, Sum)).unwrap();
    let mut second = two.start(Request::all_reduce(&mut b, Sum)).unwrap();
    let (mut is_first_done, mut is_second_done) = (false, false);
    while !(is_first_done && is_second_done) {
        is_first_done = first.poll().unwrap();
        is_second_done = second.poll().unwrap();
        node.poll();
        std::thread::yield_now();
    }
    assert!(first.poll().unwrap(), "done it stays");
    drop((first, second));
    assert_eq!((a, b), (vec![size as u32; 5000], vec![2 * size as u32; 5000]));
    let mut call = one.start(Request::barrier()).unwrap();
    call.wait(SOON).unwrap();
    drop(call);
    together(node);
}

/// Impossible calls are refused before anything is sent, and the group goes on.
fn refused(node: &Node) {
    let mut all = group(node, "refused");
    let (me, size) = (all.rank(), all.size());
    let refused = |result: Result<(), GroupError>| match result {
        Err(GroupError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    };
    let mut four = [0u8; 4];
    assert_eq!(refused(all.broadcast(size, &mut four)), Refused::Rank { rank: size, members: size });
    assert!(
        refused(all.reduce(size + 1, &mut four, Sum)).to_string().contains(&format!("member {}", size + 1))
    );
    let mut short = vec![0u8; 4 * size + 1];
    let length = Refused::Length { what: "output", bytes: 4 * size + 1, needed: 4 * size };
    assert_eq!(refused(all.all_gather(&[0u8; 4], &mut short)), length);
    let length = Refused::Length { what: "output", bytes: 0, needed: 4 * size };
    assert_eq!(refused(all.gather(me, &[0u8; 4], None)), length);
    let length = Refused::Length { what: "input", bytes: 0, needed: 4 * size };
    assert_eq!(refused(all.scatter(me, None, &mut four)), length);
    if size > 1 {
        let mut got = vec![0u8; size + 1];
        let length = Refused::Length { what: "input", bytes: size + 1, needed: 2 * size };
        assert_eq!(refused(all.all_to_all(&vec![0u8; size + 1], &mut got)), length);
    }
    assert!(refused(all.all_reduce(&mut [0f32; 2], Xor)).to_string().contains("Xor is not defined for f32"));
    assert!(matches!(refused(all.all_reduce(&mut [0i32], Op::Function)), Refused::NoOperation { .. }));
    assert_eq!(refused(all.send(me, 0, &four)), Refused::ToItself { rank: me });
    assert_eq!(refused(all.recv(size, 0, &mut four)), Refused::Rank { rank: size, members: size });
    // None of them was counted as a call.
    let mut sum = [1u32];
    all.all_reduce(&mut sum, Sum).unwrap();
    assert_eq!(sum, [size as u32]);
    together(node);
}

/// All members get an error; those that met the mismatch name both calls. A group that has failed returns the same error for ever.
fn mismatch(node: &Node) {
    for odd in 0..6 {
        let mut all = group(node, "mismatch");
        let (me, size) = (all.rank(), all.size());
        if size == 1 {
            return;
        }
        let is_odd = me == odd % size;
        let mut data = vec![1u32; 100];
        let mut call = |all: &mut Group| match odd {
            _ if !is_odd => all.all_reduce(&mut data, Sum),
            0 => all.all_reduce(&mut data, Max),
            1 => all.all_reduce(&mut data[1..], Sum),
            2 => all.reduce(0, &mut data, Sum),
            3 => all.all_reduce(&mut [1i32; 100], Sum),
            4 => all.broadcast(me, &mut data),
            _ => all.barrier(),
        };
        // A member that had done its part before it could know learns of it at the next call.
        let error = call(&mut all).and_then(|()| all.barrier()).unwrap_err();
        is_mismatch(&error, me);
        let again = all.barrier().unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        together(node);
    }
}

/// Checks that the error names both calls, or the member that met them.
pub(crate) fn is_mismatch(error: &GroupError, me: usize) {
    match error {
        GroupError::Mismatch { theirs, ours, .. } => {
            assert_ne!(theirs, ours);
            let says = error.to_string();
            let is_named = says.contains(&ours.to_string()) && says.contains("same calls in the same order");
            assert!(is_named || says.contains("with tag 7"), "{says}");
        }
        GroupError::Ended { cause: Cause::Mismatch, by, address } => {
            assert!(*by != me && address.ends_with(&format!("@node{by}")), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// Each waits for the other: they find out only because waiting members announce their call.
fn opposite_roots(node: &Node) {
    let mut all = group(node, "roots");
    let (me, size) = (all.rank(), all.size());
    if size > 1 {
        let root = if me == 0 { 1 } else { 0 };
        let error = all.broadcast(root, &mut [0u64; 3]).and_then(|()| all.barrier()).unwrap_err();
        is_mismatch(&error, me);
    }
    together(node);
}

/// One member calls with no data. Its call completes at once, and counts.
fn nothing(node: &Node) {
    let mut all = group(node, "nothing");
    let (me, size) = (all.rank(), all.size());
    if size > 1 {
        let mut data = vec![1u32; if me == size - 1 { 0 } else { 10 }];
        let first = all.broadcast(0, &mut data);
        // The last member meets a piece that it has not asked for when it reads what the root has sent, within three barriers.
        let error = first.and_then(|()| (0..6).try_for_each(|_| all.barrier())).unwrap_err();
        is_mismatch(&error, me);
    }
    together(node);
}

/// A message of two values for a member that expects three.
fn tagged_of_another_length(node: &Node) {
    let mut all = group(node, "lengths");
    let (me, size) = (all.rank(), all.size());
    if size > 1 {
        let error = match me {
            0 => all.send(1, 7, &[1u32; 2]).and_then(|()| all.barrier()).unwrap_err(),
            1 => all.recv(0, 7, &mut [0u32; 3]).unwrap_err(),
            _ => all.barrier().unwrap_err(),
        };
        is_mismatch(&error, me);
        let says = error.to_string();
        let expected = "member 0 sent 8 bytes with tag 7, where this one receives 12";
        assert!(me != 1 || says.contains(expected), "{says}");
    }
    together(node);
}

/// One member never calls.
fn late(node: &Node) {
    let mut all = group(node, "late");
    let (me, size) = (all.rank(), all.size());
    if me != size - 1 {
        all.set_patience(BRIEFLY);
        let error = all.barrier().unwrap_err();
        match &error {
            GroupError::TimedOut { rank, address, waited, .. } => {
                assert_eq!((*waited, address), (BRIEFLY, &format!("late#{rank}@node{rank}")));
                assert!(size > 2 || *rank == 1, "{error}");
                assert!(error.to_string().contains("barrier"), "{error}");
            }
            GroupError::Ended { cause: Cause::TimedOut, .. } => {}
            other => panic!("{other:?}"),
        }
        assert!(all.barrier().is_err());
    }
    together(node);
    if size > 1 {
        // What the others had sent before may be enough for one barrier of the last member.
        let error = all.barrier().and_then(|()| all.barrier()).unwrap_err();
        assert!(
            me != size - 1 || matches!(error, GroupError::Ended { cause: Cause::TimedOut, .. }),
            "{error:?}"
        );
    }
    together(node);
}

/// Only the root waits, for all others, and its error names all of them.
fn late_for_a_root(node: &Node) {
    // With data for messages, and for a note.
    for length in [3000, 3] {
        let mut all = group(node, "root");
        let (me, size) = (all.rank(), all.size());
        let own = vec![1u8; length];
        if me == 0 && size > 1 {
            all.set_patience(BRIEFLY);
            match all.gather(0, &own, Some(&mut vec![0; size * length])).unwrap_err() {
                error @ GroupError::TimedOut { .. } => {
                    let GroupError::TimedOut { rank, others, .. } = &error else { return };
                    assert_eq!(*rank, 1);
                    assert!(others.iter().copied().eq(2..size), "{others:?}");
                    assert!(size < 3 || error.to_string().contains("nothing has arrived from 2"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
        together(node);
    }
}

/// Two groups, whose calls one member makes in the opposite order, so each waits for the other.
fn in_another_order(node: &Node) {
    let (mut one, mut two) = (group(node, "one"), group(node, "two"));
    let (me, size) = (one.rank(), one.size());
    if size > 1 {
        let (first, name) = if me == 0 { (&mut two, "two") } else { (&mut one, "one") };
        first.set_patience(BRIEFLY);
        match first.barrier().unwrap_err() {
            GroupError::TimedOut { rank, address, call, .. } => {
                assert_eq!(address, format!("{name}#{rank}@node{rank}"));
                assert!(rank != me && call.to_string() == "barrier", "{rank}: {call}");
            }
            GroupError::Ended { cause: Cause::TimedOut, .. } => {}
            other => panic!("{other:?}"),
        }
        assert!(first.barrier().is_err());
    }
    together(node);
}

/// One member leaves instead of calling.
fn left(node: &Node) {
    let mut all = group(node, "left");
    let (me, size) = (all.rank(), all.size());
    let gone = size / 2;
    if size > 1 && me == gone {
        drop(all);
    } else if size > 1 {
        let mut data = vec![0u32; 9000];
        let error = all.all_reduce(&mut data, Sum).unwrap_err();
        assert_eq!(error, GroupError::Lost { rank: gone, address: format!("left#{gone}@node{gone}") });
        let text = error.to_string();
        assert!(text.contains(&format!("left#{gone}@node{gone}, has left or failed")), "{text}");
        assert_eq!(all.barrier(), Err(error));
    }
    together(node);
}

/// One member begins a call and does not go on with it.
fn given_up(node: &Node) {
    let mut all = group(node, "given");
    let (me, size) = (all.rank(), all.size());
    if size > 1 && me == 0 {
        let mut data = [0u32; 9];
        drop(all.start(Request::all_reduce(&mut data, Sum)).unwrap());
        let error = all.barrier().unwrap_err();
        assert!(error.to_string().contains("given up"), "{error}");
    } else if size > 1 {
        let error = all.all_reduce(&mut [0u32; 9], Sum).unwrap_err();
        assert!(matches!(error, GroupError::Ended { by: 0, cause: Cause::GivenUp, .. }), "{error:?}");
    }
    together(node);
}

/// A member's thread unwinds in a call: its group is dropped, and so the member has left.
fn panicked(node: &Node) {
    let mut all = group(node, "panics");
    let (me, size) = (all.rank(), all.size());
    let gone = size - 1;
    if size > 1 && me == gone {
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let mut data = vec![1u32; 9000];
            let mut call = all.start(Request::all_reduce(&mut data, Sum)).unwrap();
            call.poll().unwrap();
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(unwound.is_err());
    } else if size > 1 {
        // Switches carry out what they have been given. The member has given up the call as it unwound, and left.
        let first = all.all_reduce(&mut vec![1u32; 9000], Sum);
        let error = first.and_then(|()| all.barrier()).unwrap_err();
        let is_named = matches!(error, GroupError::Ended { by, cause: Cause::GivenUp, .. } if by == gone)
            || matches!(error, GroupError::Lost { rank, .. } if rank == gone);
        assert!(is_named, "{error:?}");
    }
    together(node);
}

/// Invalid lists, and one that differs.
fn join(node: &Node) {
    let (me, size) = (node.id().index(), usize::from(node.settings().nodes));
    let part = node.register("joins", pdbp::PartKind::Cpu).unwrap();
    let names: Vec<String> = (0..size).map(|i| format!("joins@node{i}")).collect();
    let mut list: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(Group::of(&part, "g", &[], SOON).unwrap_err(), JoinError::Empty);
    let twice = [list[0], list[0]];
    let error = Group::of(&part, "g", &twice, SOON).unwrap_err();
    assert_eq!(error, JoinError::Twice { address: names[0].clone() });
    if size > 1 {
        let other = list[(me + 1) % size];
        let error = Group::of(&part, "g", &[other], SOON).unwrap_err();
        assert_eq!(error, JoinError::NotInList { part: "joins".to_owned() });
        assert!(matches!(Group::of(&part, "g", &[other, "nobody"], BRIEFLY), Err(JoinError::Lookup(_))));
    }
    // In an order different from that of the nodes.
    list.reverse();
    let mut all = Group::of(&part, "reversed", &list, SOON).unwrap();
    assert_eq!((all.rank(), all.patience()), (size - 1 - me, SOON));
    let mut ranks = vec![0; size];
    all.all_gather(&[me as u32], &mut ranks).unwrap();
    assert_eq!(ranks, (0..size as u32).rev().collect::<Vec<_>>());
    together(node);
    drop(all);
    differ(node, &part, &names);
    together(node);
}

/// Groups made of members of a group: members near each other, as `is_near` decides for two nodes, and even and odd ranks.
pub(crate) fn divided(node: &Node, is_near: impl Fn(usize, usize) -> bool) {
    let mut all = group(node, "divided");
    let (me, size) = (all.rank(), all.size());
    let ranks_of = |group: &mut Group| {
        let mut ranks = vec![0; group.size()];
        group.all_gather(&[me], &mut ranks).unwrap();
        assert_eq!(ranks[group.rank()], me);
        ranks
    };
    let mut here = all.local().unwrap();
    let expected: Vec<usize> = (0..size).filter(|rank| is_near(*rank, me)).collect();
    assert_eq!(ranks_of(&mut here), expected);
    let mut half = all.split(me as u64 % 2).unwrap();
    let of_half: Vec<usize> = (0..size).filter(|rank| rank % 2 == me % 2).collect();
    assert_eq!((ranks_of(&mut half), half.patience()), (of_half.clone(), SOON));
    let mut alone = half.split(me as u64).unwrap();
    assert_eq!(ranks_of(&mut alone), [me]);
    // Each works alongside the group it was made from.
    let mut sum = [1u64];
    for group in [&mut alone, &mut half, &mut all] {
        group.all_reduce(&mut sum, Sum).unwrap();
    }
    let (odd, even) = (size / 2, size.div_ceil(2));
    assert_eq!(sum, [(odd * odd + even * even) as u64]);
    together(node);
}

/// The first and the last node are in each other's lists, and the last one's list has one more.
fn differ(node: &Node, part: &pdbp::Part, names: &[String]) {
    let (me, last) = (node.id().index(), names.len() - 1);
    if last == 0 || (me != 0 && me != last) {
        return;
    }
    let extra = (me == last).then(|| node.register("extra", pdbp::PartKind::Cpu).unwrap());
    let extra_name = format!("extra@node{last}");
    let mut list = vec![names[0].as_str(), names[last].as_str()];
    list.extend(extra.as_ref().map(|_| extra_name.as_str()));
    let error = Group::of(part, "differ", &list, SOON).unwrap_err();
    let (other, expected) = if me == 0 { (1, (3, 2)) } else { (0, (2, 3)) };
    match &error {
        JoinError::Differs { rank, members, .. } => assert_eq!((*rank, *members), (other, expected)),
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains("give all the same list"), "{error}");
}
