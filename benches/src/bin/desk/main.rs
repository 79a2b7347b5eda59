//! A call of a part by SOAP, at the desk, beside a call by tonic (gRPC) and a POST by hyper, all in one run.
//!
//! ```text
//! cargo run --release -p pdbp-benches --features desk --bin desk -- --rounds 31
//! ```
//!
//! Every client has one connection over loopback, and asks again when it has the answer. Messages have `--bytes` bytes there and back; the servers
//! of tonic and hyper echo what they get, hyper's in an envelope as long as the desk's. `page` is the time of a GET of the same page from both HTTP
//! servers. The rounds of all columns alternate. Shown are the lowest and the median of the rounds' medians, and the ratio of the lowest, since on
//! few cores the speed of a round depends on where the system has put the threads. With a mailbox it takes two requests: the message is sent from the
//! mailbox, and its reply received there.

use std::convert::Infallible;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pdbp::{Cluster, PartKind};
use pdbp_benches::arguments::{at_least, exit};
use pdbp_benches::grpc::{Client, Setting, runtime};
use tokio::runtime::Runtime;

#[derive(Parser)]
#[command(about = "Calls at the desk beside gRPC and HTTP of others")]
struct Arguments {
    /// Calls of a round.
    #[arg(long, default_value_t = 500, value_parser = at_least::<usize>(1))]
    calls: usize,
    /// Rounds of each column.
    #[arg(long, default_value_t = 31, value_parser = at_least::<usize>(1))]
    rounds: usize,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Lets a Receive wait at a mailbox meanwhile.
    #[arg(long)]
    receive: bool,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;
/// Asks once, and waits for the answer.
type Ask<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

const NAME: &str = "worker@node1";
const OF: &str = "xmlns=\"urn:pdbp:desk\"";

fn main() -> ExitCode {
    exit(compare(Arguments::parse()))
}

fn compare(Arguments { calls, rounds, bytes, receive }: Arguments) -> Result<()> {
    let cluster = Cluster::builder().nodes(2).desk("127.0.0.1:0".to_owned()).start()?;
    let desk = cluster.node(0)?.desk().ok_or("there is no desk")?.address();
    let worker = cluster.node(1)?.register_shared("worker", PartKind::Cpu)?;
    std::thread::spawn(move || {
        while let Ok(message) = worker.recv() {
            if worker.send(message.source(), &message).is_err() {
                return;
            }
            worker.flush();
        }
    });
    let part = cluster.node(0)?.register("asker", PartKind::Cpu)?;
    let to = part.find(NAME, std::time::Duration::from_secs(5))?;
    let message = vec![b'x'; bytes];
    let call = envelope(bytes);
    let hyper = hyper_server()?;
    let runtime = runtime()?;
    let page = get(desk, "/pdbp");
    // Until its connection is closed.
    let _waiting = receive.then(|| wait_at_mailbox(desk, &call)).transpose()?;

    let mut columns: Vec<(&str, Ask<'_>)> = vec![
        ("part to part, in the cluster", {
            let message = message.clone();
            Box::new(move || {
                part.send(to, &message)?;
                part.recv()?;
                Ok(())
            })
        }),
        ("tonic call", by_tonic(&runtime, message.into())?),
        ("hyper POST", by_hyper(&runtime, hyper, &call)?),
        ("desk call, client of hyper", by_hyper(&runtime, desk, &call)?),
        ("desk call, client on a socket", by_socket(desk, &post(desk, &call))?),
        ("desk mailbox, client on a socket", by_mailbox(desk, &call)?),
        ("page by hyper, client on a socket", by_socket(hyper, &get(hyper, "/pdbp"))?),
        ("page by the desk, client on a socket", by_socket(desk, &page)?),
    ];
    let mut medians = vec![Vec::new(); columns.len()];
    for _ in 0..=rounds {
        for ((_, ask), medians) in columns.iter_mut().zip(&mut medians) {
            let mut times = Vec::with_capacity(calls);
            for _ in 0..calls {
                let began = Instant::now();
                ask()?;
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
            medians.push(median(&mut times));
        }
    }
    // The first round is there to warm up.
    let medians: Vec<_> = medians.iter_mut().map(|all| lowest_and_median(&mut all[1..])).collect();
    println!("{bytes} bytes there and back, {rounds} rounds of {calls} calls");
    println!("{:<40} {:>10} {:>10} {:>10}", "", "lowest µs", "median µs", "× tonic");
    for ((name, _), (lowest, median)) in columns.iter().zip(&medians) {
        println!("{name:<40} {lowest:>10.1} {median:>10.1} {:>10.2}", lowest / medians[1].0);
    }
    Ok(())
}

fn lowest_and_median(times: &mut [f64]) -> (f64, f64) {
    let median = median(times);
    (times[0], median)
}

/// Leaves them sorted.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn by_tonic(runtime: &Runtime, message: Bytes) -> Result<Ask<'_>> {
    let mut client = Client::new(runtime, Setting::Plain)?;
    Ok(Box::new(move || runtime.block_on(client.call(message.clone()))))
}

/// A call of so many bytes.
fn envelope(bytes: usize) -> String {
    // "eHh4" is "xxx" in base64.
    let content = "eHh4".repeat(bytes / 3) + ["", "eA==", "eHg="][bytes % 3];
    format!(
        "<e:Envelope xmlns:e=\"http://www.w3.org/2003/05/soap-envelope\"><e:Body><Call xmlns=\"urn:pdbp:desk\"><To>{NAME}</To>\
         <Content>{content}</Content></Call></e:Body></e:Envelope>"
    )
}

fn post(address: SocketAddr, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /pdbp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/soap+xml\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn get(address: SocketAddr, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")
}

/// A client that writes a request and reads until it has the body.
struct HttpClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl HttpClient {
    fn new(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 1 << 20] })
    }

    /// The body of the answer.
    fn ask(&mut self, request: &str) -> Result<&[u8]> {
        let Self { stream, buffer } = self;
        stream.write_all(request.as_bytes())?;
        let mut got = 0;
        loop {
            got += stream.read(&mut buffer[got..])?;
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let mut response = httparse::Response::new(&mut headers);
            let httparse::Status::Complete(head) = response.parse(&buffer[..got])? else { continue };
            let length =
                response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length: usize = std::str::from_utf8(length.ok_or("no length")?.value)?.parse()?;
            if got < head + length {
                continue;
            }
            if response.code != Some(200) {
                return Err(String::from_utf8_lossy(&buffer[..got]).into());
            }
            return Ok(&buffer[head..got]);
        }
    }
}

