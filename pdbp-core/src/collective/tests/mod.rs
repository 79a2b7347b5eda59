mod calls;
mod combine;
mod faults;
mod notes;
mod reads;
mod steps;
mod world;
