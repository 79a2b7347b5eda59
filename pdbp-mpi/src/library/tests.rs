use super::*;

#[test]
fn choices_are_read_as_they_are_written() {
    for library in [
        Library::Auto,
        Library::OpenMpi,
        Library::Mpich,
        Library::Linked,
        Library::File("/a/libmpi.so".into()),
    ] {
        assert_eq!(library.to_string().parse(), Ok(library));
    }
    assert_eq!("libmpi.so".parse::<Library>(), Err(UnknownLibrary));
    assert_eq!("./libmpi.so".parse(), Ok(Library::File("./libmpi.so".into())));
}
