//! Versions, settings and clusters.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use pdbp::config::Origin;
use pdbp::{Builder, Cluster, Settings};

use crate::call::{CommBits, Out, Text, exports};
use crate::freed::{boxed, unboxed};
use crate::handle::{Free, Handle, Header, In, Look, Maybe};
use crate::node::NodeHandle;
use crate::status::{Failure, Status};

/// The version of the ABI, `PDBP_ABI` in the header: major and minor version of this crate.
pub const ABI: u32 = parsed(env!("CARGO_PKG_VERSION_MAJOR")) << 16 | parsed(env!("CARGO_PKG_VERSION_MINOR"));

const fn parsed(text: &str) -> u32 {
    let (bytes, mut i, mut number) = (text.as_bytes(), 0, 0);
    while i < bytes.len() {
        number = number * 10 + (bytes[i] - b'0') as u32;
        i += 1;
    }
    number
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no zero byte"),
};

/// `pdbp_settings`.
#[repr(C)]
pub struct SettingsHandle {
    header: Header,
    settings: Mutex<Settings>,
}

// SAFETY: see the struct.
unsafe impl Handle for SettingsHandle {
    const TAG: u32 = 0x5345_5454;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_settings *";
    fn header(&self) -> &Header {
        &self.header
    }
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut Self {
        world.settings.get()
    }
}

/// `pdbp_cluster`.
#[repr(C)]
pub struct ClusterHandle {
    header: Header,
    cluster: Cluster,
}

// SAFETY: see the struct.
unsafe impl Handle for ClusterHandle {
    const TAG: u32 = 0x434c_5553;
    #[cfg(test)]
    const POINTER: &'static str = "pdbp_cluster *";
    fn header(&self) -> &Header {
        &self.header
    }
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut Self {
        world.cluster.get()
    }
}

/// What a cluster is started with, if the program was compiled for this library.
fn builder(abi: u32, settings: Option<&SettingsHandle>) -> Result<Builder, Failure> {
    if abi != ABI {
        let [(major, minor), (own_major, own_minor)] = [abi, ABI].map(|abi| (abi >> 16, abi & 0xffff));
        return Err(Failure::new(
            Status::E_VERSION,
            format!(
                "the program was compiled with pdbp.h {major}.{minor}, but this is libpdbp {own_major}.{own_minor}; recompile it"
            ),
        ));
    }
    let settings = match settings {
        Some(settings) => settings.settings.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        None => Settings::load(None)?,
    };
    Ok(Builder::from(settings))
}

#[cfg(feature = "mpi")]
fn start_on(builder: Builder, comm: CommBits) -> Result<Cluster, Failure> {
    // SAFETY: `pdbp_start_on` hands over a communicator of the MPI that the program has; one of another MPI is refused.
    Ok(unsafe { builder.start_on_raw_communicator(comm.get()) }?)
}

#[cfg(not(feature = "mpi"))]
fn start_on(_: Builder, _: CommBits) -> Result<Cluster, Failure> {
    let text = "this libpdbp was built without MPI; build it with the feature `mpi`, which is on by default";
    Err(Failure::new(Status::E_UNSUPPORTED, text.to_owned()))
}

exports! {
    /// The version of the ABI that this library has.
    fn pdbp_abi() -> u32 {
        Ok(ABI)
    }

    /// The version of this library.
    fn pdbp_version() -> *const c_char {
        Ok(VERSION.as_ptr())
    }

    /// Settings as environment and file say.
    fn pdbp_settings_new(out: Out<*mut SettingsHandle>) -> Status {
        let settings = Mutex::new(Settings::load(None)?);
        out.put(boxed(SettingsHandle { header: Header::new::<SettingsHandle>(), settings }));
        Ok(Status::DONE)
    }

    /// Sets a value by its name.
    fn pdbp_settings_set(settings: In<SettingsHandle>, key: Text, value: Text) -> Status {
        let mut settings = settings.settings.lock().unwrap_or_else(PoisonError::into_inner);
        settings.set(key, value, Origin::Builder)?;
        Ok(Status::DONE)
    }

    /// Frees settings.
    fn pdbp_settings_free(settings: Free<SettingsHandle>) -> () {
        let Some(settings) = settings else { return Ok(()) };
        // SAFETY: `pdbp_settings_new` has made it, and this is its end.
        drop(unsafe { unboxed(settings) });
        Ok(())
    }

    /// Starts the nodes that this process hosts; `pdbp_start` in the header passes its version along.
    fn pdbp_start_abi(abi: u32, settings: Maybe<SettingsHandle>, out: Out<*mut ClusterHandle>) -> Status {
        let cluster = builder(abi, settings)?.start()?;
        out.put(boxed(ClusterHandle { header: Header::new::<ClusterHandle>(), cluster }));
        Ok(Status::DONE)
    }

    /// Starts the node of this process on an MPI communicator of the program; `pdbp_start_on` in `pdbp_mpi.h` hands it over as a number.
    fn pdbp_start_comm(abi: u32, settings: Maybe<SettingsHandle>, comm: CommBits, out: Out<*mut ClusterHandle>) -> Status {
        let cluster = start_on(builder(abi, settings)?, comm)?;
        out.put(boxed(ClusterHandle { header: Header::new::<ClusterHandle>(), cluster }));
        Ok(Status::DONE)
    }

    /// Nodes of the whole cluster; 0 for null.
    fn pdbp_cluster_size(cluster: Look<ClusterHandle>) -> u16 {
        Ok(cluster.cluster.settings().nodes)
    }

    /// A node that this process hosts.
    fn pdbp_cluster_node(cluster: In<ClusterHandle>, index: u16, out: Out<*mut NodeHandle>) -> Status {
        out.put(boxed(NodeHandle::new(cluster.cluster.node(index.into())?)));
        Ok(Status::DONE)
    }

    /// Frees a cluster; its nodes run on while there are handles of them, or of their parts.
    fn pdbp_cluster_free(cluster: Free<ClusterHandle>) -> () {
        let Some(cluster) = cluster else { return Ok(()) };
        // SAFETY: `pdbp_start_abi` has made it, and this is its end.
        drop(unsafe { unboxed(cluster) });
        Ok(())
    }
}

crate::call::named! {
    SettingsHandle, "pdbp_settings";
    ClusterHandle, "pdbp_cluster";
}
