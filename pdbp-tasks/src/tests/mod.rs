//! Tests of pool and processors together.

mod exhaustive;
mod flaws;
mod hostile;
mod oracle;
mod rules;
mod world;
