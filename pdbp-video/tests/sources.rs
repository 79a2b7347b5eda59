//! Live sources as a real sender, ffmpeg, makes them: RTP over UDP, to one or to a group, and of an RTSP server that passes on what ffmpeg sends, in the
//! connection or beside it.
//! Skipped where there is no ffmpeg.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pdbp_video::annexb::{Index, Standard, nals};
use pdbp_video::sources::{AccessUnit, Address, Source, Unit};

const QCIF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/clips/bbb_qcif.h264");
const H265: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/hevc_repeated_headers.265");
/// Longest time for anything, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(180);

fn has_ffmpeg() -> bool {
    let works = Command::new("ffmpeg").arg("-version").output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("live sources: skipped: there is no ffmpeg (Debian: apt install ffmpeg)");
    }
    works
}

/// ffmpeg, until it is dropped.
struct Sender(Child);

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sender {
    /// Sends a file over and over, 25 pictures a second; its description is written to `sdp`.
    fn start(file: &Path, port: u16, sdp: &Path) -> Self {
        Self::to(file, &format!("127.0.0.1:{port}?pkt_size=1200"), sdp)
    }

    fn to(file: &Path, address: &str, sdp: &Path) -> Self {
        let mut command = Command::new("ffmpeg");
        command.args(["-hide_banner", "-loglevel", "error", "-re", "-stream_loop", "-1", "-i"]).arg(file);
        command.args(["-c", "copy", "-f", "rtp", &format!("rtp://{address}"), "-sdp_file"]).arg(sdp);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }
}

/// The stream in a file that ffmpeg can play over and over.
fn wrapped(stream: &str, folder: &Path) -> PathBuf {
    let file = folder.join("clip.mp4");
    let mut command = Command::new("ffmpeg");
    command.args([
        "-hide_banner",
        "-loglevel",
        "error",
        "-fflags",
        "+genpts",
        "-r",
        "25",
        "-i",
        stream,
        "-c",
        "copy",
    ]);
    let output = command.arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    file
}

/// A port that nobody uses. (Somebody may before it is used here, but then the test says so.)
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn description(sdp: &Path) -> Vec<u8> {
    wait_for("a session description", || std::fs::read(sdp).ok().filter(|text| text.ends_with(b"\n")))
}

/// The slices of a unit, which identify it.
fn slices(standard: Standard, unit: &[u8]) -> Vec<&[u8]> {
    let units = nals(unit).map(|nal| &unit[nal.range][3..]);
    let is_slice = |nal: &&[u8]| match standard {
        Standard::H264 => matches!(nal[0] & 0x1f, 1..=5),
        Standard::H265 => nal[0] >> 1 & 0x3f < 32,
    };
    units.filter(is_slice).collect()
}

/// Takes `number` pictures, each of which must be one of the file, and the one after that before it unless something was lost.
fn take_pictures(source: &Source, stream: &[u8], number: usize) {
    let index = Index::new(stream).unwrap();
    let sent: Vec<_> =
        index.pictures.iter().map(|range| slices(index.standard, &stream[range.clone()])).collect();
    let mut before: Option<usize> = None;
    let mut taken = 0;
    while taken < number {
        match wait_for("a picture", || source.take()) {
            Ok(AccessUnit { standard, bytes, is_key }) => {
                let next = before.map(|before| (before + 1) % sent.len());
                let place = next.filter(|place| sent[*place] == slices(standard, &bytes));
                let place = place.or_else(|| sent.iter().position(|sent| *sent == slices(standard, &bytes)));
                let place = place.expect("a picture that was sent");
                assert!(is_key || next == Some(place), "picture {place} after {before:?}");
                (before, taken) = (Some(place), taken + 1);
                assert!(!is_key || !Index::new(&bytes).unwrap().entries.is_empty(), "has its parameter sets");
            }
            Err(_) => before = None,
        }
    }
}

fn wait_for_fault(source: &Source, words: &str) {
    wait_for(words, || source.take().and_then(Unit::err).filter(|fault| fault.contains(words)));
}

fn follow_over_udp(file: &str) {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (clip, sdp, stream) =
        (wrapped(file, folder.path()), folder.path().join("it.sdp"), std::fs::read(file).unwrap());
    let port = free_port();
    let sender = Sender::start(&clip, port, &sdp);
    let addresses = Address::described(&sdp, &description(&sdp)).unwrap();
    let [address] = &addresses[..] else { panic!("{addresses:?}") };
    let source = Source::new(address.clone());
    source.start();
    take_pictures(&source, &stream, 100);
    drop(sender);
    wait_for_fault(&source, "no packet for 5 s");
    // Another sender, with other numbers.
    let _sender = Sender::start(&clip, port, &sdp);
    take_pictures(&source, &stream, 50);
}

