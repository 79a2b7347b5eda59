//! `pdbp rapidio`, run as a user runs it.

use std::process::{Command, Output};

fn rapidio(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pdbp")).arg("rapidio").args(arguments).env_clear().output().unwrap()
}

#[test]
fn all_that_the_paper_states_holds_and_the_page_has_its_plots() {
    let folder = tempfile::tempdir().unwrap();
    let output = rapidio(&["paper", "--report", folder.path().to_str().unwrap()]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("DOES NOT HOLD"), "{text}");
    let last = text.lines().last().unwrap();
    let mut numbers = last.split(' ').filter_map(|word| word.parse::<u32>().ok());
    let (held, all) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!(held == all && all >= 10, "{last}");
    // The two times that the paper's text repeats, and what is said of how they come about.
    for part in ["201", "314", "calibration", "Not to be matched"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    let plots: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(plots.len() > 5);
    for plot in plots.iter().filter(|path| path.extension().unwrap() == "svg") {
        let name = plot.file_name().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("src={name}")), "{name} is not on the page");
        let svg = std::fs::read_to_string(plot).unwrap();
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{name}: {svg}");
    }
    let again = rapidio(&["paper"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text, "the same each time, byte for byte");
}

#[test]
fn other_experiments_are_refused() {
    for (arguments, part) in
        [(&["papers"][..], "papers"), (&[], "rapidio paper"), (&["paper", "--reports", "x"], "--reports")]
    {
        let output = rapidio(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(part));
    }
}
