//! Without MPI, all device messages go through blocks.

use pdbp_cuda::device::Device;
use pdbp_cuda::flow::{FlowError, HostBlock, Inflow, Outflow, Step, VacantBlock};

use super::super::{HoldsPart, Part, Share, StreamReader, StreamWriter, Target};
use crate::error::{RecvError, SendError};

/// Never constructed.
pub(super) struct DirectSend<D>(std::convert::Infallible, std::marker::PhantomData<D>);

/// Never constructed.
pub(super) struct DirectRecv<D>(std::convert::Infallible, std::marker::PhantomData<D>);

/// Nothing is announced.
pub(super) fn listen<P: HoldsPart + Clone>(reader: StreamReader<P>) -> StreamReader<P> {
    reader
}

impl<D: Device> DirectSend<D> {
    pub(super) fn begin<S: Share, B: VacantBlock>(_: &Part<S>, _: Target, _: &Outflow<D, B>) -> Option<Self> {
        None
    }

    pub(super) fn is_moving(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn poll<P: HoldsPart + Clone, B: VacantBlock>(
        &mut self,
        _: &Outflow<D, B>,
        _: &mut StreamWriter<P>,
    ) -> Result<Option<Step>, FlowError<SendError>> {
        match self.0 {}
    }
}

impl<D: Device> DirectRecv<D> {
    pub(super) fn begin<P: HoldsPart + Clone, B: HostBlock>(
        _: &mut StreamReader<P>,
        _: &mut Inflow<D, B>,
    ) -> Result<Option<Self>, FlowError<RecvError>> {
        Ok(None)
    }

    pub(super) fn is_moving(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn poll<P: HoldsPart + Clone, B: HostBlock>(
        &mut self,
        _: &mut Inflow<D, B>,
        _: &mut StreamReader<P>,
    ) -> Result<Step, FlowError<RecvError>> {
        match self.0 {}
    }
}