#[test]
fn h264_that_ffmpeg_sends_over_udp_is_received_and_comes_back_after_a_stall() {
    follow_over_udp(QCIF);
}

#[test]
fn h265_that_ffmpeg_sends_over_udp_is_received_and_comes_back_after_a_stall() {
    follow_over_udp(H265);
}

#[test]
fn what_is_sent_to_a_group_is_received_by_its_address_and_by_its_description() {
    let group = std::net::Ipv4Addr::new(239, 255, 42, 42);
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if let Err(error) = probe
        .join_multicast_v4(&group, &std::net::Ipv4Addr::UNSPECIFIED)
        .and_then(|()| probe.send_to(&[0], (group, 9)))
    {
        return eprintln!("multicast: skipped: {error}: this machine has no route to a group");
    }
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (clip, sdp) = (wrapped(QCIF, folder.path()), folder.path().join("it.sdp"));
    let (stream, port) = (std::fs::read(QCIF).unwrap(), free_port());
    let _sender = Sender::to(&clip, &format!("{group}:{port}?ttl=0&pkt_size=1200"), &sdp);
    let address = Address::parse(&format!("rtp://{group}:{port}")).unwrap().unwrap();
    let source = Source::new(address.clone());
    source.start();
    take_pictures(&source, &stream, 10);
    let described = Address::described(&sdp, &description(&sdp)).unwrap().remove(0);
    assert_eq!(described.to_string(), address.to_string());
    // The group is left, so that another may listen.
    drop(source);
    let source = Source::new(described);
    source.start();
    take_pictures(&source, &stream, 10);
}

/// A server for one client at a time, which passes on what ffmpeg sends. Ends each connection after some packets.
struct Server {
    port: u16,
    sessions: Arc<AtomicUsize>,
    _sender: Sender,
}

impl Server {
    fn start(clip: &Path, folder: &Path, packets: usize) -> Self {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sdp = folder.join("server.sdp");
        let sender = Sender::start(clip, udp.local_addr().unwrap().port(), &sdp);
        let sdp = String::from_utf8(description(&sdp)).unwrap() + "a=control:track1\r\n";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, sessions) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&sessions);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A client that leaves is no error.
                let _ = serve(client, &sdp, &udp, packets, &counted);
            }
        });
        Self { port, sessions, _sender: sender }
    }
}

fn serve(
    client: TcpStream,
    sdp: &str,
    udp: &UdpSocket,
    packets: usize,
    sessions: &AtomicUsize,
) -> std::io::Result<()> {
    let mut to = client.try_clone()?;
    // Where packets go that do not go into the connection.
    let beside = UdpSocket::bind("127.0.0.1:0")?;
    let mut client_port = None;
    let mut lines = BufReader::new(client).lines();
    loop {
        let request =
            lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect::<Vec<_>>();
        let Some(first) = request.first() else { return Ok(()) };
        let number = request.iter().find_map(|line| line.strip_prefix("CSeq: ")).unwrap_or("0");
        let url = first.split(' ').nth(1).unwrap_or_default();
        let (method, mut head, mut body) = (first.split(' ').next(), String::new(), "");
        match method {
            Some("DESCRIBE")
                if !request.iter().any(|line| line.starts_with("Authorization: Digest username=\"me\"")) =>
            {
                let challenge = "WWW-Authenticate: Digest realm=\"it\", nonce=\"1\"";
                write!(to, "RTSP/1.0 401 Unauthorized\r\nCSeq: {number}\r\n{challenge}\r\n\r\n")?;
                continue;
            }
            Some("DESCRIBE") => {
                head = format!(
                    "Content-Base: {url}/\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n",
                    sdp.len()
                );
                body = sdp;
            }
            Some("SETUP")
                if url.contains("no_udp") && request.iter().any(|line| line.contains("client_port")) =>
            {
                write!(to, "RTSP/1.0 461 Unsupported Transport\r\nCSeq: {number}\r\n\r\n")?;
                continue;
            }
            Some("SETUP") => {
                let ports =
                    request.iter().find_map(|line| line.split_once("client_port=")).map(|(_, ports)| ports);
                client_port = ports.and_then(|ports| ports.split(['-', ';']).next()?.parse::<u16>().ok());
                let transport = match ports.zip(client_port) {
                    Some((ports, _)) => {
                        let server = beside.local_addr()?.port();
                        format!(
                            "RTP/AVP;unicast;client_port={ports};server_port={server}-{}",
                            server.saturating_add(1)
                        )
                    }
                    None => "RTP/AVP/TCP;unicast;interleaved=0-1".into(),
                };
                head = format!("Session: 1\r\nTransport: {transport}\r\n");
            }
            Some("PLAY") => head = "Session: 1\r\n".into(),
            _ => {}
        }
        write!(to, "RTSP/1.0 200 OK\r\nCSeq: {number}\r\n{head}\r\n{body}")?;
        if method == Some("PLAY") {
            sessions.fetch_add(1, Ordering::Relaxed);
            let mut packet = [0; 2_000];
            udp.set_nonblocking(true)?;
            // What was sent while nobody listened.
            while udp.recv(&mut packet).is_ok() {}
            udp.set_nonblocking(false)?;
            for _ in 0..packets {
                let length = udp.recv(&mut packet)?;
                let packet = &packet[..length];
                match client_port {
                    // One that has just left is no error yet.
                    Some(port) => drop(beside.send_to(packet, ("127.0.0.1", port))),
                    None => to.write_all(
                        &[b"$\0", &u16::try_from(length).unwrap().to_be_bytes()[..], packet].concat(),
                    )?,
                }
            }
            return Ok(());
        }
    }
}

