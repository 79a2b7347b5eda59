//! From the bottom: the wire form; what a few nodes do; the checker of histories against an oracle; random schedules with
//! faults; and that the checks notice each rule that is broken.

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
