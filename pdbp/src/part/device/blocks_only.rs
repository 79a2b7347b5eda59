//! Without MPI all device messages go through blocks.

use pdbp_cuda::device::Device;
use pdbp_cuda::flow::{FlowError, HostBlock, Inflow, Outflow, Step, VacantBlock};

use super::super::{Part, StreamReader, StreamWriter, Target};
use crate::error::{RecvError, SendError};

/// There is none.
pub(super) struct DirectSend<D>(std::convert::Infallible, std::marker::PhantomData<D>);

/// There is none.
pub(super) struct DirectRecv<D>(std::convert::Infallible, std::marker::PhantomData<D>);

/// Nothing is announced.
pub(super) fn listen(reader: StreamReader<'_>) -> StreamReader<'_> {
    reader
}

impl<D: Device> DirectSend<D> {
    pub(super) fn begin<B: VacantBlock>(_: &Part, _: Target, _: &Outflow<D, B>) -> Option<Self> {
        None
    }

    pub(super) fn is_moving(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn poll<B: VacantBlock>(
        &mut self,
        _: &Outflow<D, B>,
        _: &mut StreamWriter<'_>,
    ) -> Result<Option<Step>, FlowError<SendError>> {
        match self.0 {}
    }
}

impl<D: Device> DirectRecv<D> {
    pub(super) fn begin<B: HostBlock>(
        _: &mut StreamReader<'_>,
        _: &mut Inflow<D, B>,
    ) -> Result<Option<Self>, FlowError<RecvError>> {
        Ok(None)
    }

    pub(super) fn is_moving(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn poll<B: HostBlock>(
        &mut self,
        _: &mut Inflow<D, B>,
        _: &mut StreamReader<'_>,
    ) -> Result<Step, FlowError<RecvError>> {
        match self.0 {}
    }
}
