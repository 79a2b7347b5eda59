//! The core's tokens as blocks of a flow.

use std::ptr::NonNull;

use pdbp_core::{Delivery, OpenBlock};

use super::{HostBlock, VacantBlock};

/// Where a token goes when its block is not needed any more.
pub trait Home<T>: 'static {
    /// Takes it back.
    fn take_back(&self, token: T);
}

/// A token of the core, an [`OpenBlock`] to be filled or a [`Delivery`] to be read, which goes home when it is dropped.
pub struct Lent<T: 'static, H: Home<T>> {
    /// Until it is taken out.
    token: Option<T>,
    place: NonNull<[u8]>,
    home: H,
}

impl<H: Home<OpenBlock>> Lent<OpenBlock, H> {
    /// A block of which the flow fills what `room` gives.
    pub fn open(mut block: OpenBlock, home: H, room: impl FnOnce(&mut OpenBlock) -> &mut [u8]) -> Self {
        let place = NonNull::from(room(&mut block));
        Self { token: Some(block), place, home }
    }
}

impl<H: Home<Delivery>> Lent<Delivery, H> {
    /// A delivery of which the flow reads what `data` gives.
    pub fn arrived(delivery: Delivery, home: H, data: impl FnOnce(&Delivery) -> &[u8]) -> Self {
        let place = NonNull::from(data(&delivery));
        Self { token: Some(delivery), place, home }
    }
}

impl<T, H: Home<T>> Lent<T, H> {
    /// The token, which does not go home by itself any more.
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

// SAFETY: the place lies in a block whose bytes the token owns, and which stays where it is for as long as the token lives, wherever
// that is moved (`pdbp_core::umb`). Nobody can use the token meanwhile, since only `into_token` and drop give it out. It was
// borrowed exclusively to find the place.
unsafe impl<H: Home<OpenBlock>> HostBlock for Lent<OpenBlock, H> {
    fn place(&mut self) -> NonNull<[u8]> {
        self.place
    }
}

// SAFETY: a writer's token is the only right to its bytes.
unsafe impl<H: Home<OpenBlock>> VacantBlock for Lent<OpenBlock, H> {}

// SAFETY: as for open blocks; the bytes of a delivery are not written by anybody while it lives.
unsafe impl<H: Home<Delivery>> HostBlock for Lent<Delivery, H> {
    fn place(&mut self) -> NonNull<[u8]> {
        self.place
    }
}
