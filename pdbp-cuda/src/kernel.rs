//! Kernels: programs of the device, started behind what is on a queue.
//!
//! A kernel is a CUDA C file of the repository; what the driver takes is the PTX that was made of it once, which lies next to it
//! (`pdbp-cuda/tests/kernels.rs` makes it, and notices when the two do not fit). So neither a toolkit nor a compiler is needed
//! where programs are built or run. Devices from compute capability 7.0 on run them.
//!
//! ```
//! use pdbp_cuda::device::Cuda;
//! use pdbp_cuda::kernel::Module;
//!
//! const PTX: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pieces.ptx"));
//! match Cuda::open(0) {
//!     Ok(device) => println!("{:?}", Module::load(&device, PTX)?.kernel("gather")?),
//!     Err(e) => println!("skipped: {e}"),
//! }
//! # Ok::<(), pdbp_cuda::device::DeviceError>(())
//! ```

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use crate::device::{Cuda, CudaQueue, DeviceError, bind, check};

/// Kernels that were loaded on a device. Clones are the same; the last one, and of their kernels, unloads them, for which it waits
/// until the device has nothing to do.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// A kernel, which any thread may launch. Clones are the same.
#[derive(Clone)]
pub struct Kernel {
    function: sys::CUfunction,
    /// In which the function is.
    module: Arc<Loaded>,
}

struct Loaded {
    module: sys::CUmodule,
    /// Not the device, which may have the module itself.
    context: Arc<CudaContext>,
}

// SAFETY: handles, which any thread may use as long as they are alive.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}
// SAFETY: a handle, which any thread may use as long as the module is loaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module {
    /// Has the driver compile PTX for the device, which takes milliseconds.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] with what the driver says, such as that it is no PTX, or of a later version than the driver's.
    pub fn load(device: &Cuda, ptx: &str) -> Result<Self, DeviceError> {
        const CALL: &str = "cuModuleLoadData";
        let code = sys::CUresult::CUDA_ERROR_INVALID_PTX as u32;
        let image =
            CString::new(ptx).map_err(|e| DeviceError::Failed { call: CALL, code, text: e.to_string() })?;
        device.bind()?;
        // SAFETY: a text that ends with 0, which is not used any more when the call returns.
        let module = check(CALL, unsafe { result::module::load_data(image.as_ptr().cast()) })?;
        Ok(Self { loaded: Arc::new(Loaded { module, context: Arc::clone(device.primary()) }) })
    }

    /// The kernel of that name (`extern "C"` in its source).
    ///
    /// # Errors
    /// [`DeviceError::Failed`] when there is none, and what the driver says.
    pub fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        const CALL: &str = "cuModuleGetFunction";
        let code = sys::CUresult::CUDA_ERROR_NOT_FOUND as u32;
        let name =
            CString::new(name).map_err(|e| DeviceError::Failed { call: CALL, code, text: e.to_string() })?;
        bind(&self.loaded.context)?;
        // SAFETY: the module is loaded.
        let function = check(CALL, unsafe { result::module::get_function(self.loaded.module, name) })?;
        Ok(Kernel { function, module: Arc::clone(&self.loaded) })
    }
}

impl Kernel {
    /// Starts the kernel behind what is on the queue, and goes on: so many blocks, of so many threads each. The end is that of
    /// the next copy on the queue, or of [`Device::mark`](crate::device::Device::mark).
    ///
    /// # Errors
    /// What the driver says, such as that there are 0 blocks, or more than 1024 threads. What fails while the kernel runs is said
    /// by events behind it.
    ///
    /// # Safety
    /// `arguments` has one pointer to each argument of the kernel, of its type; they are read before this returns. What the kernel
    /// makes of them touches only memory of the device that is there, and that nobody else writes, or reads where the kernel
    /// writes, until the end. The queue is of the device on which the kernel was loaded.
    pub unsafe fn launch(
        &self,
        queue: &CudaQueue,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        bind(&self.module.context)?;
        let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
        // SAFETY: the function is of a module that is loaded, the queue is alive; the rest is the caller's promise.
        let launched =
            unsafe { result::launch_kernel(self.function, grid, block, 0, queue.stream().cast(), arguments) };
        check("cuLaunchKernel", launched)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // A kernel may run yet, whose last handle is gone: what nobody has waited for stays loaded. Of a lost device nothing can be
        // unloaded.
        if bind(&self.context).is_ok() && result::ctx::synchronize().is_ok() {
            // SAFETY: of `load`, and unloaded only here, when nobody has a function of it and nothing of it runs.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module(device {})", self.loaded.context.ordinal())
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel(device {})", self.module.context.ordinal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, device_or_skip};

    const PIECES: &str = include_str!("../kernels/pieces.ptx");

    #[test]
    fn what_the_driver_cannot_load_or_find_is_an_error() {
        let Some(device) = device_or_skip("what_the_driver_cannot_load_or_find_is_an_error") else { return };
        for text in ["nonsense", "a\0b", "// Nothing else.\n"] {
            let call = Module::load(&device, text).map(drop);
            let expected = matches!(call, Err(DeviceError::Failed { call: "cuModuleLoadData", .. }));
            assert!(expected, "{text:?}: {call:?}");
        }
        let module = Module::load(&device, PIECES).unwrap();
        assert!(module.kernel("gather").is_ok());
        for name in ["gathers", "", "gather\0"] {
            let call = module.kernel(name).map(drop);
            let expected = matches!(call, Err(DeviceError::Failed { call: "cuModuleGetFunction", .. }));
            assert!(expected, "{name:?}: {call:?}");
        }
    }

    /// A kernel of nothing to do, by handles that are all that is left of its module, on another thread.
    #[test]
    fn a_kernel_is_launched_by_any_thread_and_its_end_is_marked() {
        let Some(device) = device_or_skip("a_kernel_is_launched_by_any_thread_and_its_end_is_marked") else {
            return;
        };
        let kernel = Module::load(&device, PIECES).and_then(|module| module.kernel("gather")).unwrap();
        let (other, queue) = (device.clone(), device.queue().unwrap());
        let launch = move |blocks, threads| {
            let (mut nowhere, mut none, mut one) = (0_u64, 0_u32, 1_u32);
            let mut arguments: [*mut c_void; 5] = [
                (&raw mut nowhere).cast(),
                (&raw mut none).cast(),
                (&raw mut one).cast(),
                (&raw mut nowhere).cast(),
                (&raw mut nowhere).cast(),
            ];
            // SAFETY: as many arguments of these types; a table of no entries is not read.
            unsafe { kernel.launch(&queue, blocks, threads, &mut arguments) }?;
            other.mark(&queue)
        };
        let thread = std::thread::spawn(move || {
            for (blocks, threads) in [(0, 1), (1, 0), (1, 1025)] {
                let call = launch(blocks, threads).map(drop);
                assert!(matches!(call, Err(DeviceError::Failed { call: "cuLaunchKernel", .. })), "{call:?}");
            }
            launch(3, 64).unwrap()
        });
        let end = thread.join().unwrap();
        device.wait(&end).unwrap();
        assert_eq!(device.is_over(&end), Ok(true));
    }
}
