//! Where streams come from: the bundled clips, and the user's own files and directories.
//!
//! A [`Clip`] is one H.264 or H.265 stream in memory with its [`Index`]; any number of concurrent streams can be served from it (see
//! [`crate::streams`]). Files are recognised by their contents, not by their names: ISO media files (`.mp4`, `.m4v`, `.mov`, fragmented ones too)
//! are demultiplexed; Matroska files, transport streams, and MP4 files without H.264 are read by libavformat where it is installed; everything else
//! is taken as an Annex B byte stream. In directories only files with a known extension are read. One bad file never hides the others: [`load`]
//! returns the usable clips and an error for each unusable one, whether given by name or found in a directory.

pub mod demux;
mod libavformat;

pub use demux::MOST_GROWTH;

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::annexb::{Index, IndexError, PictureSize, Standard};
use crate::frame::StreamClass;
use crate::sources::{Address, AddressError, Source};

/// A clip that is part of the program.
#[derive(Debug, Clone, Copy)]
pub struct Bundled {
    /// Name without extension, as in reports.
    pub name: &'static str,
    /// The Annex B byte stream.
    pub data: &'static [u8],
}

/// The bundled clips: five seconds of *Big Buck Bunny* in three sizes, and two deliberately spoilt versions of the CIF
/// one. (© 2008 Blender Foundation, www.bigbuckbunny.org, CC BY 3.0; see `clips/README.md`.)
pub const BUNDLED: [Bundled; 5] = [
    Bundled { name: "bbb_qcif", data: include_bytes!("../../clips/bbb_qcif.h264") },
    Bundled { name: "bbb_cif", data: include_bytes!("../../clips/bbb_cif.h264") },
    Bundled { name: "bbb_cif_blurred", data: include_bytes!("../../clips/bbb_cif_blurred.h264") },
    Bundled { name: "bbb_cif_blocky", data: include_bytes!("../../clips/bbb_cif_blocky.h264") },
    Bundled { name: "bbb_d1", data: include_bytes!("../../clips/bbb_d1.h264") },
];

const ANNEX_B_EXTENSIONS: [&str; 8] = ["h264", "264", "avc", "h26l", "26l", "h265", "265", "hevc"];
/// The extension of session descriptions; in directories they are ignored.
const SDP_EXTENSION: &str = "sdp";
const MP4_EXTENSIONS: [&str; 4] = ["mp4", "m4v", "mov", "f4v"];
/// Extensions of files that libavformat reads.
const CONTAINER_EXTENSIONS: [&str; 5] = ["mkv", "webm", "ts", "mts", "m2ts"];

/// Why a file or directory gave no clip.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClipError {
    /// The operating system reported an error.
    #[error("{}: cannot be read: {source}; check the path and its permissions", path.display())]
    Unreadable {
        /// File or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file without a byte in it.
    #[error("{}: is empty; was it written to its end?", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A directory without a single file of a known kind.
    #[error("{}: no video in this directory (looked for .{})", path.display(), extensions().join(", ."))]
    EmptyDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The byte stream has no usable picture.
    #[error("{name}: {source}")]
    NoPicture {
        /// File, and track if it has several.
        name: String,
        /// What is missing.
        source: IndexError,
    },
    /// An ISO media file that cannot be demultiplexed.
    #[error("{}: damaged MP4: {reason}; try to repair it, e.g. ffmpeg -i FILE -c copy NEW.mp4", path.display())]
    DamagedMp4 {
        /// The file.
        path: PathBuf,
        /// The demultiplexer's error.
        reason: String,
    },
    /// A file that libavformat cannot read, or not to its end; in that case the part before can be used.
    #[error("{}: {reason}", path.display())]
    Container {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file that ends before its pictures do. The pictures before can be used.
    #[error(
        "{name}: cut off: it ends before its pictures do; those before can be measured, copy it again for all"
    )]
    CutOff {
        /// The file, and track if it has several.
        name: String,
    },
    /// An ISO media file without an H.264 track.
    #[error("{}: no H.264 track (found: {found}); convert it, e.g. ffmpeg -i FILE -c:v libx264 NEW.mp4", path.display())]
    NoH264Track {
        /// The file.
        path: PathBuf,
        /// Codecs of the tracks it has.
        found: String,
    },
    /// An argument that looks like a live source, but is not one.
    #[error(transparent)]
    NoSource(#[from] AddressError),
}

/// One stream in memory.
#[derive(Debug, Clone)]
pub struct Clip {
    name: String,
    data: Cow<'static, [u8]>,
    index: Index,
    size: PictureSize,
    source: Option<Arc<Source>>,
}

