use super::{Growth, SpacePolicy};
use crate::matrix::RowSpace;

/// Every row keeps its initial space: the static allocation against which other policies are compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed;

impl SpacePolicy for Fixed {
    fn at_critical(&self, _: &RowSpace, _: u32) -> Growth {
        Growth::Keep
    }
}
