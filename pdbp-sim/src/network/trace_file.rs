//! Traffic from a file: one line per message, `time_ns source dest bytes`. Empty lines and lines beginning with `#` are ignored.

use std::fmt;

use super::payload::PAYLOAD;

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Nanoseconds since the start.
    pub at: u64,
    /// The sending node.
    pub source: u16,
    /// The receiving node.
    pub dest: u16,
    /// Length in bytes.
    pub bytes: usize,
}

/// What is wrong with a line, and how to put it right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and the remedy.
    pub what: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the trace: {}", self.line, self.what)
    }
}

impl std::error::Error for TraceError {}

/// Reads a trace and sorts its messages by time; messages of the same time keep their order.
pub(super) fn read(text: &str) -> Result<Vec<TraceEntry>, TraceError> {
    let mut entries = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        entries.push(read_line(line).map_err(|what| TraceError { line: i + 1, what })?);
    }
    entries.sort_by_key(|entry| entry.at);
    Ok(entries)
}

fn read_line(line: &str) -> Result<TraceEntry, String> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [at, source, dest, bytes] = fields[..] else {
        return Err(format!("has {} fields; write four: time_ns source dest bytes", fields.len()));
    };
    let number = |name: &str, field: &str, most: u64| {
        let value = field.parse::<u64>().ok().filter(|n| *n <= most);
        value.ok_or_else(|| format!("{name} is \"{field}\"; write a number from 0 to {most}"))
    };
    let last = u64::from(u16::MAX) - 1;
    let entry = TraceEntry {
        at: number("time_ns", at, u64::MAX)?,
        source: number("source", source, last)? as u16,
        dest: number("dest", dest, last)? as u16,
        bytes: number("bytes", bytes, u64::from(u32::MAX))? as usize,
    };
    if entry.bytes < PAYLOAD {
        return Err(format!(
            "bytes is {}; write {PAYLOAD} or more, so that a message can say what it is",
            entry.bytes
        ));
    }
    if entry.source == entry.dest {
        return Err(format!("node {} sends to itself; name two nodes", entry.source));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_put_in_order() {
        let entries = read("# time source dest bytes\n\n 500 0 1 64\n100 1 0 24\n").unwrap();
        assert_eq!(
            entries.iter().map(|e| (e.at, e.source, e.bytes)).collect::<Vec<_>>(),
            [(100, 1, 24), (500, 0, 64)]
        );
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        for (text, line, part) in [
            ("100 0 1", 1, "has 3 fields; write four"),
            ("\n1 x 1 64", 2, "source is \"x\"; write a number from 0 to 65534"),
            ("1 0 1 8", 1, "bytes is 8; write 24 or more"),
            ("1 2 2 64", 1, "node 2 sends to itself"),
            ("-1 0 1 64", 1, "time_ns is \"-1\""),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.line, line);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
