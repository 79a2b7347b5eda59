use std::ptr;

use super::*;

#[test]
fn choices_are_read_as_they_are_written() {
    let file = Library::File("/a/libmpi.so".into());
    for library in [Library::Auto, Library::OpenMpi, Library::Mpich, Library::Linked, file] {
        assert_eq!(library.to_string().parse(), Ok(library));
    }
    assert_eq!("libmpi.so".parse::<Library>(), Err(UnknownLibrary));
    assert_eq!("./libmpi.so".parse(), Ok(Library::File("./libmpi.so".into())));
}

#[test]
fn where_there_is_no_mpi_the_error_says_what_was_looked_for_and_what_to_do() {
    let known: &(Kind, &[&CStr]) = &(Kind::OpenMpi, &[c"libmpi-that-nobody-has.so.40", c"libm.so.6"]);
    let what = search::search(&[known], Some(Launcher::OpenMpi), &Library::Auto).err().unwrap().to_string();
    for part in [
        "launcher of Open MPI",
        "libmpi-that-nobody-has.so.40 is not there",
        "libm.so.6 is not an MPI library",
        "`mpi` being \"auto\"",
        "LD_LIBRARY_PATH",
        "apt install",
        "PDBP_MPI",
    ] {
        assert!(what.contains(part), "{part}: {what}");
    }
}

#[test]
fn a_file_that_is_no_mpi_is_an_error_that_names_it() {
    let find = |path: &str| search::find(&Library::File(path.into())).err().map(|e| e.to_string()).unwrap();
    // A program that is linked with an MPI cannot have a second one.
    if cfg!(feature = "mpi-linked") {
        return;
    }
    let what = find("libm.so.6");
    assert!(what.contains("libm.so.6 is not an MPI library"), "{what}");
    let what = find("/nowhere/libmpi.so");
    assert!(what.contains("/nowhere/libmpi.so") && what.contains("PDBP_MPI"), "{what}");
    let what = find("/dev/null");
    assert!(what.contains("/dev/null") && what.contains("cannot be loaded"), "{what}");
    for path in ["a\0b", ""] {
        let what = find(path);
        assert!(what.contains("cannot be loaded: it is no path"), "{what}");
    }
}

#[cfg(not(feature = "mpi-linked"))]
#[test]
fn linked_needs_the_feature() {
    let what = load(&Library::Linked).err().map(|e| e.to_string()).unwrap();
    assert!(what.contains("the feature `mpi-linked`"), "{what}");
}

