use std::time::{Duration, Instant};

use super::*;

/// Two nodes up, one silent, one failed; the second sample a second after the first.
fn samples() -> (Sample, Sample) {
    let sample = |times: u64| {
        let row = |peer: u64| {
            format!(
                r#"{{"peer":{peer},"size":8,"real":4,"used":1,"df":0.5,"su":0.25,"rsr":0.3333,"blocks":{},
                "messages":{},"bytes":{},"stalls":{},"waiting":2}}"#,
                10 * times * peer,
                1000 * times * peer,
                1_500_000 * times * peer,
                3 * times
            )
        };
        let node = |node: u64| {
            format!(
                r#"{{"node":{node},"nanos":{},"epoch":1,"parts":["a","b"],"private_pipes":{{"busy":2,"total":9}},
                "free_blocks":31,"copied":{},"counts":{{"malformed":{node}}},"send":[{},{}],"recv":[{}]}}"#,
                times * 1_000_000_000,
                2000 * times * node,
                row(1),
                row(2),
                row(1)
            )
        };
        let report = |number: u64, state: &str, figures: String| {
            let name =
                if number == 1 { "a-node-with-a-long-name".to_owned() } else { format!("node{number}") };
            format!(r#"{{"node":{number},"name":"{name}","state":"{state}","figures":{figures}}}"#)
        };
        let text = format!(
            r#"{{"asked":0,"took_ms":1.5,"nodes":[{},{},{},{}]}}"#,
            report(0, "up", node(0)),
            report(1, "up", node(1)),
            report(2, "silent", "null".to_owned()),
            report(3, "failed", "null".to_owned())
        );
        Sample { at: Instant::now(), figures: serde_json::from_str(&text).unwrap() }
    };
    (sample(1), sample(2))
}

fn frame(view: &View, width: usize) -> Frame {
    let (before, now) = samples();
    view.frame(&Top { interval: Duration::from_secs(1), ..Top::default() }, &before, &now, width)
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("no {start} in\n{text}"))
}

#[test]
fn nodes_and_rows_have_their_figures() {
    let text = frame(&View::default(), WIDTH).text();
    let words = |start| line(&text, start).split_whitespace().collect::<Vec<_>>();
    let rates = ["30", "10", "3.00k", "1.00k", "4.50M", "1.50M", "9"];
    assert_eq!(words("node0 "), [["node0", "up", "1", "2", "2", "31"].as_slice(), &rates].concat());
    assert_eq!(words("node2")[..3], ["node2", "silent", "-"]);
    assert_eq!(words("node3")[..3], ["node3", "failed", "-"]);
    let row = ["███░░", "50%", "█░░░░", "25%", "0.33", "20", "2.00k", "3.00M", "3", "2"];
    assert_eq!(words("node0 → node2")[3..], row);
    assert!(line(&text, "pdbp top").contains("nodes: 2 up, 1 silent, 1 failed  parts: 4"), "{text}");
    assert!(text.contains("a-node-with-a-long-name: malformed 1"), "{text}");
    assert!(text.contains("a-node-with-a-long-name: readers fall behind: 2.00k messages/s copied"), "{text}");
    assert!(!text.contains("node0: readers"), "{text}");
}

