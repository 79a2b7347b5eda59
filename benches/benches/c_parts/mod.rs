//! Two parts that exchange messages, in Rust and by the functions for C.

use std::ffi::c_void;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr;

use pdbp::{Builder, Cluster, Part, PartKind, Shared};
use pdbp_c::cluster::{
    ABI, ClusterHandle, SettingsHandle, pdbp_cluster_node, pdbp_settings_new, pdbp_settings_set,
    pdbp_start_abi,
};
use pdbp_c::message::{BatchInfo, MessageInfo, pdbp_release, pdbp_release_batch};
use pdbp_c::node::{NodeHandle, TargetBits, pdbp_poll};
use pdbp_c::part::{
    PartHandle, pdbp_flush, pdbp_recv, pdbp_recv_batch, pdbp_recv_many, pdbp_register, pdbp_self, pdbp_send,
    pdbp_send_train,
};
use pdbp_c::status::Status;

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Messages of a measurement.
pub(crate) const COUNT: usize = 1000;
/// Messages of a train.
const TRAIN: usize = 100;

/// How messages are sent and received.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// One by one.
    Messages,
    /// Sent one by one, received by 32.
    By32,
    /// Many at a time.
    Trains,
}

fn bytes() -> Vec<u8> {
    (0..MESSAGE * COUNT).map(|i| i as u8).collect()
}

/// Nothing happens by the clock, which runs fast under callgrind.
const SETTINGS: [(&str, &str); 5] = [
    ("nodes", "2"),
    ("transport", "local"),
    ("progress", "inline"),
    ("flush_after_us", "10000000"),
    ("interval_us", "60000000"),
];

/// Two parts, in Rust.
pub(crate) struct Rust {
    _cluster: Cluster,
    sender: Part<Shared>,
    receiver: Part<Shared>,
    bytes: Vec<u8>,
}

impl Rust {
    pub(crate) fn new() -> Self {
        let builder = SETTINGS.iter().fold(Builder::new(), |builder, (key, value)| builder.set(key, value));
        let cluster = builder.start().expect("a cluster");
        let register = |node, name| {
            let node = cluster.node(node).expect("a node of this process");
            node.register_shared(name, PartKind::Cpu).expect("there is room for a part")
        };
        let (sender, receiver) = (register(0, "sender"), register(1, "receiver"));
        Self { _cluster: cluster, sender, receiver, bytes: bytes() }
    }

    pub(crate) fn go(&mut self, how: How) {
        let to = self.receiver.id();
        match how {
            How::Trains => {
                for train in self.bytes.chunks(MESSAGE * TRAIN) {
                    self.sender.sender(to).send_train(train, MESSAGE).expect("there is room");
                }
            }
            _ => {
                for message in self.bytes.as_chunks::<MESSAGE>().0 {
                    self.sender.send(to, message).expect("there is room");
                }
            }
        }
        self.sender.flush();
        let mut got = 0;
        while got < COUNT {
            match how {
                How::Trains => {
                    while let Some(batch) = self.receiver.try_recv_batch() {
                        black_box((batch.message_len(), batch.bytes().first().copied()));
                        got += batch.len();
                    }
                }
                _ => {
                    while let Some(message) = self.receiver.try_recv() {
                        black_box((message.len(), message.first().copied()));
                        got += 1;
                    }
                }
            }
            if got < COUNT {
                self.sender.node().poll();
            }
        }
    }
}

/// Two parts, by the functions for C. They are left to the end of the process.
pub(crate) struct C {
    sender: *mut PartHandle,
    receiver: *mut PartHandle,
    to: TargetBits,
    node: *mut NodeHandle,
    bytes: Vec<u8>,
}

/// Calls a function for C.
macro_rules! call {
    ($function:ident($($argument:expr),*)) => {
        // SAFETY: handles, and room for what is written.
        unsafe { $function($($argument),*) }
    };
}

fn done(status: Status) {
    assert_eq!(status, Status::DONE);
}

