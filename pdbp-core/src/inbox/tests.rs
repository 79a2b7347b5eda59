//! TESTS
