/* A cluster over sockets whose processes come and go: who founds it hears of one that joins, of one that leaves, and of one that is killed. Its
 * members are this program, started again with an address to join. */
#define _POSIX_C_SOURCE 200112L
#include <pdbp.h>

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT 60000000000 /* a minute: longer than anything takes that works */
#define EXPECT(what)                                                                                       \
    do {                                                                                                   \
        if (!(what)) {                                                                                     \
            fprintf(stderr, "members.c:%d: %s; the last failure: %s\n", __LINE__, #what, pdbp_error());    \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)
#define DONE(call) EXPECT((call) == PDBP_DONE)

static pdbp_node *node;

static pdbp_cluster *start(const char *const *keys_and_values) {
    pdbp_settings *settings;
    pdbp_cluster *cluster;
    DONE(pdbp_settings_new(&settings));
    for (; *keys_and_values != NULL; keys_and_values += 2) DONE(pdbp_settings_set(settings, keys_and_values[0], keys_and_values[1]));
    DONE(pdbp_start(settings, &cluster));
    pdbp_settings_free(settings);
    return cluster;
}

/* Says hello, with a stream, and leaves when it is told to. */
static int member(const char *address) {
    const char *settings[] = {"join", NULL, "lease_ms", "0", NULL};
    pdbp_cluster *cluster;
    pdbp_part *part;
    pdbp_writer *writer;
    pdbp_target founder;
    pdbp_message message;
    uint16_t index;
    settings[1] = address;
    cluster = start(settings);
    /* The index of its node is what the founder gave it. */
    for (index = 0; pdbp_cluster_node(cluster, index, &node) != PDBP_DONE; index++) EXPECT(index < 3);
    DONE(pdbp_register(node, "member", PDBP_CPU, &part));
    DONE(pdbp_find(node, "founder@node0", WAIT, &founder));
    DONE(pdbp_open(part, founder, &writer));
    DONE(pdbp_write(writer, "a stream", 8, NULL, WAIT));
    DONE(pdbp_writer_flush(writer));
    DONE(pdbp_send(part, founder, "hello", 5, WAIT));
    DONE(pdbp_recv(part, &message, WAIT));
    pdbp_release(&message, 1);
    DONE(pdbp_finish(writer));
    pdbp_writer_free(writer);
    pdbp_part_free(part);
    pdbp_node_free(node);
    pdbp_cluster_free(cluster);
    return 0;
}

static pid_t join(const char *program, const char *address) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        execl(program, program, address, (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Waits for the next event of this kind. */
static uint16_t await_event(uint32_t kind) {
    pdbp_event_info event;
    event.size = sizeof event;
    do DONE(pdbp_wait_event(node, &event, WAIT));
    while (event.kind != kind);
    return event.peer;
}

/* The same, in a loop over descriptors. */
static uint16_t poll_event(uint32_t kind) {
    pdbp_event_info event;
    struct pollfd waits;
    pdbp_status status;
    DONE(pdbp_event_fd(node, &waits.fd));
    waits.events = POLLIN;
    event.size = sizeof event;
    for (;;) {
        while ((status = pdbp_event(node, &event)) == PDBP_DONE) {
            if (event.kind == kind) return event.peer;
        }
        EXPECT(status == PDBP_END);
        EXPECT(poll(&waits, 1, 60000) == 1);
    }
}

static size_t members(void) {
    size_t count;
    DONE(pdbp_members(node, NULL, 0, &count));
    return count;
}

int main(int argc, char **argv) {
    /* Without leases, which a process loses that gets no processor for seconds. Who is killed is found to be at once, on the same host. */
    const char *settings[] = {"listen", NULL, "found", "on", "nodes", "3", "lease_ms", "0", "outage_ms", "20000", NULL};
    char address[32];
    struct sockaddr_in any;
    socklen_t length = sizeof any;
    pdbp_cluster *cluster;
    pdbp_part *part;
    pdbp_message message;
    pdbp_target targets[2];
    pid_t children[2];
    int server, i, status;

    if (argc > 1) return member(argv[1]);
    /* A port that is free now. Those of 127.0.0.1 may go to other programs, or to their connections, before it is used. */
    server = socket(AF_INET, SOCK_STREAM, 0);
    memset(&any, 0, sizeof any);
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl((127u << 24) + 0x10001u + (uint32_t)getpid() % 0x7fff * 0x100);
    EXPECT(bind(server, (struct sockaddr *)&any, sizeof any) == 0);
    EXPECT(getsockname(server, (struct sockaddr *)&any, &length) == 0);
    close(server);
    EXPECT(inet_ntop(AF_INET, &any.sin_addr, address, INET_ADDRSTRLEN) != NULL);
    sprintf(address + strlen(address), ":%u", (unsigned)ntohs(any.sin_port));
    settings[1] = address;

    cluster = start(settings);
    DONE(pdbp_cluster_node(cluster, 0, &node));
    DONE(pdbp_register(node, "founder", PDBP_CPU, &part));
    EXPECT(members() == 1);
    for (i = 0; i < 2; i++) {
        children[i] = join(argv[0], address);
        DONE(pdbp_recv(part, &message, WAIT));
        targets[i] = message.source;
        EXPECT(message.size == 5 && await_event(PDBP_EVENT_NODE_UP) == i + 1);
        pdbp_release(&message, 1);
        EXPECT(members() == (size_t)i + 2);
    }

    /* One leaves, the other is killed. */
    DONE(pdbp_send(part, targets[0], "leave", 5, WAIT));
    DONE(pdbp_flush(part));
    EXPECT(await_event(PDBP_EVENT_NODE_DOWN) == 1);
    EXPECT(waitpid(children[0], &status, 0) == children[0] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(members() == 2);
    EXPECT(kill(children[1], SIGKILL) == 0 && waitpid(children[1], &status, 0) == children[1]);
    EXPECT(await_event(PDBP_EVENT_STREAM_BROKEN) == 2);
    EXPECT(poll_event(PDBP_EVENT_NODE_DOWN) == 2);
    EXPECT(members() == 1);
    {
        uint16_t left = 7;
        size_t count;
        DONE(pdbp_members(node, &left, 1, &count));
        EXPECT(count == 1 && left == 0);
    }
    /* Others may join: who receives waits for them. */
    EXPECT(pdbp_recv(part, &message, 1000000) == PDBP_TIMEOUT);
    EXPECT(pdbp_send(part, targets[1], "x", 1, 1000000) == PDBP_E_PEER_FAILED);
    {
        uint16_t failed = 7;
        EXPECT(pdbp_error_nodes(&failed, 1) == 1 && failed == 2);
    }
    pdbp_part_free(part);
    pdbp_node_free(node);
    pdbp_cluster_free(cluster);
    printf("members come and go as they should\n");
    return 0;
}
