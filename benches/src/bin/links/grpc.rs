//! A stream both ways by tonic, of bytes as they are.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::TcpListener;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use hyper::http;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;

use super::web::runtime;
use super::{MESSAGE, Peer, Result};

/// Windows and frames of the one that is tuned.
const WINDOW: u32 = 16 << 20;
const FRAME: u32 = 1 << 20;

/// Messages are their bytes.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

type Answers = Pin<Box<dyn Stream<Item = std::result::Result<Bytes, Status>> + Send>>;

/// Answers the messages that begin with 1.
#[derive(Clone, Copy)]
struct Echo;

impl Service<Request<Streaming<Bytes>>> for Echo {
    type Response = Response<Answers>;
    type Error = Status;
    type Future = Ready<std::result::Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let asks = |message: &std::result::Result<Bytes, Status>| match message {
            Ok(message) => message.first() == Some(&1),
            Err(_) => true,
        };
        ready(Ok(Response::new(Box::pin(request.into_inner().filter(asks)))))
    }
}

#[derive(Clone, Copy)]
struct Server;

impl Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = std::result::Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async { Ok(tonic::server::Grpc::new(Plain).streaming(Echo, request).await) })
    }
}

/// A client and its server.
pub(super) struct Streams {
    runtime: Runtime,
    client: tonic::client::Grpc<tonic::transport::Channel>,
}

impl Streams {
    pub(super) fn new(is_tuned: bool) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let serves = runtime()?;
        std::thread::spawn(move || {
            serves.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
                let mut server = tonic::transport::Server::builder().tcp_nodelay(true);
                if is_tuned {
                    server = server
                        .initial_stream_window_size(WINDOW)
                        .initial_connection_window_size(WINDOW)
                        .max_frame_size(FRAME);
                }
                let _ = server.serve_with_incoming(Server, TcpListenerStream::new(listener)).await;
            });
        });
        let runtime = runtime()?;
        let channel = runtime.block_on(async {
            let mut endpoint =
                tonic::transport::Endpoint::new(format!("http://{address}"))?.tcp_nodelay(true);
            if is_tuned {
                endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
            }
            endpoint.connect().await
        })?;
        Ok(Self { runtime, client: tonic::client::Grpc::new(channel) })
    }

    /// Sends all of them, and waits for the answer to the last.
    fn send(&mut self, messages: impl Iterator<Item = Bytes> + Send + 'static) -> Result<()> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            client.ready().await?;
            let all = messages.chain([question()]);
            let answer = client.streaming(Request::new(tokio_stream::iter(all)), path(), Plain).await?;
            answer.into_inner().next().await.ok_or("no answer")??;
            Ok(())
        })
    }
}

fn path() -> http::uri::PathAndQuery {
    http::uri::PathAndQuery::from_static("/echo.Echo/Stream")
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
            client.ready().await?;
            let (sender, receiver) = mpsc::channel(1);
            sender.send(question()).await?;
            let answers =
                client.streaming(Request::new(ReceiverStream::new(receiver)), path(), Plain).await?;
            let mut answers = answers.into_inner();
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
