//! Tests of pool and processors together.

mod flaws;
mod hostile;
mod oracle;
mod rules;
mod world;
