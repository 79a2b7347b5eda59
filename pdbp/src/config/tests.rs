use std::path::Path;

use super::*;

fn environment(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>().into_iter()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn builder_goes_over_environment_over_file_over_default() {
    let mut settings = Settings::default();
    let file = file("row_blocks = 5\nblock_bytes = 2048\nmemory_bytes = 1_000_000\nthreshold = 0.6");
    settings.read_file(file.path()).unwrap();
    settings.read_environment(environment(&[("PDBP_BLOCK_BYTES", "4096"), ("HOME", "/")])).unwrap();
    settings.set("block_bytes", "8192", Origin::Builder).unwrap();
    assert_eq!((settings.row_blocks, settings.block_bytes), (5, 8192));
    assert_eq!((settings.memory_bytes, settings.threshold.permille()), (1_000_000, 600));
    assert_eq!(settings.parts, Settings::default().parts);
    let text = settings.to_string();
    for (line, origin) in
        [("row_blocks = 5", "file"), ("block_bytes = 8192", "builder"), ("parts = ", "default")]
    {
        assert!(text.lines().any(|l| l.starts_with(line) && l.contains(origin)), "{line}: {text}");
    }
}

#[test]
fn what_is_printed_can_be_read_again() {
    let mut settings = Settings::default();
    settings.set("policy", "threshold", Origin::Builder).unwrap();
    settings.set("interval_us", "5000", Origin::Builder).unwrap();
    settings.set("checksum", "on", Origin::Builder).unwrap();
    settings.set("token_file", "a \"folder\"\\token\u{7f}", Origin::Builder).unwrap();
    settings.set("founding_file", "0123", Origin::Builder).unwrap();
    let file = file(&settings.to_string());
    let mut again = Settings::default();
    again.read_file(file.path()).unwrap();
    again.origins.clone_from(&settings.origins);
    assert_eq!(again, settings);
}

#[test]
fn unknown_keys_are_reported_with_their_origin() {
    let mut settings = Settings::default();
    let file = file("blok_bytes = 1");
    let error = settings.read_file(file.path()).unwrap_err().to_string();
    assert!(
        error.contains("blok_bytes") && error.contains("file") && error.contains("block_bytes"),
        "{error}"
    );
    let error = settings.read_environment(environment(&[("PDBP_TYPO", "1")])).unwrap_err().to_string();
    assert!(error.contains("typo") && error.contains("environment"), "{error}");
    settings.read_environment(environment(&[("PDBP_REQUIRE_GPU", "1")])).unwrap();
}

#[test]
fn values_out_of_range_say_what_would_fit() {
    for key in KEYS {
        // Any other text is the name of a file or folder, or a fabric, which is refused when it starts.
        let senseless = if ["client_token_file", "desk_tls", "fabric", "founding_file", "token_file", "tls"]
            .contains(&key.name)
        {
            &[""][..]
        } else {
            &["", "no sense", "-1", "99999999999999999999"]
        };
        for value in senseless {
            let mut settings = Settings::default();
            let error = settings.set(key.name, value, Origin::Environment).unwrap_err().to_string();
            assert!(error.contains(key.name) && error.contains(key.expected), "{error}");
            assert_eq!(settings, Settings::default(), "{} keeps its value", key.name);
        }
        let mut settings = Settings::default();
        let shown = (key.show)(&settings);
        settings.set(key.name, &shown, Origin::Default).unwrap();
        assert_eq!(settings, Settings::default(), "{} reads what it shows", key.name);
    }
}

#[test]
fn the_builder_has_a_method_for_every_setting() {
    let keys: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(super::builder::SETTERS, keys);
    let builder = crate::Builder::new().pipe_depth(9).metrics("localhost:0".to_owned());
    let of = |key: &str| {
        let entry = builder.settings().entries().find(|entry| entry.key == key).unwrap();
        (entry.value.clone(), entry.origin.clone())
    };
    assert_eq!(of("pipe_depth"), ("9".to_owned(), Origin::Builder));
    assert_eq!(of("metrics"), ("localhost:0".to_owned(), Origin::Builder));
    assert_eq!(of("nodes").1, Origin::Default);
}

#[test]
fn a_file_that_is_missing_or_no_toml_is_named() {
    let mut settings = Settings::default();
    let error = settings.read_file(Path::new("/nonexistent/pdbp.toml")).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/pdbp.toml"), "{error}");
    for (text, line) in [("nodes = [", "line 1: "), ("nodes = 2\n\nchecksum = yes\n", "line 3: ")] {
        let error = settings.read_file(file(text).path()).unwrap_err();
        assert!(matches!(error, ConfigError::File { .. }) && error.to_string().contains(line), "{error}");
    }
}

#[test]
fn values_that_do_not_fit_each_other_are_explained() {
    let start = |key: &str, value: &str| {
        crate::Cluster::builder().nodes(4).set(key, value).start().map(|_| ()).unwrap_err().to_string()
    };
    let many = crate::Cluster::builder().nodes(40).progress(Progress::Inline);
    many.start().expect("memory follows the number of nodes when it is not given");
    assert!(start("initial_blocks", "100").contains("100"), "more than a row has");
    assert!(start("nodes", "0").contains("nodes"));
}

#[test]
fn too_little_memory_is_named_with_its_setting_and_the_least_that_works() {
    for (nodes, more) in [(1, ""), (2, ""), (4, ""), (9, ""), (2, "initial_blocks"), (4, "routing"), (40, "")]
    {
        let start = |bytes: usize| {
            let builder = crate::Cluster::builder().nodes(nodes).progress(Progress::Inline);
            let builder = match more {
                "initial_blocks" => builder.set(more, "5"),
                "routing" => builder.set(more, "grid"),
                _ => builder,
            };
            builder.memory_bytes(bytes).start().map(|_| ())
        };
        let error = start(70_000).unwrap_err();
        let crate::StartError::Config(ConfigError::TooLittleMemory { least, .. }) = error else {
            panic!("{error:?}")
        };
        let text = error.to_string();
        let says = format!("`memory_bytes` is 70000 (builder), but each node needs at least {least}");
        assert!(text.contains(&says), "{text}");
        start(least).expect("the least that works");
        assert!(start(least - 1).is_err(), "{nodes} nodes, {more}: less than {least} works");
    }
}

#[test]
fn a_grid_needs_less_memory_of_nodes_that_have_few_links() {
    let mut settings = Settings { nodes: 100, ..Settings::default() };
    let of = |settings: &Settings, node| settings.memory_of(NodeId::new(node).unwrap());
    assert_eq!((of(&settings, 0), of(&settings, 99)), (settings.memory(), settings.memory()));
    settings.set("routing", "grid", Origin::Builder).unwrap();
    assert_eq!(of(&settings, 0), settings.memory(), "a master has links to all");
    assert!(of(&settings, 99) < settings.memory() / 3);
    assert!(settings.to_string().contains("routing = \"grid\""));
}

#[test]
fn values_written_into_the_fields_are_checked_too() {
    let start = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        crate::Builder::from(settings).start().map(|_| ()).unwrap_err().to_string()
    };
    assert!(start(|s| s.nodes = 0).contains("nodes"));
    assert!(start(|s| s.pipe_depth = 0).contains("pipe_depth"));
    assert!(start(|s| s.pack_bytes = 8).contains("pack_bytes"));
    assert!(start(|s| s.assembly_bytes = usize::MAX).contains("assembly_bytes"));
    assert!(start(|s| s.flush_after = Duration::ZERO).contains("flush_after_us"));
}

