/* One node writes 300 streams at a time, a bit of each in turn; the other reads them all with one thread, and adds up what each has. */
#include "check.h"

#include <pthread.h>
#include <string.h>

#define STREAMS 300
#define ROUNDS 20

/* What the reader keeps of a stream: at the number of the stream, as long as it has that. */
struct total {
    unsigned segments;
    uint64_t sum;
};

static void *write_streams(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    pdbp_part *part;
    pdbp_target reader;
    pdbp_writer *writers[STREAMS];
    uint32_t i, round;

    CHECK(pdbp_register(node, "writer", PDBP_CPU, &part));
    CHECK(pdbp_find(node, "reader@node1", PDBP_SET_TIMEOUT, &reader));
    for (i = 0; i < STREAMS; i++) CHECK(pdbp_open(part, reader, &writers[i]));
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < STREAMS; i++) {
            CHECK(pdbp_write(writers[i], &i, sizeof i, NULL, PDBP_SET_TIMEOUT));
            CHECK(pdbp_writer_flush(writers[i]));
        }
    }
    for (i = 0; i < STREAMS; i++) {
        CHECK(pdbp_finish(writers[i]));
        pdbp_writer_free(writers[i]);
    }
    pdbp_part_free(part);
    pdbp_node_free(node);
    return NULL;
}

int main(void) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    pdbp_node *nodes[2];
    pdbp_part *part;
    pthread_t thread;
    static struct total totals[STREAMS];
    unsigned ended = 0, segments = 0;
    uint64_t sum = 0;

    CHECK(pdbp_settings_new(&settings));
    CHECK(pdbp_settings_set(settings, "nodes", "2"));
    CHECK(pdbp_settings_set(settings, "stream_pipes", "300")); /* a node can write so many at a time */
    CHECK(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    CHECK(pdbp_cluster_node(cluster, 0, &nodes[0]));
    CHECK(pdbp_cluster_node(cluster, 1, &nodes[1]));
    CHECK(pdbp_register(nodes[1], "reader", PDBP_CPU, &part));
    if (pthread_create(&thread, NULL, write_streams, nodes[0]) != 0) return 1;

    while (ended < STREAMS) {
        pdbp_message segment;
        uint32_t stream; /* the lowest number that is free: below STREAMS, since no more are open at a time */
        pdbp_status status = pdbp_any_segment(part, &segment, &stream, PDBP_SET_TIMEOUT);
        if (status == PDBP_DONE) {
            uint32_t word;
            if (segment.size >= sizeof word) { /* the last segment of a stream may be empty */
                memcpy(&word, segment.data, sizeof word);
                totals[stream].segments++;
                totals[stream].sum += word;
            }
            pdbp_release(&segment, 1);
        } else if (status == PDBP_END) {
            segments += totals[stream].segments;
            sum += totals[stream].sum;
            memset(&totals[stream], 0, sizeof totals[stream]); /* another may get the number */
            ended++;
        } else {
            CHECK(status); /* PDBP_E_STREAM: somebody has given the stream up */
        }
    }
    printf("%u streams, %u segments, sum %llu\n", ended, segments, (unsigned long long)sum);

    pthread_join(thread, NULL);
    pdbp_part_free(part);
    pdbp_node_free(nodes[1]);
    pdbp_cluster_free(cluster);
    return sum == (uint64_t)ROUNDS * STREAMS * (STREAMS - 1) / 2 ? 0 : 1;
}
