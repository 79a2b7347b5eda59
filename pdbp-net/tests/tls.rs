//! Encrypted connections: who gets one, who is refused and why, and what a man in the middle sees.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_core::id::NodeId;
use pdbp_core::umb::{BlockPool, HeapMemory, stride};
use pdbp_core::{Completion, Op, Transport};
use pdbp_net::{Founder, Net, Options, StartError, Tls, TlsError, Token};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// Long enough for a loaded machine.
const SOON: Duration = Duration::from_secs(60);
const BODY: usize = 4096;
const WORDS: &[u8] = b"what nobody else shall read";

fn options(tls: Tls) -> Options {
    let token = Token::from_text(&"secret".repeat(6)).ok();
    Options { token, tls, timeout: SOON, outage: SOON, ..Options::new(stride(BODY)) }
}

/// Both nodes of a cluster; the second one joins at `address_for` of the first one's address.
fn pair(
    (first, second): (Options, Options),
    address_for: impl FnOnce(String) -> String,
) -> Result<(Net, Net), StartError> {
    let founder = Founder::new("127.0.0.1:0", 2, first)?;
    let address = address_for(founder.address().to_string());
    let other = Net::join(&address, None, &second)?;
    Ok((founder.wait()?, other))
}

/// The error with which joining fails.
fn refused(first: Options, second: Options) -> StartError {
    let Err(error) = pair((first, second), |address| address) else { panic!("it has joined") };
    error
}

/// Sends some blocks from the second node to the first, each full of [`WORDS`].
fn talk(first: Net, second: Net) {
    let receiver = thread::spawn(move || carry(first, 0));
    carry(second, 100);
    assert_eq!(receiver.join().unwrap(), 100);
}

/// Sends `to_send` blocks, or receives 100 if that is 0. Returns the number received.
fn carry(mut net: Net, mut to_send: usize) -> usize {
    let node = net.capabilities().node;
    let peer = NodeId::new(1 - node.raw()).unwrap();
    let mut pool = BlockPool::new(HeapMemory::new(stride(BODY) * 16).unwrap(), node, BODY);
    let (mut under_way, mut came, receives, began) = (0, 0, to_send == 0, Instant::now());
    for _ in 0..8 {
        let block = pool.take().unwrap();
        assert!(net.submit(Op::Recv { peer, block }).is_ok());
    }
    while if receives { came < 100 } else { to_send + under_way > 0 } {
        assert!(began.elapsed() < SOON, "{to_send} to send, {under_way} under way, {came} came");
        if to_send > 0
            && let Some(mut block) = pool.take()
        {
            let bytes = block.bytes_mut();
            bytes.chunks_mut(WORDS.len()).for_each(|chunk| chunk.copy_from_slice(&WORDS[..chunk.len()]));
            let length = bytes.len();
            match net.submit(Op::Send { peer, block: pool.seal(block, length) }) {
                Ok(()) => (to_send, under_way) = (to_send - 1, under_way + 1),
                Err(refused) => {
                    let Op::Send { block, .. } = refused.op else { panic!() };
                    assert!(pool.give_sealed(block).is_ok());
                }
            }
        }
        match net.poll_completion() {
            Some(Completion::Sent { block, .. }) => {
                assert!(pool.give_sealed(block).is_ok());
                under_way -= 1;
            }
            Some(Completion::Received { block, .. }) => {
                assert!(block.bytes().starts_with(WORDS));
                came += 1;
                let again = pool.take().unwrap();
                assert!(pool.give_arrived(block).is_ok());
                assert!(net.submit(Op::Recv { peer, block: again }).is_ok());
            }
            Some(other) => panic!("{other:?}"),
            None => thread::yield_now(),
        }
    }
    came
}