#[test]
fn settings_for_which_it_was_not_built_are_named_with_the_remedy() {
    for (key, value, feature) in [
        ("desk", "127.0.0.1:0", "desk"),
        ("metrics", "127.0.0.1:0", "metrics"),
        ("monitor", "on", "metrics"),
        ("listen", "127.0.0.1:0", "net"),
        ("join", "127.0.0.1:1", "net"),
        ("found", "on", "net"),
        ("grid", "west", "net"),
        ("transport", "net", "net"),
        ("transport", "rapidio", "rapidio"),
        ("fabric", "boards=1", "rapidio"),
    ] {
        let mut settings = Settings::default();
        settings.set(key, value, Origin::Builder).unwrap();
        let said = settings.check_for(|has| has != feature).unwrap_err().to_string();
        for part in [&format!("`{key}` is \"{value}\" (builder)"), &format!("feature `{feature}`")] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(said.contains(&format!("{key} = \"")), "no remedy: {said}");
        settings.check_for(|_| true).unwrap();
        assert_eq!(settings.check().is_ok(), is_built(feature), "{key}");
    }
    Settings::default().check_for(|_| false).unwrap();
}

#[test]
fn what_is_advertised_takes_a_port_to_be_forwarded_to() {
    let mut settings = Settings::default();
    settings.set("advertise", "203.0.113.5:7210", Origin::Environment).unwrap();
    let said = settings.check_for(|_| true).unwrap_err().to_string();
    assert!(said.contains("`advertise`") && said.contains("`listen`"), "{said}");
    settings.set("listen", "0.0.0.0:7210", Origin::Environment).unwrap();
    settings.check_for(|_| true).unwrap();
    let said = settings.check_for(|has| has != "net").unwrap_err().to_string();
    assert!(said.contains("feature `net`"), "{said}");
}

