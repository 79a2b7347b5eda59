//! A stream both ways by tonic.

use bytes::Bytes;
use pdbp_benches::grpc::{Client, Setting, runtime};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::{MESSAGE, Peer, Result};

/// A client, and the runtime that drives it.
pub(super) struct Streams {
    runtime: Runtime,
    client: Client,
}

impl Streams {
    pub(super) fn new(setting: Setting) -> Result<Self> {
        let runtime = runtime()?;
        let client = Client::new(&runtime, setting)?;
        Ok(Self { runtime, client })
    }

    /// Sends all of them, and waits for the answer to the last.
    fn send(&mut self, messages: impl Iterator<Item = Bytes> + Send + 'static) -> Result<()> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let mut answers = client.stream(tokio_stream::iter(messages.chain([question()]))).await?;
            answers.next().await.ok_or("no answer")??;
            Ok(())
        })
    }
}

fn question() -> Bytes {
    let mut message = [0; MESSAGE];
    message[0] = 1;
    Bytes::copy_from_slice(&message)
}

impl Peer for Streams {
    fn stream(&mut self, pieces: usize, bytes: &[u8]) -> Result<()> {
        let mut bytes = bytes.to_vec();
        bytes[0] = 0;
        // The copy that its encoder makes is the writer's.
        let bytes = Bytes::from(bytes);
        self.send((0..pieces).map(move |_| bytes.clone()))
    }

    fn messages(&mut self, count: usize) -> Result<bool> {
        self.send((0..count).map(|_| Bytes::from_static(&[0; MESSAGE])))?;
        Ok(true)
    }

    fn round_trips(&mut self, count: usize) -> Result<bool> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let (sender, receiver) = mpsc::channel(1);
            sender.send(question()).await?;
            let mut answers = client.stream(ReceiverStream::new(receiver)).await?;
            for _ in 1..count {
                answers.next().await.ok_or("no answer")??;
                sender.send(question()).await?;
            }
            answers.next().await.ok_or("no answer")??;
            Ok::<_, Box<dyn std::error::Error>>(())
        })?;
        Ok(true)
    }
}
