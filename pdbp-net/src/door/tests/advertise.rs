//! Processes behind ports that are forwarded to them.

use std::net::{Shutdown, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A port that is forwarded to the one on which a process will listen.
struct Forwarded {
    outside: String,
    inside: String,
    calls: Arc<AtomicUsize>,
    _reserved: Socket,
}

impl Forwarded {
    fn new() -> Self {
        let (reserved, inside) = reserved();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let outside = listener.local_addr().unwrap().to_string();
        let (calls, to) = (Arc::<AtomicUsize>::default(), inside.clone());
        let counted = Arc::clone(&calls);
        std::thread::spawn(move || {
            while let Ok((from, _)) = listener.accept() {
                let Ok(to) = TcpStream::connect(&to) else { continue };
                counted.fetch_add(1, Ordering::Relaxed);
                for (mut from, mut to) in [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { outside, inside, calls, _reserved: reserved }
    }

    fn options(&self) -> Options {
        Options { advertise: Some(self.outside.clone()), ..options() }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

fn until_all_are_connected(nets: &mut [Net]) {
    let nodes = nets.len();
    until("all nodes are connected", || {
        for net in &mut *nets {
            while net.poll_completion().is_some() {}
        }
        let links = nets.iter().map(|net| net.stats().links.iter().filter(|l| l.connections > 0).count());
        links.sum::<usize>() == nodes * (nodes - 1)
    });
}

/// The founder and the first process to join, both of which the second one calls: once to join, and once for each link.
#[test]
fn processes_are_called_where_they_advertise() {
    for open in [false, true] {
        let (founders, firsts) = (Forwarded::new(), Forwarded::new());
        let join = |listen: Option<&str>, options: &Options| Net::join(&founders.outside, listen, options);
        let mut nets = std::thread::scope(|scope| {
            let mut nets = Vec::new();
            let founder = if open {
                nets.push(Net::found(&founders.inside, 3, &founders.options()).unwrap());
                None
            } else {
                Some(Founder::new(&founders.inside, 3, founders.options()).unwrap())
            };
            let first = scope.spawn(|| join(Some(&firsts.inside), &firsts.options()).unwrap());
            if let Some(founder) = &founder {
                until("the first has joined", || founder.here() == 2);
            } else {
                nets.push(first.join().unwrap());
                until_all_are_connected(&mut nets);
                nets.push(join(None, &options()).unwrap());
                return nets;
            }
            let second = scope.spawn(|| join(None, &options()).unwrap());
            nets.extend(founder.map(|founder| founder.wait().unwrap()));
            nets.extend([first.join().unwrap(), second.join().unwrap()]);
            nets
        });
        until_all_are_connected(&mut nets);
        // Two have joined, and both have called for a link.
        assert!(founders.calls() >= 4, "{} calls of the founder, open: {open}", founders.calls());
        assert!(firsts.calls() >= 1, "nobody has called the first where it advertises, open: {open}");
    }
}

/// What matters is whether other hosts can reach the advertised addresses, not where calls are seen to come from.
#[test]
fn what_is_advertised_decides_who_can_be_together() {
    let founder = Founder::new("127.0.0.1:0", 3, options()).unwrap();
    let (address, token) = (founder.address(), options().token.unwrap());
    let claim = |advertised: Option<&str>, process: u8| Claim {
        purpose: Purpose::Join,
        role: Role::Worker,
        version: VERSION,
        from: 0,
        to: 0,
        port: 9,
        advertised: advertised.map(|ip| ip.parse().unwrap()),
        longest: 1000,
        cluster: Id([0; 16]),
        process: Id([process; 16]),
        incarnation: 0,
        is_cut: false,
    };
    let mut first = dial(address);
    let joins = |stream: &mut TcpStream, claim| greet(stream, claim, &token).unwrap().verdict;
    assert_eq!(joins(&mut first, claim(Some("203.0.113.5"), 1)), Verdict::Welcome as u8);
    until("it has joined", || founder.here() == 2);
    assert_eq!(joins(&mut dial(address), claim(None, 2)), Verdict::Loopback as u8);
    assert_eq!(joins(&mut dial(address), claim(Some("203.0.113.5"), 2)), Verdict::Welcome as u8);
}

#[test]
fn what_nobody_can_call_is_not_advertised() {
    for address in ["0.0.0.0:7210", "[::]:7210", "127.0.0.1:0", "127.0.0.1", "no host.invalid:1"] {
        let options = Options { advertise: Some(address.to_owned()), ..options() };
        let error = Founder::new("127.0.0.1:0", 2, options).err().unwrap();
        assert!(matches!(&error, StartError::Address { .. }), "{error}");
        assert!(error.to_string().contains(address), "{error}");
    }
}