impl Clip {
    /// Indexes an Annex B byte stream.
    ///
    /// # Errors
    ///
    /// [`ClipError::NoPicture`] if decoding could begin nowhere.
    pub fn new(name: impl Into<String>, data: impl Into<Cow<'static, [u8]>>) -> Result<Self, ClipError> {
        let (name, data) = (name.into(), data.into());
        let index =
            Index::new(&data).map_err(|source| ClipError::NoPicture { name: name.clone(), source })?;
        let pictures = index.pictures.len();
        match index.size() {
            Some(size) => Ok(Self { name, data, index, size, source: None }),
            None => Err(ClipError::NoPicture { name, source: IndexError::NoEntryPoint { pictures } }),
        }
    }

    /// A live source as a clip. Nothing is known about it beforehand: it has no numbered pictures, and no size.
    pub fn live(source: Source) -> Self {
        let name = source.address().to_string();
        let size = PictureSize { width: 0, height: 0 };
        Self { name, data: Cow::Borrowed(&[]), index: Index::default(), size, source: Some(Arc::new(source)) }
    }

    /// The live source, if it is one.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_deref()
    }

    /// Name in reports: the file's path, or the bundled clip's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The byte stream.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Whether it is one of the [`BUNDLED`].
    pub(crate) fn is_bundled(&self) -> bool {
        BUNDLED.iter().any(|bundled| std::ptr::eq(bundled.data, self.data()))
    }

    /// Its access units and entry points; at least one of each, except for a live source.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Its coding.
    pub fn standard(&self) -> Standard {
        self.index.standard
    }

    /// Size of the first picture; 0×0 for a live source.
    pub fn size(&self) -> PictureSize {
        self.size
    }

    /// The class in which it is reported.
    pub fn class(&self) -> StreamClass {
        StreamClass::of(self.size)
    }
}

/// The result of [`load`].
#[derive(Debug, Default)]
pub struct Loaded {
    /// Usable clips, in the order of the arguments, directories sorted by name.
    pub clips: Vec<Clip>,
    /// One error for each file or directory without a usable clip, or with an incomplete one.
    pub refused: Vec<ClipError>,
}

impl Loaded {
    fn add(&mut self, clip: Result<Clip, ClipError>) {
        match clip {
            Ok(clip) => self.clips.push(clip),
            Err(error) => self.refused.push(error),
        }
    }
}

impl Loaded {
    /// Whether it is a file that needs libavformat, such as an MP4 file with H.265.
    fn is_for_others(&self) -> bool {
        let is_unread =
            |error: &ClipError| matches!(error, ClipError::NoH264Track { .. } | ClipError::DamagedMp4 { .. });
        self.clips.is_empty() && !self.refused.is_empty() && self.refused.iter().all(is_unread)
    }
}

/// The bundled clips, indexed.
pub fn bundled() -> Loaded {
    let mut loaded = Loaded::default();
    for clip in BUNDLED {
        loaded.add(Clip::new(clip.name, clip.data));
    }
    loaded
}

/// Loads files, and directories with their subdirectories; and prepares live sources: their addresses, and session descriptions (`.sdp`).
pub fn load<P: AsRef<Path>>(paths: &[P]) -> Loaded {
    let mut loaded = Loaded::default();
    for path in paths.iter().map(AsRef::as_ref) {
        match path.to_str().and_then(Address::parse) {
            Some(address) => {
                loaded.add(address.map(|address| Clip::live(Source::new(address))).map_err(ClipError::from))
            }
            None => load_path(path, &mut loaded),
        }
    }
    loaded
}

fn load_path(path: &Path, loaded: &mut Loaded) {
    for file in list(&[path]) {
        match file {
            Ok(file) => load_file(&file, loaded),
            Err(error) => loaded.refused.push(error),
        }
    }
}

/// The files that [`load`] would load, one by one, for callers without memory for all of them: files as named, and those of a known kind in
/// directories, sorted by name; with an error for each directory without such files, or that cannot be read.
pub fn list<P: AsRef<Path>>(paths: &[P]) -> Vec<Result<PathBuf, ClipError>> {
    let each = paths.iter().map(AsRef::as_ref);
    each.flat_map(|path| if path.is_dir() { list_directory(path) } else { vec![Ok(path.to_path_buf())] })
        .collect()
}

fn extensions() -> Vec<&'static str> {
    ANNEX_B_EXTENSIONS.into_iter().chain(MP4_EXTENSIONS).chain(CONTAINER_EXTENSIONS).collect()
}

