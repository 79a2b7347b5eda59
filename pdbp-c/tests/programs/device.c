/* What a program may do with device memory, and what it must not, on the library that stands in for the CUDA driver. All is of one thread. */
#include <pdbp_cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address; /* CUdeviceptr */
#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(address *at, size_t size);
int cuMemFree_v2(address at);
int cuMemcpyHtoD_v2(address to, const void *from, size_t size);
int cuMemcpyDtoH_v2(void *to, address from, size_t size);
#ifdef __cplusplus
}
#endif

#define WAIT PDBP_SET_TIMEOUT
#define EXPECT(what)                                                                                          \
    do {                                                                                                      \
        if (!(what)) {                                                                                        \
            fprintf(stderr, "device.c:%d: %s; the last failure: %s\n", __LINE__, #what, pdbp_error());        \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)
#define DONE(call) EXPECT((call) == PDBP_DONE)
#define SAYS(text) EXPECT(strstr(pdbp_error(), text) != NULL)

enum { SIZE = 400000 };

static pdbp_node *nodes[2];
static pdbp_part *parts[2];
static pdbp_target targets[2];
static pdbp_cuda *cuda;
static address from, into;
static char host[SIZE], back[SIZE];

static void refused(void) {
    pdbp_cuda *none;
    pdbp_op *op;
    int here = 0;
    EXPECT(pdbp_cuda_open(99, 0, &none) == PDBP_E_DEVICE);
    SAYS("no device 99");
    EXPECT(pdbp_cuda_send(parts[0], NULL, from, SIZE, NULL, targets[1], &op) == PDBP_E_NULL);
    EXPECT(pdbp_cuda_send(parts[0], (pdbp_cuda *)parts[0], from, SIZE, NULL, targets[1], &op) == PDBP_E_HANDLE);
    EXPECT(pdbp_cuda_send(parts[0], cuda, from, 0, NULL, targets[1], &op) == PDBP_E_ARGUMENT);
    SAYS("sent or received into");
    /* Memory of the host. */
    EXPECT(pdbp_cuda_send(parts[0], cuda, (uint64_t)(size_t)&here, sizeof here, NULL, targets[1], &op) == PDBP_E_DEVICE);
    SAYS("cuPointerGetAttribute");
    EXPECT(pdbp_cuda_recv(parts[0], cuda, from, SIZE, NULL, NULL) == PDBP_E_NULL);
    EXPECT(pdbp_op_wait(NULL, NULL, NULL, 0) == PDBP_E_NULL);
    EXPECT(pdbp_op_end(NULL, 0) == PDBP_E_NULL);
    pdbp_cuda_free(NULL);
}

/* Goes on with both until the one is over. */
static pdbp_status together(pdbp_op *until, pdbp_op *other, size_t *bytes, pdbp_target *source) {
    for (;;) {
        pdbp_status status = pdbp_op_wait(until, bytes, source, 0);
        if (status != PDBP_WOULD_BLOCK) return status;
        if (other != NULL) pdbp_op_wait(other, NULL, NULL, 0);
        /* Its progress is "inline": nobody else polls the node of the other. */
        DONE(pdbp_poll(nodes[0], NULL));
    }
}

static void there(void) {
    pdbp_op *send, *recv;
    pdbp_target source = 0;
    size_t bytes = 1;
    DONE(pdbp_cuda_recv(parts[1], cuda, into, SIZE, PDBP_NO_STREAM, &recv));
    EXPECT(pdbp_op_wait(recv, &bytes, &source, 0) == PDBP_WOULD_BLOCK);
    EXPECT(bytes == 0 && source == 0);
    EXPECT(pdbp_op_wait(recv, &bytes, &source, 1000000) == PDBP_TIMEOUT);
    DONE(pdbp_cuda_send(parts[0], cuda, from, SIZE - 1, NULL, targets[1], &send));
    DONE(together(recv, send, &bytes, &source));
    EXPECT(bytes == SIZE - 1 && source == targets[0]);
    DONE(together(send, NULL, &bytes, NULL));
    EXPECT(bytes == SIZE - 1);
    /* Over is over. */
    DONE(pdbp_op_wait(recv, &bytes, &source, 0));
    DONE(pdbp_op_end(recv, WAIT));
    DONE(pdbp_op_end(send, WAIT));
    EXPECT(cuMemcpyDtoH_v2(back, into, SIZE) == 0);
    EXPECT(memcmp(host, back, SIZE - 1) == 0 && back[SIZE - 1] == 0);
}

static void too_long(void) {
    pdbp_op *send, *recv;
    DONE(pdbp_cuda_recv(parts[1], cuda, into, 1000, NULL, &recv));
    DONE(pdbp_cuda_send(parts[0], cuda, from, 1001, NULL, targets[1], &send));
    EXPECT(together(recv, send, NULL, NULL) == PDBP_E_TOO_LONG);
    SAYS("1000 bytes");
    DONE(pdbp_op_end(recv, WAIT));
    pdbp_op_wait(send, NULL, NULL, 0);
    DONE(pdbp_op_end(send, WAIT));
}

static void given_up(void) {
    address from, into;
    pdbp_op *send, *recv;
    size_t bytes = 0;
    /* More than all rows take. */
    EXPECT(cuMemAlloc_v2(&from, 64 << 20) == 0 && cuMemAlloc_v2(&into, 64 << 20) == 0);
    DONE(pdbp_cuda_send(parts[0], cuda, from, 64 << 20, NULL, targets[1], &send));
    DONE(pdbp_cuda_recv(parts[1], cuda, into, 64 << 20, NULL, &recv));
    /* Where nothing of it has left, the other waits for the next. */
    while (bytes == 0) {
        EXPECT(pdbp_op_wait(send, NULL, NULL, 0) == PDBP_WOULD_BLOCK);
        EXPECT(pdbp_op_wait(recv, &bytes, NULL, 0) == PDBP_WOULD_BLOCK);
        DONE(pdbp_poll(nodes[0], NULL));
    }
    /* The memory is the program's again, which the stand-in watches. */
    DONE(pdbp_op_end(send, WAIT));
    EXPECT(cuMemFree_v2(from) == 0);
    EXPECT(together(recv, NULL, NULL, NULL) == PDBP_E_STREAM);
    DONE(pdbp_op_end(recv, WAIT));
    EXPECT(cuMemFree_v2(into) == 0);
}

int main(void) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    void *context;
    int i;
    EXPECT(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    EXPECT(cuMemAlloc_v2(&from, SIZE) == 0 && cuMemAlloc_v2(&into, SIZE) == 0);
    for (i = 0; i < SIZE; i++) host[i] = (char)(i % 127 + 1);
    EXPECT(cuMemcpyHtoD_v2(from, host, SIZE) == 0 && cuMemcpyHtoD_v2(into, back, SIZE) == 0);
    DONE(pdbp_settings_new(&settings));
    DONE(pdbp_settings_set(settings, "nodes", "2"));
    DONE(pdbp_settings_set(settings, "progress", "inline"));
    DONE(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    for (i = 0; i < 2; i++) {
        DONE(pdbp_cluster_node(cluster, (uint16_t)i, &nodes[i]));
        DONE(pdbp_register(nodes[i], "part", PDBP_GPU, &parts[i]));
        targets[i] = pdbp_self(parts[i]);
    }
    DONE(pdbp_cuda_open(0, 0, &cuda));
    refused();
    there();
    too_long();
    EXPECT(cuMemFree_v2(from) == 0 && cuMemFree_v2(into) == 0);
    given_up();
    for (i = 0; i < 2; i++) {
        pdbp_part_free(parts[i]);
        pdbp_node_free(nodes[i]);
    }
    pdbp_cuda_free(cuda);
    pdbp_cluster_free(cluster);
    printf("all of it is as it should be\n");
    return 0;
}
