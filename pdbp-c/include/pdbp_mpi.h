/* pdbp_mpi.h: clusters on communicators of a program that calls MPI itself. This header alone needs mpi.h; the library does not.
 *
 * Licence: MIT or Apache-2.0. */
#ifndef PDBP_MPI_H
#define PDBP_MPI_H

#include <mpi.h>

#include "pdbp.h"

/* Starts this process' node of a cluster of all processes of a communicator, on a duplicate of it. All of them call it, after MPI_Init_thread
 * and before MPI_Finalize, which stay the program's; the cluster is freed before MPI_Finalize. With progress threads (the setting progress,
 * "thread" unless set) that takes MPI_THREAD_MULTIPLE, else MPI_THREAD_SERIALIZED. PDBP_E_START: MPI was not initialised so, or
 * is not the MPI that the program was compiled for. */
static inline pdbp_status pdbp_start_on(pdbp_settings *settings_or_null, MPI_Comm comm, pdbp_cluster **out) {
    return pdbp_start_comm(PDBP_ABI, settings_or_null, (uintptr_t)comm, out);
}

#endif
