//! Streams and long messages between tasks.

use pdbp::{Piece, Streams};

use super::*;

#[test]
fn streams_are_written_and_read_by_tasks() {
    const BYTES: usize = 300_000;
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let to = b.id();
    let writer = async move {
        let data: Vec<u8> = (0..BYTES).map(|n| n as u8).collect();
        let mut stream = pdbp::StreamWriter::open(&mut a, to).unwrap();
        stream.write_async(&data).await.unwrap();
        stream.finish_async().await.unwrap();
    };
    let reader = async move {
        let mut stream = b.accept_async().await.unwrap();
        let mut next = 0usize;
        while let Some(segment) = stream.segment_async().await.unwrap() {
            for byte in segment.iter() {
                assert_eq!(*byte, next as u8);
                next += 1;
            }
        }
        assert_eq!(next, BYTES);
        // The end stays the end.
        assert!(stream.segment_async().await.unwrap().is_none());
    };
    // That the tasks can move to another thread is part of the test.
    let writer = thread::spawn(move || block_on(writer));
    let reader = thread::spawn(move || block_on(reader));
    writer.join().unwrap();
    reader.join().unwrap();
}

#[test]
fn a_task_reads_all_streams_to_its_part_together() {
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let to = b.id();
    let reader = thread::spawn(move || {
        block_on(async {
            let (mut streams, mut bytes, mut ended) = (Streams::of(&mut b), 0, 0);
            while ended < 3 {
                match streams.next_async().await.unwrap() {
                    (id, Piece::Data(segment)) => {
                        assert!(segment.iter().all(|byte| u32::from(*byte) == id.number().0 % 256));
                        bytes += segment.len();
                    }
                    (_, Piece::End) => ended += 1,
                    (id, Piece::Broken) => panic!("{id:?}"),
                }
            }
            bytes
        })
    });
    block_on(async {
        for _ in 0..3 {
            let mut stream = pdbp::StreamWriter::open(&mut a, to).unwrap();
            let byte = stream.number().0 as u8;
            stream.write_async(&[byte; 20_000]).await.unwrap();
            stream.finish_async().await.unwrap();
        }
    });
    assert_eq!(reader.join().unwrap(), 60_000);
}

#[cfg(feature = "futures-io")]
#[test]
fn streams_have_the_traits_of_futures_io() {
    use smol::io::{AsyncReadExt, AsyncWriteExt};

    let data: Vec<u8> = (0..50_000u32).map(|n| (n % 251) as u8).collect();
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let (to, written) = (b.id(), data.clone());
    let writer = thread::spawn(move || {
        block_on(async {
            let mut stream = pdbp::StreamWriter::open(&mut a, to).unwrap();
            let (first, rest) = written.split_at(10);
            stream.write_all(first).await.unwrap();
            stream.flush().await.unwrap();
            stream.write_all(rest).await.unwrap();
            // The last segment is empty.
            stream.flush().await.unwrap();
            stream.close().await.unwrap();
            assert!(stream.write(b"more").await.is_err());
        });
    });
    let read = block_on(async {
        let mut stream = b.accept_async().await.unwrap();
        let mut read = vec![0; 4];
        assert_eq!(stream.read(&mut []).await.unwrap(), 0);
        stream.read_exact(&mut read).await.unwrap();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        read
    });
    assert!(read == data);
    writer.join().unwrap();
}

#[test]
fn a_stream_that_is_given_up_is_known_to_the_task_that_reads_it() {
    let cluster = small(2, Progress::Thread);
    let [mut a, mut b] = shared_pair(&cluster);
    let to = b.id();
    let reader = thread::spawn(move || {
        block_on(async {
            let mut stream: StreamReader<&mut Part<Shared>> = b.accept_async().await.unwrap();
            assert_eq!(**stream.segment_async().await.unwrap().as_ref().unwrap(), [1; 10]);
            stream.segment_async().await.err()
        })
    });
    block_on(async {
        let mut stream = pdbp::StreamWriter::open(&mut a, to).unwrap();
        stream.write_async(&[1; 10]).await.unwrap();
        stream.flush_segment().unwrap();
    });
    let error = reader.join().unwrap();
    assert!(matches!(error, Some(RecvError::StreamBroken { .. })), "{error:?}");
}
