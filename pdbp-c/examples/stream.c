/* One node writes a stream of 8 MiB, filling blocks where they are; the other reads its segments where they arrived, and adds them up. */
#include "check.h"

#include <pthread.h>

#define WORDS (1u << 20) /* of 8 bytes */

static void *write_words(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    pdbp_part *part;
    pdbp_target reader;
    pdbp_writer *writer;
    uint64_t next = 0;

    CHECK(pdbp_register(node, "writer", PDBP_CPU, &part));
    CHECK(pdbp_find(node, "reader@node1", PDBP_SET_TIMEOUT, &reader));
    CHECK(pdbp_open(part, reader, &writer));
    while (next < WORDS) {
        void *room;
        uint64_t *words;
        size_t got, i;
        CHECK(pdbp_room(writer, (size_t)(WORDS - next) * 8, PDBP_SET_TIMEOUT, &room, &got));
        words = (uint64_t *)room; /* blocks begin at a multiple of 8 */
        for (i = 0; i < got / 8; i++) words[i] = next++;
        CHECK(pdbp_filled(writer, got / 8 * 8));
        if (got < 8) CHECK(pdbp_writer_flush(writer)); /* less than a word is left of the block */
    }
    CHECK(pdbp_finish(writer));
    pdbp_writer_free(writer);
    pdbp_part_free(part);
    pdbp_node_free(node);
    return NULL;
}

int main(void) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    pdbp_node *nodes[2];
    pdbp_part *part;
    pdbp_reader *reader;
    pdbp_message segment;
    pdbp_status status;
    pthread_t thread;
    uint64_t sum = 0, bytes = 0;

    CHECK(pdbp_settings_new(&settings));
    CHECK(pdbp_settings_set(settings, "nodes", "2"));
    CHECK(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    CHECK(pdbp_cluster_node(cluster, 0, &nodes[0]));
    CHECK(pdbp_cluster_node(cluster, 1, &nodes[1]));
    CHECK(pdbp_register(nodes[1], "reader", PDBP_CPU, &part));
    if (pthread_create(&thread, NULL, write_words, nodes[0]) != 0) return 1;

    CHECK(pdbp_accept(part, PDBP_SET_TIMEOUT, &reader, NULL));
    while ((status = pdbp_segment(reader, &segment, PDBP_SET_TIMEOUT)) == PDBP_DONE) {
        const uint64_t *words = (const uint64_t *)segment.data;
        size_t i;
        for (i = 0; i < segment.size / 8; i++) sum += words[i];
        bytes += segment.size;
        pdbp_release(&segment, 1);
    }
    if (status != PDBP_END) CHECK(status);
    printf("%llu bytes, sum %llu\n", (unsigned long long)bytes, (unsigned long long)sum);

    pthread_join(thread, NULL);
    pdbp_reader_free(reader);
    pdbp_part_free(part);
    pdbp_node_free(nodes[1]);
    pdbp_cluster_free(cluster);
    return sum == (uint64_t)WORDS * (WORDS - 1) / 2 ? 0 : 1;
}
