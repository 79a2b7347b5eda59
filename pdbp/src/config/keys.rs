//! The table of settings: name, how to read it, how to show it.

mod read;

use std::path::PathBuf;
use std::time::Duration;

use pdbp_core::Routing;
use pdbp_core::engine::Checksum;
use pdbp_core::policy::Threshold;

use super::{
    Codec, Framing, MonitorKind, MpiLibrary, PinMemory, PolicyKind, Progress, Role, Settings, Tls,
    TransportKind, Trunk,
};
#[cfg(feature = "net")]
pub(crate) use read::is_cluster;
use read::{address, addresses, choice, chosen, cluster, hosts, json_file, micros, number, optional, trunk};

/// A setting. `set` returns `None` for a value out of range.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) expected: &'static str,
    pub(crate) set: fn(&mut Settings, &str) -> Option<()>,
    pub(crate) show: fn(&Settings) -> String,
}

const POLICIES: [(&str, PolicyKind); 3] =
    [("adaptive", PolicyKind::Adaptive), ("threshold", PolicyKind::Threshold), ("fixed", PolicyKind::Fixed)];
const PROGRESS: [(&str, Progress); 3] =
    [("thread", Progress::Thread), ("inline", Progress::Inline), ("host", Progress::Host)];
const TRANSPORTS: [(&str, TransportKind); 5] = [
    ("auto", TransportKind::Auto),
    ("local", TransportKind::Local),
    ("mpi", TransportKind::Mpi),
    ("net", TransportKind::Net),
    ("rapidio", TransportKind::Rapidio),
];
const FRAMINGS: [(&str, Framing); 2] = [("tcp", Framing::Tcp), ("soap", Framing::Soap)];
const CODECS: [(&str, Codec); 4] =
    [("none", Codec::None), ("auto", Codec::Auto), ("lz4", Codec::Lz4), ("zstd", Codec::Zstd)];
const MONITORS: [(&str, MonitorKind); 3] =
    [("auto", MonitorKind::Auto), ("on", MonitorKind::On), ("off", MonitorKind::Off)];
const ROUTINGS: [(&str, Routing); 2] = [("direct", Routing::Direct), ("grid", Routing::Grid)];
const SWITCH: [(&str, bool); 2] = [("off", false), ("on", true)];
const ROLES: [(&str, Role); 3] = [("auto", Role::Auto), ("master", Role::Master), ("worker", Role::Worker)];
const FOUNDS: [(&str, bool); 4] = [("off", false), ("on", true), ("0", false), ("1", true)];
const CHECKSUMS: [(&str, Checksum); 2] = [("off", Checksum::Off), ("on", Checksum::On)];

pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "nodes",
        expected: "a number of nodes from 1 to 65535",
        set: |s, v| number(v, 1..=65_535, &mut s.nodes),
        show: |s| s.nodes.to_string(),
    },
    Key {
        name: "transport",
        expected: "\"auto\" (MPI under mpirun or srun, sockets with `join` or `listen`), \"local\", \"mpi\", \"net\" or \"rapidio\"",
        set: |s, v| choice(v, &TRANSPORTS, &mut s.transport),
        show: |s| chosen(&s.transport, &TRANSPORTS),
    },
    Key {
        name: "fabric",
        expected: "\"off\", or boards, switches and links as in boards=4,ring: the fabric for transport = \"rapidio\", with a node \
                   on each endpoint unless `nodes` says fewer",
        set: |s, v| optional(v, |text| (!text.is_empty()).then(|| text.to_owned()), &mut s.fabric),
        show: |s| s.fabric.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "listen",
        expected: "\"off\", or an address such as 127.0.0.1:7210: over sockets, where this process listens; without `join` it \
                   founds a cluster of `nodes` processes",
        set: |s, v| optional(v, address, &mut s.listen),
        show: |s| s.listen.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "advertise",
        expected: "\"off\", or an address such as 203.0.113.5:7210: over sockets, where others reach this process if a port there \
                   is forwarded to `listen`, which must be set",
        set: |s, v| optional(v, address, &mut s.advertise),
        show: |s| s.advertise.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "join",
        expected: "\"off\", or an address such as host0:7210: the founder of the cluster that this process joins; for an open \
                   cluster any of its members, and several as in host0:7210,host1:7210",
        set: |s, v| optional(v, addresses, &mut s.join),
        show: |s| s.join.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "found",
        expected: "\"on\" (or 1) or \"off\": over sockets, whether this process, alone, founds an open cluster of `nodes` places, \
                   which others join and leave while it runs",
        set: |s, v| choice(v, &FOUNDS, &mut s.found),
        show: |s| chosen(&s.found, &FOUNDS),
    },
    Key {
        name: "founding_file",
        expected: "\"off\", or a file that a process writes when it founds an open cluster of several masters: restarted, it \
                   rejoins that cluster and never founds a second one, even if it reaches no master",
        set: |s, v| optional(v, |path| (!path.is_empty()).then(|| PathBuf::from(path)), &mut s.founding_file),
        show: |s| {
            s.founding_file.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string())
        },
    },
    Key {
        name: "role",
        expected: "\"auto\" (a founder of an open cluster is a master, a process that joins a worker), \"master\" or \"worker\": \
                   whether a process takes one of the first places of an open cluster, which vote",
        set: |s, v| choice(v, &ROLES, &mut s.role),
        show: |s| chosen(&s.role, &ROLES),
    },
    Key {
        name: "grid",
        expected: "\"off\", or the name of this cluster among those it has trunks to: a letter, then letters, digits, - and _, 16 \
                   at most",
        set: |s, v| optional(v, cluster, &mut s.grid),
        show: |s| s.grid.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "trunks",
        expected: "\"off\", or clusters to open trunks to, as west=tcp://host:7210, separated by commas; http:// for SOAP, tls:// \
                   and https:// for TLS whatever `tls` says; needs `grid`, another name for this one",
        set: |s, v| {
            s.trunks =
                if v == "off" { Vec::new() } else { v.split(',').map(trunk).collect::<Option<_>>()? };
            Some(())
        },
        show: |s| {
            let shown = s.trunks.iter().map(Trunk::to_string).collect::<Vec<_>>();
            if shown.is_empty() { "off".to_owned() } else { shown.join(",") }
        },
    },
    Key {
        name: "trunk_bytes",
        expected: "bytes that a gateway buffers for each trunk, 4194304 or more",
        set: |s, v| number(v, 4 << 20..=usize::MAX / 2, &mut s.trunk_bytes),
        show: |s| s.trunk_bytes.to_string(),
    },
    Key {
        name: "farewell_ms",
        expected: "milliseconds up to 86400000 that a gateway that shuts down waits for parts of its cluster that do not read what \
                   comes back",
        set: |s, v| {
            let mut n = 0;
            number(v, 0..=86_400_000, &mut n)?;
            s.farewell = Duration::from_millis(n);
            Some(())
        },
        show: |s| s.farewell.as_millis().to_string(),
    },
    Key {
        name: "token_file",
        expected: "\"off\", or a file with a secret of 32 characters or more that all processes of a cluster over sockets share; a \
                   founder creates it if it does not exist",
        set: |s, v| optional(v, |path| (!path.is_empty()).then(|| PathBuf::from(path)), &mut s.token_file),
        show: |s| s.token_file.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string()),
    },
    Key {
        name: "tls",
        expected: "\"off\", \"token\", or a folder with cert.pem, key.pem and ca.pem: over sockets, whether TLS 1.3 encrypts \
                   connections, and which certificates are trusted besides the proof of the token",
        set: |s, v| {
            s.tls = match v {
                "" => return None,
                "off" => Tls::Off,
                "token" => Tls::Token,
                folder => Tls::Folder(PathBuf::from(folder)),
            };
            Some(())
        },
        show: |s| match &s.tls {
            Tls::Off => "off".to_owned(),
            Tls::Token => "token".to_owned(),
            Tls::Folder(path) => path.display().to_string(),
        },
    },
    Key {
        name: "plain",
        expected: "\"on\" or \"off\": over sockets, whether connections between hosts may be unencrypted",
        set: |s, v| choice(v, &SWITCH, &mut s.plain),
        show: |s| chosen(&s.plain, &SWITCH),
    },
    Key {
        name: "framing",
        expected: "\"tcp\" or \"soap\": over sockets, whether connections that this process opens within its cluster carry frames, \
                   or SOAP 1.2 over HTTP/1.1; it accepts either",
        set: |s, v| choice(v, &FRAMINGS, &mut s.framing),
        show: |s| chosen(&s.framing, &FRAMINGS),
    },
    Key {
        name: "codec",
        expected: "\"none\", \"lz4\", \"zstd\" or \"auto\" (per link whichever carries the most; the default for trunks): over \
                   sockets, how this process compresses the blocks it sends",
        set: |s, v| choice(v, &CODECS, &mut s.codec),
        show: |s| chosen(&s.codec, &CODECS),
    },
    Key {
        name: "outage_ms",
        expected: "milliseconds from 100 to 86400000 that a link over sockets may be without a connection before it counts as \
                   failed",
        set: |s, v| {
            let mut n = 0;
            number(v, 100..=86_400_000, &mut n)?;
            s.outage = Duration::from_millis(n);
            Some(())
        },
        show: |s| s.outage.as_millis().to_string(),
    },
    Key {
        name: "routing",
        expected: "\"direct\", or \"grid\": links to some nodes only, and two hops to the others; the same on all nodes",
        set: |s, v| choice(v, &ROUTINGS, &mut s.routing),
        show: |s| chosen(&s.routing, &ROUTINGS),
    },
    Key {
        name: "mpi",
        expected: "\"auto\" (the MPI of the launcher), \"openmpi\", \"mpich\", the path of an MPI library, or \"linked\" (with the \
                   feature `mpi-linked`)",
        set: |s, v| MpiLibrary::read(v).map(|library| s.mpi = library),
        show: |s| s.mpi.to_string(),
    },
    Key {
        name: "mpi_shared_memory",
        expected: "\"on\" or \"off\": blocks between ranks of one host go through shared memory, or in messages",
        set: |s, v| choice(v, &SWITCH, &mut s.mpi_shared_memory),
        show: |s| chosen(&s.mpi_shared_memory, &SWITCH),
    },
    Key {
        name: "group_shared_memory",
        expected: "\"on\" or \"off\": calls of groups whose members share memory go through flags there, or in messages",
        set: |s, v| choice(v, &SWITCH, &mut s.group_shared_memory),
        show: |s| chosen(&s.group_shared_memory, &SWITCH),
    },
    Key {
        name: "group_reads",
        expected: "\"on\" or \"off\": in long calls, members of a group that share memory read each other's memory where the system \
                   allows it, or go through slots in shared memory",
        set: |s, v| choice(v, &SWITCH, &mut s.group_reads),
        show: |s| chosen(&s.group_reads, &SWITCH),
    },
    Key {
        name: "group_switches",
        expected: "\"on\" or \"off\": the switches of a `fabric` carry out calls of groups where they can, or all go in messages",
        set: |s, v| choice(v, &SWITCH, &mut s.group_switches),
        show: |s| chosen(&s.group_switches, &SWITCH),
    },
    Key {
        name: "mpi_device_bytes",
        expected: "bytes from which MPI itself carries device messages, if it is CUDA-aware, or 0: all go through blocks",
        set: |s, v| number(v, 0..=usize::MAX / 2, &mut s.mpi_device_bytes),
        show: |s| s.mpi_device_bytes.to_string(),
    },
    Key {
        name: "block_bytes",
        expected: "payload bytes of a block, 256 to 1073741824",
        set: |s, v| number(v, 256..=1 << 30, &mut s.block_bytes),
        show: |s| s.block_bytes.to_string(),
    },
    Key {
        name: "pack_bytes",
        expected: "bytes at which a block of short messages is sent, 256 or more",
        set: |s, v| number(v, 256..=1 << 30, &mut s.pack_bytes),
        show: |s| s.pack_bytes.to_string(),
    },
    Key {
        name: "memory_bytes",
        expected: "bytes of block memory of each node, 65536 or more, or 0 to derive it",
        set: |s, v| {
            let mut bytes = 0;
            number(v, 0..=usize::MAX / 2, &mut bytes)?;
            s.memory_bytes = Some(bytes).filter(|b| *b == 0 || *b >= 65_536)?;
            Some(())
        },
        show: |s| s.memory_bytes.to_string(),
    },
    Key {
        name: "pin_memory",
        expected: "\"off\", \"auto\" (if there is a CUDA device) or the number of a device, 0 to 65535: whether block memory is \
                   page-locked, so that devices copy from and to it at full speed",
        set: |s, v| {
            s.pin_memory = match v {
                "off" => PinMemory::Off,
                "auto" => PinMemory::Auto,
                number => PinMemory::Device(number.parse().ok()?),
            };
            Some(())
        },
        show: |s| match s.pin_memory {
            PinMemory::Off => "off".to_owned(),
            PinMemory::Auto => "auto".to_owned(),
            PinMemory::Device(number) => number.to_string(),
        },
    },
    Key {
        name: "row_blocks",
        expected: "maximum blocks of a row, 1 to 1048576",
        set: |s, v| number(v, 1..=1 << 20, &mut s.row_blocks),
        show: |s| s.row_blocks.to_string(),
    },
    Key {
        name: "initial_blocks",
        expected: "blocks of a row at the start, or 0 to derive them",
        set: |s, v| number(v, 0..=1 << 20, &mut s.initial_blocks),
        show: |s| s.initial_blocks.to_string(),
    },
    Key {
        name: "policy",
        expected: "\"adaptive\", \"threshold\" or \"fixed\"",
        set: |s, v| choice(v, &POLICIES, &mut s.policy),
        show: |s| chosen(&s.policy, &POLICIES),
    },
    Key {
        name: "threshold",
        expected: "a space utilisation from 0.5 to 0.999",
        set: |s, v| {
            let value: f64 = v.parse().ok()?;
            let permille = (value * 1000.0).round();
            s.threshold = (500.0..=999.0)
                .contains(&permille)
                .then(|| Threshold::from_permille(permille as u16))
                .flatten()?;
            Some(())
        },
        show: |s| format!("{}", f64::from(s.threshold.permille()) / 1000.0),
    },
    Key {
        name: "flush_after_us",
        expected: "microseconds that a message waits in its block, 1 to 10000000",
        set: |s, v| micros(v, 1..=10_000_000, &mut s.flush_after),
        show: |s| s.flush_after.as_micros().to_string(),
    },
    Key {
        name: "interval_us",
        expected: "microseconds between checks of idle rows, 100 to 60000000",
        set: |s, v| micros(v, 100..=60_000_000, &mut s.interval),
        show: |s| s.interval.as_micros().to_string(),
    },
    Key {
        name: "checksum",
        expected: "\"on\" or \"off\"",
        set: |s, v| choice(v, &CHECKSUMS, &mut s.checksum),
        show: |s| chosen(&s.checksum, &CHECKSUMS),
    },
    Key {
        name: "progress",
        expected: "\"thread\", \"inline\" or \"host\"",
        set: |s, v| choice(v, &PROGRESS, &mut s.progress),
        show: |s| chosen(&s.progress, &PROGRESS),
    },
    Key {
        name: "masters",
        expected: "how many nodes, from node 0 on, may be the master, 1 to 65535; in an open cluster the places for role = \
                   \"master\", 1 by default",
        set: |s, v| number(v, 1..=65_535, &mut s.masters),
        show: |s| s.masters.to_string(),
    },
    Key {
        name: "lease_ms",
        expected: "milliseconds without a sign of life after which a node is declared down, 10 to 86400000, or 0: only when its \
                   transport says so",
        set: |s, v| {
            let mut n = 0;
            number(v, 0..=86_400_000, &mut n)?;
            s.lease = Duration::from_millis(Some(n).filter(|n| *n == 0 || *n >= 10)?);
            Some(())
        },
        show: |s| s.lease.as_millis().to_string(),
    },
    Key {
        name: "timeout_ms",
        expected: "milliseconds that blocking calls wait, 1 to 86400000",
        set: |s, v| {
            let mut n = 0;
            number(v, 1..=86_400_000, &mut n)?;
            s.timeout = Duration::from_millis(n);
            Some(())
        },
        show: |s| s.timeout.as_millis().to_string(),
    },
    Key {
        name: "parts",
        expected: "parts of the whole cluster, 1 to 1048576",
        set: |s, v| number(v, 1..=1 << 20, &mut s.parts),
        show: |s| s.parts.to_string(),
    },
    Key {
        name: "local_parts",
        expected: "parts of one node, 1 to 16384",
        set: |s, v| number(v, 1..=16_384, &mut s.local_parts),
        show: |s| s.local_parts.to_string(),
    },
    Key {
        name: "private_pipes",
        expected: "private pipes of one node, 1 to 16384",
        set: |s, v| number(v, 1..=16_384, &mut s.private_pipes),
        show: |s| s.private_pipes.to_string(),
    },
    Key {
        name: "stream_pipes",
        expected: "streams that one node sends at a time, and that one relay forwards to one node, 1 to 16384",
        set: |s, v| number(v, 1..=16_384, &mut s.stream_pipes),
        show: |s| s.stream_pipes.to_string(),
    },
    Key {
        name: "pipe_depth",
        expected: "deliveries that a private pipe holds, 1 to 65536",
        set: |s, v| number(v, 1..=65_536, &mut s.pipe_depth),
        show: |s| s.pipe_depth.to_string(),
    },
    Key {
        name: "assembly_bytes",
        expected: "bytes of messages longer than a block that all parts of a node reassemble at a time, 65536 to 4294967295",
        set: |s, v| number(v, 65_536..=u32::MAX as usize, &mut s.assembly_bytes),
        show: |s| s.assembly_bytes.to_string(),
    },
    Key {
        name: "monitor",
        expected: "\"on\", \"off\" or \"auto\" (on with `metrics`): whether nodes answer requests for their figures",
        set: |s, v| choice(v, &MONITORS, &mut s.monitor),
        show: |s| chosen(&s.monitor, &MONITORS),
    },
    Key {
        name: "metrics",
        expected: "\"off\", or an address such as 127.0.0.1:9100 that serves the figures of all nodes over HTTP",
        set: |s, v| optional(v, address, &mut s.metrics),
        show: |s| s.metrics.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "metrics_hosts",
        expected: "\"off\", or host names without ports, such as node7.lan,node7, that `metrics` and `desk` answer to besides their \
                   own names, localhost and IP addresses",
        set: |s, v| {
            s.metrics_hosts = if v == "off" { Vec::new() } else { hosts(v)? };
            Some(())
        },
        show: |s| if s.metrics_hosts.is_empty() { "off".to_owned() } else { s.metrics_hosts.join(",") },
    },
    Key {
        name: "metrics_node",
        expected: "the index of the node that serves `metrics`, 0 to 65534",
        set: |s, v| number(v, 0..=65_534, &mut s.metrics_node),
        show: |s| s.metrics_node.to_string(),
    },
    Key {
        name: "desk",
        expected: "\"off\", or an address such as 127.0.0.1:7211 where programs without PDBP reach parts by SOAP; its WSDL is at \
                   /pdbp?wsdl",
        set: |s, v| optional(v, address, &mut s.desk),
        show: |s| s.desk.clone().unwrap_or_else(|| "off".to_owned()),
    },
    Key {
        name: "desk_node",
        expected: "the index of the node that serves `desk`, 0 to 65534",
        set: |s, v| number(v, 0..=65_534, &mut s.desk_node),
        show: |s| s.desk_node.to_string(),
    },
    Key {
        name: "desk_tls",
        expected: "\"off\", or a folder with cert.pem and key.pem for the host name that clients use: `desk` then uses TLS 1.3",
        set: |s, v| optional(v, |path| (!path.is_empty()).then(|| PathBuf::from(path)), &mut s.desk_tls),
        show: |s| s.desk_tls.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string()),
    },
    Key {
        name: "client_token_file",
        expected: "\"off\", or a file with a secret of 32 characters or more that clients of `desk` and `metrics` send as bearer \
                   token, not that of `token_file`",
        set: |s, v| {
            optional(v, |path| (!path.is_empty()).then(|| PathBuf::from(path)), &mut s.client_token_file)
        },
        show: |s| {
            s.client_token_file.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string())
        },
    },
    Key {
        name: "trace",
        expected: "\"off\", or a file to write a trace to, whose name ends in .json, for ui.perfetto.dev",
        set: |s, v| optional(v, json_file, &mut s.trace),
        show: |s| s.trace.as_ref().map_or_else(|| "off".to_owned(), |path| path.display().to_string()),
    },
    Key {
        name: "trace_events",
        expected: "maximum events of a trace, 1000 to 1000000000; each takes some 150 bytes of the file",
        set: |s, v| number(v, 1000..=1_000_000_000, &mut s.trace_events),
        show: |s| s.trace_events.to_string(),
    },
];
