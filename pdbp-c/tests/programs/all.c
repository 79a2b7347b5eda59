/* What a program in C may do with libpdbp, and what it must not: each check says its line and ends the program when it fails. Compiled by
 * ci/c as C99 and C++11, and run plain, with AddressSanitizer and under valgrind. */
#define _POSIX_C_SOURCE 200112L
#include <pdbp.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT PDBP_SET_TIMEOUT
#define EXPECT(what)                                                                                       \
    do {                                                                                                   \
        if (!(what)) {                                                                                     \
            fprintf(stderr, "all.c:%d: %s; the last failure: %s\n", __LINE__, #what, pdbp_error());        \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)
#define DONE(call) EXPECT((call) == PDBP_DONE)
#define SAYS(text) EXPECT(strstr(pdbp_error(), text) != NULL)

static pdbp_cluster *cluster;
static pdbp_node *nodes[2];
static pdbp_part *parts[2];
static pdbp_target targets[2];

static void start(void) {
    pdbp_settings *settings;
    int i;
    EXPECT(pdbp_abi() == PDBP_ABI);
    EXPECT(strlen(pdbp_version()) >= 5);
    EXPECT(strcmp(pdbp_status_name(PDBP_E_LOANED), "PDBP_E_LOANED") == 0);
    EXPECT(strstr(pdbp_status_name(-12345), "another version") != NULL);

    DONE(pdbp_settings_new(&settings));
    EXPECT(pdbp_settings_set(settings, "nodse", "2") == PDBP_E_SETTINGS);
    SAYS("nodse");
    EXPECT(pdbp_settings_set(settings, "nodes", "many") == PDBP_E_SETTINGS);
    SAYS("many");
    EXPECT(pdbp_settings_set(settings, "nodes", "\xff") == PDBP_E_ARGUMENT);
    DONE(pdbp_settings_set(settings, "nodes", "2"));
    DONE(pdbp_settings_set(settings, "transport", "local"));
    /* Both parts are of one thread here. */
    DONE(pdbp_settings_set(settings, "progress", "inline"));
    EXPECT(pdbp_start_abi(PDBP_ABI + 1, settings, &cluster) == PDBP_E_VERSION);
    SAYS("recompile it");
    DONE(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);

    EXPECT(pdbp_cluster_size(cluster) == 2);
    EXPECT(pdbp_cluster_node(cluster, 2, &nodes[0]) == PDBP_E_NO_NODE);
    for (i = 0; i < 2; i++) {
        DONE(pdbp_cluster_node(cluster, (uint16_t)i, &nodes[i]));
        EXPECT(pdbp_node_index(nodes[i]) == i);
        DONE(pdbp_register(nodes[i], "part", PDBP_CPU, &parts[i]));
        targets[i] = pdbp_self(parts[i]);
    }
}

static void nothing(void) {
    pdbp_node *node = NULL;
    EXPECT(pdbp_flush(NULL) == PDBP_E_NULL);
    EXPECT(pdbp_cluster_node(NULL, 0, &node) == PDBP_E_NULL);
    EXPECT(pdbp_send(parts[0], targets[1], NULL, 1, WAIT) == PDBP_E_NULL);
    EXPECT(pdbp_recv(parts[0], NULL, 0) == PDBP_E_NULL);
    EXPECT(pdbp_self(NULL) == PDBP_NOBODY && pdbp_node_index(NULL) == UINT16_MAX && pdbp_cluster_size(NULL) == 0);
    pdbp_settings_free(NULL);
    pdbp_cluster_free(NULL);
    pdbp_node_free(NULL);
    pdbp_part_free(NULL);
    pdbp_writer_free(NULL);
    pdbp_reader_free(NULL);
    pdbp_release(NULL, 3);
    pdbp_release_batch(NULL);
    pdbp_interrupt(NULL);
    pdbp_abandon(NULL);
}

static void names(void) {
    pdbp_target found;
    pdbp_part *part;
    DONE(pdbp_find(nodes[0], "part@node1", WAIT, &found));
    EXPECT(found == targets[1]);
    EXPECT(pdbp_find(nodes[0], "part", 0, &found) == PDBP_E_AMBIGUOUS);
    EXPECT(pdbp_find(nodes[0], "nobody@node1", 0, &found) == PDBP_E_NO_PART);
    SAYS("nobody@node1");
    EXPECT(pdbp_find(nodes[0], "part@node7", 0, &found) == PDBP_E_NO_NODE);
    EXPECT(pdbp_register(nodes[0], "part", PDBP_CPU, &part) == PDBP_E_REFUSED);
    EXPECT(pdbp_register(nodes[0], "other", 7, &part) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_send(parts[0], PDBP_NOBODY, "x", 1, WAIT) == PDBP_E_NO_PART);
}

/* Receives a message of part 1 that has this text, and gives it back. */
static void receive(const char *text) {
    pdbp_message message;
    DONE(pdbp_recv(parts[1], &message, WAIT));
    EXPECT(message.size == strlen(text) && memcmp(message.data, text, message.size) == 0);
    EXPECT(message.source == targets[0]);
    pdbp_release(&message, 1);
    EXPECT(message.data == NULL && message.size == 0);
    pdbp_release(&message, 1); /* nothing */
}

/* Frees handles whose descriptors are armed, and which are closed with them. */
static void closed_descriptors(pdbp_cluster *threads, pdbp_part *writer, pdbp_target to) {
    static char data[60000];
    pdbp_node *node;
    pdbp_event_info event;
    pdbp_status armed;
    size_t size;
    int fd;
    DONE(pdbp_cluster_node(threads, 0, &node));
    DONE(pdbp_event_fd(node, &fd));
    event.size = sizeof event;
    while (pdbp_event(node, &event) == PDBP_DONE) {}
    EXPECT(fcntl(fd, F_GETFD) >= 0);
    pdbp_node_free(node);
    EXPECT(fcntl(fd, F_GETFD) == -1);

    /* Nobody reads. A wait begins with polls, for which nothing is armed. */
    DONE(pdbp_fd(writer, &fd));
    do {
        for (size = sizeof data; size > 0;)
            if (pdbp_send(writer, to, data, size, 0) != PDBP_DONE) size /= 2;
        poll(NULL, 0, 1);
        armed = pdbp_arm(writer, PDBP_SEND, to, NULL);
        if (armed != PDBP_WOULD_BLOCK) continue;
        poll(NULL, 0, 2);
        /* The reader's node may give more room only now, if it had no processor. */
        armed = pdbp_arm(writer, PDBP_SEND, to, NULL);
    } while (armed == PDBP_DONE);
    EXPECT(armed == PDBP_WOULD_BLOCK);
    pdbp_part_free(writer);
    EXPECT(fcntl(fd, F_GETFD) == -1);
}

/* A loop that never waits learns that the other node has left. */
static void nobody_left(pdbp_part *part) {
    pdbp_message message;
    pdbp_batch batch;
    pdbp_status status;
    size_t got;
    int looks = 0;
    while ((status = pdbp_recv(part, &message, 0)) >= 0) {
        if (status == PDBP_DONE) pdbp_release(&message, 1);
        else EXPECT(status == PDBP_WOULD_BLOCK && looks++ < 60000 && poll(NULL, 0, 1) == 0);
    }
    EXPECT(status == PDBP_E_NOBODY_LEFT);
    EXPECT(pdbp_recv_many(part, &message, 1, &got, 0) == PDBP_E_NOBODY_LEFT);
    EXPECT(pdbp_recv_batch(part, &batch, 0) == PDBP_E_NOBODY_LEFT);
}

/* As a loop over poll does. */
static void descriptors(void) {
    pdbp_settings *settings;
    pdbp_cluster *threads;
    pdbp_node *node;
    pdbp_part *reader, *writer;
    pdbp_target to;
    pdbp_message message;
    struct pollfd waits;
    uint32_t ready = 7;
    int fd, again, i;

    /* With "inline" nobody would write to it. */
    EXPECT(pdbp_arm(parts[1], PDBP_RECV, PDBP_NOBODY, &ready) == PDBP_E_SETTINGS);
    SAYS("nothing polls the node");
    EXPECT(pdbp_arm(parts[1], 0, PDBP_NOBODY, NULL) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_fd(NULL, &fd) == PDBP_E_NULL);

    DONE(pdbp_settings_new(&settings));
    DONE(pdbp_settings_set(settings, "nodes", "2"));
    DONE(pdbp_settings_set(settings, "transport", "local"));
    DONE(pdbp_settings_set(settings, "progress", "thread"));
    DONE(pdbp_start(settings, &threads));
    pdbp_settings_free(settings);
    DONE(pdbp_cluster_node(threads, 0, &node));
    DONE(pdbp_register(node, "writer", PDBP_CPU, &writer));
    pdbp_node_free(node);
    DONE(pdbp_cluster_node(threads, 1, &node));
    DONE(pdbp_register(node, "reader", PDBP_CPU, &reader));
    pdbp_node_free(node);
    to = pdbp_self(reader);

    DONE(pdbp_fd(reader, &fd));
    DONE(pdbp_fd(reader, &again));
    EXPECT(fd >= 0 && fd == again);
    waits.fd = fd;
    waits.events = POLLIN;
    for (i = 0; i < 100; i++) {
        int sent = 0;
        /* It may be readable before there is something: then it is to be armed once more. */
        while (pdbp_arm(reader, PDBP_RECV, PDBP_NOBODY, &ready) == PDBP_WOULD_BLOCK) {
            EXPECT(ready == 0);
            if (!sent) {
                DONE(pdbp_send(writer, to, &i, sizeof i, WAIT));
                DONE(pdbp_flush(writer));
                sent = 1;
            }
            EXPECT(poll(&waits, 1, 60000) == 1);
        }
        EXPECT(ready == PDBP_RECV);
        DONE(pdbp_recv(reader, &message, 0));
        EXPECT(message.size == sizeof i && memcmp(message.data, &i, sizeof i) == 0);
        pdbp_release(&message, 1);
    }
    /* Its row may still be full of what was received. */
    DONE(pdbp_fd(writer, &waits.fd));
    while (pdbp_arm(writer, PDBP_SEND, to, &ready) == PDBP_WOULD_BLOCK) EXPECT(poll(&waits, 1, 60000) == 1);
    EXPECT(ready == PDBP_SEND);
    closed_descriptors(threads, writer, to);
    pdbp_cluster_free(threads);
    nobody_left(reader);
    pdbp_part_free(reader);
}

static void targets_of_nobody(void) {
    /* A number that no part has, of a node that there is, of this one, and of a node that there is not. */
    pdbp_target nobody[2], both[2];
    pdbp_writer *writer;
    pdbp_node_stats stats;
    pdbp_part *part;
    void *room;
    uint32_t ready;
    int i;
    nobody[0] = targets[1] + 5;
    nobody[1] = targets[0] + 5;
    for (i = 0; i < 2; i++) {
        EXPECT(pdbp_send(parts[0], nobody[i], "x", 1, WAIT) == PDBP_E_NO_PART);
        SAYS("does not exist");
        EXPECT(pdbp_send(parts[0], nobody[i], "x", 1, 0) == PDBP_E_NO_PART);
        EXPECT(pdbp_send_command(parts[0], nobody[i], 1, "x", 1, WAIT) == PDBP_E_NO_PART);
        EXPECT(pdbp_send_train(parts[0], nobody[i], "xy", 1, 2, NULL, WAIT) == PDBP_E_NO_PART);
        EXPECT(pdbp_loan(parts[0], nobody[i], 1, 0, &room) == PDBP_E_NO_PART);
        EXPECT(pdbp_open(parts[0], nobody[i], &writer) == PDBP_E_NO_PART);
        EXPECT(pdbp_wait(parts[0], PDBP_SEND, nobody[i], 0, &ready) == PDBP_E_NO_PART);
        both[0] = targets[1];
        both[1] = nobody[i];
        EXPECT(pdbp_send_all(parts[0], both, 2, "x", 1) == PDBP_E_NO_PART);
    }
    EXPECT(pdbp_send(parts[0], 0x70000, "x", 1, 0) == PDBP_E_NO_NODE);
    /* So is a part that was freed, as soon as this node knows. What had been packed for it is discarded where it was, and counted there,
     * unless it was so late that the part had got it. */
    stats.size = sizeof stats;
    do {
        DONE(pdbp_register(nodes[1], "short-lived", PDBP_CPU, &part));
        nobody[0] = pdbp_self(part);
        DONE(pdbp_send(parts[0], nobody[0], "x", 1, WAIT));
        pdbp_part_free(part);
        while (pdbp_find(nodes[0], "short-lived@node1", 0, &nobody[1]) != PDBP_E_NO_PART) {
            DONE(pdbp_poll(nodes[0], NULL));
            DONE(pdbp_poll(nodes[1], NULL));
        }
        DONE(pdbp_flush(parts[0]));
        EXPECT(pdbp_send(parts[0], nobody[0], "x", 1, WAIT) == PDBP_E_NO_PART);
        SAYS("does not exist or has been freed");
        DONE(pdbp_quiesce(nodes[0], WAIT));
        DONE(pdbp_stats(nodes[1], &stats));
    } while (stats.unroutable == 0);
    EXPECT(stats.unroutable == 1);
}

static void messages(void) {
    pdbp_message message, many[4];
    pdbp_batch batch;
    uint32_t train[100];
    size_t i, got, sent = 0, seen = 0;
    uint32_t ready = 0;
    void *room;
    char *large;
    pdbp_target both[2];

    EXPECT(pdbp_recv(parts[1], &message, 0) == PDBP_WOULD_BLOCK);
    EXPECT(pdbp_recv(parts[1], &message, 1000000) == PDBP_TIMEOUT);
    SAYS("after 1ms");

    DONE(pdbp_send(parts[0], targets[1], "one", 3, WAIT));
    DONE(pdbp_send(parts[0], targets[1], "two", 3, 0));
    DONE(pdbp_send(parts[0], targets[1], NULL, 0, 1000000000));
    DONE(pdbp_flush(parts[0]));
    DONE(pdbp_wait(parts[1], PDBP_RECV, 0, WAIT, &ready));
    EXPECT(ready == PDBP_RECV);
    receive("one");
    receive("two");
    receive("");
    DONE(pdbp_wait(parts[0], PDBP_SEND, targets[1], WAIT, &ready));
    EXPECT(ready == PDBP_SEND);
    EXPECT(pdbp_wait(parts[0], PDBP_RECV, PDBP_NOBODY, 0, &ready) == PDBP_WOULD_BLOCK);
    EXPECT(pdbp_wait(parts[0], 8, targets[1], 0, &ready) == PDBP_E_ARGUMENT);

    DONE(pdbp_send_command(parts[0], targets[1], 7, "now", 3, WAIT));
    DONE(pdbp_recv(parts[1], &message, WAIT));
    EXPECT(message.command == 7 && message.flags == PDBP_COMMAND && message.size == 3);
    pdbp_release(&message, 1);

    both[0] = targets[0];
    both[1] = targets[1];
    DONE(pdbp_send_all(parts[0], both, 2, "all", 3));
    DONE(pdbp_flush(parts[0]));
    receive("all");
    DONE(pdbp_recv(parts[0], &message, WAIT));
    pdbp_release(&message, 1);
    EXPECT(pdbp_send_all(parts[0], both, 0, "all", 3) == PDBP_E_ARGUMENT);

    for (i = 0; i < 100; i++) train[i] = (uint32_t)i;
    DONE(pdbp_send_train(parts[0], targets[1], train, 4, 100, &sent, WAIT));
    EXPECT(sent == 100);
    EXPECT(pdbp_send_train(parts[0], targets[1], train, SIZE_MAX, 2, &sent, WAIT) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_send_train(parts[0], targets[1], train, 0, 2, &sent, WAIT) == PDBP_E_ARGUMENT);
    SAYS("without bytes");
    DONE(pdbp_send_train(parts[0], targets[1], NULL, 0, 0, NULL, WAIT));
    DONE(pdbp_flush(parts[0]));
    while (seen < 50) {
        DONE(pdbp_recv_many(parts[1], many, seen < 48 ? 4 : 50 - seen, &got, WAIT));
        for (i = 0; i < got; i++) EXPECT(*(const uint32_t *)many[i].data == seen++);
        pdbp_release(many, got);
    }
    while (seen < 100) {
        DONE(pdbp_recv_batch(parts[1], &batch, WAIT));
        EXPECT(batch.each == 4 && batch.source == targets[0]);
        for (i = 0; i < batch.count; i++) EXPECT(((const uint32_t *)batch.data)[i] == seen++);
        pdbp_release_batch(&batch);
        EXPECT(batch.count == 0);
    }

    EXPECT(pdbp_commit(parts[0]) == PDBP_E_NO_LOAN);
    DONE(pdbp_loan(parts[0], targets[1], 4, WAIT, &room));
    EXPECT(pdbp_send(parts[0], targets[1], "before", 6, WAIT) == PDBP_E_LOANED);
    EXPECT(pdbp_loan(parts[0], targets[1], 4, WAIT, &room) == PDBP_E_LOANED);
    EXPECT(strstr(pdbp_error(), "pdbp_commit or pdbp_abandon") != NULL);
    memcpy(room, "lent", 4);
    DONE(pdbp_commit(parts[0]));
    DONE(pdbp_loan(parts[0], targets[1], 4, 0, &room));
    pdbp_abandon(parts[0]);
    EXPECT(pdbp_loan(parts[0], targets[1], 1u << 30, 0, &room) == PDBP_E_TOO_LONG);
    SAYS("use pdbp_send");
    DONE(pdbp_flush(parts[0]));
    receive("lent");

    large = (char *)calloc(1, 1 << 20);
    EXPECT(large != NULL);
    EXPECT(pdbp_send(parts[0], targets[1], large, 1 << 20, 0) == PDBP_E_NEEDS_WAITING);
    free(large);
    EXPECT(pdbp_returned(parts[0], &message, NULL, 0, NULL) == PDBP_WOULD_BLOCK);

    /* What is left until a time that has passed is no time to wait, and no setting by accident. */
    EXPECT(pdbp_recv(parts[0], &message, -2) == PDBP_E_ARGUMENT);
    EXPECT(strstr(pdbp_error(), "-2 nanoseconds") != NULL);
    targets_of_nobody();
}

static void streams(void) {
    pdbp_writer *writer;
    pdbp_reader *reader;
    pdbp_message segment;
    pdbp_target from;
    pdbp_status status;
    char bytes[16];
    size_t got, written = 0;
    void *room;

    EXPECT(pdbp_accept(parts[1], 0, &reader, NULL) == PDBP_WOULD_BLOCK);
    DONE(pdbp_open(parts[0], targets[1], &writer));
    DONE(pdbp_write(writer, "abcdefgh", 8, &written, WAIT));
    EXPECT(written == 8);
    DONE(pdbp_room(writer, 2, 0, &room, &got));
    EXPECT(got == 2);
    memcpy(room, "ij", 2);
    EXPECT(pdbp_filled(writer, 3) == PDBP_E_ARGUMENT);
    DONE(pdbp_filled(writer, 2));
    EXPECT(pdbp_filled(writer, 1) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_room(writer, 0, 0, &room, &got) == PDBP_E_ARGUMENT);
    DONE(pdbp_writer_flush(writer));
    DONE(pdbp_accept(parts[1], WAIT, &reader, &from));
    EXPECT(from == targets[0]);
    DONE(pdbp_read(reader, bytes, 4, &got, WAIT));
    EXPECT(got == 4 && memcmp(bytes, "abcd", 4) == 0);
    DONE(pdbp_segment(reader, &segment, WAIT));
    EXPECT(segment.size == 6 && memcmp(segment.data, "efghij", 6) == 0);
    EXPECT(segment.source == targets[0]);
    EXPECT(pdbp_read(reader, bytes, 4, &got, 0) == PDBP_WOULD_BLOCK);
    EXPECT(got == 0);
    EXPECT(pdbp_read(reader, bytes, 4, &got, 1000000) == PDBP_TIMEOUT);
    EXPECT(pdbp_error_nodes(NULL, 0) == 1);
    DONE(pdbp_finish(writer));
    EXPECT(pdbp_write(writer, "x", 1, NULL, WAIT) == PDBP_E_STREAM);
    SAYS("finished");
    pdbp_writer_free(writer);
    pdbp_release(&segment, 1);
    /* The last segment has no bytes, or there is none. */
    while ((status = pdbp_segment(reader, &segment, WAIT)) == PDBP_DONE) {
        EXPECT(segment.size == 0);
        pdbp_release(&segment, 1);
    }
    EXPECT(status == PDBP_END);
    EXPECT(pdbp_read(reader, bytes, 4, &got, WAIT) == PDBP_END);
    pdbp_reader_free(reader);

    /* A reader that is freed before the end; a writer that is freed before it has finished. */
    DONE(pdbp_open(parts[0], targets[1], &writer));
    DONE(pdbp_write(writer, "bytes", 5, NULL, WAIT));
    DONE(pdbp_writer_flush(writer));
    DONE(pdbp_accept(parts[1], WAIT, &reader, NULL));
    pdbp_writer_free(writer);
    while ((status = pdbp_read(reader, bytes, sizeof bytes, &got, WAIT)) == PDBP_DONE) EXPECT(got == 5);
    EXPECT(status == PDBP_E_STREAM);
    pdbp_reader_free(reader);
}

/* Writes until there is no room, and receives then. */
static void write_or_receive(void) {
    static char data[1 << 16];
    pdbp_writer *writer;
    pdbp_reader *reader;
    pdbp_message message;
    pdbp_status status;
    size_t written = 7;

    DONE(pdbp_open(parts[0], targets[1], &writer));
    DONE(pdbp_write_or(writer, NULL, 0, &written, &message, 0));
    EXPECT(written == 0);
    while ((status = pdbp_write_or(writer, data, sizeof data, &written, &message, 0)) == PDBP_DONE) EXPECT(written == sizeof data);
    EXPECT(status == PDBP_WOULD_BLOCK && written < sizeof data);
    EXPECT(pdbp_write_or(writer, data, sizeof data, &written, &message, 1000000) == PDBP_TIMEOUT);
    EXPECT(written == 0 && pdbp_error_nodes(NULL, 0) == 1);
    EXPECT(pdbp_write(writer, data, sizeof data, &written, 1000000) == PDBP_TIMEOUT);
    SAYS("(pdbp_wait, pdbp_write_or)");
    SAYS("(pdbp_any_segment)");
    DONE(pdbp_send(parts[1], targets[0], "a message", 9, WAIT));
    DONE(pdbp_flush(parts[1]));
    DONE(pdbp_write_or(writer, data, sizeof data, &written, &message, WAIT));
    EXPECT(written < sizeof data && message.size == 9 && message.source == targets[1]);
    pdbp_release(&message, 1);
    /* Its reader makes room. */
    DONE(pdbp_accept(parts[1], WAIT, &reader, NULL));
    pdbp_reader_free(reader);
    DONE(pdbp_write_or(writer, data, sizeof data, &written, &message, WAIT));
    EXPECT(written == sizeof data);
    DONE(pdbp_finish(writer));
    EXPECT(pdbp_write_or(writer, data, 1, &written, &message, WAIT) == PDBP_E_STREAM);
    pdbp_writer_free(writer);
}

/* A stream that is not accepted is nothing that it returns for. */
static void write_beside_an_unread_stream(void) {
    static char data[1 << 16];
    pdbp_writer *writer, *unread;
    pdbp_reader *reader;
    pdbp_message message;
    pdbp_target found;
    pdbp_status status;
    size_t written;

    DONE(pdbp_open(parts[1], targets[0], &unread));
    DONE(pdbp_write(unread, "unread", 6, NULL, WAIT));
    DONE(pdbp_writer_flush(unread));
    DONE(pdbp_wait(parts[0], PDBP_RECV, PDBP_NOBODY, WAIT, NULL));
    DONE(pdbp_open(parts[0], targets[1], &writer));
    while ((status = pdbp_write_or(writer, data, sizeof data, &written, &message, 1000000)) == PDBP_DONE) {}
    EXPECT(status == PDBP_TIMEOUT);
    pdbp_interrupt(nodes[0]);
    EXPECT(pdbp_write_or(writer, data, sizeof data, &written, &message, WAIT) == PDBP_INTERRUPTED);
    EXPECT(pdbp_find(nodes[0], "nobody@node1", WAIT, &found) == PDBP_INTERRUPTED); /* another handle of the node */
    DONE(pdbp_accept(parts[0], WAIT, &reader, NULL));
    pdbp_reader_free(reader);
    pdbp_writer_free(unread);
    DONE(pdbp_accept(parts[1], WAIT, &reader, NULL));
    pdbp_reader_free(reader);
    pdbp_writer_free(writer);
}

static void *read_to_the_end(void *part) {
    static char data[1 << 16];
    pdbp_reader *reader;
    pdbp_status status;
    size_t got;
    DONE(pdbp_adopt((pdbp_part *)part));
    DONE(pdbp_accept((pdbp_part *)part, WAIT, &reader, NULL));
    while ((status = pdbp_read(reader, data, sizeof data, &got, WAIT)) == PDBP_DONE) {}
    EXPECT(status == PDBP_END);
    pdbp_reader_free(reader);
    DONE(pdbp_disown((pdbp_part *)part));
    return NULL;
}

/* The end of a stream waits for room, even if its last write did not. */
static void finish_without_room(void) {
    static char data[1 << 16];
    pdbp_writer *writer;
    pdbp_status status;
    pthread_t thread;
    DONE(pdbp_open(parts[0], targets[1], &writer));
    while ((status = pdbp_write(writer, data, sizeof data, NULL, 0)) == PDBP_DONE) {}
    EXPECT(status == PDBP_WOULD_BLOCK);
    DONE(pdbp_disown(parts[1]));
    EXPECT(pthread_create(&thread, NULL, read_to_the_end, parts[1]) == 0);
    DONE(pdbp_finish(writer));
    EXPECT(pthread_join(thread, NULL) == 0);
    DONE(pdbp_adopt(parts[1]));
    pdbp_writer_free(writer);
}

/* Opens a stream, and writes a segment. */
static pdbp_writer *begin(const char *text) {
    pdbp_writer *writer;
    DONE(pdbp_open(parts[0], targets[1], &writer));
    DONE(pdbp_write(writer, text, strlen(text), NULL, WAIT));
    DONE(pdbp_writer_flush(writer));
    return writer;
}

/* Reads the next segment of any stream, which is to be of this one. */
static void read_any(uint32_t number, const char *text) {
    pdbp_message segment;
    uint32_t stream = 77, ready = 0;
    DONE(pdbp_wait(parts[1], PDBP_RECV, PDBP_NOBODY, WAIT, &ready));
    EXPECT(ready == PDBP_STREAM);
    DONE(pdbp_any_segment(parts[1], &segment, &stream, WAIT));
    EXPECT(stream == number && segment.source == targets[0]);
    EXPECT(segment.size == strlen(text) && memcmp(segment.data, text, segment.size) == 0);
    pdbp_release(&segment, 1);
}

/* Reads the end of a stream, behind empty segments. */
static pdbp_status read_end(uint32_t number) {
    pdbp_message segment;
    uint32_t stream = 77;
    pdbp_status status;
    while ((status = pdbp_any_segment(parts[1], &segment, &stream, WAIT)) == PDBP_DONE) {
        EXPECT(segment.size == 0);
        pdbp_release(&segment, 1);
    }
    EXPECT(stream == number && segment.source == targets[0] && segment.size == 0 && segment.data == NULL);
    pdbp_release(&segment, 1); /* nothing */
    return status;
}

static void streams_together(void) {
    pdbp_writer *writers[4];
    pdbp_reader *reader;
    pdbp_message segment;
    uint32_t stream;
    char bytes[8];
    size_t got;

    EXPECT(pdbp_any_segment(parts[1], &segment, &stream, 0) == PDBP_WOULD_BLOCK);
    EXPECT(pdbp_any_segment(parts[1], &segment, &stream, 1000000) == PDBP_TIMEOUT);
    SAYS("written to a stream");
    writers[0] = begin("accepted");
    DONE(pdbp_accept(parts[1], WAIT, &reader, NULL));
    writers[1] = begin("one");
    writers[2] = begin("two");
    read_any(0, "one");
    read_any(1, "two");
    EXPECT(pdbp_any_segment(parts[1], &segment, &stream, 0) == PDBP_WOULD_BLOCK);
    DONE(pdbp_write(writers[2], "more", 4, NULL, WAIT));
    DONE(pdbp_writer_flush(writers[2]));
    read_any(1, "more");
    /* That of who accepted it stays that. */
    DONE(pdbp_read(reader, bytes, 8, &got, WAIT));
    EXPECT(got == 8 && memcmp(bytes, "accepted", 8) == 0);
    DONE(pdbp_finish(writers[1]));
    EXPECT(read_end(0) == PDBP_END);
    /* The number is free, and the next one has it. */
    writers[3] = begin("three");
    read_any(0, "three");
    pdbp_writer_free(writers[2]);
    EXPECT(read_end(1) == PDBP_E_STREAM);
    SAYS("from part");
    SAYS("ended before its last segment");
    EXPECT(pdbp_error_nodes(NULL, 0) == 1);
    EXPECT(pdbp_discard(parts[1], 1) == PDBP_E_ARGUMENT);
    SAYS("no stream has the number 1");
    DONE(pdbp_discard(parts[1], 0));
    DONE(pdbp_write(writers[3], "in vain", 7, NULL, WAIT));
    DONE(pdbp_finish(writers[3]));
    EXPECT(pdbp_any_segment(parts[1], &segment, &stream, 0) == PDBP_WOULD_BLOCK);
    pdbp_writer_free(writers[1]);
    pdbp_writer_free(writers[3]);
    pdbp_reader_free(reader);
    pdbp_writer_free(writers[0]);
    /* Left to be given up with its part. */
    writers[0] = begin("left");
    read_any(0, "left");
    pdbp_writer_free(writers[0]);
}

static void *free_part(void *part) {
    pdbp_part_free((pdbp_part *)part);
    return NULL;
}

/* What a freed part has held is given up at once, though a stream keeps the part. */
static void part_with_an_open_stream(int is_freed_by_another) {
    static char data[1 << 16];
    pdbp_part *part;
    pdbp_target to;
    pdbp_writer *writer, *open;
    pdbp_message segment;
    pdbp_status status;
    uint32_t stream;
    void *room;
    int i, polls;

    DONE(pdbp_register(nodes[1], "freed", PDBP_CPU, &part));
    to = pdbp_self(part);
    DONE(pdbp_open(parts[0], to, &writer));
    while ((status = pdbp_write(writer, data, sizeof data, NULL, 0)) == PDBP_DONE) {}
    EXPECT(status == PDBP_WOULD_BLOCK);
    DONE(pdbp_any_segment(part, &segment, &stream, WAIT));
    pdbp_release(&segment, 1);
    DONE(pdbp_open(part, targets[0], &open));
    DONE(pdbp_send(part, targets[0], "packed", 6, WAIT));
    DONE(pdbp_loan(part, targets[0], 4, WAIT, &room));
    if (is_freed_by_another) {
        pthread_t thread;
        EXPECT(pthread_create(&thread, NULL, free_part, part) == 0);
        EXPECT(pthread_join(thread, NULL) == 0);
        DONE(pdbp_write(open, "a", 1, NULL, WAIT));
    } else {
        pdbp_part_free(part);
    }
    /* What was unread makes room, and what comes later, too: 16 MiB. */
    for (i = 0; i < 256; i++) {
        for (polls = 0; (status = pdbp_write(writer, data, sizeof data, NULL, 0)) == PDBP_WOULD_BLOCK && polls < 1000; polls++)
            DONE(pdbp_poll(nodes[1], NULL));
        EXPECT(status == PDBP_DONE);
    }
    DONE(pdbp_finish(writer));
    /* It was in one block with the loan. */
    DONE(pdbp_recv(parts[0], &segment, WAIT));
    EXPECT(segment.size == 6 && segment.source == to);
    pdbp_release(&segment, 1);
    pdbp_writer_free(writer);
    pdbp_writer_free(open);
}

static void node_calls(void) {
    pdbp_node_stats stats;
    pdbp_event_info event;
    pdbp_ns next = 7;
    size_t size;
    int fd;
    memset(&stats, 0xff, sizeof stats);
    stats.size = 4;
    EXPECT(pdbp_stats(nodes[0], &stats) == PDBP_E_ARGUMENT);
    stats.size = sizeof stats;
    DONE(pdbp_stats(nodes[0], &stats));
    EXPECT(stats.size == sizeof stats && stats.node == 0 && stats.messages_sent > 100 && stats.private_pipes == 1);
    event.size = sizeof event;
    while (pdbp_event(nodes[0], &event) == PDBP_DONE) EXPECT(event.size == sizeof event);
    event.kind = 77;
    EXPECT(pdbp_event(nodes[0], &event) == PDBP_END);
    EXPECT(pdbp_wait_event(nodes[0], &event, 0) == PDBP_WOULD_BLOCK);
    EXPECT(pdbp_wait_event(nodes[0], &event, 1000000) == PDBP_TIMEOUT);
    EXPECT(event.kind == 77); /* as it was */
    SAYS("no node has caused an event");
    EXPECT(pdbp_wait_event(nodes[0], &event, -2) == PDBP_E_ARGUMENT);
    pdbp_interrupt(nodes[0]);
    EXPECT(pdbp_wait_event(nodes[0], &event, WAIT) == PDBP_INTERRUPTED);
    event.size = 4;
    EXPECT(pdbp_wait_event(nodes[0], &event, WAIT) == PDBP_E_ARGUMENT);
    event.size = sizeof event;
    /* Nobody would make it readable: the progress of this cluster is "inline". */
    EXPECT(pdbp_event_fd(nodes[0], &fd) == PDBP_E_SETTINGS);
    SAYS("nothing polls the node");
    DONE(pdbp_poll(nodes[0], &next));
    EXPECT(next >= -1 && next != 7);
    {
        uint16_t members[2] = {7, 7};
        DONE(pdbp_members(nodes[0], members, 1, &size));
        EXPECT(size == 2 && members[0] == 0 && members[1] == 7);
        DONE(pdbp_members(nodes[0], NULL, 0, &size));
        EXPECT(size == 2);
    }
    EXPECT(pdbp_barrier(nodes[0], 1000000) == PDBP_TIMEOUT);
    EXPECT(pdbp_error_nodes(NULL, 0) == 1);
    {
        uint16_t missing[2] = {7, 7};
        EXPECT(pdbp_error_nodes(missing, 2) == 1 && missing[0] == 1 && missing[1] == 7);
    }
    DONE(pdbp_barrier(nodes[1], WAIT));
    DONE(pdbp_quiesce(nodes[0], WAIT));
    pdbp_interrupt(nodes[0]);
    {
        pdbp_message message;
        EXPECT(pdbp_recv(parts[0], &message, WAIT) == PDBP_INTERRUPTED);
        EXPECT(pdbp_barrier(nodes[0], WAIT) == PDBP_INTERRUPTED);
        /* It has arrived all the same. */
        DONE(pdbp_barrier(nodes[1], WAIT));
    }
}

/* What each member of a group does: of two nodes, each on a thread of its own. */
static void *member(void *argument) {
    pdbp_node *node = (pdbp_node *)argument;
    const char *const list[] = {"part@node0", "part@node1"};
    pdbp_group *group, *half;
    uint32_t rank;
    int64_t all[6] = {0}, own[3], sums[5];
    double least[2];
    size_t first, got, i;

    EXPECT(pdbp_group_of_nodes(node, "a name\n", WAIT, &group) < 0);
    DONE(pdbp_group_of_nodes(node, "all", WAIT, &group));
    rank = pdbp_group_rank(group);
    EXPECT(pdbp_group_size(group) == 2 && rank == pdbp_node_index(node));
    DONE(pdbp_group_barrier(group));
    EXPECT(pdbp_group_patience(group, PDBP_SET_TIMEOUT) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_group_patience(group, 0) == PDBP_E_ARGUMENT);
    SAYS("above 0");
    DONE(pdbp_group_patience(group, 60000000000));

    for (i = 0; i < 3; i++) own[i] = (int64_t)(10 * rank + i);
    DONE(pdbp_group_all_gather(group, own, all, sizeof own));
    for (i = 0; i < 6; i++) EXPECT(all[i] == (int64_t)(10 * (i / 3) + i % 3));
    memset(all, 0, sizeof all);
    DONE(pdbp_group_gather(group, 1, own, rank == 1 ? all : NULL, sizeof own));
    EXPECT(all[3] == (rank == 1 ? 10 : 0));
    DONE(pdbp_group_scatter(group, 1, rank == 1 ? all : NULL, own, sizeof own));
    EXPECT(own[2] == (int64_t)(10 * rank + 2));
    DONE(pdbp_group_broadcast(group, 0, own, sizeof own));
    EXPECT(own[0] == 0 && own[2] == 2);
    for (i = 0; i < 2; i++) own[i] = (int64_t)(rank + 4 * i);
    DONE(pdbp_group_all_to_all(group, own, all, sizeof *own));
    EXPECT(all[0] == (int64_t)(4 * rank) && all[1] == (int64_t)(1 + 4 * rank));

    for (i = 0; i < 5; i++) sums[i] = (int64_t)i - rank;
    DONE(pdbp_group_all_reduce(group, sums, 5, PDBP_I64, PDBP_SUM));
    for (i = 0; i < 5; i++) EXPECT(sums[i] == 2 * (int64_t)i - 1);
    DONE(pdbp_group_reduce_scatter(group, sums, 5, PDBP_I64, PDBP_MAX, &first, &got));
    EXPECT(first == (rank == 0 ? 0u : 3u) && got == (rank == 0 ? 3u : 2u) && sums[first] == 2 * (int64_t)first - 1);
    least[0] = 1.5 - rank;
    least[1] = rank;
    DONE(pdbp_group_reduce(group, 0, least, 2, PDBP_F64, PDBP_MIN));
    EXPECT(rank != 0 || (least[0] == 0.5 && least[1] == 0));

    /* A ring, and each by itself. */
    DONE(pdbp_group_send_recv(group, 1 - rank, &rank, sizeof rank, 1 - rank, &i, sizeof(uint32_t), 7));
    if (rank == 0) DONE(pdbp_group_send(group, 1, 8, "tagged", 6));
    if (rank == 1) {
        char text[6];
        DONE(pdbp_group_recv(group, 0, 8, text, 6));
        EXPECT(memcmp(text, "tagged", 6) == 0);
    }

    /* What cannot be is refused, and the group is as it was. */
    EXPECT(pdbp_group_broadcast(group, 2, own, sizeof own) == PDBP_E_ARGUMENT);
    SAYS("there is no member 2");
    EXPECT(pdbp_group_all_gather(group, all + 1, all, sizeof *all) == PDBP_E_ARGUMENT);
    SAYS("overlap");
    EXPECT(pdbp_group_all_gather(group, own, all, SIZE_MAX) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_group_all_reduce(group, sums, 1, PDBP_F64, PDBP_XOR) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_group_all_reduce(group, sums, 1, 99, PDBP_SUM) == PDBP_E_ARGUMENT);
    SAYS("PDBP_F64");
    EXPECT(pdbp_group_all_reduce(group, sums, 1, PDBP_I64, 99) == PDBP_E_ARGUMENT);
    EXPECT(pdbp_group_all_reduce(group, NULL, 1, PDBP_I64, PDBP_SUM) == PDBP_E_NULL);
    DONE(pdbp_group_all_reduce(group, NULL, 0, PDBP_I64, PDBP_SUM));
    DONE(pdbp_group_barrier(group));

    DONE(pdbp_group_split(group, rank, &half));
    EXPECT(pdbp_group_size(half) == 1 && pdbp_group_rank(half) == 0);
    pdbp_group_free(half);
    DONE(pdbp_group_local(group, &half));
    EXPECT(pdbp_group_size(half) == 2 && pdbp_group_rank(half) == rank);
    pdbp_group_free(half);

    /* Calls that differ end the group. */
    sums[0] = 1;
    EXPECT(pdbp_group_all_reduce(group, sums, 1, PDBP_I64, rank == 0 ? PDBP_SUM : PDBP_MAX) == PDBP_E_GROUP);
    EXPECT(pdbp_group_barrier(group) == PDBP_E_GROUP);
    /* One that left now would be a member that is gone to the other, if that comes late. */
    DONE(pdbp_barrier(node, WAIT));
    pdbp_group_free(group);

    /* Of named parts; the rank is the place in the list. */
    {
        pdbp_part *part;
        DONE(pdbp_register(node, "member", PDBP_CPU, &part));
        EXPECT(pdbp_group_of(part, "pair", list, 2, WAIT, &group) == PDBP_E_ARGUMENT);
        SAYS("member");
        EXPECT(pdbp_group_of(part, "pair", NULL, 2, WAIT, &group) == PDBP_E_NULL);
        pdbp_part_free(part);
    }
    return NULL;
}

static void groups(void) {
    const char *const list[] = {"part@node1"};
    pdbp_group *group;
    pthread_t threads[2];
    int i;
    for (i = 0; i < 2; i++) EXPECT(pthread_create(&threads[i], NULL, member, nodes[i]) == 0);
    for (i = 0; i < 2; i++) EXPECT(pthread_join(threads[i], NULL) == 0);
    DONE(pdbp_group_of(parts[1], "alone", list, 1, WAIT, &group));
    DONE(pdbp_group_barrier(group));
    pdbp_group_free(group);
    pdbp_group_free(NULL);
    EXPECT(pdbp_group_barrier(group) == PDBP_E_HANDLE);
}

static void *release(void *message) {
    pdbp_release((pdbp_message *)message, 1);
    return NULL;
}

static void *take_over(void *part) {
    pdbp_message message;
    EXPECT(pdbp_recv((pdbp_part *)part, &message, 0) == PDBP_E_THREAD);
    DONE(pdbp_adopt((pdbp_part *)part));
    DONE(pdbp_recv((pdbp_part *)part, &message, WAIT));
    EXPECT(message.size == 4);
    pdbp_release(&message, 1);
    DONE(pdbp_disown((pdbp_part *)part));
    return NULL;
}

static void on_a_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, run, argument) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
}

static void threads(void) {
    pdbp_message message;
    DONE(pdbp_send(parts[0], targets[1], "held", 4, WAIT));
    DONE(pdbp_send(parts[0], targets[1], "next", 4, WAIT));
    DONE(pdbp_flush(parts[0]));
    DONE(pdbp_recv(parts[1], &message, WAIT));
    on_a_thread(release, &message);
    DONE(pdbp_disown(parts[1]));
    EXPECT(pdbp_flush(parts[1]) == PDBP_E_THREAD);
    on_a_thread(take_over, parts[1]);
    DONE(pdbp_adopt(parts[1]));
    DONE(pdbp_flush(parts[1]));
}

static void forked(void) {
    pdbp_message message;
    pdbp_writer *writer;
    pid_t child;
    int status;
    DONE(pdbp_open(parts[0], targets[1], &writer));
    DONE(pdbp_send(parts[0], targets[1], "kept", 4, WAIT));
    DONE(pdbp_flush(parts[0]));
    DONE(pdbp_recv(parts[1], &message, WAIT));
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        if (pdbp_flush(parts[0]) != PDBP_E_FORKED || pdbp_poll(nodes[0], NULL) != PDBP_E_FORKED) _exit(2);
        if (pdbp_write(writer, "x", 1, NULL, 0) != PDBP_E_FORKED) _exit(3);
        pdbp_release(&message, 1);
        if (message.data != NULL) _exit(4);
        pdbp_writer_free(writer);
        pdbp_part_free(parts[0]);
        pdbp_part_free(parts[1]);
        pdbp_node_free(nodes[0]);
        pdbp_cluster_free(cluster);
        /* What is forgotten counts as leaked where a process ends, but not where it becomes another. */
        execlp("true", "true", (char *)NULL);
        _exit(5);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* Nothing has changed here. */
    EXPECT(memcmp(message.data, "kept", 4) == 0);
    pdbp_release(&message, 1);
    DONE(pdbp_write(writer, "x", 1, NULL, WAIT));
    DONE(pdbp_finish(writer));
    pdbp_writer_free(writer);
    DONE(pdbp_send(parts[0], targets[1], "more", 4, WAIT));
    DONE(pdbp_flush(parts[0]));
    receive("more");
}

static void freed_in_any_order(void) {
    pdbp_message message;
    pdbp_writer *writer;
    DONE(pdbp_send(parts[0], targets[1], "last", 4, WAIT));
    DONE(pdbp_flush(parts[0]));
    DONE(pdbp_recv(parts[1], &message, WAIT));
    DONE(pdbp_open(parts[0], targets[1], &writer));
    pdbp_cluster_free(cluster);
    pdbp_node_free(nodes[0]);
    pdbp_node_free(nodes[1]);
    pdbp_part_free(parts[0]);
    DONE(pdbp_write(writer, "x", 1, NULL, WAIT));
    DONE(pdbp_flush(parts[1]));
    pdbp_part_free(parts[1]);
    EXPECT(memcmp(message.data, "last", 4) == 0);
    pdbp_release(&message, 1);
    pdbp_writer_free(writer);

    /* Their memory is kept for a while, so that those who go on with it, or free it again, are told so. */
    EXPECT(pdbp_flush(parts[1]) == PDBP_E_HANDLE);
    SAYS("has already been freed");
    EXPECT(pdbp_write(writer, "x", 1, NULL, WAIT) == PDBP_E_HANDLE);
    EXPECT(pdbp_poll(nodes[0], NULL) == PDBP_E_HANDLE);
    EXPECT(pdbp_cluster_node(cluster, 0, &nodes[0]) == PDBP_E_HANDLE);
    pdbp_part_free(parts[0]);
    pdbp_writer_free(writer);
}

int main(void) {
    start();
    nothing();
    names();
    messages();
    descriptors();
    streams();
    write_or_receive();
    write_beside_an_unread_stream();
    finish_without_room();
    streams_together();
    part_with_an_open_stream(0);
    part_with_an_open_stream(1);
    node_calls();
    groups();
    threads();
    forked();
    freed_in_any_order();
    printf("all of it is as it should be\n");
    return 0;
}
