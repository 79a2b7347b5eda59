//! Each exported function with null, with handles whose cluster is gone, and after a panic; who may use a part; and the ABI.

mod abi;
mod threads;

use std::cell::Cell;
use std::ptr;

use crate::cluster::{ClusterHandle, SettingsHandle};
use crate::device::CudaHandle;
use crate::group::GroupHandle;
use crate::handle::Handle;
use crate::node::{NodeHandle, TargetBits};
use crate::part::PartHandle;
use crate::status::Status;
use crate::stream::{ReaderHandle, WriterHandle};
use crate::{cluster, device, group, message, node, part, status, stream, together};

/// An exported function, for tests that call each.
pub(crate) struct Export {
    pub(crate) name: &'static str,
    /// Its result and its parameters in the header.
    pub(crate) signature: fn() -> (&'static str, Vec<String>),
    /// Calls it with null.
    pub(crate) null: fn() -> Option<Status>,
    /// Calls it with handles of a world.
    pub(crate) sample: fn(&World) -> Option<Status>,
    /// Calls it with handles of a world that are not of the kind that it takes.
    pub(crate) foreign: fn(&World) -> Option<Status>,
}

impl Export {
    /// Whether it takes a handle.
    fn has_handle(&self) -> bool {
        let handles = ["settings", "cluster", "node", "part", "writer", "reader", "group", "cuda", "op"];
        let (_, args) = (self.signature)();
        args.iter().any(|arg| {
            handles.iter().any(|handle| arg.trim_start_matches("const ") == format!("pdbp_{handle} *"))
        })
    }
}

/// All functions.
pub(crate) fn exports() -> impl Iterator<Item = &'static Export> {
    [
        status::EXPORTS,
        cluster::EXPORTS,
        node::EXPORTS,
        part::EXPORTS,
        message::EXPORTS,
        stream::EXPORTS,
        together::EXPORTS,
        group::EXPORTS,
        device::EXPORTS,
    ]
    .into_iter()
    .flatten()
}

thread_local! {
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Panics if the test wants that.
pub(crate) fn panic_on_purpose() {
    assert!(!PANICS.get(), "on purpose");
}

/// One handle of each kind, and room for results.
pub struct World {
    pub(crate) settings: Cell<*mut SettingsHandle>,
    pub(crate) cluster: Cell<*mut ClusterHandle>,
    pub(crate) node: Cell<*mut NodeHandle>,
    pub(crate) part: Cell<*mut PartHandle>,
    pub(crate) target: Cell<TargetBits>,
    pub(crate) writer: Cell<*mut WriterHandle>,
    pub(crate) reader: Cell<*mut ReaderHandle>,
    pub(crate) group: Cell<*mut GroupHandle>,
    texts: [*const std::ffi::c_char; 1],
    slots: Box<[Cell<Slot>; 4]>,
    used: Cell<usize>,
}

/// Room for a result; begins with its size.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Slot {
    size: u32,
    bytes: [u8; 252],
}

const EMPTY: Slot = Slot { size: size_of::<Slot>() as u32, bytes: [0; 252] };

/// Calls an exported function, which is to be done.
macro_rules! done {
    ($call:expr) => {{
        // SAFETY: the tests pass what the header wants.
        let status = unsafe { $call };
        assert_eq!(status, Status::DONE, "{}: {}", stringify!($call), crate::tests::error());
    }};
}
pub(crate) use done;

