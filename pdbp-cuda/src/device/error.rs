//! Errors of devices.

use std::fmt;

/// Why a device did not carry out a request. After [`is_lost`](Self::is_lost) it carries out nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver on this machine.
    NoDriver,
    /// The driver is older than this crate needs. Both versions are in the driver's notation: 12020 is 12.2.
    OldDriver {
        /// The driver's version.
        found: i32,
        /// The oldest version that will do.
        needed: i32,
    },
    /// The driver has no device to offer.
    NoDevices,
    /// There are fewer devices.
    NoSuchDevice {
        /// The requested number.
        ordinal: usize,
        /// The number of devices.
        devices: usize,
    },
    /// Neither device memory nor pinned memory may have 0 bytes.
    Empty,
    /// Not enough memory.
    OutOfMemory {
        /// Bytes requested.
        bytes: usize,
    },
    /// A copy would reach beyond its device memory.
    OutOfBounds {
        /// First byte.
        at: usize,
        /// Bytes to copy.
        bytes: usize,
        /// Bytes of the memory.
        room: usize,
    },
    /// A copy of the device memory may be pending whose end is unknown.
    InUse {
        /// Bytes of the memory.
        bytes: usize,
    },
    /// A memory or queue belongs to another device, or to another context of the same device.
    OtherDevice {
        /// The device to which it belongs.
        owner: String,
        /// The device with which it was used.
        device: String,
    },
    /// The driver refused a call. This says nothing about pending work.
    Failed {
        /// The driver's function.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// The driver's message.
        text: String,
    },
    /// Work on the device has failed, so the device carries out nothing more for this process: the driver ends all work of a
    /// context with it.
    Lost {
        /// The driver's code.
        code: u32,
        /// The driver's message.
        text: String,
    },
}

impl DeviceError {
    /// Whether the device carries out nothing more for this process. Its pending work is over.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Whether the machine has no usable device, as opposed to one that failed. Tests are then skipped.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoDriver | Self::OldDriver { .. } | Self::NoDevices)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |v: &i32| (v / 1000, v % 1000 / 10);
        match self {
            Self::NoDriver => f.write_str(
                "no CUDA driver: libcuda.so.1 cannot be loaded; install NVIDIA's driver, or add its folder to LD_LIBRARY_PATH \
                 (in a container: start it with access to the GPUs)",
            ),
            Self::OldDriver { found, needed } => {
                let (found, needed) = (version(found), version(needed));
                write!(
                    f,
                    "the driver supports CUDA {}.{}, but {}.{} is needed; install a newer driver",
                    found.0, found.1, needed.0, needed.1
                )
            }
            Self::NoDevices => f.write_str(
                "the driver offers no device; check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES, which may hide all devices",
            ),
            Self::NoSuchDevice { ordinal, devices } => {
                write!(f, "no device {ordinal}; this process sees {devices}, numbered from 0")
            }
            Self::Empty => f.write_str("memory of 0 bytes cannot be allocated, sent or received into; use 1 byte or more"),
            Self::OutOfMemory { bytes } => {
                write!(f, "not enough memory for {bytes} bytes; free some, or ask for less")
            }
            Self::OutOfBounds { at, bytes, room } => {
                write!(f, "{bytes} bytes at {at} do not lie in device memory of {room} bytes")
            }
            Self::InUse { bytes } => write!(
                f,
                "a copy may still be in flight in device memory of {bytes} bytes, since the driver did not report its end; use other memory"
            ),
            Self::OtherDevice { owner, device } => {
                write!(
                    f,
                    "what belongs to {owner} was used with {device}; use the device that it was made for (`Cuda::of` opens that of a \
                     context)"
                )
            }
            Self::Failed { call, code, text } => write!(f, "{call}: {text} (code {code})"),
            Self::Lost { code, text } => {
                write!(f, "the device is lost to this process: {text} (code {code}); start the process again")
            }
        }
    }
}

impl std::error::Error for DeviceError {}
