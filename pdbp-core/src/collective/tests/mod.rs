mod calls;
mod combine;
mod faults;
mod steps;
mod world;
