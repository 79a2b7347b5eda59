/* pdbp_mpi.h: clusters on communicators of a program that itself calls MPI. Only this header needs mpi.h; the library does not.
 *
 * Licence: MIT or Apache-2.0. */
#ifndef PDBP_MPI_H
#define PDBP_MPI_H

#include <mpi.h>

#include "pdbp.h"

/* Starts this process' node of a cluster of all processes of a communicator, on a duplicate of it. All of them must call this, after MPI_Init_thread
 * and before MPI_Finalize, which the program itself calls; it must free the cluster before MPI_Finalize. With progress threads (the setting progress,
 * by default "thread") this requires MPI_THREAD_MULTIPLE, otherwise MPI_THREAD_SERIALIZED. PDBP_E_START: MPI was not initialised at that level, or
 * is not the MPI that the program was compiled for. */
static inline pdbp_status pdbp_start_on(pdbp_settings *settings_or_null, MPI_Comm comm, pdbp_cluster **out) {
    return pdbp_start_comm(PDBP_ABI, settings_or_null, (uintptr_t)comm, out);
}

#endif
