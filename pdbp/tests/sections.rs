//! A program's own figures, served at the endpoint of its cluster.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openmetrics_parser::openmetrics::parse_openmetrics;
use pdbp::Cluster;
use pdbp::monitor::{Family, NotShown, Section};

/// Long enough for a loaded machine; a test that waits this long has failed.
const SOON: Duration = Duration::from_secs(60);

fn cluster(settings: &[(&str, &str)]) -> Cluster {
    let builder = Cluster::builder().nodes(1).timeout(SOON).set("metrics", "127.0.0.1:0");
    settings.iter().fold(builder, |builder, (key, value)| builder.set(key, value)).start().unwrap()
}

/// Queries the endpoint with additional header lines; returns head and body of the answer.
fn get_with(address: SocketAddr, path: &str, more: &str) -> (String, String) {
    let (request, began) = (format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{more}\r\n"), Instant::now());
    loop {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut answer = String::new();
        let read = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if read.is_ok() && !head.starts_with("HTTP/1.1 408 ") => {
                return (head.to_owned(), body.to_owned());
            }
            // A client that gets no processor for seconds before it has asked is refused.
            _ => assert!(began.elapsed() < SOON, "{read:?}: {answer}"),
        }
    }
}

fn get(address: SocketAddr, path: &str) -> (String, String) {
    get_with(address, path, "")
}

