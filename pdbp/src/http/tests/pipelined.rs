//! Clients that ask on before they have read what was answered.

use super::*;

/// A listener whose connections have little room for what is not read.
fn narrow() -> TcpListener {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let listener = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(1).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        socket.listen(16).unwrap().into_std().unwrap()
    });
    listener.set_nonblocking(false).unwrap();
    listener
}

fn connect_narrow(server: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1).unwrap();
        socket.connect(server).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// The server forgot the head of a request whose 100 Continue found no room, and took the body for the next request.
#[test]
fn a_client_that_waits_to_send_a_body_is_told_to_however_much_it_has_not_read() {
    let service =
        Service::start(narrow(), KEPT, Hosts::default(), None, "http".to_owned(), |_| Echo::default());
    let server = service.unwrap();
    let request = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n";
    for unread in 1..100 {
        let mut stream = connect_narrow(server.address());
        let text =
            [format!("{request}\r\nhi").repeat(unread), format!("{request}Expect: 100-continue\r\n\r\n")];
        let mut writing = stream.try_clone().unwrap();
        let writer = thread::spawn(move || writing.write_all(text.concat().as_bytes()).unwrap());
        // By now the server has answered as much as there is room for.
        thread::sleep(Duration::from_millis(10));
        for _ in 0..unread {
            assert_eq!(next(&mut stream), ok("hi"));
        }
        let mut told = [0; 25];
        stream.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n", "after {unread}");
        writer.join().unwrap();
        stream.write_all(b"ho").unwrap();
        assert_eq!(next(&mut stream), ok("ho"), "after {unread}");
    }
}