#[test]
fn a_library_is_known_by_what_it_has_and_says_of_itself() {
    unsafe extern "C" fn standard(major: *mut c_int, minor: *mut c_int) -> c_int {
        // SAFETY: the test passes places.
        unsafe { major.write(1) };
        // SAFETY: as above.
        unsafe { minor.write(0) };
        SUCCESS
    }
    unsafe extern "C" fn its_own(_: *mut c_int, _: *mut c_int) -> c_int {
        SUCCESS
    }
    let of = |symbol: &'static CStr, address: *mut c_void| {
        move |name: &CStr| if name == symbol { address } else { ptr::null_mut() }
    };
    let anything = ptr::dangling_mut::<c_void>();
    let open_mpi = of(c"ompi_mpi_comm_world", anything);
    let other = of(c"", anything);
    unsafe extern "C" fn of_tomorrow(major: *mut c_int, _: *mut c_int) -> c_int {
        // SAFETY: the test passes a place.
        unsafe { major.write(2) };
        SUCCESS
    }
    let with_abi = of(c"MPI_Abi_get_version", standard as *mut c_void);
    let with_another_abi = of(c"MPI_Abi_get_version", of_tomorrow as *mut c_void);
    let without_abi = of(c"MPI_Abi_get_version", its_own as *mut c_void);
    let kind = |find: abi::Find, version: &str| search::kind(find, version);
    for version in ["Open MPI v3.0.0", "Open MPI v4.1.4", "Open MPI v5.0.6"] {
        assert_eq!(kind(&open_mpi, version), Ok((Kind::OpenMpi, Abi::OpenMpi)), "{version}");
    }
    assert!(kind(&open_mpi, "Open MPI v1.10.7").unwrap_err().contains("oldest"));
    for version in [
        "MPICH Version: 3.1",
        "MPICH Version: 4.0.2",
        "MVAPICH2 Version : 2.3.7",
        "Intel(R) MPI Library 2021.13 for Linux* OS",
        "MPI VERSION : CRAY MPICH version 8.1.25",
    ] {
        assert_eq!(kind(&other, version), Ok((Kind::Mpich, Abi::Mpich)), "{version}");
    }
    assert_eq!(kind(&without_abi, "MPICH Version: 5.0.0"), Ok((Kind::Mpich, Abi::Mpich)));
    for (version, family) in [
        ("MPICH Version: 5.0.2", Kind::Mpich),
        ("Open MPI v6.0.0", Kind::OpenMpi),
        ("An MPI of tomorrow", Kind::Standard),
    ] {
        assert_eq!(kind(&with_abi, version), Ok((family, Abi::Standard)), "{version}");
    }
    let what = kind(&with_another_abi, "MPICH Version: 9.0.0").unwrap_err();
    assert!(what.contains("version 2 of MPI's standard ABI") && what.contains("libmpi.so"), "{what}");
    assert!(kind(&other, "MPICH Version: 3.0.4").unwrap_err().contains("3.1 is the oldest"));
    assert!(kind(&other, "Platform MPI 9.1").unwrap_err().contains("neither"));
}

#[test]
fn a_library_that_lacks_a_function_is_an_error_that_names_it() {
    // A library without any function, but with all constants.
    let nothing: abi::Find = &|_| ptr::null_mut();
    // SAFETY: nothing of it is called.
    let missing = unsafe { Abi::Mpich.of(nothing) }.err();
    assert_eq!(missing.as_deref(), Some("MPI_Initialized"));
    // SAFETY: as above.
    let missing = unsafe { Abi::Standard.of(nothing) }.err();
    assert_eq!(missing.as_deref(), Some("MPI_Initialized"));
    // SAFETY: as above.
    let missing = unsafe { Abi::OpenMpi.of(nothing) }.err();
    assert_eq!(missing.as_deref(), Some("ompi_mpi_comm_world"));
    let what = LibraryError::Incomplete { file: "libmpi.so".to_owned(), missing: "MPI_Ibarrier".to_owned() };
    assert!(what.to_string().contains("MPI_Ibarrier is missing"), "{what}");
}

/// Compares the constants written here for the two interfaces with those that the compiler reads in a header.
#[cfg(feature = "mpi-linked")]
#[test]
fn constants_are_those_of_the_header() {
    let (_, linked) = abi::linked().unwrap();
    let program = search::Opened::of_program();
    let find: abi::Find = &|name| program.find(name);
    let version = search::version(&program).unwrap();
    let (_, abi) = search::kind(find, &version).unwrap();
    // SAFETY: the program is linked with one.
    let (_, known) = unsafe { abi.of(find) }.unwrap();
    let handles = |c: &Constants| {
        [c.world, c.own, c.no_request, c.no_info, c.no_window, c.errors_return, c.byte, c.word, c.least]
    };
    assert!(handles(&linked) == handles(&known));
    let numbers = |c: &Constants| (c.of_host, c.in_status, c.congruent, c.threads);
    assert_eq!(numbers(&linked), numbers(&known));
    let sizes = |c: &Constants| (c.request_bytes, c.status_bytes, c.error_at);
    assert_eq!(sizes(&linked), sizes(&known));
}

#[test]
fn addresses_that_are_not_mapped_are_known() {
    let here = Box::new(0_u64);
    assert!(system::is_mapped((&raw const *here).addr()));
    for nowhere in [0, 8, 0x7fff_0000_1238] {
        assert!(!system::is_mapped(nowhere), "{nowhere:#x}");
    }
}
