//! The macro that makes every exported function, and what it does with parameters: it checks them, catches panics, and turns results
//! into what C gets.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::time::Duration;

use crate::node::TargetBits;
use crate::status::{Failure, Status};

/// A parameter of an exported function.
pub trait Arg {
    /// What C passes.
    type C: Copy;
    /// What the function works with.
    type Value<'a>;

    /// Checks what C passes.
    ///
    /// # Errors
    /// What is wrong with it.
    ///
    /// # Safety
    /// The caller of the exported function keeps the promises of the header.
    unsafe fn check<'a>(c: Self::C) -> Result<Self::Value<'a>, Failure>;

    /// Marks a handle as unusable, since a call that used it has panicked.
    fn poison(_: Self::C) {}

    /// Its type in the header.
    #[cfg(test)]
    fn c_name() -> String;

    /// Nothing: null, or 0.
    #[cfg(test)]
    fn null() -> Self::C;

    /// Something to call the function with.
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> Self::C;

    /// The same, but for a handle: one of another kind.
    #[cfg(test)]
    fn foreign(world: &crate::tests::World) -> Self::C {
        Self::sample(world)
    }
}

/// The result of an exported function.
pub trait Ret {
    /// What C gets when the call has failed. (The failure is in `pdbp_error`.)
    fn failed(status: Status) -> Self;

    /// Its type in the header.
    #[cfg(test)]
    fn c_name() -> &'static str;

    /// The status, if it is one.
    #[cfg(test)]
    fn status(&self) -> Option<Status> {
        None
    }
}

macro_rules! results {
    ($($type:ty, $name:literal, $failed:expr;)*) => {$(
        impl Ret for $type {
            fn failed(_: Status) -> Self {
                $failed
            }
            #[cfg(test)]
            fn c_name() -> &'static str {
                $name
            }
        }
    )*};
}

results! {
    (), "void", ();
    u16, "uint16_t", 0;
    u32, "uint32_t", 0;
    usize, "size_t", 0;
    *const c_char, "const char *", std::ptr::null();
}

impl Ret for Status {
    fn failed(status: Status) -> Self {
        status
    }
    #[cfg(test)]
    fn c_name() -> &'static str {
        "pdbp_status"
    }
    #[cfg(test)]
    fn status(&self) -> Option<Status> {
        Some(*self)
    }
}

/// Exports functions. Each checks its parameters from left to right ([`Arg`]), runs its body, which gives a result or a [`Failure`], and
/// catches panics: then its handles are poisoned, and the call has failed with `PDBP_E_PANIC`.
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty $body:block)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// As `pdbp.h` says: pointers are null, or what they are declared to be.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: <$type as $crate::call::Arg>::C),*) -> $ret {
                let call = || -> Result<$ret, $crate::status::Failure> {
                    $(
                        // SAFETY: the caller keeps the promises of the header.
                        let $arg = unsafe { <$type as $crate::call::Arg>::check($arg) }?;
                    )*
                    #[cfg(test)]
                    $crate::tests::panic_on_purpose();
                    $body
                };
                match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
                    Ok(Ok(result)) => result,
                    Ok(Err(failure)) => <$ret as $crate::call::Ret>::failed(failure.record()),
                    Err(panic) => {
                        $(<$type as $crate::call::Arg>::poison($arg);)*
                        let failure = $crate::call::panicked(stringify!($name), panic);
                        <$ret as $crate::call::Ret>::failed(failure.record())
                    }
                }
            }
        )*

        /// The functions of this module, for tests that call each of them.
        #[cfg(test)]
        pub(crate) const EXPORTS: &[$crate::tests::Export] = &[$($crate::tests::Export {
            name: stringify!($name),
            signature: || {
                let args: Vec<String> = vec![$(<$type as $crate::call::Arg>::c_name()),*];
                (<$ret as $crate::call::Ret>::c_name(), args)
            },
            null: || {
                // SAFETY: null is what every function checks for.
                let result = unsafe { $name($(<$type as $crate::call::Arg>::null()),*) };
                $crate::call::Ret::status(&result)
            },
            sample: |_world| {
                // SAFETY: the handles and places of the world are as the header says.
                let result = unsafe { $name($(<$type as $crate::call::Arg>::sample(_world)),*) };
                $crate::call::Ret::status(&result)
            },
            foreign: |_world| {
                // SAFETY: a handle of another kind is one, whose first word is looked at before anything else.
                let result = unsafe { $name($(<$type as $crate::call::Arg>::foreign(_world)),*) };
                $crate::call::Ret::status(&result)
            },
        }),*];
    };
}
pub(crate) use exports;

