//! Says which packages are missing, before the build of the crate `mpi` says it less clearly.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    println!("cargo:rerun-if-env-changed=PATH");
    let compiler = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    let mut missing = Vec::new();
    if Command::new(&compiler).arg("--version").output().is_err() {
        missing
            .push(format!("no MPI compiler `{compiler}` (another one can be named in the variable MPICC)"));
    }
    if !has_libclang() {
        missing.push("no libclang (its folder can be named in the variable LIBCLANG_PATH)".to_owned());
    }
    if !missing.is_empty() {
        println!("cargo:error=pdbp-mpi: {}", missing.join("; "));
        println!(
            "cargo:error=pdbp-mpi: install an MPI and libclang (Debian, Ubuntu: apt install libopenmpi-dev openmpi-bin \
             libclang-dev; or libmpich-dev mpich libclang-dev), or build without the feature `mpi`"
        );
        std::process::exit(1);
    }
}

/// Where `bindgen` will look: the folder that it is told, those of the dynamic linker, and those of Debian's LLVM.
fn has_libclang() -> bool {
    let is_libclang =
        |name: &str| name.starts_with("libclang.so") || name.starts_with("libclang-") && name.contains(".so");
    let folder_has = |folder: &str| {
        std::fs::read_dir(folder).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_libclang))
        })
    };
    if std::env::var("LIBCLANG_PATH").is_ok_and(|path| folder_has(&path) || path.contains("libclang")) {
        return true;
    }
    let known =
        Command::new("ldconfig").arg("-p").output().map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    if known.is_ok_and(|text| text.lines().any(|line| is_libclang(line.trim_start()))) {
        return true;
    }
    if Command::new("llvm-config").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return true;
    }
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    versions
        .filter(|e| e.file_name().to_str().is_some_and(|n| n.starts_with("llvm")))
        .any(|e| e.path().join("lib").to_str().is_some_and(folder_has))
        || ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib"].into_iter().any(folder_has)
}
