//! A TCP connection, and HTTP by hyper.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pdbp_benches::grpc::runtime;
use tokio::runtime::Runtime;

use super::{MESSAGE, PIECE, Peer, Result};

/// A connection whose other end reads pieces as long as it is told to, and sends messages back.
pub(super) struct Tcp {
    stream: TcpStream,
    room: Vec<u8>,
}

impl Tcp {
    pub(super) fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        let (mut other, _) = listener.accept()?;
        other.set_nodelay(true)?;
        std::thread::spawn(move || {
            let (mut message, mut room) = ([0; MESSAGE], vec![0; PIECE]);
            while other.read_exact(&mut message).is_ok() {
                // So many pieces follow.
                let count = u64::from_le_bytes(*message.first_chunk().expect("it is longer"));
                (0..count).for_each(|_| other.read_exact(&mut room).expect("it is open"));
                other.write_all(&message).expect("it is open");
            }
        });
        Ok(Self { stream, room: vec![0; PIECE] })
    }
}

impl Peer for Tcp {
    fn stream(&mut self, pieces: usize, bytes: &[u8]) -> Result<()> {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&(pieces as u64).to_le_bytes());
        self.stream.write_all(&message)?;
        for _ in 0..pieces {
            self.room.copy_from_slice(bytes);
            self.stream.write_all(&self.room)?;
        }
        self.stream.read_exact(&mut message)?;
        Ok(())
    }

    fn round_trips(&mut self, count: usize) -> Result<bool> {
        let mut message = [0; MESSAGE];
        for _ in 0..count {
            self.stream.write_all(&message)?;
            self.stream.read_exact(&mut message)?;
        }
        Ok(true)
    }
}

/// How a stream is posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// In one request, as it comes.
    Streamed,
    /// In requests of 1 MiB.
    Whole,
}

type Sent = UnsyncBoxBody<Bytes, Infallible>;

pub(super) struct Hyper {
    body: Body,
    runtime: Runtime,
    sender: SendRequest<Sent>,
    host: String,
}

impl Hyper {
    pub(super) fn new(body: Body) -> Result<Self> {
        let (address, runtime) = (server()?, runtime()?);
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            Ok::<_, Box<dyn std::error::Error>>(sender)
        })?;
        Ok(Self { body, runtime, sender, host: address.to_string() })
    }

    fn post(&mut self, body: Sent) -> Result<()> {
        let request = Request::post("/").header("Host", &self.host).body(body)?;
        self.runtime.block_on(async {
            let answer = self.sender.send_request(request).await?;
            answer.into_body().collect().await?;
            Ok(())
        })
    }
}

impl Peer for Hyper {
    fn stream(&mut self, pieces: usize, bytes: &[u8]) -> Result<()> {
        let bytes = bytes.to_vec();
        if self.body == Body::Streamed {
            let frame = move |_| Ok(Frame::data(Bytes::copy_from_slice(&bytes)));
            let pieces: Vec<_> = (0..pieces).collect();
            return self
                .post(StreamBody::new(tokio_stream::iter(pieces.into_iter().map(frame))).boxed_unsync());
        }
        let mib = bytes.repeat((1 << 20) / PIECE);
        for _ in 0..(pieces * PIECE) >> 20 {
            self.post(Full::new(Bytes::copy_from_slice(&mib)).boxed_unsync())?;
        }
        Ok(())
    }

    fn round_trips(&mut self, count: usize) -> Result<bool> {
        for _ in 0..count {
            self.post(Full::new(Bytes::from_static(&[0; MESSAGE])).boxed_unsync())?;
        }
        Ok(true)
    }
}

/// A server that reads what it is posted, and answers with a message.
fn server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let (address, runtime) = (listener.local_addr()?, runtime()?);
    let take = |request: Request<Incoming>| async move {
        let mut body = request.into_body();
        while let Some(Ok(_)) = body.frame().await {}
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(&[0; MESSAGE]))))
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
            let (stream, _) = listener.accept().await.expect("a client");
            stream.set_nodelay(true).expect("an option");
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(stream), service_fn(take)).await;
        });
    });
    Ok(address)
}
