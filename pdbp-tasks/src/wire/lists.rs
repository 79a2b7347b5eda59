//! Lists in messages. An element may take many more bytes in memory than in the message: an empty input takes one there and 24 here. So all lists
//! of a message together are bounded by what they take in memory. Their lengths come first, so that each takes exactly what its elements need.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::pieces;

/// Bytes that the elements of all lists of a message may take in memory, not counting what they own.
pub(super) const MOST: usize = pieces::MOST;

thread_local! {
    /// What is left of these for the message that this thread decodes, if it does.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Decodes a message, whose lists may take this many bytes in memory.
pub(super) fn within<R>(most: usize, decode: impl FnOnce() -> R) -> R {
    LEFT.set(Some(most));
    let decoded = decode();
    LEFT.set(None);
    decoded
}

/// Decodes a list.
pub(crate) fn bounded<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(List(PhantomData))
}

/// Decodes a list that may be missing.
pub(super) fn bounded_option<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error> {
    from.deserialize_option(OrNone(PhantomData))
}

struct List<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        if let Some(left) = LEFT.get() {
            let count = elements.size_hint().ok_or_else(|| A::Error::custom("a list without a length"))?;
            let left = count.checked_mul(size_of::<T>()).and_then(|bytes| left.checked_sub(bytes));
            let reserved = left.is_some_and(|_| list.try_reserve_exact(count).is_ok());
            if !reserved {
                return Err(A::Error::custom("the lists of a message take too many bytes in memory"));
            }
            LEFT.set(left);
        }
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(list)
    }
}

struct OrNone<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OrNone<T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or none")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        bounded(from).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::{self, Chunk, Inputs, KindId, Request, Up};

    /// A gigabyte of them took 24 gigabytes of the pool's memory.
    #[test]
    fn a_message_with_more_empty_inputs_than_its_lists_may_have_memory_for_is_malformed() {
        let inputs = |count: u64| {
            let chunk = Chunk::new(KindId(0), Inputs::List(Vec::new()));
            let request = Request::Add { fingerprint: 7, job: 0, first: 0, chunks: vec![chunk] };
            let mut bytes = postcard::to_stdvec(&Up::Request { id: 1, request }).unwrap();
            // Behind the list, which is empty: no `join`, and nothing in `after`.
            let rest = bytes.split_off(bytes.len() - 2);
            bytes.pop();
            bytes.extend(postcard::to_stdvec(&count).unwrap());
            bytes.resize(bytes.len() + count as usize, 0);
            bytes.extend(rest);
            bytes
        };
        let most = 1000 * size_of::<wire::Bytes>();
        let decode = |count| wire::decode_within::<Up>(most + size_of::<Chunk>(), &inputs(count));
        let Up::Request { request: Request::Add { chunks, .. }, .. } = decode(1000).unwrap() else {
            panic!("it adds tasks")
        };
        let Inputs::List(list) = &chunks[0].inputs else { panic!("it is a list") };
        assert_eq!((list.len(), list.capacity()), (1000, 1000));
        assert!(decode(1001).is_err());
        assert!(wire::decode::<Up>(&inputs(1001)).is_ok());
    }
}
