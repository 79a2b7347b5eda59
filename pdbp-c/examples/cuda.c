/* Device memory goes round: node 0 fills a buffer on its device and sends it, node 1 receives it on its device, adds 1 to each byte there and sends it
 * back. Both nodes use the first device here; elsewhere each its own. With the toolkit: cc -DTOOLKIT cuda.c $(pkg-config --cflags --libs pdbp) -lcuda */
#include "check.h"

#include <pdbp_cuda.h>
#include <pthread.h>
#include <string.h>

#ifdef TOOLKIT
#include <cuda.h>
#else /* what is used of it, so that this compiles where there is none */
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemAlloc_v2(CUdeviceptr *address, size_t size);
int cuMemFree_v2(CUdeviceptr address);
int cuStreamCreate(CUstream *stream, unsigned flags);
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream);
int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream);
int cuStreamSynchronize(CUstream stream);
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#endif
#define CU(call) do { int code = (int)(call); if (code != 0) { fprintf(stderr, "%s: %d\n", #call, code); exit(1); } } while (0)

enum { SIZE = 3000000 };

static void *go_round(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    int first = pdbp_node_index(node) == 0;
    unsigned char *host = (unsigned char *)malloc(SIZE);
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory;
    pdbp_cuda *cuda;
    pdbp_part *part;
    pdbp_target peer;
    pdbp_op *op;
    size_t bytes, i;

    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&stream, 1));
    CU(cuMemAlloc(&memory, SIZE));
    CHECK(pdbp_cuda_open(0, 0, &cuda));
    CHECK(pdbp_register(node, "gpu", PDBP_GPU, &part));
    CHECK(pdbp_find(node, first ? "gpu@node1" : "gpu@node0", PDBP_SET_TIMEOUT, &peer));

    if (first) {
        for (i = 0; i < SIZE; i++) host[i] = (unsigned char)(i % 251);
    } else {
        CHECK(pdbp_cuda_recv(part, cuda, memory, SIZE, stream, &op));
        CHECK(pdbp_op_wait(op, &bytes, &peer, PDBP_SET_TIMEOUT));
        CHECK(pdbp_op_end(op, PDBP_SET_TIMEOUT));
        printf("node1 received %zu bytes on its device\n", bytes);
        CU(cuMemcpyDtoHAsync(host, memory, SIZE, stream));
        CU(cuStreamSynchronize(stream));
        for (i = 0; i < SIZE; i++) host[i]++; /* a kernel would do that */
    }
    CU(cuMemcpyHtoDAsync(memory, host, SIZE, stream));
    /* The message leaves when what the stream was given is over. */
    CHECK(pdbp_cuda_send(part, cuda, memory, SIZE, stream, peer, &op));
    CHECK(pdbp_op_wait(op, NULL, NULL, PDBP_SET_TIMEOUT));
    CHECK(pdbp_op_end(op, PDBP_SET_TIMEOUT));
    if (first) {
        CHECK(pdbp_cuda_recv(part, cuda, memory, SIZE, PDBP_NO_STREAM, &op));
        CHECK(pdbp_op_wait(op, &bytes, NULL, PDBP_SET_TIMEOUT));
        CHECK(pdbp_op_end(op, PDBP_SET_TIMEOUT));
        memset(host, 0, SIZE);
        CU(cuMemcpyDtoHAsync(host, memory, SIZE, stream));
        CU(cuStreamSynchronize(stream));
        for (i = 0; i < SIZE && host[i] == (unsigned char)(i % 251 + 1); i++) {}
        printf("node0 has %zu bytes back, %s\n", bytes, i == SIZE ? "each one more" : "and some are wrong");
    }

    CHECK(pdbp_barrier(node, PDBP_SET_TIMEOUT));
    pdbp_part_free(part);
    pdbp_node_free(node);
    pdbp_cuda_free(cuda);
    CU(cuMemFree(memory));
    free(host);
    return NULL;
}

int main(void) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    pthread_t threads[2];
    int i;

    CU(cuInit(0));
    CHECK(pdbp_settings_new(&settings));
    CHECK(pdbp_settings_set(settings, "nodes", "2"));
    CHECK(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    for (i = 0; i < 2; i++) {
        pdbp_node *node;
        CHECK(pdbp_cluster_node(cluster, (uint16_t)i, &node));
        if (pthread_create(&threads[i], NULL, go_round, node) != 0) return 1;
    }
    for (i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    pdbp_cluster_free(cluster);
    return 0;
}