impl C {
    pub(crate) fn new() -> Self {
        let text = |text: &str| std::ffi::CString::new(text).expect("no zero byte");
        let mut settings: *mut SettingsHandle = ptr::null_mut();
        done(call!(pdbp_settings_new(&raw mut settings)));
        for (key, value) in SETTINGS.map(|(key, value)| (text(key), text(value))) {
            done(call!(pdbp_settings_set(settings, key.as_ptr(), value.as_ptr())));
        }
        let mut cluster: *mut ClusterHandle = ptr::null_mut();
        done(call!(pdbp_start_abi(ABI, settings, &raw mut cluster)));
        let register = |index: u16| {
            let (mut node, mut part): (*mut NodeHandle, *mut PartHandle) = (ptr::null_mut(), ptr::null_mut());
            done(call!(pdbp_cluster_node(cluster, index, &raw mut node)));
            done(call!(pdbp_register(node, c"part".as_ptr(), 0, &raw mut part)));
            (node, part)
        };
        let ((node, sender), (_, receiver)) = (register(0), register(1));
        Self { sender, receiver, to: call!(pdbp_self(receiver.cast_const())), node, bytes: bytes() }
    }

    pub(crate) fn go(&mut self, how: How) {
        let (sender, to) = (self.sender, self.to);
        let at = |from: &[u8]| from.as_ptr().cast::<c_void>();
        match how {
            How::Trains => {
                for train in self.bytes.chunks(MESSAGE * TRAIN) {
                    done(call!(pdbp_send_train(sender, to, at(train), MESSAGE, TRAIN, ptr::null_mut(), -1)));
                }
            }
            _ => {
                for message in self.bytes.chunks_exact(MESSAGE) {
                    done(call!(pdbp_send(sender, to, at(message), MESSAGE, -1)));
                }
            }
        }
        done(call!(pdbp_flush(sender)));
        let mut got = 0;
        while got < COUNT {
            got += match how {
                How::Messages => self.receive(),
                How::By32 => self.receive_by_32(),
                How::Trains => self.receive_trains(),
            };
            if got < COUNT {
                done(call!(pdbp_poll(self.node, ptr::null_mut())));
            }
        }
    }

    fn receive(&self) -> usize {
        let mut message = MaybeUninit::<MessageInfo>::uninit();
        let mut got = 0;
        while call!(pdbp_recv(self.receiver, message.as_mut_ptr(), 0)) == Status::DONE {
            touch(message.as_ptr());
            call!(pdbp_release(message.as_mut_ptr(), 1));
            got += 1;
        }
        got
    }

    fn receive_by_32(&self) -> usize {
        let mut messages = [const { MaybeUninit::<MessageInfo>::uninit() }; 32];
        let (mut got, mut all) = (0, 0);
        let at = messages.as_mut_ptr().cast::<MessageInfo>();
        while call!(pdbp_recv_many(self.receiver, at, 32, &raw mut got, 0)) == Status::DONE {
            messages.iter().take(got).for_each(|message| touch(message.as_ptr()));
            call!(pdbp_release(at, got));
            all += got;
        }
        all
    }

    fn receive_trains(&self) -> usize {
        let mut batch = MaybeUninit::<BatchInfo>::uninit();
        let mut got = 0;
        while call!(pdbp_recv_batch(self.receiver, batch.as_mut_ptr(), 0)) == Status::DONE {
            // SAFETY: it was received.
            let found = unsafe { batch.assume_init_ref() };
            black_box((found.each, found.data));
            got += found.count;
            call!(pdbp_release_batch(batch.as_mut_ptr()));
        }
        got
    }
}

/// Looks at length and first byte.
#[inline(always)]
fn touch(message: *const MessageInfo) {
    // SAFETY: it was received.
    let message = unsafe { &*message };
    // SAFETY: a message of 64 bytes.
    black_box((message.size, unsafe { message.data.cast::<u8>().read() }));
}
