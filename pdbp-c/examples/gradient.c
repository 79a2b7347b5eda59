/* Four nodes, each on a thread of its own, have a gradient each; all get the mean. The same calls work over MPI and sockets, where each process has
 * a node: pdbp_cluster_node gives it. */
#include "check.h"

#include <pthread.h>

#define NODES 4
#define VALUES 100000

static void *train(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    float *gradient = (float *)malloc(VALUES * sizeof(float));
    pdbp_group *all;
    uint32_t rank;
    size_t i;

    if (gradient == NULL) exit(1);
    CHECK(pdbp_group_of_nodes(node, "gradients", PDBP_SET_TIMEOUT, &all));
    rank = pdbp_group_rank(all);
    for (i = 0; i < VALUES; i++) gradient[i] = (float)(rank + 1);
    CHECK(pdbp_group_all_reduce(all, gradient, VALUES, PDBP_F32, PDBP_SUM)); /* in place; the same bits at all */
    for (i = 0; i < VALUES; i++) gradient[i] /= (float)pdbp_group_size(all);
    printf("node%u has a mean of %g\n", (unsigned)rank, (double)gradient[VALUES - 1]);
    CHECK(pdbp_group_barrier(all));
    pdbp_group_free(all);
    free(gradient);
    pdbp_node_free(node);
    return NULL;
}

int main(void) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    pthread_t threads[NODES];
    uint16_t i;

    CHECK(pdbp_settings_new(&settings));
    CHECK(pdbp_settings_set(settings, "nodes", "4"));
    CHECK(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    for (i = 0; i < NODES; i++) {
        pdbp_node *node;
        CHECK(pdbp_cluster_node(cluster, i, &node));
        if (pthread_create(&threads[i], NULL, train, node) != 0) return 1;
    }
    for (i = 0; i < NODES; i++) pthread_join(threads[i], NULL);
    pdbp_cluster_free(cluster);
    return 0;
}
