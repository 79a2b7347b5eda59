//! The trace file: an array of events that is complete after each write.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Ring;
use super::record::{Micros, Track, quoted};

/// Interval between two writes, and so the most that a killed program loses. If it is killed in the middle of a write, the array
/// lacks its end, which viewers accept.
const WRITES: Duration = Duration::from_millis(50);

/// The writing thread. Dropping this writes the remaining events.
pub(super) struct Writer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(path: &Path, rings: Vec<Arc<Ring>>, most: usize) -> io::Result<Self> {
        let mut output = Output::create(path, &rings, most)?;
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let (flag, bell) = &*stopped;
            let mut last = false;
            while !last {
                let flag = flag.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = bell.wait_timeout_while(flag, WRITES, |stop| !*stop);
                last = *waited.unwrap_or_else(PoisonError::into_inner).0;
                output.write(&rings);
            }
        };
        let thread = thread::Builder::new().name("pdbp-trace".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let (flag, bell) = &*self.stop;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        bell.notify_all();
        // A thread that panicked has reported it on stderr already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Output {
    path: PathBuf,
    file: Option<File>,
    /// Where the next event goes: the offset of the array's end.
    end: u64,
    /// The number of events that the file still takes, and how many of them must be rare ones.
    left: usize,
    reserve: usize,
    dropped: u64,
}

impl Output {
    fn create(path: &Path, rings: &[Arc<Ring>], most: usize) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let mut text = String::from("[");
        for ring in rings {
            let pid = ring.node.raw();
            let meta = |name: &str, tid: u8, key: &str, value: &str| {
                format!(
                    "{{\"ph\":\"M\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"args\":{{\"{key}\":{value}}}}},\n"
                )
            };
            text.push_str(&meta("process_name", 0, "name", &quoted(&ring.node.to_string())));
            text.push_str(&meta("process_sort_index", 0, "sort_index", &pid.to_string()));
            for (track, name) in Track::ALL {
                text.push_str(&meta("thread_name", track as u8, "name", &quoted(name)));
            }
        }
        // Every later event begins with a comma.
        let pid = rings.first().map_or(0, |ring| ring.node.raw());
        let at = rings.first().map_or(0, |ring| ring.now());
        text.push_str(&format!(
            "{{\"ph\":\"i\",\"name\":\"trace started\",\"s\":\"g\",\"pid\":{pid},\"tid\":{},\"ts\":{}}}",
            Track::Events as u8,
            Micros(at)
        ));
        let end = text.len() as u64;
        text.push_str("\n]\n");
        file.write_all(text.as_bytes())?;
        Ok(Self {
            path: path.to_path_buf(),
            file: Some(file),
            end,
            left: most,
            reserve: most / 64,
            dropped: 0,
        })
    }

    /// Overwrites the end of the array with the rings' events, followed by a new end, in one write.
    fn write(&mut self, rings: &[Arc<Ring>]) {
        let (mut text, mut dropped) = (String::new(), 0);
        for ring in rings {
            let (records, lost) = ring.take();
            dropped += lost;
            for record in records {
                let reserve = if record.what.is_rare() { 0 } else { self.reserve };
                if self.left <= reserve {
                    dropped += 1;
                    continue;
                }
                self.left = self.left.saturating_sub(record.write(ring.node, &mut text));
            }
        }
        self.dropped += dropped;
        if text.is_empty() && dropped == 0 {
            return;
        }
        let events = text.len() as u64;
        if let (true, Some(ring)) = (self.dropped > 0, rings.first()) {
            text.push_str(&format!(
                ",\n{{\"ph\":\"i\",\"name\":\"events dropped\",\"s\":\"g\",\"pid\":{},\"tid\":{},\"ts\":{},\"args\":{{\"count\":{}}}}}",
                ring.node.raw(),
                Track::Events as u8,
                Micros(ring.now()),
                self.dropped
            ));
        }
        text.push_str("\n]\n");
        let Some(file) = &mut self.file else { return };
        let written = file.seek(SeekFrom::Start(self.end)).and_then(|_| file.write_all(text.as_bytes()));
        match written {
            Ok(()) => self.end += events,
            Err(error) => {
                // Unlike `eprintln`, without a panic if nobody reads that any more.
                let path = self.path.display();
                let _ = writeln!(io::stderr(), "pdbp: cannot write the trace {path}: {error}; tracing stops");
                self.file = None;
            }
        }
    }
}
