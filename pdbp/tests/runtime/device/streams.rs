//! Streams of many slices from and to the memory of simulated devices.

use std::io::{Read, Write};
use std::time::Duration;

use pdbp::cuda::Buffer;
use pdbp::cuda::device::{Device, Fault};
use pdbp::cuda::flow::{FlowError, Step};
use pdbp::{RecvError, SendError};

use super::{check_quiet, device, pattern};
use crate::{BRIEFLY, SOON, clusters, find, pair, part};

/// Written in slices of these lengths, with some bytes from host memory in between.
const WRITTEN: [usize; 6] = [1, 3000, 0, 20_000, 1008, 777];
/// Read into buffers of these lengths, over and over.
const READ: [usize; 5] = [5000, 1, 1007, 0, 300];
const OF_HOST: usize = 13;

#[test]
fn a_device_stream_is_cut_into_other_pieces_than_it_was_written_in() {
    let whole: usize = WRITTEN.iter().map(|length| length + OF_HOST).sum();
    for cluster in clusters(2) {
        cluster.run(|node| {
            let (me, gpu) = (part(&node, "part"), device());
            let data = pattern(whole);
            if node.id().index() == 0 {
                let mut stream = me.open_stream(find(&me, "part@node1")).unwrap();
                let mut at = 0;
                for length in WRITTEN {
                    let buffer = Buffer::new(&gpu.0, length.max(1)).unwrap();
                    gpu.0.write(buffer.memory(), 0, &data[at..at + length]);
                    let slice = buffer.into_slice().slice(0..length).unwrap();
                    let mut writing = stream.write_device(&gpu.1, slice, None).unwrap();
                    writing.wait(SOON).unwrap();
                    assert_eq!(writing.sent(), length);
                    assert!(writing.into_slice().into_buffer().is_ok(), "nothing reads it any more");
                    at += length;
                    stream.write_all(&data[at..at + OF_HOST]).unwrap();
                    at += OF_HOST;
                }
                stream.finish().unwrap();
            } else {
                let mut stream = me.accept_stream(SOON).unwrap();
                let mut got = Vec::new();
                for room in READ.into_iter().cycle() {
                    let buffer = Buffer::new(&gpu.0, 6000).unwrap();
                    let mut reading = stream.read_device(&gpu.1, buffer, 7..7 + room, None).ok().unwrap();
                    reading.wait(SOON).unwrap();
                    let received = reading.received();
                    let buffer = reading.take_buffer().unwrap();
                    got.extend_from_slice(&gpu.0.read(buffer.memory())[7..7 + received]);
                    // And some from host memory.
                    let mut some = [0; 11];
                    let count = stream.read(&mut some).unwrap();
                    got.extend_from_slice(&some[..count]);
                    if received < room {
                        assert_eq!(count, 0, "the stream has ended");
                        break;
                    }
                }
                assert!(got == data, "{} of {whole} bytes", got.len());
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn a_device_stream_that_is_not_written_whole_is_given_up() {
    for cluster in clusters(2) {
        cluster.run(|node| {
            let me = part(&node, "part");
            let gpu = device();
            for fails in [false, true] {
                if node.id().index() == 0 {
                    let mut stream = me.open_stream(find(&me, "part@node1")).unwrap();
                    stream.write_all(b"begun").unwrap();
                    let failing = device();
                    if fails {
                        failing.0.plan(Fault::Refused(2));
                    }
                    let slice = Buffer::new(&failing.0, 50_000).unwrap().into_slice();
                    let mut writing = stream.write_device(&failing.1, slice, None).unwrap();
                    if fails {
                        assert!(matches!(writing.wait(SOON), Err(FlowError::Device(_))));
                        assert_eq!(writing.poll(), Err(FlowError::Ended));
                    } else {
                        while writing.sent() == 0 {
                            let _ = writing.poll().unwrap();
                            // Time passes.
                            failing.0.wait(&failing.0.work(Duration::from_micros(5))).unwrap();
                        }
                    }
                    drop(writing);
                    // The reader could not tell what is missing.
                    let refused = stream.loan(1).map(drop);
                    assert!(matches!(refused, Err(SendError::StreamFinished(_))), "{refused:?}");
                    drop(stream);
                    failing.1.settle();
                } else {
                    let mut stream = me.accept_stream(SOON).unwrap();
                    let buffer = Buffer::new(&gpu.0, 100_000).unwrap();
                    let mut reading = stream.read_device(&gpu.1, buffer, 0..100_000, None).ok().unwrap();
                    let ended = reading.wait(SOON);
                    assert!(
                        matches!(ended, Err(FlowError::Link(RecvError::StreamBroken { .. }))),
                        "{ended:?}"
                    );
                    gpu.1.settle();
                    assert!(reading.take_buffer().is_some());
                }
            }
            check_quiet(&node, &gpu);
        });
    }
}

#[test]
fn a_device_stream_that_is_read_in_vain_can_be_read_on() {
    for cluster in clusters(2) {
        let (a, b) = pair(&cluster);
        let gpu = device();
        let mut out = a.open_stream(find(&a, "b@node1")).unwrap();
        out.write_all(&[1; 10]).unwrap();
        out.flush().unwrap();
        let mut stream = b.accept_stream(SOON).unwrap();
        let buffer = Buffer::new(&gpu.0, 20).unwrap();
        let mut reading = stream.read_device(&gpu.1, buffer, 0..20, None).ok().unwrap();
        assert!(matches!(reading.wait(BRIEFLY), Err(FlowError::Link(RecvError::Timeout(_)))));
        out.write_all(&[2; 15]).unwrap();
        out.finish().unwrap();
        reading.wait(SOON).unwrap();
        assert_eq!((reading.poll(), reading.received()), (Ok(Step::Done), 20));
        drop(reading);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, [2; 5]);
    }
}
