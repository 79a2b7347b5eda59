//! The driver's codes become results.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

use crate::device::DeviceError;

/// What a driver's function said.
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

/// As [`check`], of a call that asked for so many bytes.
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

/// Whether the context is of no use after this error, by the driver's documentation: "the process must be terminated".
fn is_final(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
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
