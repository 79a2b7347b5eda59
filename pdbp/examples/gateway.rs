//! A service on tokio: a part of another node answers lines that arrive over TCP.
//!
//! ```text
//! cargo run --release -p pdbp --example gateway                    # asks itself
//! cargo run --release -p pdbp --example gateway 127.0.0.1:7000     # nc 127.0.0.1 7000
//! ```

use std::error::Error;
use std::sync::Arc;

use pdbp::{Cluster, Part, PartKind, Shared, Target};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Connections served at a time, each with its own part. Further ones wait to be accepted.
const CONNECTIONS: usize = 4;

fn main() -> Result<()> {
    let address = std::env::args().nth(1);
    // Starting a cluster and registering parts block, so they come before any task exists.
    let cluster = Cluster::local(2)?;
    let worker = cluster.node(1)?.register_shared("worker", PartKind::Cpu)?;
    let (node, to) = (cluster.node(0)?, worker.id());
    let gates = (0..CONNECTIONS).map(|n| node.register_shared(&format!("gate{n}"), PartKind::Cpu));
    let gates = gates.collect::<std::result::Result<Vec<_>, _>>()?;

    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = Arc::new(TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(work(worker));
        for gate in gates {
            tasks.spawn(serve(Arc::clone(&listener), gate, to));
        }
        if address.is_none() {
            return ask(TcpStream::connect(listener.local_addr()?).await?).await;
        }
        println!("serving {}", listener.local_addr()?);
        // A task only ends with an error.
        tasks.join_next().await.map_or(Ok(()), |ended| ended?)
    })
}

/// Answers every message.
async fn work(mut part: Part<Shared>) -> Result<()> {
    loop {
        let request = part.recv_async().await?;
        part.send_async(request.source(), &request.to_ascii_uppercase()).await?;
    }
}

/// Serves one connection after another.
async fn serve(listener: Arc<TcpListener>, mut part: Part<Shared>, worker: Target) -> Result<()> {
    loop {
        let (mut connection, from) = listener.accept().await?;
        if let Err(error) = pass_on(&mut connection, &mut part, worker).await {
            eprintln!("{from}: {error}");
        }
    }
}

/// Passes lines on, and the answers back.
async fn pass_on(connection: &mut TcpStream, part: &mut Part<Shared>, worker: Target) -> Result<()> {
    let (reader, mut writer) = connection.split();
    let (mut reader, mut line) = (BufReader::new(reader), Vec::new());
    while reader.read_until(b'\n', &mut line).await? > 0 {
        part.send_async(worker, &line).await?;
        writer.write_all(&part.recv_async().await?).await?;
        line.clear();
    }
    Ok(())
}

async fn ask(mut connection: TcpStream) -> Result<()> {
    connection.write_all(b"a question\nand another\n").await?;
    connection.shutdown().await?;
    let mut answers = String::new();
    connection.read_to_string(&mut answers).await?;
    print!("{answers}");
    Ok(())
}
