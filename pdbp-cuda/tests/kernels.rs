//! The kernels of the workspace, `*/kernels/*.cu`, each with the PTX that was made of it next to it.
//!
//! This test makes the PTX as well, where NVRTC 12.2 is to be had: of a toolkit, or by
//! `pip install nvidia-cuda-nvrtc-cu12==12.2.140`, whose folder `nvidia/cuda_nvrtc/lib` then goes into `LD_LIBRARY_PATH`:
//! `PDBP_MAKE_PTX=1 cargo test -p pdbp-cuda --test kernels`

use std::path::{Path, PathBuf};

use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts, sys};

/// Of the oldest devices that run the kernels (Volta, 2017). The driver compiles for later ones what was made for these.
const ARCHITECTURE: &str = "compute_70";
/// That of the oldest driver: what a later one makes, such a driver may refuse.
const COMPILER: (i32, i32) = (12, 2);

/// All sources.
fn sources() -> Vec<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = workspace.read_dir().unwrap().map(|entry| entry.unwrap().path().join("kernels"));
    let files =
        folders.filter(|f| f.is_dir()).flat_map(|f| f.read_dir().unwrap()).map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|e| e == "cu")).collect()
}

/// FNV-1a.
fn hash(source: &str) -> u64 {
    source.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// The first line of the PTX of a source.
fn header(source: &str) -> String {
    format!("// Of a source with hash {:016x}, by NVRTC {}.{}.\n", hash(source), COMPILER.0, COMPILER.1)
}

/// Why there is no compiler of the right version, if there is none.
fn no_compiler() -> Option<String> {
    // SAFETY: loading a library runs its initialisers; those of the compiler may run at any time.
    if !unsafe { sys::is_culib_present() } {
        return Some("no libnvrtc.so.12".into());
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: places for the numbers.
    let asked = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    assert_eq!(asked, sys::nvrtcResult::NVRTC_SUCCESS);
    ((major, minor) != COMPILER).then(|| format!("NVRTC {major}.{minor}, not {}.{}", COMPILER.0, COMPILER.1))
}

fn compile(source: &str) -> String {
    // Without the last, the constants of a header that the compiler includes by itself would be in each.
    let options = ["--define-macro=__NV_TARGET_H".into()];
    let options =
        CompileOptions { arch: Some(ARCHITECTURE), options: options.into(), ..CompileOptions::default() };
    let ptx = compile_ptx_with_opts(source, options).unwrap_or_else(|e| panic!("{e}"));
    header(source) + &ptx.to_src()
}

/// Edited without its PTX, a kernel would be one thing on a device and another in its source.
#[test]
fn each_kernel_has_the_ptx_of_its_source() {
    let (make, no_compiler) = (std::env::var_os("PDBP_MAKE_PTX").is_some(), no_compiler());
    if let Some(why) = &no_compiler {
        assert!(!make, "cannot make PTX: {why}");
        eprintln!("skipped: whether the compiler makes the same PTX: {why}");
    }
    let sources = sources();
    assert!(!sources.is_empty());
    for file in sources {
        let source = std::fs::read_to_string(&file).unwrap();
        let made = no_compiler.is_none().then(|| compile(&source));
        let at = file.with_extension("ptx");
        if make {
            std::fs::write(&at, made.as_ref().unwrap()).unwrap();
        }
        let ptx = std::fs::read_to_string(&at).unwrap_or_default();
        let (name, how) =
            (file.display(), "make its PTX as the first lines of pdbp-cuda/tests/kernels.rs say");
        assert!(ptx.starts_with(&header(&source)), "{name} was changed; {how}");
        assert!(made.is_none_or(|made| made == ptx), "the PTX of {name} was changed; {how}");
    }
}