/// What the last failure of this thread says.
pub(crate) fn error() -> String {
    // SAFETY: no parameters.
    let text = unsafe { status::pdbp_error() };
    // SAFETY: text that ends with a zero byte, until the next failure.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl World {
    /// A node with a part that has a stream to itself.
    pub(crate) fn new() -> Self {
        let slots = Box::new([const { Cell::new(EMPTY) }; 4]);
        let world = Self {
            settings: Cell::new(ptr::null_mut()),
            cluster: Cell::new(ptr::null_mut()),
            node: Cell::new(ptr::null_mut()),
            part: Cell::new(ptr::null_mut()),
            target: Cell::new(TargetBits(0)),
            writer: Cell::new(ptr::null_mut()),
            reader: Cell::new(ptr::null_mut()),
            group: Cell::new(ptr::null_mut()),
            texts: [c"part@node0".as_ptr()],
            slots,
            used: Cell::new(0),
        };
        done!(cluster::pdbp_settings_new(world.settings.as_ptr()));
        for (key, value) in [(c"nodes", c"1"), (c"transport", c"local"), (c"progress", c"inline")] {
            done!(cluster::pdbp_settings_set(world.settings.get(), key.as_ptr(), value.as_ptr()));
        }
        done!(cluster::pdbp_start_abi(cluster::ABI, world.settings.get(), world.cluster.as_ptr()));
        done!(cluster::pdbp_cluster_node(world.cluster.get(), 0, world.node.as_ptr()));
        done!(part::pdbp_register(world.node.get(), c"part".as_ptr(), 0, world.part.as_ptr()));
        // SAFETY: a handle.
        world.target.set(unsafe { part::pdbp_self(world.part.get()) });
        done!(stream::pdbp_open(world.part.get(), world.target.get(), world.writer.as_ptr()));
        done!(stream::pdbp_write(world.writer.get(), c"bytes".as_ptr().cast(), 5, ptr::null_mut(), -1));
        done!(stream::pdbp_writer_flush(world.writer.get()));
        done!(stream::pdbp_accept(world.part.get(), -1, world.reader.as_ptr(), ptr::null_mut()));
        done!(group::pdbp_group_of_nodes(world.node.get(), c"group".as_ptr(), -1, world.group.as_ptr()));
        world
    }

    /// Frees the cluster and the node.
    fn free_cluster(&self) {
        // SAFETY: handles, or null.
        unsafe { cluster::pdbp_cluster_free(self.cluster.take_pointer()) };
        // SAFETY: as above.
        unsafe { cluster::pdbp_settings_free(self.settings.take_pointer()) };
    }

    /// Addresses of parts.
    pub(crate) fn texts(&self) -> *const *const std::ffi::c_char {
        self.texts.as_ptr()
    }

    /// A handle that is not of that kind.
    pub(crate) fn of_another_kind<T: Handle>(&self) -> *mut T {
        if T::TAG == SettingsHandle::TAG { self.node.get().cast() } else { self.settings.get().cast() }
    }

    /// Room for the next result of a call.
    pub(crate) fn room<T>(&self) -> *mut T {
        let used = self.used.get();
        self.used.set(used + 1);
        self.slots[used].as_ptr().cast()
    }

    /// Calls a function with these handles, and gives back what it has made.
    fn call(&self, export: &Export) -> Option<Status> {
        self.used.set(0);
        self.slots.iter().for_each(|slot| slot.set(EMPTY));
        let status = (export.sample)(self);
        if status != Some(Status::DONE) {
            return status;
        }
        let made = self.slots[0].as_ptr();
        macro_rules! free {
            ($free:path, $type:ty) => {{
                // SAFETY: the call has written a handle.
                let handle = unsafe { made.cast::<*mut $type>().read() };
                // SAFETY: a handle, and its end.
                unsafe { $free(handle) }
            }};
        }
        match export.name {
            "pdbp_settings_new" => free!(cluster::pdbp_settings_free, SettingsHandle),
            "pdbp_start_abi" => free!(cluster::pdbp_cluster_free, ClusterHandle),
            "pdbp_cluster_node" => free!(node::pdbp_node_free, NodeHandle),
            "pdbp_register" => free!(part::pdbp_part_free, PartHandle),
            "pdbp_cuda_open" => free!(device::pdbp_cuda_free, CudaHandle),
            "pdbp_open" => free!(stream::pdbp_writer_free, WriterHandle),
            "pdbp_accept" => free!(stream::pdbp_reader_free, ReaderHandle),
            "pdbp_group_of_nodes" | "pdbp_group_of" | "pdbp_group_local" | "pdbp_group_split" => {
                free!(group::pdbp_group_free, GroupHandle)
            }
            // SAFETY: the call has written a message.
            "pdbp_segment" | "pdbp_recv" | "pdbp_recv_many" => unsafe {
                message::pdbp_release(made.cast(), 1)
            },
            // SAFETY: the call has written a batch.
            "pdbp_recv_batch" => unsafe { message::pdbp_release_batch(made.cast()) },
            _ => {}
        }
        status
    }
}

trait TakePointer<T> {
    fn take_pointer(&self) -> *mut T;
}

impl<T> TakePointer<T> for Cell<*mut T> {
    fn take_pointer(&self) -> *mut T {
        self.replace(ptr::null_mut())
    }
}

