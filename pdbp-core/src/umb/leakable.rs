//! Values that must outlive their owner.

/// A value that can be left in place (leaked) when its owner is dropped.
pub(crate) struct Leakable<T> {
    value: core::mem::ManuallyDrop<T>,
    /// Whether the value must outlive its owner.
    pub(crate) leak: bool,
}

impl<T> Leakable<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: core::mem::ManuallyDrop::new(value), leak: false }
    }
}

impl<T> core::ops::Deref for Leakable<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> core::ops::DerefMut for Leakable<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Leakable<T> {
    fn drop(&mut self) {
        if !self.leak {
            // SAFETY: `self` is being dropped, so the value is dropped once and not used again.
            unsafe { core::mem::ManuallyDrop::drop(&mut self.value) }
        }
    }
}
