//! Placeholder
use crate::arguments::Arguments;
use crate::table::Output;
use pdbp_cuda::device::Cuda;
use std::error::Error;
pub(crate) fn measure(
    _device: &Cuda,
    _arguments: &Arguments,
    _output: &mut Output,
) -> Result<(), Box<dyn Error>> {
    Ok(())
}
