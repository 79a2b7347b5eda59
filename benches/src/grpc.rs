//! Calls and streams of plain bytes, by tonic: the baseline of the programs `desk` and `links`.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use hyper::http;
use hyper::http::uri::PathAndQuery;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;

/// Bytes of the windows and the frames of a [`Setting::Tuned`] connection.
const WINDOW: u32 = 16 << 20;
const FRAME: u32 = 1 << 20;

const CALL: &str = "/echo.Echo/Call";
const STREAM: &str = "/echo.Echo/Stream";

/// How both ends are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// With defaults, but without Nagle's algorithm.
    Plain,
    /// Also with windows of 16 MiB and frames of 1 MiB.
    Tuned,
}

/// Messages are their bytes.
#[derive(Debug, Clone, Copy, Default)]
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

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Sends back what it receives: of a stream, the messages that begin with 1.
#[derive(Clone, Copy)]
struct Echo;

impl Service<Request<Bytes>> for Echo {
    type Response = Response<Bytes>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl Service<Request<Streaming<Bytes>>> for Echo {
    type Response = Response<Answers>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let asks = |message: &Result<Bytes, Status>| match message {
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut server = tonic::server::Grpc::new(Plain);
            Ok(match request.uri().path() {
                CALL => server.unary(Echo, request).await,
                _ => server.streaming(Echo, request).await,
            })
        })
    }
}

/// A runtime on the thread that drives it.
///
/// # Errors
/// The system's error when it has no room for one.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A client and, on a thread of its own, its server.
#[derive(Debug)]
pub struct Client {
    grpc: tonic::client::Grpc<Channel>,
}

/// Why there is no answer.
pub type Failed = Box<dyn std::error::Error>;

impl Client {
    /// Starts a server on a port of this host, and connects with it in this runtime.
    ///
    /// # Errors
    /// Errors of the system or of tonic.
    pub fn new(runtime: &Runtime, setting: Setting) -> Result<Self, Failed> {
        let address = serve(setting)?;
        let endpoint = Endpoint::new(format!("http://{address}"))?.tcp_nodelay(true);
        let endpoint = match setting {
            Setting::Plain => endpoint,
            Setting::Tuned => {
                endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW)
            }
        };
        let channel = runtime.block_on(async { endpoint.connect().await })?;
        Ok(Self { grpc: tonic::client::Grpc::new(channel) })
    }

    /// Sends a message, and waits for the same one as the answer.
    ///
    /// # Errors
    /// Another answer, or none.
    pub async fn call(&mut self, message: Bytes) -> Result<(), Failed> {
        self.grpc.ready().await?;
        let request = Request::new(message.clone());
        let answer = self.grpc.unary(request, PathAndQuery::from_static(CALL), Plain).await?;
        if answer.into_inner() == message { Ok(()) } else { Err("another answer".into()) }
    }

    /// Begins to send these messages. Those that begin with 1 come back in the returned stream.
    ///
    /// # Errors
    /// Errors of tonic.
    pub async fn stream<S>(&mut self, messages: S) -> Result<Streaming<Bytes>, Failed>
    where
        S: Stream<Item = Bytes> + Send + 'static,
    {
        self.grpc.ready().await?;
        let path = PathAndQuery::from_static(STREAM);
        Ok(self.grpc.streaming(Request::new(messages), path, Plain).await?.into_inner())
    }
}

fn serve(setting: Setting) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = runtime()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
            let server = tonic::transport::Server::builder().tcp_nodelay(true);
            let server = match setting {
                Setting::Plain => server,
                Setting::Tuned => server
                    .initial_stream_window_size(WINDOW)
                    .initial_connection_window_size(WINDOW)
                    .max_frame_size(FRAME),
            };
            let incoming = TcpListenerStream::new(listener);
            server.serve_with_incoming(Server, incoming).await.map_err(|error| error.to_string())
        })
    });
    Ok(address)
}