/// Forwards traffic between a founder and a joining process, and keeps a copy. Changes the byte at `change_at` of the joining process.
fn between(to: String, change_at: Option<usize>) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let copy = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&copy);
    let changed = Arc::new(Mutex::new(change_at));
    thread::spawn(move || {
        for one in listener.incoming().map_while(Result::ok) {
            let Ok(two) = TcpStream::connect(&to) else { return };
            let ends = [(one.try_clone().unwrap(), two.try_clone().unwrap()), (two, one)];
            for (direction, (mut from, mut to)) in ends.into_iter().enumerate() {
                let (seen, changed) = (Arc::clone(&seen), Arc::clone(&changed));
                thread::spawn(move || {
                    let mut buffer = [0; 16 << 10];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let mut seen = seen.lock().unwrap();
                        seen.extend_from_slice(&buffer[..count]);
                        let mut change = changed.lock().unwrap();
                        if direction == 0 && change.is_some_and(|at| seen.len() > at) {
                            *change = None;
                            buffer[count / 2] ^= 1;
                        }
                        drop((seen, change));
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (address, copy)
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}

/// A folder with what a process needs, signed by an authority.
fn folder(authority: &CertifiedIssuer<'_, KeyPair>) -> TempDir {
    folder_until(authority, 4096)
}

/// The same, with a certificate that is valid until the end of a year.
fn folder_until(authority: &CertifiedIssuer<'_, KeyPair>, year: i32) -> TempDir {
    let folder = TempDir::new().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["pdbp".to_owned()]).unwrap();
    params.not_after = date_time_ymd(year, 12, 31);
    let own = params.signed_by(&key, authority).unwrap();
    for (name, text) in
        [("cert.pem", own.pem()), ("key.pem", key.serialize_pem()), ("ca.pem", authority.pem())]
    {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn of(folder: &Path) -> Options {
    options(Tls::Folder(folder.to_path_buf()))
}

#[test]
fn who_listens_between_two_hosts_reads_nothing() {
    for (tls, is_read) in [(Tls::Token, false), (Tls::Off, true)] {
        let mut copy = None;
        // Nobody dials the joining process back: node 1 makes the connection, at the address that it knows of the founder.
        let (first, second) = pair((options(tls.clone()), options(tls.clone())), |to| {
            let (address, seen) = between(to, None);
            copy = Some(seen);
            address
        })
        .unwrap();
        talk(first, second);
        let seen = copy.unwrap();
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 100 * BODY, "{} bytes went by", seen.len());
        assert_eq!(contains(&seen, WORDS), is_read, "{tls:?}");
    }
}

#[test]
fn what_is_changed_between_two_hosts_is_sent_again() {
    let (first, second) =
        pair((options(Tls::Token), options(Tls::Token)), |to| between(to, Some(50 * BODY)).0).unwrap();
    talk(first, second);
}

#[test]
fn certificates_of_one_authority_are_taken() {
    let authority = authority();
    let (one, other) = (folder(&authority), folder(&authority));
    let (first, second) = pair((of(one.path()), of(other.path())), |address| address).unwrap();
    talk(first, second);
}

#[test]
fn certificates_of_another_authority_are_refused() {
    let (one, other) = (folder(&authority()), folder(&authority()));
    let error = refused(of(one.path()), of(other.path()));
    assert!(matches!(&error, StartError::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("invalid peer certificate"), "{error}");
    // The founder's certificate is valid, but the joining process has none.
    let error = refused(of(one.path()), options(Tls::Token));
    assert!(matches!(&error, StartError::Handshake { .. }), "{error}");
}

/// At either end, and the joining process is told why.
#[test]
fn an_expired_certificate_is_refused_by_name() {
    let authority = authority();
    let (right, expired) = (folder(&authority), folder_until(&authority, 2020));
    for (first, second) in [(&expired, &right), (&right, &expired)] {
        let error = refused(of(first.path()), of(second.path()));
        assert!(matches!(&error, StartError::Handshake { .. }), "{error}");
        assert!(error.to_string().to_lowercase().contains("expired"), "{error}");
    }
}

/// By the appropriate alert: fatal, "protocol version".
#[test]
fn tls_1_2_at_the_door_is_refused_by_name() {
    let founder = Founder::new("127.0.0.1:0", 2, options(Tls::Token)).unwrap();
    let extensions = [
        // Groups: x25519. Signatures: ECDSA with P-256, RSA-PSS. No versions except the one in front.
        &[0, 10, 0, 4, 0, 2, 0, 29][..],
        &[0, 13, 0, 6, 0, 4, 4, 3, 8, 4],
    ]
    .concat();
    let mut body = [&[3, 3][..], &[7; 32], &[0]].concat();
    // ECDHE with AES-128 in GCM, for ECDSA and for RSA; no compression.
    body.extend([0, 4, 0xC0, 0x2B, 0xC0, 0x2F, 1, 0, 0, extensions.len() as u8]);
    body.extend(extensions);
    let hello = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    let record = [&[22, 3, 1, 0, hello.len() as u8][..], &hello].concat();
    let answer = || {
        let mut stream = TcpStream::connect(founder.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(&record).ok()?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said).ok().filter(|count| *count > 0).map(|_| said)
    };
    // A thread that has no processor for some seconds is closed before it has said anything.
    let said = (0..10).find_map(|_| answer()).expect("it is told why");
    assert_eq!(said, [21, 3, 3, 0, 2, 2, 70]);
}

#[test]
fn nothing_falls_back_to_plain_text() {
    let error = refused(options(Tls::Token), options(Tls::Off));
    assert!(matches!(error, StartError::Encrypted { .. }), "{error}");
    let error = refused(options(Tls::Off), options(Tls::Token));
    assert!(matches!(error, StartError::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("the same `tls`"), "{error}");
}

#[test]
fn another_token_is_refused_through_tls_as_well() {
    let token = Token::from_text(&"another".repeat(6)).ok();
    let error = refused(options(Tls::Token), Options { token, ..options(Tls::Token) });
    assert!(matches!(error, StartError::WrongToken { .. }), "{error}");
}

#[test]
fn what_is_missing_is_named() {
    let error = refused(Options { token: None, ..options(Tls::Token) }, options(Tls::Token));
    assert!(matches!(error, StartError::Tls(TlsError::NoToken)), "{error}");
    let authority = authority();
    for name in ["cert.pem", "key.pem", "ca.pem"] {
        let folder = folder(&authority);
        fs::write(folder.path().join(name), "no certificate").unwrap();
        let error = refused(of(folder.path()), options(Tls::Token)).to_string();
        assert!(error.contains(name), "{error}");
        fs::remove_file(folder.path().join(name)).unwrap();
        let error = refused(of(folder.path()), options(Tls::Token)).to_string();
        assert!(error.contains(name), "{error}");
    }
    // The key of another certificate.
    let (one, other) = (folder(&authority), folder(&authority));
    fs::copy(other.path().join("key.pem"), one.path().join("key.pem")).unwrap();
    let error = refused(of(one.path()), options(Tls::Token)).to_string();
    assert!(error.contains("key.pem"), "{error}");
}