fn list_directory(path: &Path) -> Vec<Result<PathBuf, ClipError>> {
    let (mut files, mut refused) = (Vec::new(), Vec::new());
    // Directories already entered, so that a symbolic link to a parent does not loop.
    let mut seen = std::collections::BTreeSet::new();
    let mut pending = vec![path.to_path_buf()];
    while let Some(directory) = pending.pop() {
        let entries = fs::canonicalize(&directory).and_then(|real| {
            let entries = if seen.insert(real) { Some(fs::read_dir(&directory)?) } else { None };
            entries.into_iter().flatten().collect::<Result<Vec<_>, _>>()
        });
        match entries {
            Ok(entries) => {
                for entry in entries.iter().map(fs::DirEntry::path) {
                    let target = if entry.is_dir() { &mut pending } else { &mut files };
                    target.push(entry);
                }
            }
            Err(source) => refused.push(Err(ClipError::Unreadable { path: directory, source })),
        }
    }
    // Reading a pipe would wait for whoever writes to it. What cannot be looked at is reported when it is read.
    let is_file = |file: &PathBuf| fs::metadata(file).map_or(true, |of| of.is_file());
    files.retain(|file| has_extension(file, &extensions()) && is_file(file));
    files.sort();
    if files.is_empty() {
        refused.push(Err(ClipError::EmptyDirectory { path: path.to_path_buf() }));
    }
    refused.into_iter().chain(files.into_iter().map(Ok)).collect()
}

fn has_extension(path: &Path, known: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    extension.is_some_and(|extension| known.contains(&extension.as_str()))
}

fn load_file(path: &Path, loaded: &mut Loaded) {
    let data = match fs::read(path) {
        Ok(data) => data,
        Err(source) => {
            loaded.refused.push(ClipError::Unreadable { path: path.to_path_buf(), source });
            return;
        }
    };
    let (length, is_cut_off) = (data.len(), libavformat::is_cut_off(&data));
    let is_container = libavformat::is_container(&data);
    let own = match is_container {
        true => {
            drop(data);
            Loaded::default()
        }
        false => read(path, data),
    };
    if !is_container && !own.is_for_others() {
        loaded.clips.extend(own.clips);
        loaded.refused.extend(own.refused);
        return;
    }
    let path = path.to_path_buf();
    match libavformat::read(&path, length.saturating_mul(MOST_GROWTH)) {
        Ok(track) => {
            let name = path.display().to_string();
            match track.broken {
                Some(reason) => loaded.refused.push(ClipError::Container { path, reason }),
                None if is_cut_off => loaded.refused.push(ClipError::CutOff { name: name.clone() }),
                None => {}
            }
            loaded.add(Clip::new(name, track.stream));
        }
        Err(reason) if is_container => loaded.refused.push(ClipError::Container { path, reason }),
        // The earlier error says more.
        Err(_) => loaded.refused.extend(own.refused),
    }
}

/// Makes a clip of a file at `path` with these contents, unless libavformat reads it.
pub fn read(path: &Path, data: Vec<u8>) -> Loaded {
    let mut loaded = Loaded::default();
    if data.is_empty() {
        loaded.refused.push(ClipError::Empty { path: path.to_path_buf() });
        return loaded;
    }
    let name = path.display().to_string();
    if has_extension(path, &[SDP_EXTENSION]) {
        match Address::described(path, &data) {
            Ok(addresses) => {
                loaded.clips.extend(addresses.into_iter().map(|address| Clip::live(Source::new(address))))
            }
            Err(error) => loaded.refused.push(error.into()),
        }
        return loaded;
    }
    if !demux::is_mp4(&data) {
        loaded.add(Clip::new(name, data));
        return loaded;
    }
    match demux::h264_tracks(&data) {
        Ok(tracks) => {
            let several = tracks.len() > 1;
            for track in tracks {
                let demux::H264Track { number, stream, is_whole } = match track {
                    Ok(track) => track,
                    Err(damaged) => {
                        let (path, reason) = (path.to_path_buf(), damaged.to_string());
                        loaded.refused.push(ClipError::DamagedMp4 { path, reason });
                        continue;
                    }
                };
                let name = if several { format!("{name}#{number}") } else { name.clone() };
                if !is_whole {
                    loaded.refused.push(ClipError::CutOff { name: name.clone() });
                }
                loaded.add(Clip::new(name, stream));
            }
        }
        Err(refusal) => {
            let path = path.to_path_buf();
            loaded.refused.push(match refusal {
                demux::Refusal::Damaged(reason) => ClipError::DamagedMp4 { path, reason },
                demux::Refusal::NoH264Track(found) => ClipError::NoH264Track { path, found },
            });
        }
    }
    loaded
}

#[cfg(test)]
mod tests;
