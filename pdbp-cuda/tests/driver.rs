//! The program `cuda-check` on a library that stands in for the driver: what there may be of one, and what may fail in it.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A folder with the library, made once; `None` where there is no compiler to make it.
fn stand_in() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| common::build_stand_in("driver", &[])).as_deref()
}

/// Runs the check with such a driver.
fn check(folder: &Path, settings: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuda-check"));
    command
        .arg("1")
        .env("LD_LIBRARY_PATH", folder)
        .env_remove("PDBP_REQUIRE_GPU")
        .envs(settings.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(String::from_utf8(output.stderr.clone()).unwrap(), "", "nothing panics");
    (output, text)
}

#[test]
fn whatever_the_driver_says_is_reported() {
    let Some(folder) = stand_in() else { return };
    let fine = check(folder, &[]);
    assert_eq!(fine.0.status.code(), Some(0), "{}", fine.1);
    assert_eq!(fine.1.matches("GB/s to the device").count(), 3, "{}", fine.1);
    assert!(fine.1.contains("pieces of memory are gathered"), "{}", fine.1);

    let skipped = [
        ([("DRIVER_VERSION", "11080")], "the driver supports CUDA 11.8, but 12.2 is needed"),
        ([("DRIVER_DEVICES", "0")], "the driver offers no device"),
        ([("DRIVER_FAILS", "cuDriverGetVersion=34")], "no CUDA driver"),
        ([("DRIVER_FAILS", "cuInit=34")], "no CUDA driver"),
    ];
    for (settings, words) in skipped {
        let (output, text) = check(folder, &settings);
        assert!(text.starts_with("skipped: ") && text.contains(words), "{settings:?}: {text}");
        assert_eq!(output.status.code(), Some(0), "{settings:?}");
        let [setting] = settings;
        let (output, _) = check(folder, &[setting, ("PDBP_REQUIRE_GPU", "1")]);
        assert_eq!(output.status.code(), Some(1), "{settings:?}");
    }
}

/// Each function in turn gives an error: it is named, or the device is called lost.
#[test]
fn a_driver_that_fails_anywhere_is_an_error_and_no_panic() {
    let Some(folder) = stand_in() else { return };
    // Nothing is over before a thread waits for it.
    let check = |call: &str, code: &str| {
        check(folder, &[("DRIVER_FAILS", &format!("{call}={code}")), ("DRIVER_DELAY", "1000000000")])
    };
    for call in [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceGetName",
        "cuDeviceTotalMem_v2",
        "cuCtxSetCurrent",
        "cuMemAlloc_v2",
        "cuMemsetD8_v2",
        "cuCtxSynchronize",
        "cuMemHostAlloc",
        "cuMemHostRegister_v2",
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernel",
    ] {
        for (code, words) in [("1", "as planned (code 1)"), ("700", "the device is lost to this process")] {
            let (output, text) = check(call, code);
            assert_eq!(output.status.code(), Some(1), "{call}: {text}");
            assert!(text.contains("FAILED") && text.contains(words), "{call}: {text}");
        }
        let (_, text) = check(call, "2");
        assert!(text.contains("FAILED"), "{call}: {text}");
    }
}
