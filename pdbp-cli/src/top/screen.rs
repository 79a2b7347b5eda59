//! Painting on a terminal, and its keys.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::emulate_default_handler;

use super::super::Failed;
use super::view::{Frame, Style, View};
use super::{Sample, Top};

const KEYS: &str = "q quit   p pause   s sort   ↑ ↓ select a node   a all nodes";
/// Longest wait for a key, so that new figures show soon.
const GLANCE: Duration = Duration::from_millis(50);

/// The terminal while a program paints on it. Dropping this value, and a panic, restore the terminal; signals end the loop that paints.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        enable_raw_mode()?;
        let screen = Self;
        execute!(io::stdout(), EnterAlternateScreen, Hide, DisableLineWrap, Clear(ClearType::All))?;
        Ok(screen)
    }

    fn paint(&self, frame: &Frame, width: usize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        queue!(out, BeginSynchronizedUpdate)?;
        for (y, (look, line)) in frame.lines.iter().enumerate() {
            queue!(out, MoveTo(0, y.min(usize::from(u16::MAX)) as u16), SetAttribute(Attribute::Reset))?;
            match look {
                Style::Plain => {}
                Style::Title => queue!(out, SetAttribute(Attribute::Bold))?,
                Style::Head => queue!(out, SetAttribute(Attribute::Dim))?,
                Style::Selected => queue!(out, SetAttribute(Attribute::Reverse))?,
                Style::Alarm => queue!(out, SetForegroundColor(Color::Red))?,
            }
            // Pad with spaces: clearing a line from its last column erases that column. The lines fill the screen.
            queue!(out, Print(format!("{line:<width$}")), SetAttribute(Attribute::Reset))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    // The terminal may be gone, so nobody could see an error.
    let _ = execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

/// The signal that is to end this program, or 0.
fn ending() -> io::Result<Arc<AtomicUsize>> {
    let ending = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_usize(signal, Arc::clone(&ending), signal as usize)?; // positive
    }
    Ok(ending)
}

/// Shows frames until a key or a signal ends it.
pub(super) fn run(top: &Top, first: Sample) -> Result<(), Failed> {
    let samples = fetch_on(top);
    let ending = ending()?;
    let screen = Screen::open()?;
    let mut shown =
        Shown { before: None, now: first, trouble: None, view: View::default(), order: Vec::new() };
    let mut stale = true;
    loop {
        if stale {
            let (width, height) = size()?;
            screen.paint(&shown.frame(top, width, height), usize::from(width))?;
        }
        let signal = ending.load(Ordering::Relaxed);
        if signal != 0 {
            drop(screen);
            // As if there were no screen to be restored.
            emulate_default_handler(signal as i32)?; // as registered
            return Ok(());
        }
        stale = event::poll(GLANCE)?;
        if stale && shown.take(&event::read()?) == Action::Quit {
            return Ok(());
        }
        for sample in samples.try_iter() {
            stale |= shown.next(sample);
        }
    }
}

/// Fetches figures at each interval, in a thread: an endpoint that does not answer must not delay keys.
fn fetch_on(top: &Top) -> Receiver<Result<Sample, String>> {
    let (sender, receiver) = mpsc::channel();
    let (connect, interval) = (top.connect.clone(), top.interval);
    thread::spawn(move || {
        loop {
            let began = Instant::now();
            thread::sleep(interval);
            let sample = Sample::take(&connect).map_err(|error| error.to_string());
            if sender.send(sample).is_err() {
                return;
            }
            // Pause after slow answers too, so that requests do not follow each other at once.
            thread::sleep(interval.min(began.elapsed().saturating_sub(interval)));
        }
    });
    receiver
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Stay,
    Quit,
}

/// What is on the screen.
struct Shown {
    before: Option<Sample>,
    now: Sample,
    /// Why there are no new figures.
    trouble: Option<String>,
    view: View,
    order: Vec<u16>,
}

impl Shown {
    fn frame(&mut self, top: &Top, width: u16, height: u16) -> Frame {
        self.view.height = Some(usize::from(height.max(1)));
        self.view.footer = Some(match &self.trouble {
            Some(trouble) => format!("{:.0?} ago; {trouble}", self.now.at.elapsed()),
            None => KEYS.to_owned(),
        });
        let before = self.before.as_ref().unwrap_or(&self.now);
        let frame = self.view.frame(top, before, &self.now, usize::from(width));
        self.order.clone_from(&frame.order);
        frame
    }

    /// Takes new figures. Returns whether there is something to paint.
    fn next(&mut self, sample: Result<Sample, String>) -> bool {
        if self.view.paused {
            return false;
        }
        match sample {
            Ok(sample) => {
                self.before = Some(std::mem::replace(&mut self.now, sample));
                self.trouble = None;
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
        true
    }

    fn take(&mut self, event: &Event) -> Action {
        let Event::Key(KeyEvent {
            code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, ..
        }) = event
        else {
            return Action::Stay;
        };
        match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('p' | ' ') => self.view.paused = !self.view.paused,
            KeyCode::Char('s') => self.view.sort = self.view.sort.next(),
            KeyCode::Char('a') | KeyCode::Esc => self.view.node = None,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            _ => {}
        }
        Action::Stay
    }

    /// Selects the node above or below; with none selected, the last or the first.
    fn select(&mut self, step: isize) {
        let at = self.view.node.and_then(|node| self.order.iter().position(|n| *n == node));
        let last = self.order.len().saturating_sub(1);
        let to = match at {
            Some(at) => at.saturating_add_signed(step).min(last),
            None if step > 0 => 0,
            None => last,
        };
        self.view.node = self.order.get(to).copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let figures = serde_json::from_str(r#"{"asked":0,"took_ms":0,"nodes":[]}"#).unwrap();
        let now = Sample { at: Instant::now(), figures };
        Shown { before: None, now, trouble: None, view: View::default(), order: vec![4, 2, 7] }
    }

    fn press(shown: &mut Shown, code: KeyCode) -> Action {
        shown.take(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn keys_select_sort_pause_and_quit() {
        let mut shown = shown();
        for (code, node) in [
            (KeyCode::Down, Some(4)),
            (KeyCode::Down, Some(2)),
            (KeyCode::Char('j'), Some(7)),
            (KeyCode::Down, Some(7)),
            (KeyCode::Up, Some(2)),
            (KeyCode::Esc, None),
            (KeyCode::Char('k'), Some(7)),
        ] {
            assert_eq!(press(&mut shown, code), Action::Stay);
            assert_eq!(shown.view.node, node, "{code:?}");
        }
        press(&mut shown, KeyCode::Char('p'));
        assert!(shown.view.paused && !shown.next(Err("late".to_owned())));
        press(&mut shown, KeyCode::Char(' '));
        assert!(!shown.view.paused && shown.next(Err("late".to_owned())));
        assert_eq!(shown.trouble.as_deref(), Some("late"));
        assert_eq!(press(&mut shown, KeyCode::Char('q')), Action::Quit);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(shown.take(&Event::Key(control)), Action::Quit);
    }
}
