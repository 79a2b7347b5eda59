/* Two nodes in one process greet each other, each on a thread of its own. */
#include "check.h"

#include <pthread.h>
#include <string.h>

static void *greet(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    int first = pdbp_node_index(node) == 0;
    const char *text = first ? "hello from node0" : "hello from node1";
    pdbp_part *part;
    pdbp_target peer;
    pdbp_message message;

    CHECK(pdbp_register(node, "greeter", PDBP_CPU, &part));
    CHECK(pdbp_find(node, first ? "greeter@node1" : "greeter@node0", PDBP_SET_TIMEOUT, &peer));
    CHECK(pdbp_send(part, peer, text, strlen(text), PDBP_SET_TIMEOUT));
    CHECK(pdbp_recv(part, &message, PDBP_SET_TIMEOUT));
    printf("node%d got \"%.*s\"\n", pdbp_node_index(node), (int)message.size, (const char *)message.data);
    pdbp_release(&message, 1);

    CHECK(pdbp_barrier(node, PDBP_SET_TIMEOUT)); /* the other may still wait for the message */
    pdbp_part_free(part);
    pdbp_node_free(node);
    return NULL;
}

int main(void) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    pthread_t threads[2];
    int i;

    CHECK(pdbp_settings_new(&settings));
    CHECK(pdbp_settings_set(settings, "nodes", "2"));
    CHECK(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    for (i = 0; i < 2; i++) {
        pdbp_node *node;
        CHECK(pdbp_cluster_node(cluster, (uint16_t)i, &node));
        if (pthread_create(&threads[i], NULL, greet, node) != 0) return 1;
    }
    for (i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    pdbp_cluster_free(cluster);
    return 0;
}
