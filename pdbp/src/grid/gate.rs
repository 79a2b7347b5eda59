//! The thread of a gateway: what its proxies have got goes out by frames, what comes by frames goes out by proxies.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pdbp_core::Event;
use pdbp_core::tables::{Name, PartKind};

use super::Common;
use super::session::Session;
use super::trunk::{Domain, Receiver};
use crate::config::Settings;
use crate::node::Node;
use crate::part::{Part, Shared};

/// Between two looks at who is there.
const LOOK: Duration = Duration::from_millis(10);
/// How long a gateway that ends goes on until what it has taken has been handed on.
const LINGER: Duration = Duration::from_secs(1);
/// Between two tries to send where there was no room.
const RETRY: Duration = Duration::from_micros(200);

/// Carries trunks until the gateway ends.
pub(super) fn run(
    common: &Common,
    node: &Node,
    settings: &Settings,
    mut open: impl FnMut(&Common) -> Option<Domain>,
) {
    while let Some(domain) = open(common) {
        let here = Arc::downgrade(&domain.node.shared);
        common.domains().push(Weak::clone(&here));
        match Gate::new(domain, node, settings) {
            Ok(gate) => gate.run(common),
            Err(error) => common.note("", error.to_string()),
        }
        common.domains().retain(|domain| !domain.ptr_eq(&here));
        if common.is_over() {
            return;
        }
    }
}

struct Gate {
    sessions: Vec<Session>,
    /// Its messages wake this thread.
    bell: Part<Shared>,
    receiver: Receiver,
    domain: Domain,
    node: Node,
    /// What a session may hold, in either direction.
    room: u64,
}

impl Gate {
    fn new(mut domain: Domain, node: &Node, settings: &Settings) -> Result<Self, Box<dyn Error>> {
        static DOMAINS: AtomicU64 = AtomicU64::new(0);
        let number = DOMAINS.fetch_add(1, Ordering::Relaxed);
        let register = |what| node.register_shared(&format!("pdbp.{what}.{number}"), PartKind::Communication);
        let (bell, waker) = (register("trunk")?, register("waker")?);
        let receiver = domain.receive(waker, bell.id())?;
        let room = settings.trunk_bytes as u64 / 2;
        Ok(Self { sessions: Vec::new(), bell, receiver, domain, node: node.clone(), room })
    }

    fn run(mut self, common: &Common) {
        let mut looked: Option<Instant> = None;
        let mut ends: Option<Instant> = None;
        while !self.domain.is_over() {
            if common.is_over() {
                let end = *ends.get_or_insert_with(|| Instant::now() + LINGER);
                if self.sessions.iter().all(Session::is_idle) || Instant::now() >= end {
                    return;
                }
            }
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
                looked = Some(Instant::now());
                self.look(common);
            }
            let mut worked = false;
            for frame in self.receiver.take() {
                worked = true;
                let from = frame.source().node();
                if self.sessions.iter().all(|session| session.peer() != from) {
                    // It knows of this end before this end has looked.
                    self.look(common);
                }
                if let Some(session) = self.sessions.iter_mut().find(|session| session.peer() == from) {
                    session.take_in(&self.node, frame);
                }
            }
            while self.bell.try_recv().is_some() {}
            for session in &mut self.sessions {
                worked |= session.turn(&self.domain.out);
            }
            self.domain.out.flush();
            if !worked && self.receiver.sleep() {
                self.sleep();
            }
        }
        self.end();
    }

    /// The other end has gone.
    fn end(&mut self) {
        for session in std::mem::take(&mut self.sessions) {
            self.note_session(&session, |name| Event::ClusterDown { name });
            session.end(&self.node, &self.domain.out);
        }
    }

    /// Begins sessions with who has come, ends those with who has gone.
    fn look(&mut self, common: &Common) {
        let peers = self.domain.peers();
        let is_over = |session: &mut Session| peers.iter().all(|(_, part)| *part != session.target());
        let ended: Vec<Session> = self.sessions.extract_if(.., is_over).collect();
        for session in ended {
            self.note_session(&session, |name| Event::ClusterDown { name });
            session.end(&self.node, &self.domain.out);
        }
        for (cluster, part) in peers {
            if cluster == self.domain.own {
                common.note(
                    &cluster,
                    format!("two clusters have the name \"{cluster}\" (`grid`); give each its own"),
                );
            } else if self.sessions.iter().all(|session| session.target() != part) {
                let session = Session::new(&cluster, part, self.room);
                self.note_session(&session, |name| Event::ClusterUp { name });
                self.sessions.push(session);
            }
        }
        for session in &mut self.sessions {
            session.look(&self.node);
        }
    }

    fn note_session(&self, session: &Session, event: impl FnOnce(Name) -> Event) {
        if let Ok(name) = Name::new(session.cluster()) {
            self.node.shared.note(event(name));
        }
    }

    /// Until there is something to do, or it is time to look.
    fn sleep(&self) {
        let parts = self.sessions.iter().flat_map(Session::parts).chain([&self.bell]);
        let parts: Vec<_> = parts.collect();
        let hurries = self.sessions.iter().any(Session::has_waiting);
        self.node.wait_for_any(&parts, if hurries { RETRY } else { LOOK });
    }
}