#[test]
fn what_a_server_sends_is_received_and_a_connection_that_ends_is_made_again() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&wrapped(QCIF, folder.path()), folder.path(), 200);
    let url = format!("rtsp://me:secret@127.0.0.1:{}/camera", server.port);
    let source = Source::new(Address::parse(&url).unwrap().unwrap());
    source.start();
    let stream = std::fs::read(QCIF).unwrap();
    take_pictures(&source, &stream, 30);
    // Who takes too little for a while is told of that, too.
    while server.sessions.load(Ordering::Relaxed) < 2 {
        wait_for("the end of a connection", || source.take().and_then(Unit::err));
    }
    take_pictures(&source, &stream, 30);
    // Another password does not help.
    let source = Source::new(Address::parse(&url.replace("me:", "you:")).unwrap().unwrap());
    source.start();
    wait_for_fault(&source, "cannot be opened");
}

#[test]
fn what_a_server_sends_beside_the_connection_is_received_and_a_server_that_refuses_is_named() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&wrapped(QCIF, folder.path()), folder.path(), 60);
    let source_at = |path: &str| {
        let url = format!("rtspu://me:secret@127.0.0.1:{}/{path}", server.port);
        let source = Source::new(Address::parse(&url).unwrap().unwrap());
        source.start();
        source
    };
    let (source, stream) = (source_at("camera"), std::fs::read(QCIF).unwrap());
    take_pictures(&source, &stream, 10);
    wait_for("the end of a connection", || source.take().and_then(Unit::err));
    take_pictures(&source, &stream, 10);
    drop(source);
    wait_for_fault(&source_at("no_udp"), "refuses");
}

#[test]
fn the_program_reports_each_source_in_a_row_and_one_that_is_not_there_disturbs_no_other() {
    if !has_ffmpeg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let clip = wrapped(QCIF, folder.path());
    let [first, second] = ["one.sdp", "two.sdp"].map(|name| folder.path().join(name));
    let _senders = [Sender::start(&clip, free_port(), &first), Sender::start(&clip, free_port(), &second)];
    description(&first);
    description(&second);
    // Nobody is given this port.
    let closed = "127.0.0.1:1";
    let follow = |seconds: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-video"));
        command.env("PDBP_TRANSPORT", "local").args(["--passes", seconds]);
        command.args(["--decoder", "openh264", "--analyse", "cpu"]);
        command.arg("--report").arg(folder.path().join("report")).arg(&first).arg(&second);
        let output = command.arg(format!("rtsp://{closed}/x")).output().unwrap();
        let [table, errors] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(table.starts_with(&format!("3 live sources for {seconds} seconds\n")), "{table}");
        (table, errors)
    };
    let cells = |table: &str| -> Vec<Vec<String>> {
        table.lines().map(|line| line.split('│').map(|cell| cell.trim().to_owned()).collect()).collect()
    };
    let one_is_silent =
        |table: &str| cells(table).iter().any(|row| row[0].starts_with("all 3") && row[3] == "1 silent");
    // On a busy machine a short run may have no picture of a source, or none for a while.
    let mut runs = ["8", "8", "60", "10", "10", "10"].into_iter().map(follow);
    let (table, errors) = runs.find(|(table, _)| one_is_silent(table)).expect("one is silent, and no other");
    let rows = cells(&table);
    let row = |name: &str| {
        rows.iter().find(|row| row[0].starts_with(name)).unwrap_or_else(|| panic!("{name}: {table}"))
    };
    let pictures: Vec<u32> =
        rows.iter().filter(|row| row[0].starts_with("rtp://")).map(|row| row[1].parse().unwrap()).collect();
    assert!(pictures.len() == 2 && pictures.iter().all(|number| *number > 0), "{table}");
    let broken = row("rtsp://");
    assert!(broken[1] == "0" && broken[3].starts_with("silent for "), "{table}");
    assert!(broken[4].contains("refused") && errors.contains("refused"), "{table}{errors}");
    let faults = std::fs::read_to_string(folder.path().join("report/faults.csv")).unwrap();
    assert!(faults.contains("rtsp://"), "{faults}");
}
