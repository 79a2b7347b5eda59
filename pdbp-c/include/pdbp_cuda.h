/* pdbp_cuda.h: messages from and to the memory of CUDA devices. It needs no header of CUDA, and the library neither toolkit nor driver
 * before pdbp_cuda_open.
 *
 * Addresses of device memory are uint64_t: a CUdeviceptr, or what cudaMalloc gives. Streams are a CUstream or cudaStream_t as void *: null is the
 * legacy default stream, PDBP_NO_STREAM none.
 *
 * The program lends its memory: from the call that begins an operation until pdbp_op_end is done with it, it is not freed, that of which is sent not
 * written, that into which is received neither read nor written. An operation belongs to its part: calls come from the thread that owns that.
 *
 * Licence: MIT or Apache-2.0. */
#ifndef PDBP_CUDA_H
#define PDBP_CUDA_H

#include "pdbp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pdbp_cuda pdbp_cuda;
typedef struct pdbp_op pdbp_op;

#define PDBP_NO_STREAM ((void *)-1)

/* A device by its primary context, which the runtime API has, too; up to so many copies of an operation are under way at a time (0: 3).
 * PDBP_E_DEVICE: there is no driver or no such device, and pdbp_error() says what to do. Used by any threads. */
pdbp_status pdbp_cuda_open(uint32_t ordinal, uint32_t copies, pdbp_cuda **out);
/* Operations go on. */
void pdbp_cuda_free(pdbp_cuda *cuda);

/* Begins to send size bytes of device memory, one or more, as a message of any length, when what the stream was given so far is over. It is received
 * by pdbp_cuda_recv, or as a stream (pdbp_accept). */
pdbp_status pdbp_cuda_send(pdbp_part *part, pdbp_cuda *cuda, uint64_t from, size_t size, void *after, pdbp_target to, pdbp_op **out);
/* Begins to receive the next such message, or stream, into room bytes of device memory, when what the stream was given so far is over. */
pdbp_status pdbp_cuda_recv(pdbp_part *part, pdbp_cuda *cuda, uint64_t into, size_t room, void *after, pdbp_op **out);
/* Goes on until all was sent, or all is in device memory, where any stream sees it; nothing goes on otherwise. In any case *bytes is how many were sent or
 * have arrived, and *source, if that is known, who sends. PDBP_E_TOO_LONG: more came than there is room for. */
pdbp_status pdbp_op_wait(pdbp_op *op, size_t *bytes_or_null, pdbp_target *source_or_null, pdbp_ns wait);
/* Ends the operation and frees op; the memory is the program's again. What was not over is given up: a receiver gets PDBP_E_STREAM if
 * anything of it has left, and nothing otherwise. PDBP_TIMEOUT: a transfer is under way yet; call it again. */
pdbp_status pdbp_op_end(pdbp_op *op, pdbp_ns wait);

#ifdef __cplusplus
}
#endif

#endif
