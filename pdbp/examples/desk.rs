//! Parts for programs in any language: a cluster with a desk, through which SOAP clients call its parts.
//!
//! ```text
//! cargo run --release -p pdbp --features desk --example desk            # asks itself
//! PDBP_DESK=127.0.0.1:7211 cargo run --release -p pdbp --features desk --example desk serve
//! curl 'http://127.0.0.1:7211/pdbp?wsdl'
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use pdbp::{Builder, PartKind};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let serves = std::env::args().nth(1).is_some_and(|what| what == "serve");
    let builder = Builder::from_env()?.nodes(2);
    let builder =
        if builder.settings().desk.is_none() { builder.desk("127.0.0.1:0".to_owned()) } else { builder };
    let cluster = builder.start()?;
    let address = cluster.node(0)?.desk().ok_or("node 0 has no desk")?.address();
    // The part knows nothing of SOAP: it answers every sender.
    let worker = cluster.node(1)?.register_shared("worker", PartKind::Cpu)?;
    let scheme = if cluster.settings().desk_tls.is_some() { "https" } else { "http" };
    println!("{scheme}://{address}/pdbp?wsdl");
    let worker = std::thread::spawn(move || -> Result<()> {
        loop {
            let request = worker.recv()?;
            worker.send(request.source(), &request.to_ascii_uppercase())?;
            if !serves {
                worker.flush();
                return Ok(());
            }
        }
    });
    if !serves {
        let mut answer = ask(address)?;
        // It has no part for the call yet.
        while answer.contains("<d:Reason>Busy<") {
            answer = ask(address)?;
        }
        println!("{answer}");
    }
    worker.join().map_err(|_| "the worker has panicked")?
}

/// What `curl --data @call.xml --header 'Content-Type: text/xml' http://ADDRESS/pdbp` does. "YSBxdWVzdGlvbg==" is "a question" in base64.
fn ask(address: SocketAddr) -> Result<String> {
    let call = "<e:Envelope xmlns:e='http://schemas.xmlsoap.org/soap/envelope/'><e:Body><Call xmlns='urn:pdbp:desk'>\
                <To>worker@node1</To><Content>YSBxdWVzdGlvbg==</Content></Call></e:Body></e:Envelope>";
    let mut connection = TcpStream::connect(address)?;
    write!(
        connection,
        "POST /pdbp HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{call}",
        call.len()
    )?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}
