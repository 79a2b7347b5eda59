//! The live page of the program `pdbp-video`, fetched while it runs: by hand, and by a browser where there is one.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for anything, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(600);

/// A run that does not end by itself.
struct Run {
    child: Child,
    /// Kept, so that the program can write.
    _out: BufReader<ChildStdout>,
    address: String,
}

impl Run {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-video"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
            command.env_remove(name);
        }
        let endless = ["--serve", "127.0.0.1:0", "--passes", "1000000", "--quiet", "--transport", "local"];
        let mut child = command.args(endless).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("live page: http://").and_then(|rest| rest.strip_suffix('/'));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, _out: out, address }
    }

    fn get(&self, path: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some((head, body)) = self.ask(path) {
                assert!(head.starts_with("HTTP/1.1 200 OK"), "{path}: {head}");
                return body;
            }
            // The server refuses a request that does not come in time.
            assert!(began.elapsed() < PATIENCE, "{path}: no answer");
        }
    }

    /// The head and the body of an answer, if there is one.
    fn ask(&self, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let answer = answer.split_once("\r\n\r\n").filter(|(head, _)| !head.starts_with("HTTP/1.1 408 "));
        answer.map(|(head, body)| (head.to_owned(), body.to_owned()))
    }

    /// Asks until the view is as wanted.
    fn wait_for(&self, is_there: impl Fn(&str) -> bool) -> String {
        let began = Instant::now();
        loop {
            let view = self.get("/view");
            if is_there(&view) {
                return view;
            }
            assert!(began.elapsed() < PATIENCE, "{view}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether everything that the page has to show is there: pictures, lines of the scores, and of rows, which come once a second; which of them had
/// blocks when they were looked at is chance.
fn is_whole(view: &str) -> bool {
    view.contains("data:image/bmp") && view.matches("<svg").count() == 5 && view.contains("send: node")
}

const STILL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/streams/freeze_black.264");

#[test]
fn the_page_can_be_fetched_while_the_program_runs() {
    let run = Run::start(&["--streams", "96", "--continuous", "--decoder", "openh264", STILL]);
    let page = run.get("/");
    assert!(page.starts_with("<!doctype html>") && page.contains("96 streams (96 QCIF)"), "{page}");
    assert!(!page.contains("src=http") && !page.contains("href="), "nothing from outside");
    let view = run.wait_for(is_whole);
    assert!(view.contains("passes done") && view.contains("<td>QCIF<td>"), "{view}");
    // It goes on.
    let passes =
        |view: &str| view.split_once(" of 1,000,000").unwrap().0.rsplit_once('>').unwrap().1.to_owned();
    let before = passes(&view);
    run.wait_for(|view| passes(view) != before);
    // In every 36 pictures some are black, and some are frozen.
    run.wait_for(|view| view.contains("<b>black</b>"));
    run.wait_for(|view| view.contains("<b>frozen</b>"));
}

/// It looks for no servers of its maker: where these cannot be had it waits for ever.
const BROWSER: &str = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking \
                       --disable-component-update --disable-sync --disable-quic --disable-extensions --disable-dev-shm-usage";

#[test]
fn a_browser_shows_the_page_and_follows_the_run() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let works =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    let Some(browser) = names.into_iter().find(works) else {
        return eprintln!("live page: skipped: there is no browser (Debian: apt install chromium)");
    };
    let run = Run::start(&["--streams", "48", "--continuous", "--decoder", "openh264"]);
    run.wait_for(is_whole);
    // Where the checks put what somebody may want to look at.
    let folder =
        std::env::var_os("CI_OUTPUT").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    fs::create_dir_all(&folder).unwrap();
    let profile = tempfile::tempdir().unwrap();
    let browse = |what: &str| {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5s", "120s", browser]).args(BROWSER.split_whitespace());
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.args(["--window-size=1240,1900", "--virtual-time-budget=4000", what]);
        command.arg(format!("http://{}/", run.address));
        // Now and then one does not come to an end: that is not what is tested here.
        let mut outputs = (0..3).map(|_| command.output().unwrap());
        let output =
            outputs.find(|output| output.status.success()).expect("a browser that ends, in three attempts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // Once the script has run, its answer is in the page; a server that has no processor for as long as that takes answers another time.
    let shows = |dom: &String| dom.contains("Live: asked for anew every second.") && is_whole(dom);
    let mut doms = (0..5).map(|_| browse("--dump-dom")).peekable();
    let first = doms.peek().cloned();
    let dom = doms.find(shows).unwrap_or_else(|| panic!("{first:?}"));
    assert!(dom.contains("Worst streams"), "{dom}");
    // In a folder of its own, since this test may run twice at a time.
    let taken = profile.path().join("live-page.png");
    let mut pictures = (0..5).map(|_| {
        browse(&format!("--screenshot={}", taken.display()));
        fs::read(&taken).unwrap_or_default()
    });
    let is_page = |picture: &Vec<u8>| picture.starts_with(b"\x89PNG") && picture.len() > 50_000;
    let picture = pictures.find(is_page).expect("a picture of the page");
    fs::write(folder.join("live-page.png"), picture).unwrap();
}
