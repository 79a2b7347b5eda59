//! A unary call by tonic, of bytes as they are.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use hyper::http;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use tonic::{Request, Response, Status};
use tower_service::Service;

use super::{Ask, Result, runtime};

/// Messages are their bytes.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
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
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> std::result::Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

/// Sends back what it gets.
#[derive(Clone, Copy)]
struct Echo;

impl Service<Request<Vec<u8>>> for Echo {
    type Response = Response<Vec<u8>>;
    type Error = Status;
    type Future = Ready<std::result::Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
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
        Box::pin(async { Ok(tonic::server::Grpc::new(Plain).unary(Echo, request).await) })
    }
}

pub(super) fn server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = runtime()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
            let server = tonic::transport::Server::builder().tcp_nodelay(true);
            let incoming = TcpListenerStream::new(listener);
            server.serve_with_incoming(Server, incoming).await.map_err(|error| error.to_string())
        })
    });
    Ok(address)
}

pub(super) fn client(runtime: &Runtime, address: SocketAddr, message: Vec<u8>) -> Result<Ask<'_>> {
    let channel = runtime.block_on(async {
        tonic::transport::Endpoint::new(format!("http://{address}"))?.tcp_nodelay(true).connect().await
    })?;
    let mut client = tonic::client::Grpc::new(channel);
    let path = http::uri::PathAndQuery::from_static("/echo.Echo/Call");
    Ok(Box::new(move || {
        runtime.block_on(async {
            client.ready().await?;
            let answer = client.unary(Request::new(message.clone()), path.clone(), Plain).await?;
            if answer.into_inner() == message { Ok(()) } else { Err("another answer".into()) }
        })
    }))
}
