//! Two nodes over sockets, as two processes would be.

use std::time::Duration;

use pdbp::{Builder, Cluster, Framing, Part, PartKind, Progress, Target, Tls};

use super::{MESSAGE, Peer, Result};

const SOON: Duration = Duration::from_secs(30);

pub(super) struct Pair {
    // Before the cluster.
    part: Part,
    to: Target,
    _cluster: Cluster,
}

fn builder(framing: Framing, tls: bool) -> Builder {
    let builder =
        Cluster::builder().nodes(2).progress(Progress::Inline).lease(Duration::ZERO).framing(framing);
    if tls {
        let token = std::env::temp_dir().join(format!("pdbp-links-{}", std::process::id()));
        builder.token_file(token).tls(Tls::Token)
    } else {
        builder
    }
}

impl Pair {
    pub(super) fn new(framing: Framing, tls: bool) -> Result<Self> {
        let at = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let joins = builder(framing, tls).join(at.clone());
        std::thread::spawn(move || {
            // The founder writes the token that this one reads.
            std::thread::sleep(Duration::from_millis(100));
            let cluster = joins.start().expect("it joins");
            let part = cluster.nodes()[0].register("other", PartKind::Cpu).expect("a part");
            while let Ok(message) = part.recv() {
                if message.first() == Some(&1) {
                    let (source, message) = (message.source(), message.to_vec());
                    if part.send(source, &message).is_err() {
                        return;
                    }
                    part.flush();
                }
            }
        });
        let cluster = builder(framing, tls).listen(at).start()?;
        let part = cluster.nodes()[0].register("one", PartKind::Cpu)?;
        let to = part.find("other@node1", SOON)?;
        Ok(Self { part, to, _cluster: cluster })
    }

    fn ask(&mut self) -> Result<()> {
        let mut message = [0; MESSAGE];
        message[0] = 1;
        self.part.send(self.to, &message)?;
        self.part.flush();
        self.part.recv_timeout(SOON)?;
        Ok(())
    }
}

impl Peer for Pair {
    fn stream(&mut self, pieces: usize, bytes: &[u8]) -> Result<()> {
        let mut bytes = bytes.to_vec();
        bytes[0] = 0;
        for _ in 0..pieces {
            self.part.send(self.to, &bytes)?;
        }
        self.ask()
    }

    fn messages(&mut self, count: usize) -> Result<bool> {
        for _ in 0..count {
            self.part.send(self.to, &[0; MESSAGE])?;
        }
        self.ask()?;
        Ok(true)
    }

    fn round_trips(&mut self, count: usize) -> Result<bool> {
        (0..count).try_for_each(|_| self.ask())?;
        Ok(true)
    }
}
