//! A process that has no descriptors left for a while.
#![cfg(unix)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use pdbp_net::{Net, Options};

/// Founds a cluster, opens files until there are no descriptors for more, and closes them when it is told to.
#[test]
#[ignore = "the program of the process that another test starts"]
fn without_descriptors() {
    let net = Net::found("127.0.0.1:0", 2, &Options::new(1000)).unwrap();
    let files: Vec<_> = std::iter::repeat_with(|| File::open("/dev/null")).map_while(Result::ok).collect();
    println!("\nlistens {}", net.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    drop(files);
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn who_called_a_process_without_descriptors_is_answered_when_it_has_some() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$0\" --exact without_descriptors --ignored --nocapture"]);
    command.arg(std::env::current_exe().unwrap()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.filter_map(|line| line.strip_prefix("listens ").map(str::to_owned)).next().unwrap();
    let mut caller = TcpStream::connect(address).unwrap();
    caller.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    caller.write_all(b"GET /pdbp/exchange?wsdl HTTP/1.1\r\nHost: there\r\n\r\n").unwrap();
    // Long enough, normally, for the process to find that it cannot accept the connection.
    std::thread::sleep(Duration::from_millis(300));
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    let mut answer = [0; 12];
    caller.read_exact(&mut answer).unwrap();
    assert_eq!(answer, *b"HTTP/1.1 200");
    process.kill().unwrap();
    process.wait().unwrap();
}
