use std::net::TcpListener;

use socket2::SockRef;

use super::*;
use crate::door::PATIENCE;
use crate::token;

/// A vanished host sends nothing, and a process that waits for others to join has no deadline.
#[test]
fn of_who_waits_the_system_looks_whether_its_host_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, from) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    let socket = Socket::new(TcpStream::from_std(stream), None);
    let times = (Instant::now(), PATIENCE);
    let mut handshake = Handshake::accepted(socket, from.ip(), token::random().unwrap(), times);
    let is_watched = |handshake: &Handshake| SockRef::from(&handshake.socket.stream).keepalive().unwrap();
    assert!(handshake.deadline().is_some() && !is_watched(&handshake));
    handshake.await_cluster(Id([1; 16]));
    assert!(handshake.deadline().is_none() && is_watched(&handshake));
    #[cfg(target_os = "linux")]
    assert_eq!(SockRef::from(&handshake.socket.stream).tcp_user_timeout().unwrap(), Some(PATIENCE));
}

#[test]
fn addresses_of_a_network_of_ipv6_count_as_one() {
    let same = |one: &str, other: &str| network(one.parse().unwrap()) == network(other.parse().unwrap());
    assert!(same("2001:db8:0:7::1", "2001:db8:0:7:ffff::2") && !same("2001:db8:0:7::1", "2001:db8:0:8::1"));
    assert!(!same("192.0.2.1", "192.0.2.2"));
}
