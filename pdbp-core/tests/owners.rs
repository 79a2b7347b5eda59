//! Anything that would give a block a second owner, or none, does not compile; and the compiler says why.
//!
//! Messages differ between compilers, so these are checked only with the oldest compiler that the workspace supports. With any
//! other, the examples of [`pdbp_core::umb`] still have to fail.

use std::process::Command;

#[test]
fn what_would_give_a_block_a_second_owner_does_not_compile() {
    let stated = env!("CARGO_PKG_RUST_VERSION");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().map(|output| output.stdout);
    let version = String::from_utf8(output.unwrap_or_default()).unwrap_or_default();
    if !version.starts_with(&format!("rustc {stated}.")) {
        println!("skipped: the messages are those of rustc {stated}, and this is {}", version.trim());
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/owners/*.rs");
}
