//! Listeners that take calls and say nothing, like those of processes that were stopped.

use super::*;
use crate::Framing;

#[test]
fn who_says_nothing_does_not_keep_others_from_being_called() {
    let silent = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let silent = silent.each_ref().map(|listener| listener.local_addr().unwrap());
    // With that for each that says nothing there is no time for the founder; as it is, there is time for several rounds, if the processors are
    // busy in the first.
    assert!(patience() >= options().timeout);
    for framing in [Framing::Tcp, Framing::Soap] {
        let options = Options { framing, ..options() };
        let founder = Net::found("127.0.0.1:0", 2, &options).unwrap();
        let addresses = format!("{},{},{}", silent[0], silent[1], founder.address());
        let joined = Net::join(&addresses, None, &options);
        assert!(joined.is_ok(), "{framing:?}: {}", joined.err().unwrap());
    }
}