impl Drop for World {
    /// In an order that suits nobody.
    fn drop(&mut self) {
        self.free_cluster();
        // SAFETY: handles, or null.
        unsafe { node::pdbp_node_free(self.node.take_pointer()) };
        // SAFETY: as above.
        unsafe { part::pdbp_part_free(self.part.take_pointer()) };
        // SAFETY: as above.
        unsafe { stream::pdbp_reader_free(self.reader.take_pointer()) };
        // SAFETY: as above.
        unsafe { stream::pdbp_writer_free(self.writer.take_pointer()) };
        // SAFETY: as above.
        unsafe { group::pdbp_group_free(self.group.take_pointer()) };
    }
}

#[test]
fn each_function_refuses_null() {
    for export in exports() {
        let status = (export.null)();
        assert!(status.is_none_or(|status| status == Status::E_NULL), "{}: {status:?}", export.name);
        if status.is_some() {
            assert!(error().contains("null"), "{}: {}", export.name, error());
        }
    }
}

fn needs_device(export: &Export) -> bool {
    let with_handle = ["pdbp_cuda_send", "pdbp_cuda_recv"].contains(&export.name);
    with_handle || export.name.starts_with("pdbp_op_")
}

#[test]
fn each_function_works_after_the_cluster_was_freed() {
    for export in exports() {
        let world = World::new();
        world.free_cluster();
        let status = world.call(export);
        // Functions of the cluster and the settings get null; one that writes no results cannot go wrong otherwise.
        let gone = export.name.starts_with("pdbp_cluster_") || export.name == "pdbp_settings_set";
        let expected = match export.name {
            _ if gone => Status::E_NULL,
            "pdbp_find" => Status::E_NO_PART,
            "pdbp_event" | "pdbp_wait_event" => Status::DONE,
            "pdbp_commit" => Status::E_NO_LOAN,
            // Its progress is "inline".
            "pdbp_arm" | "pdbp_event_fd" => Status::E_SETTINGS,
            "pdbp_filled" | "pdbp_discard" | "pdbp_group_patience" => Status::E_ARGUMENT,
            // The group has one member, and the sample of a rank is 1.
            "pdbp_group_broadcast"
            | "pdbp_group_scatter"
            | "pdbp_group_gather"
            | "pdbp_group_reduce"
            | "pdbp_group_send"
            | "pdbp_group_recv"
            | "pdbp_group_send_recv" => Status::E_ARGUMENT,
            // There is no MPI, or this program has not initialised it.
            "pdbp_start_comm" if status == Some(Status::E_UNSUPPORTED) => Status::E_UNSUPPORTED,
            "pdbp_start_comm" => Status::E_START,
            // What a device is needed for gets null here; programs in C call it (`examples/cuda.c`).
            "pdbp_cuda_open" => status.unwrap_or(Status::DONE),
            _ if needs_device(export) => Status::E_NULL,
            "pdbp_recv" | "pdbp_recv_many" | "pdbp_recv_batch" | "pdbp_returned" | "pdbp_wait"
            | "pdbp_accept" | "pdbp_any_segment" => Status::WOULD_BLOCK,
            _ => Status::DONE,
        };
        assert!(status.is_none_or(|status| status == expected), "{}: {status:?}, {}", export.name, error());
    }
}

#[test]
fn after_a_panic_handles_can_only_be_freed() {
    for export in exports().filter(|export| !needs_device(export)) {
        let world = World::new();
        PANICS.set(true);
        let status = world.call(export);
        PANICS.set(false);
        assert!(status.is_none_or(|status| status == Status::E_PANIC), "{}: {status:?}", export.name);
        let is_free = export.name.ends_with("_free");
        if status.is_some() {
            assert!(error().contains("on purpose"), "{}: {}", export.name, error());
        }
        if status.is_some() && export.has_handle() && !is_free {
            let again = world.call(export);
            assert_eq!(again, Some(Status::E_PANIC), "{}: {}", export.name, error());
        }
    }
}

#[test]
fn a_handle_of_another_kind_is_refused() {
    let world = World::new();
    for export in exports().filter(|export| export.has_handle()) {
        world.used.set(0);
        let status = (export.foreign)(&world);
        assert!(status.is_none_or(|status| status == Status::E_HANDLE), "{}: {status:?}", export.name);
        assert!(error().contains("not a handle of this kind"), "{}: {}", export.name, error());
    }
}
