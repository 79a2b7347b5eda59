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

/// All masters can name the addresses of all. Each called itself as well, waited longer for itself each time, and was told that nobody answers there.
#[test]
fn a_process_does_not_call_itself() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = listener.local_addr().unwrap();
    // Of a host that no other program uses.
    let own = std::net::TcpListener::bind("127.83.0.5:0").unwrap().local_addr().unwrap();
    let later = |mut stream: TcpStream| -> Option<()> {
        let (mut responder, mut hello, mut claim) = (Responder::new([9; 32]), [0; HELLO], [0; CLAIM]);
        stream.read_exact(&mut hello).ok()?;
        stream.write_all(&responder.hello(&hello, [0; 32]).unwrap()).ok()?;
        stream.read_exact(&mut claim).ok()?;
        let token = options().token.unwrap();
        responder.claim(&claim, &token).unwrap();
        let (verdict, process) = (Verdict::Later as u8, Id([4; 16]));
        let answer = Answer { verdict, version: VERSION, nodes: 2, longest: 1000, process, primary: None };
        stream.write_all(&responder.answer(answer, &token)).ok()
    };
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|stream| _ = later(stream))
    });
    let options = Options { timeout: Duration::from_secs(4), ..options() };
    let refused = Net::join(&format!("{own},{other}"), Some(&own.to_string()), &options).err().unwrap();
    assert!(!refused.to_string().contains(&own.to_string()), "{refused}");
}
