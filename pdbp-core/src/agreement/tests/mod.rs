//! Bottom-up: the wire format; a few nodes; the checker of histories against an oracle; random schedules with faults; and that the
//! checks notice each rule that is broken.

mod basic;
mod checker;
mod faults;
mod flaws;
mod history;
mod open;
mod pauses;
mod plan;
mod table;
mod wire;
mod world;
