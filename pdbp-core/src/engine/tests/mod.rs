mod harness;
mod properties;
mod symptoms;
