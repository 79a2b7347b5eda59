//! Kernels: programs of the device, started after the work already on a queue.
//!
//! A kernel is a CUDA C file of the repository; the driver takes the PTX that was compiled from it once, which lies next to it
//! (`pdbp-cuda/tests/kernels.rs` compiles it, and notices when the two do not match). So neither a toolkit nor a compiler is needed
//! where programs are built or run. Kernels run on devices from compute capability 7.0 on.
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

/// Kernels loaded on a device. Clones share them. Dropping the last clone, and the last of their kernels, unloads them, which waits
/// until the device is idle.
#[derive(Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
}

/// A kernel, which any thread may launch. Clones share it.
#[derive(Clone)]
pub struct Kernel {
    function: sys::CUfunction,
    /// The module that contains the function.
    module: Arc<Loaded>,
}

struct Loaded {
    module: sys::CUmodule,
    /// Not the device, which may itself hold the module.
    context: Arc<CudaContext>,
}

// SAFETY: handles, which any thread may use as long as they are valid.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}
// SAFETY: a handle, which any thread may use as long as the module is loaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module {
    /// Makes the driver compile PTX for the device, which takes milliseconds.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] with the driver's error: for example, it is not PTX, or of a later version than the driver's.
    pub fn load(device: &Cuda, ptx: &str) -> Result<Self, DeviceError> {
        const CALL: &str = "cuModuleLoadData";
        let code = sys::CUresult::CUDA_ERROR_INVALID_PTX as u32;
        let image =
            CString::new(ptx).map_err(|e| DeviceError::Failed { call: CALL, code, text: e.to_string() })?;
        device.bind()?;
        // SAFETY: a text that ends with 0, which is not used after the call returns.
        let module = check(CALL, unsafe { result::module::load_data(image.as_ptr().cast()) })?;
        Ok(Self { loaded: Arc::new(Loaded { module, context: Arc::clone(device.primary()) }) })
    }

    /// Returns the kernel of that name (`extern "C"` in its source).
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if there is none, and the driver's errors.
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
    /// Starts the kernel after the work on the queue, and returns: `blocks` blocks of `threads` threads each. The event of the next
    /// copy on the queue, or of [`Device::mark`](crate::device::Device::mark), marks its end.
    ///
    /// # Errors
    /// The driver's errors, for example for 0 blocks or more than 1024 threads. Errors while the kernel runs are reported by events
    /// behind it.
    ///
    /// # Safety
    /// `arguments` must have one pointer to each argument of the kernel, of its type; they are read before this returns. With them,
    /// the kernel must touch only valid memory of the device that nothing else writes, or reads where the kernel writes, until its
    /// end. The queue must belong to the device on which the kernel was loaded.
    pub unsafe fn launch(
        &self,
        queue: &CudaQueue,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DeviceError> {
        bind(&self.module.context)?;
        let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
        // SAFETY: the function is in a loaded module, and the queue is alive; the rest is the caller's promise.
        let launched =
            unsafe { result::launch_kernel(self.function, grid, block, 0, queue.stream().cast(), arguments) };
        check("cuLaunchKernel", launched)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // A kernel whose last handle is gone may still be running: if its end cannot be awaited, the module stays loaded. Nothing
        // can be unloaded from a lost device.
        if bind(&self.context).is_ok() && result::ctx::synchronize().is_ok() {
            // SAFETY: loaded in `load`, and unloaded only here, when no function of it is held and none is running.
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

    /// A kernel without work, launched on another thread through the only remaining handle to its module.
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
            // SAFETY: as many arguments, of these types; a table without entries is not read.
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
