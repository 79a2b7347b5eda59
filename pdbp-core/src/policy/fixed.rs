use super::{Growth, SpacePolicy};
use crate::matrix::RowSpace;

/// Every row keeps its initial space: the static allocation that others are compared with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fixed;

impl SpacePolicy for Fixed {
    fn at_critical(&self, _: &RowSpace, _: u32) -> Growth {
        Growth::Keep
    }
}
