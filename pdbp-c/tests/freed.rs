//! Handles that were freed. In a process of its own, since the memory of the last 64 of a process is kept.

use std::ffi::CStr;
use std::ptr;

use pdbp_c::cluster::{
    ABI, ClusterHandle, SettingsHandle, pdbp_cluster_free, pdbp_cluster_node, pdbp_settings_free,
    pdbp_settings_new, pdbp_settings_set, pdbp_start_abi,
};
use pdbp_c::node::{NodeHandle, pdbp_node_free, pdbp_poll};
use pdbp_c::part::{PartHandle, pdbp_flush, pdbp_part_free, pdbp_register, pdbp_self};
use pdbp_c::status::{Status, pdbp_error};
use pdbp_c::stream::{
    ReaderHandle, WriterHandle, pdbp_accept, pdbp_finish, pdbp_open, pdbp_read, pdbp_reader_free, pdbp_write,
    pdbp_writer_flush, pdbp_writer_free,
};

/// Calls a function for C.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        // SAFETY: handles, of which those that were freed are among the last 64, and room for what is written.
        unsafe { $function($($argument),*) }
    };
}

fn done(status: Status) {
    assert_eq!(status, Status::DONE, "{}", error());
}

fn error() -> String {
    let text = call!(pdbp_error());
    // SAFETY: text that ends with a zero byte, until the next failure of this thread.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// One handle of each kind.
struct Handles {
    settings: *mut SettingsHandle,
    cluster: *mut ClusterHandle,
    node: *mut NodeHandle,
    part: *mut PartHandle,
    writer: *mut WriterHandle,
    reader: *mut ReaderHandle,
}

impl Handles {
    fn new() -> Self {
        let (mut settings, mut cluster, mut node) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut part, mut writer, mut reader) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        done(call!(pdbp_settings_new(&raw mut settings)));
        for (key, value) in [(c"nodes", c"1"), (c"transport", c"local"), (c"progress", c"inline")] {
            done(call!(pdbp_settings_set(settings, key.as_ptr(), value.as_ptr())));
        }
        done(call!(pdbp_start_abi(ABI, settings, &raw mut cluster)));
        done(call!(pdbp_cluster_node(cluster, 0, &raw mut node)));
        done(call!(pdbp_register(node, c"part".as_ptr(), 0, &raw mut part)));
        let to = call!(pdbp_self(part));
        done(call!(pdbp_open(part, to, &raw mut writer)));
        done(call!(pdbp_write(writer, c"bytes".as_ptr().cast(), 5, ptr::null_mut(), -1)));
        done(call!(pdbp_writer_flush(writer)));
        done(call!(pdbp_accept(part, -1, &raw mut reader, ptr::null_mut())));
        Self { settings, cluster, node, part, writer, reader }
    }

    fn free(&self) {
        call!(pdbp_part_free(self.part));
        call!(pdbp_writer_free(self.writer));
        call!(pdbp_reader_free(self.reader));
        call!(pdbp_node_free(self.node));
        call!(pdbp_cluster_free(self.cluster));
        call!(pdbp_settings_free(self.settings));
    }

    /// What a call with each says.
    fn use_all(&self) -> [Status; 6] {
        let (mut node, mut byte, mut got) = (ptr::null_mut(), 0_u8, 0);
        [
            call!(pdbp_settings_set(self.settings, c"nodes".as_ptr(), c"1".as_ptr())),
            call!(pdbp_cluster_node(self.cluster, 0, &raw mut node)),
            call!(pdbp_poll(self.node, ptr::null_mut())),
            call!(pdbp_flush(self.part)),
            call!(pdbp_finish(self.writer)),
            call!(pdbp_read(self.reader, (&raw mut byte).cast(), 1, &raw mut got, 0)),
        ]
    }
}

#[test]
fn a_handle_that_was_freed_is_refused_until_64_others_were() {
    let handles = Handles::new();
    handles.free();
    assert_eq!(handles.use_all(), [Status::E_HANDLE; 6]);
    assert!(error().contains("has already been freed"), "{}", error());
    // Twice is as good as once.
    handles.free();
    // Others do not get the same memory, and those that are freed leave it alone for a while.
    for _ in 0..9 {
        let others = Handles::new();
        assert_eq!(handles.use_all(), [Status::E_HANDLE; 6]);
        others.free();
    }
    assert_eq!(handles.use_all(), [Status::E_HANDLE; 6]);
}
