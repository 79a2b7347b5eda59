//! Turns the driver's codes into results.

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError, result};

use crate::device::DeviceError;

/// Makes the context current on this thread. Costs next to nothing if it is: other code in the process may have changed that, so it is
/// checked each time.
///
/// Not [`CudaContext::bind_to_thread`], which returns and clears the errors that `cudarc` has recorded when something of the program
/// was dropped. Nor does it matter if the driver's answer to which context is current is an error: its functions also report what went
/// wrong elsewhere before. Such an error may be of any context: it is never [`DeviceError::Lost`].
pub(crate) fn bind(context: &CudaContext) -> Result<(), DeviceError> {
    let wanted = context.cu_ctx();
    if let Ok(Some(current)) = result::ctx::get_current()
        && current == wanted
    {
        return Ok(());
    }
    // SAFETY: a context that is retained.
    let bound = unsafe { result::ctx::set_current(wanted) };
    bound.map_err(|e| DeviceError::Failed { call: "cuCtxSetCurrent", code: e.0 as u32, text: words(&e) })
}

/// Converts the result of a driver function.
pub(crate) fn check<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, DeviceError> {
    result.map_err(|e| {
        let (code, text) = (e.0 as u32, words(&e));
        if is_final(e.0) {
            DeviceError::Lost { code, text }
        } else {
            DeviceError::Failed { call, code, text }
        }
    })
}

/// Like [`check`], for a call that requested `bytes` bytes.
pub(crate) fn check_room<T>(
    call: &'static str,
    bytes: usize,
    result: Result<T, DriverError>,
) -> Result<T, DeviceError> {
    match result {
        Err(e) if e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory { bytes }),
        other => check(call, other),
    }
}

fn words(error: &DriverError) -> String {
    let known = error.error_string().map(|text| text.to_string_lossy().into_owned());
    known.unwrap_or_else(|_| format!("{:?}", error.0))
}

/// Whether the context is unusable after this error, by the driver's documentation: "any further CUDA work will return the same
/// error", "the context cannot be used any more". None of its work then runs. (`CUDA_ERROR_DEINITIALIZED`, of a driver that is about
/// to shut down, does not imply that running work has ended.)
fn is_final(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
    )
}