fn by_socket<'a>(address: SocketAddr, request: &str) -> Result<Ask<'a>> {
    let (mut client, request) = (HttpClient::new(address)?, request.to_owned());
    Ok(Box::new(move || client.ask(&request).map(drop)))
}

/// Sends the message of a call from a mailbox, and receives the reply there: two requests.
fn by_mailbox<'a>(address: SocketAddr, call: &str) -> Result<Ask<'a>> {
    let mut client = HttpClient::new(address)?;
    let operation = |body: &str| operation(address, call, body);
    client.ask(&operation(&format!("<OpenMailbox {OF}><Name>box</Name></OpenMailbox>")))?;
    let from = "<From>box</From></Send>";
    let send = post(address, &call.replace("Call", "Send").replace("</Send>", from));
    // Built here, so that the client's own work is as small as that of the others.
    let receive =
        operation(&format!("<Receive {OF}><Mailbox>box</Mailbox><Taken>{:020}</Taken></Receive>", 0));
    let mut taken = 0u64;
    Ok(Box::new(move || {
        client.ask(&send)?;
        let receive = receive.replace(&format!("{:020}", 0), &format!("{taken:020}"));
        let answer = client.ask(&receive)?;
        taken += 1;
        let number = format!("<d:Number>{taken}</d:Number>");
        let has_it = answer.windows(number.len()).any(|part| part == number.as_bytes());
        if has_it { Ok(()) } else { Err(format!("message {taken} is not in the answer").into()) }
    }))
}

/// A request with another operation than that of a call.
fn operation(address: SocketAddr, call: &str, body: &str) -> String {
    let (start, rest) = call.split_once("<Call ").expect("it is a call");
    let (_, end) = rest.split_once("</Call>").expect("it is a call");
    post(address, &format!("{start}{body}{end}"))
}

/// A client for whose mailbox no message comes.
fn wait_at_mailbox(address: SocketAddr, call: &str) -> Result<HttpClient> {
    let mut client = HttpClient::new(address)?;
    client.ask(&operation(address, call, &format!("<OpenMailbox {OF}><Name>empty</Name></OpenMailbox>")))?;
    let receive = format!(
        "<Receive {OF}><Mailbox>empty</Mailbox><Taken>0</Taken><TimeoutMs>600000</TimeoutMs></Receive>"
    );
    client.stream.write_all(operation(address, call, &receive).as_bytes())?;
    Ok(client)
}

fn by_hyper<'a>(runtime: &'a Runtime, address: SocketAddr, body: &str) -> Result<Ask<'a>> {
    let mut sender = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok::<_, Box<dyn Error>>(sender)
    })?;
    let (body, host) = (Bytes::from(body.to_owned()), address.to_string());
    Ok(Box::new(move || {
        runtime.block_on(async {
            let request =
                Request::post("/pdbp").header("Host", &host).header("Content-Type", "application/soap+xml");
            let answer = sender.send_request(request.body(Full::new(body.clone()))?).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            if status != 200 || body.is_empty() { Err(format!("{status}: {body:?}").into()) } else { Ok(()) }
        })
    }))
}

/// A server that sends back what it is posted, and has a page.
fn hyper_server() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = runtime()?;
    let echo = |request: Request<Incoming>| async move {
        let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body = if body.is_empty() { Bytes::from_static(&[b'x'; 138]) } else { body };
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service_fn(echo)));
            }
            #[expect(unreachable_code, reason = "the type of what goes wrong")]
            Ok::<_, std::io::Error>(())
        })
    });
    Ok(address)
}
