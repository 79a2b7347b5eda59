//! The file of a pool whose jobs end with its process: it has no name, and is never synced.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Unnamed(Mutex<File>);

impl Unnamed {
    pub(super) fn new(file: File) -> Self {
        Self(Mutex::new(file))
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Unnamed {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file().metadata()?.len())
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let (mut file, mut bytes) = (self.file(), vec![0; len]);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file().set_len(len)
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        // Nobody reads the file after this process, however it ends.
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut file = self.file();
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(data)
    }
}
