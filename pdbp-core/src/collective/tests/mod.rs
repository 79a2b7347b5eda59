mod calls;
mod combine;
mod faults;
mod noted;
mod reads;
mod steps;
mod world;
