//! Functions by name: every process registers the same ones, and a task names the one to call.

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::scope::{Given, Scope};
use crate::wire::{self, Bytes, Ending, Failure, KindId};

/// Version of the messages between processors and pool. 2: results name the large values that they are made of. 3: names include a run, and pools
/// have a number.
const WIRE: &str = "3";

/// A registered function from `I` to `O`.
pub struct Kind<I, O> {
    pub(crate) id: KindId,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for Kind<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Kind<I, O> {}

impl<I, O> Kind<I, O> {
    /// A kind of this number, whatever its types.
    #[cfg(test)]
    pub(crate) fn of(id: KindId) -> Self {
        Self { id, types: PhantomData }
    }

    /// Its number, for what is added by [`Chunk`](crate::wire::Chunk).
    pub fn id(&self) -> KindId {
        self.id
    }
}

/// Calls a function with an encoded input.
type Function = Box<dyn Fn(&mut Scope<'_>, &[u8]) -> Ending + Send + Sync>;

struct Registered {
    /// Name and types.
    name: String,
    function: Option<Function>,
}

/// All functions of a program.
pub(crate) struct Kinds {
    program: String,
    list: Vec<Registered>,
}

impl Kinds {
    pub(crate) fn new(program: &str) -> Self {
        Self { program: program.to_owned(), list: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// A number that distinguishes programs with different functions: it covers the versions of this crate and of its messages, and all names and
    /// types.
    pub(crate) fn fingerprint(&self) -> u64 {
        // FNV-1a: the same in all processes, whatever compiled them.
        let names = self.list.iter().map(|kind| &*kind.name);
        let names = [env!("CARGO_PKG_VERSION"), WIRE, &self.program].into_iter().chain(names);
        names
            .flat_map(|name| name.bytes().chain([0]))
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// # Errors
    /// A kind without a function.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.list.iter().find(|kind| kind.function.is_none()) {
            Some(kind) => Err(Error::Undefined(kind.name.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn declare<I, O>(&mut self, name: &str) -> Kind<I, O> {
        // Indices beyond what a message can name are refused where a task is added.
        let id = KindId(u16::try_from(self.list.len()).unwrap_or(u16::MAX));
        let types = (std::any::type_name::<I>(), std::any::type_name::<O>());
        self.list.push(Registered { name: format!("{name}: {} -> {}", types.0, types.1), function: None });
        Kind { id, types: PhantomData }
    }

    pub(crate) fn define<I: DeserializeOwned, O>(
        &mut self,
        kind: Kind<I, O>,
        function: impl Fn(&mut Scope<'_>, I) -> Given<O> + Send + Sync + 'static,
    ) {
        self.set(kind.id, move |scope, input| match wire::decode(input) {
            Ok(input) => function(scope, input).ending,
            Err(error) => unreadable(&error),
        });
    }

    pub(crate) fn define_plain<I: DeserializeOwned, O: Serialize>(
        &mut self,
        kind: Kind<I, O>,
        function: impl Fn(I) -> O + Send + Sync + 'static,
    ) {
        self.set(kind.id, move |_, input| match wire::decode(input) {
            Ok(input) => value(&function(input)),
            Err(error) => unreadable(&error),
        });
    }

    fn set(
        &mut self,
        id: KindId,
        function: impl Fn(&mut Scope<'_>, &[u8]) -> Ending + Send + Sync + 'static,
    ) {
        if let Some(kind) = self.list.get_mut(usize::from(id.0)) {
            kind.function = Some(Box::new(function));
        }
    }

    /// Calls the function of a kind. Panics pass through.
    pub(crate) fn call(&self, id: KindId, scope: &mut Scope<'_>, input: &[u8]) -> Ending {
        match self.list.get(usize::from(id.0)).and_then(|kind| kind.function.as_ref()) {
            Some(function) => function(scope, input),
            None => Ending::Failed(Failure::Unusable(format!("unknown kind {}", id.0))),
        }
    }
}

fn unreadable(error: &postcard::Error) -> Ending {
    Ending::Failed(Failure::Unusable(format!("its input does not fit the type of its kind: {error}")))
}

/// An encoded result.
pub(crate) fn value<O: Serialize>(value: &O) -> Ending {
    match encode(value) {
        // The length is checked later, together with everything else that the task returns.
        Ok(bytes) => Ending::Value(bytes),
        Err(error) => Ending::Failed(Failure::Unusable(format!("its result cannot be encoded: {error}"))),
    }
}

/// An input or result as bytes.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Bytes, postcard::Error> {
    // Most are short.
    let mut short = [0; 64];
    match postcard::to_slice(value, &mut short) {
        Ok(bytes) => Ok(Bytes::from(&*bytes)),
        Err(_) => Ok(Bytes::from(postcard::to_stdvec(value)?)),
    }
}
