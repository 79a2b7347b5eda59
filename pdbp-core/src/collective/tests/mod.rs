mod calls;
mod combine;
mod faults;
mod noted;
mod steps;
mod world;
