//! Messages that were sent singly, and so occupy a block each, do not stop other parts of their node.

use pdbp::{Builder, Cluster, Part, Progress};

use crate::{SOON, find, part, until};

/// More than the blocks of a row, to the node of the server and back, and fewer than a private pipe takes.
const CLIENTS: u8 = 50;

fn builders() -> impl Iterator<Item = Builder> {
    [Progress::Thread, Progress::Inline, Progress::Host]
        .into_iter()
        .map(|progress| Cluster::builder().nodes(2).progress(progress).timeout(SOON))
}

/// Sends what a part has packed, and lets both nodes make progress, since one of them may have nobody else to poll it.
fn leave(sender: &Part, other: &Part) {
    sender.flush();
    until(&[sender, other], || Some(()));
}

fn receive(reader: &Part, other: &Part) -> Vec<u8> {
    until(&[reader, other], || reader.try_recv()).into_vec()
}

/// Each client sends at once, and the server reads when all have; it answers at once, and they read in the opposite order.
#[test]
fn clients_of_one_thread_stop_neither_each_other_nor_their_server() {
    for builder in builders() {
        let cluster = builder.start().unwrap();
        let server = part(&cluster.node(0).unwrap(), "server");
        // On the other node, and on the server's own.
        for node in [1, 0] {
            let node = cluster.node(node).unwrap();
            let clients: Vec<_> = (0..CLIENTS).map(|_| node.attach().unwrap()).collect();
            let to = find(&clients[0], "server@node0");
            for round in 0..3 {
                for (client, number) in clients.iter().zip(0..CLIENTS) {
                    client.send(to, &[round, number]).unwrap();
                    leave(client, &server);
                }
                let sources: Vec<_> = clients
                    .iter()
                    .zip(0..CLIENTS)
                    .map(|(client, number)| {
                        let request = until(&[&server, client], || server.try_recv());
                        assert_eq!(*request, [round, number], "{}", node.name());
                        request.source()
                    })
                    .collect();
                for (source, number) in sources.into_iter().zip(0..CLIENTS) {
                    server.send(source, &[round, number]).unwrap();
                    leave(&server, &clients[0]);
                }
                for (client, number) in clients.iter().zip(0..CLIENTS).rev() {
                    assert_eq!(receive(client, &server), [round, number], "{}", node.name());
                }
            }
        }
    }
}

/// The part reads late but in order, whether messages were copied or not, and the same holds for segments of a message and of a
/// stream.
#[test]
fn a_part_that_reads_late_stops_no_other_of_its_node_and_misses_nothing() {
    const LATE: usize = 40;
    let bytes =
        |number: usize| (0..number * 97 % 4000).map(|at| (number * 31 + at * 7) as u8).collect::<Vec<_>>();
    for builder in builders() {
        let cluster = builder.start().unwrap();
        let sender = part(&cluster.node(0).unwrap(), "sender");
        for node in [1, 0] {
            let node = cluster.node(node).unwrap();
            let (late, quick) = (part(&node, "late"), part(&node, "quick"));
            let (to_late, to_quick) = (late.id(), quick.id());
            let mut stream = sender.open_stream(to_late).unwrap();
            for number in 0..LATE {
                sender.send(to_late, &bytes(number)).unwrap();
                leave(&sender, &late);
                if number % 8 == 0 {
                    std::io::Write::write_all(&mut stream, &bytes(number)).unwrap();
                    stream.flush_segment().unwrap();
                    leave(&sender, &late);
                }
                sender.send(to_quick, &bytes(number)).unwrap();
                leave(&sender, &quick);
                assert_eq!(receive(&quick, &sender), bytes(number));
            }
            assert!(node.stats().counters.copied > 20, "{:?}", node.stats().counters);
            stream.finish().unwrap();
            for number in 0..LATE {
                assert_eq!(receive(&late, &sender), bytes(number));
            }
            let mut reader = until(&[&late, &sender], || late.try_accept_stream().unwrap());
            let mut read = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
            assert_eq!(read, (0..LATE).step_by(8).flat_map(bytes).collect::<Vec<_>>());
        }
    }
}