/// A trunk to a cluster of the same name was shown as up, and nothing went through it.
#[test]
fn a_trunk_leads_to_a_cluster_of_another_name() {
    let mut settings = Settings::default();
    settings.set("trunks", "west=tcp://127.0.0.1:1,east=tcp://127.0.0.1:1", Origin::Environment).unwrap();
    for (own, is_possible) in [(None, false), (Some("east"), false), (Some("north"), true)] {
        settings.grid = own.map(str::to_owned);
        let said = settings.check_for(|_| true).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(said.is_empty(), is_possible, "{own:?}: {said}");
        assert!(is_possible || said.contains("`trunks`") && said.contains("`grid`"), "{said}");
    }
}

/// Clients send their secret; who reads it with them must not be able to join.
#[test]
fn the_secret_of_clients_is_not_that_of_the_cluster() {
    let mut settings = Settings::default();
    settings.set("token_file", "one", Origin::Environment).unwrap();
    settings.set("client_token_file", "one", Origin::Environment).unwrap();
    let said = settings.check_for(|_| true).unwrap_err().to_string();
    assert!(
        said.contains("`client_token_file` is \"one\"") && said.contains("not that of `token_file`"),
        "{said}"
    );
    settings.set("token_file", "Cargo.toml", Origin::Environment).unwrap();
    settings.set("client_token_file", "src/../Cargo.toml", Origin::Environment).unwrap();
    settings.check_for(|_| true).unwrap_err();
    settings.set("client_token_file", "another", Origin::Environment).unwrap();
    settings.check_for(|_| true).unwrap();
}

#[cfg(feature = "net")]
#[test]
fn trunks_find_out_what_carries_the_most_if_nothing_is_set() {
    let mut settings = Settings::default();
    assert_eq!((settings.codec, settings.trunk_codec()), (Codec::None, Codec::Auto));
    settings.set("codec", "none", Origin::Environment).unwrap();
    assert_eq!(settings.trunk_codec(), Codec::None);
}

/// Variables of the environment about other processes do not concern a cluster within this one.
#[test]
fn a_cluster_within_a_process_is_one_wherever_others_would_listen() {
    let start = || crate::Cluster::builder().nodes(2).set("listen", "127.0.0.1:0").set("join", "127.0.0.1:1");
    let cluster = start().transport(TransportKind::Local).start().unwrap();
    assert!(cluster.node(1).is_ok());
    #[cfg(not(feature = "net"))]
    {
        let said = start().start().map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("feature `net`"), "{said}");
    }
}

#[test]
fn the_setting_that_was_meant_is_named() {
    let said = |key| Settings::default().set(key, "1", Origin::Environment).unwrap_err().to_string();
    for (typed, meant) in [
        ("node", "nodes"),
        ("blcok_bytes", "block_bytes"),
        ("timeout", "timeout_ms"),
        ("pipe_deep", "pipe_depth"),
    ] {
        let said = said(typed);
        assert!(said.ends_with(&format!("did you mean `{meant}`?")), "{typed}: {said}");
    }
    for typed in ["", "colour", "x", "block_count_of_rows_that_are_full", "über"] {
        let said = said(typed);
        assert!(
            !said.contains("did you mean") && said.contains("known settings: nodes, "),
            "{typed}: {said}"
        );
    }
}
