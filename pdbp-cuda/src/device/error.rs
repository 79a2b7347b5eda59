//! What can go wrong with a device.

use std::fmt;

/// Why a device did not do what it was asked for. After [`is_lost`](Self::is_lost) it does nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver on this machine.
    NoDriver,
    /// The driver is older than this crate needs. Both as the driver writes them: 12020 is 12.2.
    OldDriver {
        /// The driver's version.
        found: i32,
        /// The oldest that will do.
        needed: i32,
    },
    /// The driver has no device to offer.
    NoDevices,
    /// There are fewer devices.
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// How many there are.
        devices: usize,
    },
    /// Neither device nor pinned memory of 0 bytes can be had.
    Empty,
    /// There is not as much memory.
    OutOfMemory {
        /// Bytes asked for.
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
    /// A copy may be under way in device memory, of which nobody knows when it ends.
    InUse {
        /// Bytes of the memory.
        bytes: usize,
    },
    /// A memory or queue belongs to another device, or to another context of the same.
    OtherDevice {
        /// That to which it belongs.
        owner: String,
        /// That with which it was used.
        device: String,
    },
    /// The driver refused a call. It says nothing about work that is under way.
    Failed {
        /// The driver's function.
        call: &'static str,
        /// The driver's code.
        code: u32,
        /// The driver's words.
        text: String,
    },
    /// Work on the device has failed, so that it does nothing more for this process: the driver ends all work of a context with it.
    Lost {
        /// The driver's code.
        code: u32,
        /// The driver's words.
        text: String,
    },
}

impl DeviceError {
    /// Whether the device does nothing more for this process. What was under way there is over.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Whether the machine has no device that can be used, as opposed to one that failed. Tests are skipped then.
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
                    "the driver knows CUDA {}.{}, and {}.{} is needed; install a newer driver",
                    found.0, found.1, needed.0, needed.1
                )
            }
            Self::NoDevices => f.write_str(
                "the driver offers no device; look at `nvidia-smi -L`, and at CUDA_VISIBLE_DEVICES, which may hide all",
            ),
            Self::NoSuchDevice { ordinal, devices } => {
                write!(f, "no device {ordinal}; this process sees {devices}, numbered from 0")
            }
            Self::Empty => f.write_str("memory of 0 bytes cannot be had; ask for 1 or more"),
            Self::OutOfMemory { bytes } => {
                write!(f, "no {bytes} bytes of memory are left; free some, or ask for less")
            }
            Self::OutOfBounds { at, bytes, room } => {
                write!(f, "{bytes} bytes at {at} do not lie in device memory of {room} bytes")
            }
            Self::InUse { bytes } => write!(
                f,
                "a copy may be under way in device memory of {bytes} bytes, since the driver did not say when it ends; use other memory"
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
