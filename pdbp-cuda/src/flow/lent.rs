//! The core's tokens as blocks of a flow.

use std::ptr::NonNull;

use pdbp_core::{Delivery, OpenBlock};

use super::{HostBlock, VacantBlock};

/// Where a token goes when its block is no longer needed.
pub trait Home<T>: 'static {
    /// Takes the token back.
    fn take_back(&self, token: T);
}

/// A token of the core, an [`OpenBlock`] to be filled or a [`Delivery`] to be read, which goes home when it is dropped.
pub struct Lent<T: 'static, H: Home<T>> {
    /// `None` once it has been taken out.
    token: Option<T>,
    place: NonNull<[u8]>,
    home: H,
}

impl<H: Home<OpenBlock>> Lent<OpenBlock, H> {
    /// Wraps a block; the flow fills the bytes that `room` returns.
    pub fn open(mut block: OpenBlock, home: H, room: impl FnOnce(&mut OpenBlock) -> &mut [u8]) -> Self {
        let place = NonNull::from(room(&mut block));
        Self { token: Some(block), place, home }
    }
}

impl<H: Home<Delivery>> Lent<Delivery, H> {
    /// Wraps a delivery; the flow reads the bytes that `data` returns.
    pub fn arrived(delivery: Delivery, home: H, data: impl FnOnce(&Delivery) -> &[u8]) -> Self {
        let place = NonNull::from(data(&delivery));
        Self { token: Some(delivery), place, home }
    }
}

impl<T, H: Home<T>> Lent<T, H> {
    /// Returns the token, which then no longer goes home by itself.
    pub fn into_token(mut self) -> Option<T> {
        self.token.take()
    }
}

impl<T, H: Home<T>> Drop for Lent<T, H> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.home.take_back(token);
        }
    }
}

// SAFETY: the place lies in a block whose bytes the token owns, and which stays in place for as long as the token lives, wherever
// the token is moved (`pdbp_core::umb`). The token cannot be used meanwhile, since only `into_token` and drop give it out. It was
// borrowed exclusively to find the place.
unsafe impl<H: Home<OpenBlock>> HostBlock for Lent<OpenBlock, H> {
    fn place(&mut self) -> NonNull<[u8]> {
        self.place
    }
}

// SAFETY: a writer's token is the only right to its bytes.
unsafe impl<H: Home<OpenBlock>> VacantBlock for Lent<OpenBlock, H> {}

// SAFETY: as for open blocks; the bytes of a delivery are not written while it lives.
unsafe impl<H: Home<Delivery>> HostBlock for Lent<Delivery, H> {
    fn place(&mut self) -> NonNull<[u8]> {
        self.place
    }
}
