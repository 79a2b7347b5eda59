//! Passes the settings to `pdbp-net`.

use std::error::Error;
use std::io::{self, ErrorKind, Write as _};

use pdbp_core::Transport;
use pdbp_net::{Founder, Net, Options, Token};

use crate::config::{Codec, Framing, Role, Settings, Tls};
use crate::error::StartError;
use crate::node;

/// Founds or joins a cluster. Returns when all its processes have joined or, for an open cluster, when this process has a place.
/// Applies the defaults that differ over sockets, and the founder's settings.
pub(crate) fn connect(settings: &mut Settings) -> Result<Net, StartError> {
    if settings.found && settings.join.is_some() {
        return Err(StartError::FoundsAndJoins);
    }
    settings.prepare_for_net();
    if settings.found {
        settings.prepare_for_open()?;
    }
    let end = reach(settings)?;
    settings.nodes = end.capabilities().nodes;
    if end.is_open() {
        settings.masters = end.masters();
    }
    Ok(end)
}

fn reach(settings: &Settings) -> Result<Net, StartError> {
    let token = settings.token_file.as_deref().map(|path| match settings.join {
        Some(_) => Token::from_file(path),
        None => Token::from_file_or_new(path),
    });
    let mut options = Options::new(settings.largest_block());
    options.in_flight = settings.in_flight();
    options.token = token.transpose().map_err(failed)?;
    options.advertise.clone_from(&settings.advertise);
    options.plain = settings.plain;
    options.tls = match &settings.tls {
        Tls::Off => pdbp_net::Tls::Off,
        Tls::Token => pdbp_net::Tls::Token,
        Tls::Folder(folder) => pdbp_net::Tls::Folder(folder.clone()),
    };
    options.framing = match settings.framing {
        Framing::Tcp => pdbp_net::Framing::Tcp,
        Framing::Soap => pdbp_net::Framing::Soap,
    };
    options.codec = match settings.codec {
        Codec::None => pdbp_net::Codec::None,
        Codec::Auto => pdbp_net::Codec::Auto,
        Codec::Lz4 => pdbp_net::Codec::Lz4,
        Codec::Zstd => pdbp_net::Codec::Zstd,
    };
    options.masters = settings.masters;
    options.founding_file.clone_from(&settings.founding_file);
    options.role =
        if settings.role == Role::Master { pdbp_net::Role::Master } else { pdbp_net::Role::Worker };
    options.outage = settings.outage;
    options.timeout = settings.timeout;
    // Unlike `eprintln`, without a panic if nobody reads that any more.
    options.notice = |text| drop(writeln!(io::stderr(), "pdbp: {text}"));
    let (join, listen, nodes) = (settings.join.clone(), settings.listen.clone(), settings.nodes);
    let (founds_open, founder_only) = (settings.found, settings.needs_founder_only);
    let joined = node::with_interrupts(move || match (join, listen) {
        (Some(join), _) if founder_only => Net::dial(&join, &options).map_err(failed),
        (Some(join), listen) => Net::join(&join, listen.as_deref(), &options).map_err(failed),
        (None, Some(listen)) if founds_open => Net::found(&listen, nodes, &options).map_err(failed),
        (None, Some(listen)) => Founder::new(&listen, nodes, options).and_then(Founder::wait).map_err(failed),
        (None, None) => Err(StartError::NoAddress),
    });
    joined.map_err(StartError::Thread)?.unwrap_or(Err(StartError::Interrupted))
}

fn failed(error: impl Error + Send + Sync + 'static) -> StartError {
    StartError::Sockets(Box::new(error))
}

impl StartError {
    /// Whether trying again with the same settings may succeed, since the cause lies with other processes: they may still start, or
    /// be replaced. Errors in this process's settings do not pass, nor does connecting without TLS to a process that encrypts. A
    /// missing token may appear, since the founder writes it. A token that seems wrong may be right as well: a founder that shuts
    /// down at that moment looks the same.
    pub fn may_pass(&self) -> bool {
        use pdbp_net::{Refusal, StartError as Why, TokenError};
        match self {
            Self::Config(_)
            | Self::SettingsDiffer(_)
            | Self::NoAddress
            | Self::FoundsAndJoins
            | Self::NoFabric
            | Self::Fabric { .. }
            | Self::Trace { .. }
            | Self::Pin { .. }
            | Self::NoMpi { .. } => false,
            // The process that has the port may end, and there may be descriptors or threads again. Errors of settings are not the system's.
            Self::Metrics { error, .. } | Self::Desk { error, .. } => {
                use ErrorKind::{AddrNotAvailable, NotFound, PermissionDenied};
                let is_lasting = matches!(error.kind(), AddrNotAvailable | NotFound | PermissionDenied);
                error.raw_os_error().is_some() && !is_lasting
            }
            Self::Sockets(error) => match (error.downcast_ref(), error.downcast_ref()) {
                (Some(TokenError::File { error, .. }), _) => error.kind() == ErrorKind::NotFound,
                (Some(_), _) => false,
                (None, why) => !matches!(
                    why,
                    Some(
                        Why::Unprotected { .. }
                            | Why::Encrypted { .. }
                            | Why::Tls(_)
                            | Why::Refused { refusal: Refusal::Version { .. } | Refusal::Block { .. }, .. }
                    )
                ),
            },
            Self::Thread(_) | Self::Interrupted | Self::Timeout(_) | Self::Transport(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "desk")]
    use crate::StartError;
    use crate::{Builder, Cluster};

    /// Workers that were to write a trace into a folder that does not exist tried again and again.
    #[test]
    fn settings_that_cannot_be_used_do_not_pass() {
        let may_pass = |builder: Builder| builder.start().map(drop).unwrap_err().may_pass();
        let own = || Cluster::builder().nodes(1);
        assert!(!may_pass(own().set("trace", "/nonexistent/trace.json")));
        assert!(!may_pass(own().set("transport", "net")));
        #[cfg(feature = "desk")]
        {
            assert!(!may_pass(own().desk("0.0.0.0:0".to_owned())), "without a secret");
            let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            assert!(may_pass(own().desk(other.local_addr().unwrap().to_string())), "it may end");
            let too_many_files = std::io::Error::from_raw_os_error(24);
            assert!(StartError::Desk { address: String::new(), error: too_many_files }.may_pass());
        }
    }
}