/// What a call that has panicked says.
#[cold]
pub(crate) fn panicked(name: &str, panic: Box<dyn Any + Send>) -> Failure {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Failure::new(
        Status::E_PANIC,
        format!("{name} panicked, a bug of PDBP: {text}; its handles can only be freed now"),
    )
}

/// What a null pointer is refused with.
#[cold]
fn null<T>(what: &str) -> Result<T, Failure> {
    Err(Failure::new(Status::E_NULL, format!("null pointer instead of {what}")))
}

macro_rules! plain {
    ($($type:ty, $name:literal, $null:expr, |$world:ident| $sample:expr;)*) => {$(
        impl Arg for $type {
            type C = $type;
            type Value<'a> = $type;
            #[inline(always)]
            unsafe fn check<'a>(c: $type) -> Result<Self::Value<'a>, Failure> {
                Ok(c)
            }
            #[cfg(test)]
            fn c_name() -> String {
                $name.to_owned()
            }
            #[cfg(test)]
            fn null() -> $type {
                $null
            }
            #[cfg(test)]
            fn sample($world: &crate::tests::World) -> $type {
                $sample
            }
        }
    )*};
}

plain! {
    u16, "uint16_t", 0, |_world| 0;
    u32, "uint32_t", 0, |_world| 1;
    u64, "uint64_t", 0, |_world| 1;
    usize, "size_t", 0, |_world| 1;
    CommBits, "uintptr_t", CommBits(0), |_world| CommBits(0);
    Status, "pdbp_status", Status::DONE, |_world| Status::E_NULL;
    *const c_void, "const void *", std::ptr::null(), |world| world.room::<c_void>();
    *const *const c_char, "const char *const *", std::ptr::null(), |world| world.texts();
    *mut c_void, "void *", std::ptr::null_mut(), |world| world.room();
    TargetBits, "pdbp_target", TargetBits(0), |world| world.target.get();
    *const TargetBits, "const pdbp_target *", std::ptr::null(), |world| world.target.as_ptr();
}

/// How long to wait, in nanoseconds: 0 not at all, -1 as long as the setting `timeout_ms` says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Wait(i64);

impl Wait {
    /// Not at all.
    pub(crate) const NONE: Self = Self(0);
    /// As long as the setting `timeout_ms` says.
    pub(crate) const SET: Self = Self(-1);

    /// Whether the call must not wait.
    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The time given; `None` if it is that of the setting.
    #[inline(always)]
    pub(crate) fn given(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }

    /// The time to wait on a node.
    pub(crate) fn on(self, node: &pdbp::Node) -> Duration {
        self.given().unwrap_or_else(|| node.settings().timeout)
    }

    /// A failure as the status of a call that waited so long: one that must not wait has not waited in vain.
    pub(crate) fn failure(self, error: impl Into<Failure>) -> Failure {
        let failure = error.into();
        if self.is_none() && failure.status() == Status::TIMEOUT { Failure::WOULD_BLOCK } else { failure }
    }
}

/// A handle of a communicator, as a number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct CommBits(usize);

impl CommBits {
    /// The number.
    #[cfg(feature = "mpi")]
    pub(crate) fn get(self) -> usize {
        self.0
    }
}

impl Arg for Wait {
    type C = i64;
    type Value<'a> = Self;
    #[inline(always)]
    unsafe fn check<'a>(c: i64) -> Result<Self::Value<'a>, Failure> {
        // What is left until a time that has passed must not be the setting by accident.
        if c < -1 { no_time(c) } else { Ok(Self(c)) }
    }
    #[cfg(test)]
    fn c_name() -> String {
        "pdbp_ns".to_owned()
    }
    #[cfg(test)]
    fn null() -> i64 {
        0
    }
    #[cfg(test)]
    fn sample(_: &crate::tests::World) -> i64 {
        0
    }
}

/// Text that ends with a zero byte.
pub enum Text {}

impl Arg for Text {
    type C = *const c_char;
    type Value<'a> = &'a str;
    unsafe fn check<'a>(c: *const c_char) -> Result<Self::Value<'a>, Failure> {
        if c.is_null() {
            return null("text");
        }
        // SAFETY: not null, so it is text that ends with a zero byte and stays as it is during the call (the header's promise).
        let text = unsafe { CStr::from_ptr(c) };
        text.to_str().map_err(|_| {
            Failure::new(Status::E_ARGUMENT, format!("{:?} is not UTF-8", text.to_string_lossy()))
        })
    }
    #[cfg(test)]
    fn c_name() -> String {
        "const char *".to_owned()
    }
    #[cfg(test)]
    fn null() -> *const c_char {
        std::ptr::null()
    }
    #[cfg(test)]
    fn sample(_: &crate::tests::World) -> *const c_char {
        c"text".as_ptr()
    }
}

