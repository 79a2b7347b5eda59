//! The program `pdbp-clips`, run as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

use pdbp_video::clips::BUNDLED;

fn measure(arguments: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pdbp-clips"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PDBP_")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(folder).output().unwrap()
}

#[test]
fn the_table_of_a_folder_is_the_same_however_many_measure_it() {
    let folder = tempfile::tempdir().unwrap();
    let clips = folder.path().join("clips");
    std::fs::create_dir(&clips).unwrap();
    for name in ["a.h264", "b.264"] {
        std::fs::write(clips.join(name), BUNDLED[0].data).unwrap();
    }
    let ended = measure(&["clips", "--slots", "3", "--timeline", "line.html"], folder.path());
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("2 clips, 10 pieces, 264 pictures"), "{said}");
    let page = std::fs::read_to_string(folder.path().join("line.html")).unwrap();
    // Ten pieces, and two joins.
    assert!(page.matches("<rect ").count() >= 12 && page.contains(" of node1"), "{page}");
    let table = std::fs::read_to_string(folder.path().join("clips.csv")).unwrap();
    let ended = measure(&["clips", "--slots", "1", "--csv", "-", "--quiet"], folder.path());
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), table);
    let pictures: Vec<u32> =
        table.lines().skip(1).map(|line| line.split(',').nth(3).unwrap().parse().unwrap()).collect();
    assert_eq!(pictures, (0..132).chain(0..132).collect::<Vec<_>>(), "in the order of the files");
    assert!(table.lines().nth(133).unwrap().starts_with("clips/b.264,QCIF,0,0,"), "{table}");
}

#[test]
fn the_table_is_the_same_whatever_decodes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.h264"), BUNDLED[0].data).unwrap();
    let table = |decoder| measure(&["a.h264", "--csv", "-", "--quiet", "--decoder", decoder], folder.path());
    let (own, auto, libav) = (table("openh264"), table("auto"), table("libav"));
    assert!(own.status.success() && own.stdout == auto.stdout, "{own:?} {auto:?}");
    if libav.status.success() {
        assert!(own.stdout == libav.stdout);
    } else {
        let said = String::from_utf8_lossy(&libav.stderr).into_owned();
        assert!(said.contains("apt install libavcodec59") && libav.stdout.is_empty(), "{said}");
    }
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("good.h264"), BUNDLED[0].data).unwrap();
    std::fs::write(folder.path().join("text.h264"), "no video").unwrap();
    let ended = measure(&["good.h264", "text.h264", "missing.h264", "--csv", "-"], folder.path());
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        said.contains("text.h264: no H.264 start code") && said.contains("missing.h264: cannot be read"),
        "{said}"
    );
    assert_eq!(ended.stdout.iter().filter(|byte| **byte == b'\n').count(), 133);
    let nothing = measure(&["missing.h264", "--csv", "-"], folder.path());
    let said = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert!(
        nothing.status.code() == Some(1) && said.contains("missing.h264") && !said.contains("0 clips"),
        "{said}"
    );
}

#[test]
fn a_table_that_cannot_be_written_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let ended = measure(&["--csv", "no/such/folder.csv"], folder.path());
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cannot write no/such/folder.csv"), "{ended:?}");
}
