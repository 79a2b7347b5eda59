//! Tests of pool and processors together.

mod oracle;
mod rules;
mod world;
