//! PDBP over MPI.
