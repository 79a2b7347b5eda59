/* A message goes to and fro between two nodes: pingpong [ROUNDS]. Under mpirun, of a library that was built for it, between two processes. */
#define _POSIX_C_SOURCE 200112L
#include "check.h"

#include <pthread.h>
#include <time.h>

static unsigned long rounds = 10000;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *play(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    int first = pdbp_node_index(node) == 0;
    pdbp_part *part;
    pdbp_target peer;
    pdbp_message message;
    unsigned long i;
    uint64_t ball = 0;
    double began;

    CHECK(pdbp_register(node, "player", PDBP_CPU, &part));
    CHECK(pdbp_find(node, first ? "player@node1" : "player@node0", PDBP_SET_TIMEOUT, &peer));
    began = seconds();
    for (i = 0; i < rounds; i++) {
        if (first) CHECK(pdbp_send(part, peer, &ball, sizeof ball, PDBP_SET_TIMEOUT));
        CHECK(pdbp_recv(part, &message, PDBP_SET_TIMEOUT)); /* what was packed leaves, since the part waits */
        ball = *(const uint64_t *)message.data + 1;
        pdbp_release(&message, 1);
        if (!first) CHECK(pdbp_send(part, peer, &ball, sizeof ball, PDBP_SET_TIMEOUT));
    }
    if (first) {
        printf("%lu round trips, %.2f us each; the ball says %llu\n", rounds, (seconds() - began) / (double)rounds * 1e6,
               (unsigned long long)ball);
    }
    CHECK(pdbp_flush(part));
    CHECK(pdbp_barrier(node, PDBP_SET_TIMEOUT));
    pdbp_part_free(part);
    pdbp_node_free(node);
    return NULL;
}

int main(int count, char **arguments) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    pthread_t threads[2];
    uint16_t i, here = 0;

    if (count > 1) rounds = strtoul(arguments[1], NULL, 10);
    CHECK(pdbp_settings_new(&settings));
    CHECK(pdbp_settings_set(settings, "nodes", "2"));
    CHECK(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    for (i = 0; i < 2; i++) {
        pdbp_node *node;
        pdbp_status status = pdbp_cluster_node(cluster, i, &node);
        if (status == PDBP_E_NO_NODE) continue; /* another process has it */
        CHECK(status);
        if (pthread_create(&threads[here++], NULL, play, node) != 0) return 1;
    }
    for (i = 0; i < here; i++) pthread_join(threads[i], NULL);
    pdbp_cluster_free(cluster);
    return 0;
}
