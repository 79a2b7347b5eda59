//! With the feature `mpi-linked`: names the missing packages before the build of the crate `mpi` fails less clearly.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "mpi-linked")]
    check();
}

#[cfg(feature = "mpi-linked")]
fn check() {
    use std::process::Command;

    // A failed build is retried anyway.
    println!("cargo:rerun-if-env-changed=MPICC");
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    let mut missing = Vec::new();
    if Command::new(&compiler).arg("--version").output().is_err() {
        missing
            .push(format!("no MPI compiler `{compiler}` (another one can be named in the variable MPICC)"));
    }
    // As `bindgen` will load it, so that both find the same library.
    if let Err(why) = clang_sys::load() {
        missing.push(format!("no libclang: {why}"));
    }
    if !missing.is_empty() {
        println!("cargo:error=pdbp-mpi: {}", missing.join("; "));
        println!(
            "cargo:error=pdbp-mpi: install an MPI and libclang (Debian, Ubuntu: apt install libopenmpi-dev openmpi-bin \
             libclang-dev; or libmpich-dev mpich libclang-dev), or build without the feature `mpi-linked`, which none of this is needed for"
        );
        std::process::exit(1);
    }
}
