//! Gives the shared library its soname.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // Cargo sets these for every build script. Until 1.0 a minor version breaks the ABI.
    let [major, minor] = ["CARGO_PKG_VERSION_MAJOR", "CARGO_PKG_VERSION_MINOR"]
        .map(|name| std::env::var(name).unwrap_or_default());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpdbp.so.{major}.{minor}");
    // Threads of nodes and the handler for forks are in it, so that it stays loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