/// The name of a type in the header.
pub trait Named {
    /// The name.
    #[cfg(test)]
    const NAME: &'static str;
}

macro_rules! named {
    ($($type:ty, $name:literal;)*) => {$(
        impl $crate::call::Named for $type {
            #[cfg(test)]
            const NAME: &'static str = $name;
        }
    )*};
}
pub(crate) use named;

named! {
    c_int, "int";
    u16, "uint16_t";
    u32, "uint32_t";
    i64, "pdbp_ns";
    usize, "size_t";
    *mut c_void, "void *";
}

impl<T> Named for *mut T
where
    T: Handle,
{
    #[cfg(test)]
    const NAME: &'static str = T::POINTER;
}

/// Where a result goes.
pub struct Out<T>(PhantomData<T>);

/// Where a result goes that the caller may not want: null then.
pub struct MaybeOut<T>(PhantomData<T>);

/// Room for one value, or for nothing.
pub struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Writes the value.
    #[inline(always)]
    pub(crate) fn put(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so it is room for one value (the header's promise), which may hold anything.
            unsafe { self.0.write(value) }
        }
    }

    /// Where it is.
    pub(crate) fn pointer(&self) -> *mut T {
        self.0
    }
}

impl<T: Named> Arg for Out<T> {
    type C = *mut T;
    type Value<'a> = Place<T>;
    #[inline(always)]
    unsafe fn check<'a>(c: *mut T) -> Result<Self::Value<'a>, Failure> {
        if c.is_null() { null("room for a result") } else { Ok(Place(c)) }
    }
    #[cfg(test)]
    fn c_name() -> String {
        format!("{} *", T::NAME).replace("* *", "**")
    }
    #[cfg(test)]
    fn null() -> *mut T {
        std::ptr::null_mut()
    }
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut T {
        world.room()
    }
}

impl<T: Named> Arg for MaybeOut<T> {
    type C = *mut T;
    type Value<'a> = Place<T>;
    unsafe fn check<'a>(c: *mut T) -> Result<Self::Value<'a>, Failure> {
        Ok(Place(c))
    }
    #[cfg(test)]
    fn c_name() -> String {
        Out::<T>::c_name()
    }
    #[cfg(test)]
    fn null() -> *mut T {
        std::ptr::null_mut()
    }
    #[cfg(test)]
    fn sample(world: &crate::tests::World) -> *mut T {
        world.room()
    }
}

pub use crate::handle::Handle;

/// So many values from an address on.
///
/// # Errors
/// A null pointer, unless there are none; more than any memory has.
///
/// # Safety
/// If it is not null it points to so many values that stay as they are for `'a`.
#[inline(always)]
pub(crate) unsafe fn values<'a, T>(at: *const T, count: usize) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return null("data");
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return too_many::<T, _>(count);
    }
    // SAFETY: `count` values that nobody changes meanwhile (contract); they fit into memory.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// Bytes from an address on.
///
/// # Errors
/// As [`values`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(at: *const c_void, size: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's promise.
    unsafe { values(at.cast(), size) }
}

/// Room for so many values that may hold anything.
///
/// # Errors
/// As [`values`].
///
/// # Safety
/// If it is not null it points to room for so many values, which nobody else uses for `'a`.
pub(crate) unsafe fn room<'a, T>(
    at: *mut T,
    count: usize,
) -> Result<&'a mut [std::mem::MaybeUninit<T>], Failure> {
    if count == 0 {
        return Ok(&mut []);
    }
    if at.is_null() {
        return null("room for results");
    }
    if count > isize::MAX as usize / size_of::<T>() {
        return too_many::<T, _>(count);
    }
    // SAFETY: room for `count` values that nobody else uses (contract); they may be uninitialised, as the type says.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), count) })
}

#[cold]
fn too_many<T, R>(count: usize) -> Result<R, Failure> {
    let each = size_of::<T>();
    Err(Failure::new(Status::E_ARGUMENT, format!("{count} values of {each} bytes exceed the address space")))
}

#[cold]
fn no_time<T>(nanoseconds: i64) -> Result<T, Failure> {
    let text = format!(
        "{nanoseconds} nanoseconds is not a valid timeout; use 0 to return at once, or PDBP_SET_TIMEOUT (-1) to wait for `timeout_ms`"
    );
    Err(Failure::new(Status::E_ARGUMENT, text))
}
