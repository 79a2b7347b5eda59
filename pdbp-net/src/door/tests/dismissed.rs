//! Processes that know the token, and whose connection a door closes all the same, without an answer.

use super::*;

/// The error of a process that joins where the first caller is dismissed, given the answer to its first message, and the others are refused by
/// name.
fn join_after(dismiss: fn(TcpStream, &[u8]) -> Option<()>) -> StartError {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut first = Some(dismiss);
    let mut answer = move |mut stream: TcpStream| -> Option<()> {
        let token = options().token.unwrap();
        let dismiss = first.take();
        let (mut responder, mut hello, mut claim) = (Responder::new([9; 32]), [0; HELLO], [0; CLAIM]);
        stream.read_exact(&mut hello).ok()?;
        let said = responder.hello(&hello, [0; 32]).unwrap();
        if let Some(dismiss) = dismiss {
            return dismiss(stream, &said);
        }
        stream.write_all(&said).ok()?;
        stream.read_exact(&mut claim).ok()?;
        responder.claim(&claim, &token).unwrap();
        let (verdict, process) = (Verdict::Block as u8, Id([4; 16]));
        let answer = Answer { verdict, version: VERSION, nodes: 2, longest: 2000, process, primary: None };
        stream.write_all(&responder.answer(answer, &token)).ok()
    };
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|stream| _ = answer(stream))
    });
    Net::join(&address, None, &options()).err().unwrap()
}

/// A process that had no processor for a while was told that it does not know the token, and gave up.
#[test]
fn who_is_shown_out_since_it_was_too_slow_tries_again() {
    PATIENCE.set(Duration::from_millis(700));
    let refused = join_after(|mut stream, said| {
        std::thread::sleep(Duration::from_millis(300));
        stream.write_all(said).ok()?;
        stream.read_exact(&mut [0; CLAIM]).ok()?;
        // As long as if the token were wrong.
        std::thread::sleep(PENANCE + Duration::from_millis(100));
        Some(())
    });
    assert!(matches!(&refused, StartError::Refused { .. }), "{refused}");
}

/// It was told that it does not know the token, and gave up: the door had too many strangers from its address, and closed the connection at once.
#[test]
fn who_is_crowded_out_tries_again() {
    let refused = join_after(|mut stream, said| {
        stream.write_all(said).ok()?;
        // The claim is not read, so the connection is reset.
        stream.peek(&mut [0]).map(|_| ()).ok()
    });
    assert!(matches!(&refused, StartError::Refused { .. }), "{refused}");
    let is_refused = |_| {
        let error = join_after(|mut stream, said| {
            stream.write_all(said).ok()?;
            stream.read_exact(&mut [0; CLAIM]).ok()
        });
        matches!(error, StartError::Refused { .. })
    };
    // Without a processor for half a second, it takes the end for a rejection.
    assert!((0..20).any(is_refused));
}
