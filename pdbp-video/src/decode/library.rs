//! C libraries that are loaded on demand.

/// A structure `Functions` of a library's functions, by their names and types, and how to find them in it. Who uses it says at its place
/// why the types are right.
macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions, by their names in C.
        #[allow(non_snake_case, reason = "they are called what the library calls them")]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Takes the functions from the library and those that it was linked with, or says which is not there.
            fn find(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {$(
                    // SAFETY: the function of this name has this type in all versions that are accepted: who uses the macro says why.
                    $name: unsafe { library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(stringify!($name)) }
                        .map(|symbol| *symbol)
                        .map_err(|_| stringify!($name))?,
                )*})
            }
        }
    };
}
pub(crate) use functions;

/// What the system's loader said; the error itself names its function only.
pub(crate) fn loader_reason(error: &libloading::Error) -> String {
    core::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether the loader found no such file, in glibc's, musl's and macOS's words.
pub(crate) fn is_absence(reason: &str) -> bool {
    ["No such file", "no such file", "cannot find"].iter().any(|words| reason.contains(words))
}
