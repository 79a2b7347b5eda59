//! The library that stands in for the driver, for a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library in a folder of that name, with the workspace's kernels and those of the files; `None` where there is no compiler.
pub(crate) fn build_stand_in(folder: &str, kernels: &[&str]) -> Option<PathBuf> {
    if let Err(e) = Command::new("c++").arg("--version").output() {
        eprintln!("skipped: no compiler for the stand-in: c++: {e}");
        return None;
    }
    let tests = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tests.join(folder);
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(home.join("stand-in/build"));
    build.env("CARGO_TARGET_DIR", tests.parent().unwrap());
    build.arg(&folder).args(kernels.iter().map(|file| home.join(file)));
    assert!(build.status().unwrap().success());
    Some(folder)
}
