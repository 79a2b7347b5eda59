/* pdbp_cuda.h: messages from and to the memory of CUDA devices. This header needs no CUDA header, and the library needs neither toolkit nor driver
 * before pdbp_cuda_open.
 *
 * Addresses of device memory are uint64_t: a CUdeviceptr, or what cudaMalloc returns. Streams are a CUstream or cudaStream_t as void *: null is the
 * legacy default stream, PDBP_NO_STREAM none.
 *
 * The program lends its memory: from the call that begins an operation until pdbp_op_end is done, the memory must not be freed; the source of a send
 * must not be written, and the destination of a receive neither read nor written. An operation belongs to its part: only the thread that owns the
 * part may call its functions.
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

/* Opens a device by its primary context, which the runtime API shares. An operation has up to `copies` copies in flight (0: 3).
 * PDBP_E_DEVICE: no driver or no such device; pdbp_error() says what to do. Any threads may use the handle. */
pdbp_status pdbp_cuda_open(uint32_t ordinal, uint32_t copies, pdbp_cuda **out);
/* Operations in progress continue. */
void pdbp_cuda_free(pdbp_cuda *cuda);

/* Begins to send size bytes of device memory, one or more, as a message of any length, once all work queued on the stream so far has finished.
 * It is received by pdbp_cuda_recv, or as a stream (pdbp_accept). */
pdbp_status pdbp_cuda_send(pdbp_part *part, pdbp_cuda *cuda, uint64_t from, size_t size, void *after, pdbp_target to, pdbp_op **out);
/* Begins to receive the next such message, or stream, into room bytes of device memory, once all work queued on the stream so far has finished. */
pdbp_status pdbp_cuda_recv(pdbp_part *part, pdbp_cuda *cuda, uint64_t into, size_t room, void *after, pdbp_op **out);
/* Makes progress until all was sent, or all is in device memory, visible to any stream; an operation makes no progress outside this call. *bytes is
 * always the number of bytes sent or arrived, and *source the sender, if known. PDBP_E_TOO_LONG: more came than fits. */
pdbp_status pdbp_op_wait(pdbp_op *op, size_t *bytes_or_null, pdbp_target *source_or_null, pdbp_ns wait);
/* Ends the operation and frees op; the memory is the program's again. An unfinished operation is given up: a receiver gets PDBP_E_STREAM if
 * any of it has left, and nothing otherwise. PDBP_TIMEOUT: a transfer is still in flight; call it again. */
pdbp_status pdbp_op_end(pdbp_op *op, pdbp_ns wait);

#ifdef __cplusplus
}
#endif

#endif
