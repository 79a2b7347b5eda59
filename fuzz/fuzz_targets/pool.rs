//! What processors and clients send to a pool of tasks with a journal, and what a pool sends to a processor: messages in pieces. The tasks of others end,
//! each once, and the next pool can take the journal up.
#![no_main]

pdbp_fuzz::target!(|bytes: &[u8]| pdbp_tasks::fuzzing::pool(bytes));