#[test]
fn no_line_is_longer_than_the_terminal() {
    for width in [80, 81, 100, 132, 250] {
        let frame = frame(&View::default(), width);
        for (_, line) in &frame.lines {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
    let cut = frame(&View::default(), 20);
    assert!(cut.lines.iter().all(|(_, line)| line.chars().count() <= 20));
}

#[test]
fn a_screen_is_filled_to_its_last_line() {
    for height in [1, 2, 5, 9, 24, 60] {
        let view = View { height: Some(height), footer: Some("keys".to_owned()), ..View::default() };
        let frame = frame(&view, WIDTH);
        assert_eq!((frame.lines.len(), frame.lines.last().unwrap().1.as_str()), (height, "keys"));
        let says = |what: &str| frame.lines.iter().any(|(_, line)| line.contains(what));
        assert!(
            height < 3 || says("malformed 1") && says("readers fall behind"),
            "{height}: {}",
            frame.text()
        );
    }
}

/// The samples, with a link, a trunk that waits for a connection, one that has never been there, and strangers.
#[test]
fn links_have_a_table_where_there_are_any() {
    assert!(!frame(&View::default(), WIDTH).text().contains("trunk"), "nobody has links here");
    let (mut before, mut now) = samples();
    let figures = |sample: &mut Sample, times: u64| {
        let text = format!(
            r#"{{"node":0,"nanos":{},"strangers":{{"wrong_token":2}},"links":[
            {{"peer":1,"state":"up","sent_bytes":{},"received_bytes":{},"density":3,"codec":"zstd","plain_bytes":1000,
            "packed_bytes":250,"connections":2,"sent_again":7}},
            {{"cluster":"west","state":"cut","sent_bytes":5,"connections":1}},
            {{"cluster":"a-cluster-with-a-long-name","state":"down","error":"nobody listens there"}}]}}"#,
            times * 1_000_000_000,
            2_000_000 * times,
            4000 * times
        );
        sample.figures.nodes[0].figures = serde_json::from_str(&text).unwrap();
    };
    figures(&mut before, 1);
    figures(&mut now, 2);
    let show = |view: &View| view.frame(&Top::default(), &before, &now, WIDTH);
    let whole = show(&View::default());
    let text = whole.text();
    let words = |start| line(&text, start).split_whitespace().collect::<Vec<_>>();
    let link = ["up", "2.00M", "4.00k", "3", "zstd", "75%", "2", "0", "7"];
    assert_eq!(words("node0 ⇄ a-node")[3..], link);
    assert_eq!(words("node0 ⇒ west")[3..], ["cut", "0", "0", "0", "-", "-", "1", "0", "0"]);
    assert!(line(&text, "node0 ⇒ a-clus").ends_with("down  nobody listens there"), "{text}");
    assert!(text.contains("node0: strangers: wrong token 2"), "{text}");
    assert!(whole.lines.iter().any(|(look, line)| *look == Style::Alarm && line.contains("west")));
    assert!(whole.lines.iter().all(|(_, line)| line.chars().count() <= WIDTH));
    for height in [1, 5, 9, 12, 24, 60] {
        let view = View { height: Some(height), footer: Some("keys".to_owned()), ..View::default() };
        assert_eq!(show(&view).lines.len(), height);
    }
    let other = show(&View { node: Some(1), ..View::default() });
    assert!(!other.text().contains('⇄'), "those of the node that is selected only");
}

/// What other nodes and clusters send is text, and any numbers.
#[test]
fn no_terminal_obeys_what_nodes_send_and_their_numbers_may_be_large() {
    let (before, mut now) = samples();
    let text = r#"{"node":0,"nanos":9000000000,"links":[{"cluster":"we\u001b[2Jst","state":"down","error":"gone\nfor\u202e good"}],
        "send":[{"peer":1,"bytes":18446744073709551615},{"peer":2,"bytes":18446744073709551615}]}"#;
    now.figures.nodes[0].figures = serde_json::from_str(text).unwrap();
    now.figures.nodes[0].name = "no\u{7}de\r0".to_owned();
    let frame = View::default().frame(&Top::default(), &before, &now, WIDTH);
    for (_, line) in &frame.lines {
        assert!(!line.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{line:?}");
    }
    let text = frame.text();
    assert!(text.contains("we [2J…") && text.contains("gone for"), "{text}");
    // More than any other: 8 seconds of nearly 2^64 bytes.
    assert!(line(&text, "no de 0").contains("2305843T"), "{text}");
}

#[test]
fn a_selected_node_is_on_the_screen_however_small() {
    for (height, node) in [(9, 0), (9, 3), (12, 3)] {
        let view = View { height: Some(height), node: Some(node), ..View::default() };
        let frame = frame(&view, WIDTH);
        assert!(frame.lines.iter().any(|(look, _)| *look == Style::Selected), "{node}: {frame:?}");
    }
}

#[test]
fn sorting_and_selection_decide_what_comes() {
    let view = View { sort: Sort::Bytes, node: Some(1), ..View::default() };
    let frame = frame(&view, 132);
    assert_eq!(frame.order, [0, 1, 2, 3]);
    let text = frame.text();
    assert!(!text.contains("node0 →"), "{text}");
    let first = text.lines().skip_while(|l| !l.starts_with("row")).nth(1).unwrap();
    assert!(first.contains("→ node2"), "{text}");
    let mut sort = Sort::Name;
    for _ in 0..4 {
        sort = sort.next();
    }
    assert_eq!(sort, Sort::Name);
}

#[test]
fn numbers_fit_five_characters() {
    for (number, text) in [
        (0.0, "0"),
        (0.25, "0.2"),
        (9.0, "9"),
        (9.97, "10"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (1234.0, "1.23k"),
        (12_345.0, "12.3k"),
        (123_456.0, "123k"),
        (999_600.0, "1.00M"),
        (1.5e15, "1500T"),
    ] {
        assert_eq!(short(number), text);
    }
}
