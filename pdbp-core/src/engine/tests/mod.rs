mod harness;
mod properties;
mod stalls;
mod symptoms;
