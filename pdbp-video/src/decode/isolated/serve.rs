//! The side that decodes.

use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use zerocopy::IntoBytes as _;

use super::ARGUMENT;
use super::process::{MOST_PICTURES, MOST_TEXT, Reply, Request, ask, failed, plane_lengths};
use crate::annexb::Standard;
use crate::decode::decoder::{Decoder, Fault};
use crate::decode::{Codec, DecodeError, Yuv};

/// The most pieces of a request, and their bytes: a larger request is invalid.
const MOST_PIECES: u32 = 1 << 16;
const MOST_BYTES: usize = 1 << 30;

/// Decodes for the parent process until that ends this one, if this program was started for that; `None` if it was not. A program whose [`Codec`]
/// is isolated must call this before anything else.
pub fn serve() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let decoder = arguments.next().unwrap_or_default();
    let largest = arguments.next().and_then(|largest| largest.to_str()?.parse().ok());
    let served = Codec::named(Path::new(&decoder)).and_then(|codec| {
        let codec = largest.map_or(codec, |largest| codec.up_to(largest));
        answer(codec).map_err(|error| error.to_string())
    });
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pdbp-video: a process for decoders: {error}");
            ExitCode::FAILURE
        }
    })
}

fn answer(codec: Codec) -> io::Result<()> {
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let memory = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut decoders: HashMap<u32, Box<dyn Decoder>> = HashMap::new();
    let (mut data, mut planes) = (Vec::new(), Vec::new());
    loop {
        let mut request = Request { kind: 0, decoder: 0, pieces: 0 };
        match socket.read_exact(request.as_mut_bytes()) {
            Ok(()) => {}
            // The parent has gone.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let pieces = read_pieces(&mut socket, request.pieces, &mut data)?;
        let mut sizes: Vec<[u16; 2]> = Vec::new();
        planes.clear();
        let mut take = |picture: &Yuv<'_>| {
            let size = picture.size();
            if sizes.len() < MOST_PICTURES as usize {
                sizes.push([size.width, size.height]);
                append(&mut planes, picture);
            }
        };
        let unknown = || "no such decoder".to_owned();
        let done = match request.kind {
            ask::OPEN_H264 | ask::OPEN_H265 => {
                let standard = if request.kind == ask::OPEN_H264 { Standard::H264 } else { Standard::H265 };
                let opened = codec.own_decoder(standard).map_err(|error| match error {
                    // The parent adds that itself.
                    DecodeError::NoDecoder { reason } => reason,
                    error => error.to_string(),
                });
                opened.map(|decoder| _ = decoders.insert(request.decoder, decoder))
            }
            ask::DECODE => match decoders.get_mut(&request.decoder) {
                Some(decoder) => decoder.decode(&data, &pieces, &mut take),
                None => Err(unknown()),
            },
            ask::DRAIN => {
                decoders.get_mut(&request.decoder).ok_or_else(unknown).and_then(|one| one.drain(&mut take))
            }
            ask::CLOSE => {
                decoders.remove(&request.decoder);
                continue;
            }
            other => Err(format!("a request of unknown kind {other}")),
        };
        memory.write_all_at(&planes, 0)?;
        let text = done.as_ref().err().map_or("", String::as_str);
        let text = text.as_bytes().get(..MOST_TEXT as usize).unwrap_or(text.as_bytes());
        let (pictures, length) = (sizes.len() as u32, text.len() as u32); // 64 and 4 KiB at most
        let fault = decoders.get(&request.decoder).map(|decoder| decoder.fault());
        let failed = match (&done, fault) {
            (Ok(()), _) => 0,
            (Err(_), Some(Fault::Device)) => failed::DEVICE,
            (Err(_), _) => failed::STREAM,
        };
        let reply = Reply { failed, pictures, text: length };
        socket.write_all(&[reply.as_bytes(), sizes.as_bytes(), text].concat())?;
    }
}

fn read_pieces(
    socket: &mut UnixStream,
    count: u32,
    data: &mut Vec<u8>,
) -> io::Result<Vec<core::ops::Range<usize>>> {
    if count > MOST_PIECES {
        return Err(io::Error::other("an invalid request"));
    }
    let mut lengths = vec![0u32; count as usize]; // 65,536 at most
    socket.read_exact(lengths.as_mut_bytes())?;
    let mut pieces = Vec::new();
    let mut end = 0usize;
    for length in lengths {
        let start = end;
        end = end.saturating_add(length as usize);
        pieces.push(start..end);
    }
    if end > MOST_BYTES {
        return Err(io::Error::other("an invalid request"));
    }
    data.resize(end, 0);
    socket.read_exact(data)?;
    Ok(pieces)
}

/// The planes without padding.
fn append(planes: &mut Vec<u8>, picture: &Yuv<'_>) {
    let [luma, chroma, _] = plane_lengths(picture.size());
    let start = planes.len();
    planes.resize(start + luma + 2 * chroma, 0);
    let (_, new) = planes.split_at_mut(start);
    let (y, rest) = new.split_at_mut(luma);
    let (u, v) = rest.split_at_mut(chroma);
    picture.copy_planes(y, u, v);
}
