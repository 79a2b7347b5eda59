//! Files without a name, which disappear with the process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Creates a file without a name in a folder. `what` describes its purpose in errors.
pub(crate) fn unnamed(folder: &Path, what: &str) -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".pdbp-tasks-{}-{count}", std::process::id()));
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("no file for {what} in {}: {error}", folder.display()))
    };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(named)?;
    fs::remove_file(&path).map_err(named)?;
    Ok(file)
}