#[test]
fn figures_of_a_program_are_among_those_of_the_cluster_as_long_as_it_shows_them() {
    let cluster = cluster(&[]);
    let node = cluster.node(0).unwrap();
    let (endpoint, asked) = (node.endpoint().unwrap(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&asked);
    let shop = endpoint.show("shop", move || {
        let asked = counted.fetch_add(1, Ordering::Relaxed) + 1;
        let sold = Family::counter("sold", "Fruit sold, \"fresh\"\nor not").unit("bytes");
        let sold = sold.labelled([("fruit", "apples")], 3.0).labelled([("fruit", "a \"b\"\n\\c")], 4.5);
        Section::new(&[("asked", asked)])
            .family(sold)
            .family(Family::gauge("asked", "How often somebody has looked").value(asked as f64))
            .family(Family::gauge("temperature", "Without limits").value(f64::NEG_INFINITY))
            .family(Family::gauge("empty", "Of what there is none"))
    });
    let (shop, address) = (shop.unwrap(), endpoint.address());
    let (head, page) = get(address, "/shop.json");
    assert!(head.contains("200 OK") && head.contains("application/json"), "{head}");
    assert_eq!(page, r#"[["asked",1]]"#);
    assert!(get(address, "/").1.ends_with("/shop.json\n"));
    let (_, text) = get(address, "/metrics");
    for line in [
        "pdbp_section_up{section=\"shop\"} 1.0",
        "# TYPE pdbp_shop_sold_bytes counter",
        "# UNIT pdbp_shop_sold_bytes bytes",
        "pdbp_shop_sold_bytes_total{fruit=\"apples\"} 3.0",
        r#"pdbp_shop_sold_bytes_total{fruit="a \"b\"\n\\c"} 4.5"#,
        "pdbp_shop_asked 2.0",
        "pdbp_shop_temperature -Inf",
        "# EOF",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let metrics = parse_openmetrics(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    assert!(metrics.families.keys().any(|name| name == "pdbp_node_up"));
    drop(shop);
    assert!(get(address, "/shop.json").0.contains("404 Not Found"));
    assert!(!get(address, "/metrics").1.contains("shop"));
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}

#[test]
fn a_section_that_cannot_be_shown_says_why_and_takes_no_other_figures_along() {
    let cluster = cluster(&[]);
    let node = cluster.node(0).unwrap();
    let endpoint = node.endpoint().unwrap();
    let gauge = |name| Family::gauge(name, "A figure").value(1.0);
    let good = endpoint.show("good", move || Section::new(&"well").family(gauge("figure"))).unwrap();
    type Make = fn() -> Section;
    let bad: [(Make, &str); 10] = [
        (|| panic!("on purpose"), "panicked"),
        (|| Section::new(&"x".repeat(5 << 20)), "5242882 bytes; the maximum is 4194304"),
        (|| Section::new(&std::collections::HashMap::from([((1, 2), 3)])), "written as JSON"),
        (|| Section::new(&0).family(Family::gauge("Bad", "").value(0.0)), "\"Bad\" is not a valid name"),
        (
            || Section::new(&0).family(Family::gauge("a", "").labelled([("x-y", "")], 0.0)),
            "\"x-y\" is not a valid name",
        ),
        (
            || Section::new(&0).family(Family::gauge("a", "").value(0.0)).family(Family::gauge("a", "")),
            "\"a\" is repeated",
        ),
        (
            || Section::new(&0).family(Family::gauge("a_total", "")).family(Family::counter("a", "")),
            "\"a\" is repeated",
        ),
        (|| Section::new(&0).family(Family::gauge("a", "").value(0.0).value(1.0)), "\"a\" is repeated"),
        (
            || Section::new(&0).family(Family::gauge("a", "").labelled([("x", "1"), ("x", "2")], 0.0)),
            "\"a\" has a label twice",
        ),
        (
            || {
                let figure = Family::gauge("a", "").labelled([("x", "1"), ("y", "2")], 0.0);
                Section::new(&0).family(figure.labelled([("y", "2"), ("x", "1")], 1.0))
            },
            "\"a\" is repeated",
        ),
    ];
    for (make, why) in bad {
        let bad = endpoint.show("bad", make).unwrap();
        let (head, said) = get(endpoint.address(), "/bad.json");
        assert!(head.contains("500 Internal") && said.contains(why), "{why}: {head}: {said}");
        let text = get(endpoint.address(), "/metrics").1;
        for line in [
            "pdbp_section_up{section=\"bad\"} 0.0",
            "pdbp_section_up{section=\"good\"} 1.0",
            "pdbp_good_figure 1.0",
        ] {
            assert!(text.lines().any(|l| l == line), "{why}: {line} is not in\n{text}");
        }
        parse_openmetrics(&text).unwrap_or_else(|e| panic!("{why}: {e}:\n{text}"));
        drop(bad);
    }
    assert_eq!(get(endpoint.address(), "/good.json").1, "\"well\"");
    drop(good);
}

#[test]
fn names_of_sections_are_checked_and_free_again_when_they_are_gone() {
    let cluster = cluster(&[]);
    let node = cluster.node(0).unwrap();
    let endpoint = node.endpoint().unwrap();
    let show = |name: &str| endpoint.show(name, || Section::new(&0));
    for bad in ["", "Shop", "1st", "a-b", "../x", &"x".repeat(65)] {
        assert_eq!(show(bad).unwrap_err(), NotShown::Name(bad.to_owned()), "{bad}");
    }
    for taken in ["cluster", "node", "link_speed", "strangers"] {
        let error = show(taken).unwrap_err();
        assert!(error.to_string().contains(taken) && error == NotShown::Taken(taken.to_owned()));
    }
    let shop = show("shop").unwrap();
    assert_eq!(show("shop_window").unwrap_err(), NotShown::Taken("shop_window".to_owned()));
    drop(shop);
    let all: Vec<_> = (0..16).map(|i| show(&format!("shop{i}")).unwrap()).collect();
    assert_eq!(show("shop16").unwrap_err(), NotShown::TooMany);
    assert_eq!(all.len(), 16);
    // No figure of the runtime begins with a name that a section may have.
    drop(all);
    for line in get(endpoint.address(), "/metrics").1.lines().filter(|line| line.starts_with("pdbp_")) {
        let word = line["pdbp_".len()..].split(['_', '{', ' ']).next().unwrap();
        assert_eq!(show(word).unwrap_err(), NotShown::Taken(word.to_owned()), "{line}");
    }
}

#[test]
fn sections_are_for_those_who_know_the_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (file, secret) = (folder.path().join("secret"), "0123456789abcdef0123456789abcdef");
    std::fs::write(&file, secret).unwrap();
    let cluster = cluster(&[("client_token_file", file.to_str().unwrap())]);
    let node = cluster.node(0).unwrap();
    let endpoint = node.endpoint().unwrap();
    let showing = endpoint.show("shop", || Section::new(&"for friends")).unwrap();
    let (head, said) = get(endpoint.address(), "/shop.json");
    assert!(head.contains("401 Unauthorized") && !said.contains("friends"), "{head}: {said}");
    let (head, said) =
        get_with(endpoint.address(), "/shop.json", &format!("Authorization: Bearer {secret}\r\n"));
    assert!(head.contains("200 OK") && said == "\"for friends\"", "{head}: {said}");
    drop(showing);
}
