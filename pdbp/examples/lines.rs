//! Streams as smol and others use them (feature `futures-io`): one part writes a file to another, which reads its lines.
//!
//! ```text
//! cargo run --release -p pdbp --features futures-io --example lines README.md
//! ```

use std::error::Error;

use pdbp::{Cluster, PartKind, StreamWriter};
use smol::io::{AsyncBufReadExt, AsyncWriteExt};
use smol::stream::StreamExt;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give the name of a file")?;
    let cluster = Cluster::local(2)?;
    let from = cluster.node(0)?.register("from", PartKind::Cpu)?;
    let mut to = cluster.node(1)?.register("to", PartKind::Cpu)?;
    let address = to.id();

    let write = async {
        let mut file = smol::fs::File::open(&path).await?;
        let mut stream = StreamWriter::open(&from, address)?;
        smol::io::copy(&mut file, &mut stream).await?;
        // Without this, the reader gets an error: the stream was abandoned.
        stream.close().await?;
        Ok::<_, Box<dyn Error>>(())
    };
    let read = async {
        let stream = to.accept_async().await?;
        let (mut lines, mut count, mut longest) = (stream.lines(), 0, 0);
        while let Some(line) = lines.next().await {
            count += 1;
            longest = longest.max(line?.len());
        }
        Ok::<_, Box<dyn Error>>((count, longest))
    };
    // Both run on this thread: parts that stay on it need not be shared.
    let (_, (count, longest)) = smol::block_on(smol::future::try_zip(write, read))?;
    println!("{path}: {count} lines, the longest has {longest} bytes");
    Ok(())
}
