/* pdbp.h: parts of a cluster that send messages and streams to each other by name.
 *
 * C99 and C++11, for targets of 64 bits. Licence: MIT or Apache-2.0.
 *
 * Statuses. A function returns 0 (PDBP_DONE) on success, a status above 0 for an outcome that is not an error (it would block, timed out, was
 * interrupted, has come to the end), and a status below 0 for an error. pdbp_error() then says what was wrong and what to do. Unless stated
 * otherwise, results are written only with PDBP_DONE.
 *
 * Times to wait (pdbp_ns) are in nanoseconds: 0 does not wait, PDBP_SET_TIMEOUT waits for the time in the setting timeout_ms, and other negative
 * times are PDBP_E_ARGUMENT.
 *
 * Threads. Clusters, nodes and settings: any threads, at the same time. A part with its streams: only the thread that registered it, until it
 * disowns the part and another adopts it; others get PDBP_E_THREAD. A group: any thread, but one at a time, else PDBP_E_THREAD. Messages,
 * batches and ends of streams may be released or freed on any thread; so may a part, while no call with it is in progress.
 *
 * Handles keep alive what they need, so they may be freed in any order; freeing null does nothing. A freed handle must not be used: calls with one
 * of the last 64 freed handles get PDBP_E_HANDLE; with an earlier one the behaviour is undefined, as after C's free. In a forked child, calls get
 * PDBP_E_FORKED, and freeing or releasing only forgets the handle.
 *
 * Pointers may be null only where stated; otherwise the call gets PDBP_E_NULL. Text is UTF-8 and ends with a zero byte. */
#ifndef PDBP_H
#define PDBP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the ABI that a program is compiled for: major version in the upper, minor in the lower 16 bits. */
#define PDBP_ABI 0x00000001u

typedef int32_t pdbp_status;
typedef uint64_t pdbp_target; /* a part, from pdbp_find, pdbp_self or a message; a plain value, which means the same in all processes */
typedef int64_t pdbp_ns;      /* how long to wait, in nanoseconds */

typedef struct pdbp_settings pdbp_settings;
typedef struct pdbp_cluster pdbp_cluster;
typedef struct pdbp_node pdbp_node;
typedef struct pdbp_part pdbp_part;
typedef struct pdbp_writer pdbp_writer;
typedef struct pdbp_reader pdbp_reader;
typedef struct pdbp_group pdbp_group;

#define PDBP_SET_TIMEOUT (-1)
#define PDBP_NOBODY UINT64_MAX /* no part */

/* Done, and no error. */
#define PDBP_DONE 0
#define PDBP_WOULD_BLOCK 1 /* there is nothing, or no room, and the call may not wait; pdbp_error() does not describe it */
#define PDBP_TIMEOUT 2     /* the time to wait is over; pdbp_error_nodes() lists the nodes waited for, if known */
#define PDBP_INTERRUPTED 3 /* pdbp_interrupt */
#define PDBP_END 4         /* the end of a stream; no more events */
/* Errors. Codes are never reused for something else; print unknown ones with pdbp_status_name. */
#define PDBP_E_NULL (-1)           /* a null pointer */
#define PDBP_E_ARGUMENT (-2)       /* an invalid value */
#define PDBP_E_HANDLE (-3)         /* a pointer to something else */
#define PDBP_E_THREAD (-4)         /* the part belongs to another thread, or to none */
#define PDBP_E_FORKED (-5)         /* the handle belongs to the process that this one was forked from */
#define PDBP_E_PANIC (-6)          /* a bug of the library; the handle can only be freed */
#define PDBP_E_VERSION (-7)        /* this header is of another version than the library */
#define PDBP_E_UNSUPPORTED (-8)    /* the library was built without it */
#define PDBP_E_SETTINGS (-9)       /* an unknown setting, or an invalid value */
#define PDBP_E_START (-10)         /* the cluster did not start */
#define PDBP_E_NO_NODE (-11)       /* no such node, or another process hosts it */
#define PDBP_E_NO_PART (-12)       /* no such part, or it no longer exists */
#define PDBP_E_AMBIGUOUS (-13)     /* several nodes have a part of that name */
#define PDBP_E_REFUSED (-14)       /* the name of a part cannot be used or is taken, or its node has no room for more */
#define PDBP_E_FULL (-15)          /* a table of the cluster, or the pipes of the node: see the settings */
#define PDBP_E_PEER_FAILED (-16)   /* the node has failed, or the one through which it is reached */
#define PDBP_E_TOO_LONG (-17)      /* a message, a loan, or a set of destinations */
#define PDBP_E_NEEDS_WAITING (-18) /* the message takes several blocks, which a call that may not wait cannot send */
#define PDBP_E_LOANED (-19)        /* the part has a loan, which a message would overtake */
#define PDBP_E_NO_LOAN (-20)       /* the part has no loan */
#define PDBP_E_STREAM (-21)        /* the stream is finished, broken, or goes no further */
#define PDBP_E_NOBODY_LEFT (-22)   /* nobody is left who could send anything */
#define PDBP_E_OTHER (-23)         /* something else: see pdbp_error() */
#define PDBP_E_DEVICE (-24)        /* pdbp_cuda.h: there is no such device, or it has failed */
#define PDBP_E_GROUP (-25)         /* the group has ended: a member has made another call, or given one up; make a new one */

/* A message, read where it arrived. The struct is the caller's memory: it may be moved, but not copied. All zeroes means no message. The bytes stay
 * valid, and occupy the sender's room, until pdbp_release. Only pdbp_release may change the last two fields. */
typedef struct {
    const void *data;
    size_t size;
    pdbp_target source; /* who sent it: the target of an answer */
    uint16_t command;   /* the number of a command; 0 otherwise */
    uint16_t flags;     /* PDBP_COMMAND */
    uint32_t held;
    uint64_t owner[4];
} pdbp_message;

/* A train: count consecutive messages of each bytes. As pdbp_message. */
typedef struct {
    const void *data;
    size_t each, count;
    pdbp_target source;
    uint16_t command, flags;
    uint32_t held;
    uint64_t owner[4], reserved;
} pdbp_batch;

#define PDBP_COMMAND 1 /* in flags: it was sent as a command */

/* -- Version and errors -- */

/* The version of the library that runs: of its ABI, as PDBP_ABI, and as text. */
uint32_t pdbp_abi(void);
const char *pdbp_version(void);

/* The name of a status: "PDBP_TIMEOUT". */
const char *pdbp_status_name(pdbp_status status);

/* The message of this thread's last failed call: the value that was wrong, and what to do. Valid until the next failure. */
const char *pdbp_error(void);

/* The nodes that the call waited for, or that have failed: writes as many as fit, and returns how many there are. None for calls of groups, whose
 * text names the member, and for calls that waited for any node. */
size_t pdbp_error_nodes(uint16_t *to_or_null, size_t room);

/* -- Settings and clusters -- */

/* Settings from the environment (PDBP_...) and from the file that PDBP_CONFIG names. `pdbp config` lists them all. */
pdbp_status pdbp_settings_new(pdbp_settings **out);
/* Sets a value by its name: ("nodes", "4"). */
pdbp_status pdbp_settings_set(pdbp_settings *settings, const char *key, const char *value);
void pdbp_settings_free(pdbp_settings *settings);

/* Starts the nodes of this process, and returns when all nodes of the cluster know each other: under a launcher such as mpirun one node per
 * process, if the library was built for that, else the number of nodes in the setting nodes, in this process. Null: settings as from
 * pdbp_settings_new. The caller keeps the settings. */
pdbp_status pdbp_start_abi(uint32_t abi, pdbp_settings *settings_or_null, pdbp_cluster **out);
#define pdbp_start(settings_or_null, out) pdbp_start_abi(PDBP_ABI, settings_or_null, out)

/* As pdbp_start, on a communicator of a program that itself calls MPI: pdbp_start_on of pdbp_mpi.h. */
pdbp_status pdbp_start_comm(uint32_t abi, pdbp_settings *settings_or_null, uintptr_t comm, pdbp_cluster **out);

/* Number of nodes of the whole cluster; 0 on failure. */
uint16_t pdbp_cluster_size(const pdbp_cluster *cluster);
/* A handle of a node that this process hosts. Each call makes a new one. */
pdbp_status pdbp_cluster_node(pdbp_cluster *cluster, uint16_t index, pdbp_node **out);
/* A node stops when the handles of the cluster, of the node, of its parts and of their streams are freed, and all messages released that it has
 * received: until then others see it as a member. Anything not yet received is then lost: see pdbp_quiesce. */
void pdbp_cluster_free(pdbp_cluster *cluster);

/* -- Nodes -- */

/* Finds the part with an address such as "worker@node1", or with a name that only one node has; waits until it is registered.
 * PDBP_E_NO_PART or PDBP_E_NO_NODE, and not PDBP_TIMEOUT, once the time is over. */
pdbp_status pdbp_find(pdbp_node *node, const char *address, pdbp_ns wait, pdbp_target *out);
/* The node's index; UINT16_MAX on failure. */
uint16_t pdbp_node_index(const pdbp_node *node);
void pdbp_node_free(pdbp_node *node);

/* Waits until every node has called this as often as this one. A call that failed counts, too. PDBP_E_PEER_FAILED: a node has ended before. */
pdbp_status pdbp_barrier(pdbp_node *node, pdbp_ns wait);
/* Waits until everything that any part has sent before can be received without waiting. */
pdbp_status pdbp_quiesce(pdbp_node *node, pdbp_ns wait);
/* Makes progress, with progress = "host". *next is the latest time to call again; 0: at once, -1: when something happens. */
pdbp_status pdbp_poll(pdbp_node *node, pdbp_ns *next_or_null);
/* Interrupts a waiting call of each part and each handle of the node; where none is waiting, the next call that would wait. For other threads
 * and signal handlers. */
void pdbp_interrupt(pdbp_node *node);

/* The members of the cluster known to the node, itself included: writes as many of their indices as fit, and their number to *members.
 * In a cluster whose processes come and go (the setting found) they change with the events PDBP_EVENT_NODE_UP and _DOWN. */
pdbp_status pdbp_members(pdbp_node *node, uint16_t *to_or_null, size_t room, size_t *members);

/* An event at a node. Set size to sizeof before the call. */
typedef struct {
    uint32_t size;
    uint32_t kind;       /* PDBP_EVENT_... */
    uint64_t count;      /* messages lost, or 1 for a part that is known and 0 for one that was not accepted */
    pdbp_target part;    /* or PDBP_NOBODY */
    uint32_t number;     /* of a part at its node, a stream, or the term of a master */
    uint16_t peer;       /* the node that it is about, or UINT16_MAX */
    uint16_t other;      /* the destination, where peer is a relay or a source, or UINT16_MAX */
} pdbp_event_info;

#define PDBP_EVENT_OTHER 0 /* this version has no kind for it */
#define PDBP_EVENT_CHANGED 1
#define PDBP_EVENT_MALFORMED 2 /* a block of peer was refused */
#define PDBP_EVENT_UNROUTABLE 3 /* peer has sent count messages to a part that no longer exists: its number at this node is in number */
#define PDBP_EVENT_PEER_FAILED 4
#define PDBP_EVENT_PEER_RESTORED 5
#define PDBP_EVENT_SETTINGS_DIFFER 6
#define PDBP_EVENT_NEW_MASTER 7
#define PDBP_EVENT_EXPELLED 8
#define PDBP_EVENT_NOT_PASSED_ON 9
#define PDBP_EVENT_STREAM_STOPPED 10
#define PDBP_EVENT_LINK_ENDED 11
#define PDBP_EVENT_STREAM_BROKEN 12 /* a stream of peer has ended early, since peer or a relay has failed */
#define PDBP_EVENT_NODE_UP 13 /* peer has joined; or this node is a member of the cluster again */
#define PDBP_EVENT_NODE_DOWN 14 /* peer has ended, or all have given it up, and is no longer a member */

/* Takes the oldest event; PDBP_END when there is none. The last 256 are kept. All handles of a node take from the same events. */
pdbp_status pdbp_event(pdbp_node *node, pdbp_event_info *info);
/* The same, but waits for an event. */
pdbp_status pdbp_wait_event(pdbp_node *node, pdbp_event_info *info, pdbp_ns wait);
/* For event loops, as pdbp_fd: *fd becomes readable when an event has come since pdbp_event returned PDBP_END, for the handle that was the last to do
 * so. It is closed with the handle, and must not be read. */
pdbp_status pdbp_event_fd(pdbp_node *node, int *fd);

/* Counts of a node since its start, over all peers. Set size to sizeof before the call. */
typedef struct {
    uint32_t size;
    uint32_t free_blocks; /* in no row */
    uint64_t blocks_sent, bytes_sent, messages_sent;
    uint64_t blocks_received, bytes_received, messages_received;
    uint64_t stalls;      /* how often a sender had to wait for room */
    uint64_t held_blocks; /* received and not returned: those of messages not yet read or released */
    uint64_t unroutable, undelivered, malformed;
    uint16_t node;
    uint16_t private_pipes, stream_pipes; /* in use */
    uint16_t reserved;
} pdbp_node_stats;

pdbp_status pdbp_stats(pdbp_node *node, pdbp_node_stats *stats);

/* -- Parts -- */

#define PDBP_CPU 0
#define PDBP_GPU 1
#define PDBP_COMMUNICATION 2

/* Registers a part of the calling thread. Returns when every node knows the name. */
pdbp_status pdbp_register(pdbp_node *node, const char *name, uint32_t kind, pdbp_part **out);
/* The part as a target, on any thread; PDBP_NOBODY on failure. */
pdbp_target pdbp_self(const pdbp_part *part);
/* Hands the part, with its streams, to the next thread that adopts it. */
pdbp_status pdbp_disown(pdbp_part *part);
pdbp_status pdbp_adopt(pdbp_part *part);
/* Gives up the loan and the streams that pdbp_any_segment reads, and sends what is packed (if another thread owns the part, at that thread's next
 * call with one of its streams). Frees name and pipe once its packed messages were handed on; with open streams, once the last of them is freed. */
void pdbp_part_free(pdbp_part *part);

/* Targets. A target that is no part, as far as this node knows, gets PDBP_E_NO_PART, or PDBP_E_NO_NODE if its node does not exist: a made-up
 * number, or a freed part. Messages that had already left when their part was freed, or share a block with such, are discarded and counted at that
 * part's node (unroutable in pdbp_node_stats, PDBP_EVENT_UNROUTABLE); their sender is not notified. */

/* Sends a message: returns when it is packed. It leaves when its block is full, at pdbp_flush, when the part waits for something, or after the
 * time in the setting flush_after_us. Messages to one part arrive in order. */
pdbp_status pdbp_send(pdbp_part *part, pdbp_target to, const void *data, size_t size, pdbp_ns wait);
/* Sends a command, which overtakes messages and leaves at once. It must fit into a block. */
pdbp_status pdbp_send_command(pdbp_part *part, pdbp_target to, uint16_t command, const void *data, size_t size, pdbp_ns wait);
/* Sends a message to several parts, one copy per node. Waits for the time in the setting timeout_ms; nodes before a failing one have the message. */
pdbp_status pdbp_send_all(pdbp_part *part, const pdbp_target *to, size_t targets, const void *data, size_t size);
/* Sends count consecutive messages of each bytes, at least one, in order. PDBP_WOULD_BLOCK: only the first *sent_or_null were sent. (The time to wait
 * applies to each message; how many were sent before an error is unknown.) */
pdbp_status pdbp_send_train(pdbp_part *part, pdbp_target to, const void *data, size_t each, size_t count, size_t *sent_or_null, pdbp_ns wait);

/* Lends room for a message of size bytes in an outgoing block, to be filled and then sent by pdbp_commit, or given up by pdbp_abandon.
 * A part has one loan at a time, and cannot send other messages to that node meanwhile (PDBP_E_LOANED). */
pdbp_status pdbp_loan(pdbp_part *part, pdbp_target to, size_t size, pdbp_ns wait, void **room);
pdbp_status pdbp_commit(pdbp_part *part);
void pdbp_abandon(pdbp_part *part);
/* Sends what the part has packed, at once. */
pdbp_status pdbp_flush(pdbp_part *part);

/* Receives a message; commands first. Overwrites *message. Ends with PDBP_E_NOBODY_LEFT, whatever the time to wait, once every
 * other node has failed or left and this one has no other part; but not at the founder, or the primary master, of a cluster that others may join (the
 * setting found). */
pdbp_status pdbp_recv(pdbp_part *part, pdbp_message *message, pdbp_ns wait);
/* Receives up to room messages: waits for the first, and takes any others that have arrived. */
pdbp_status pdbp_recv_many(pdbp_part *part, pdbp_message *messages, size_t room, size_t *got, pdbp_ns wait);
/* Returns count messages, or segments, and leaves zeroes; skips zeroes. On any thread. */
void pdbp_release(pdbp_message *messages_or_null, size_t count);
/* Receives messages of one length from one part that arrived together: the fastest way to read many. */
pdbp_status pdbp_recv_batch(pdbp_part *part, pdbp_batch *batch, pdbp_ns wait);
void pdbp_release_batch(pdbp_batch *batch_or_null);

/* Takes this part's next message that was not delivered because its target's node has failed, to be released like others; PDBP_WOULD_BLOCK when
 * there is none. Writes as many of the targets to `to` as fit, and their number to *targets. */
pdbp_status pdbp_returned(pdbp_part *part, pdbp_message *message, pdbp_target *to_or_null, size_t room, size_t *targets_or_null);

#define PDBP_RECV 1   /* something to receive */
#define PDBP_SEND 2   /* room for a short message to the target */
#define PDBP_STREAM 4 /* in *ready, with PDBP_RECV: a stream to accept, or a segment for pdbp_any_segment */

/* Waits until something of interest, PDBP_RECV, PDBP_SEND or both, is ready. Without PDBP_SEND the target is ignored. */
pdbp_status pdbp_wait(pdbp_part *part, uint32_t interest, pdbp_target to, pdbp_ns wait, uint32_t *ready_or_null);

/* For event loops over poll, epoll or a library. *fd becomes readable when something has come since pdbp_arm found nothing; it is closed with
 * the part, and must not be read. pdbp_arm checks for what pdbp_wait waits for: PDBP_DONE if something is ready, to be taken before the next call;
 * PDBP_WOULD_BLOCK if not, and the descriptor is armed. In the first 50 to 400 us of a wait it is also readable when it is time to poll again, by
 * pdbp_arm: waking a thread takes longer than most answers. pdbp_arm flushes the part. The node must be polled meanwhile, by
 * its own thread (the setting progress = "thread") or the host (pdbp_poll, with "host"); "inline" gets PDBP_E_SETTINGS. */
pdbp_status pdbp_fd(pdbp_part *part, int *fd);
pdbp_status pdbp_arm(pdbp_part *part, uint32_t interest, pdbp_target to, uint32_t *ready_or_null);

/* -- Streams: data of any length, in order, in separate blocks -- */

/* Opens a stream, of which a node can write as many at a time as the setting stream_pipes says. Between pdbp_write and pdbp_writer_flush or pdbp_finish
 * a stream holds a block, of which each destination node has as many as row_blocks says: flush streams that are not written to for a while. */
pdbp_status pdbp_open(pdbp_part *part, pdbp_target to, pdbp_writer **out);
/* Writes all bytes; the time to wait applies to each block. *written_or_null is always the number of bytes written. */
pdbp_status pdbp_write(pdbp_writer *writer, const void *data, size_t size, size_t *written_or_null, pdbp_ns wait);
/* The same for a part that is sent messages while it writes, and whose peers may do likewise: while there is no room, it receives. With PDBP_DONE,
 * either *written is size, or *message is one that arrived: handle and release it, then call this again with the rest. Without a message, *message
 * stays as it is. */
pdbp_status pdbp_write_or(pdbp_writer *writer, const void *data, size_t size, size_t *written, pdbp_message *message, pdbp_ns wait);
/* Room for the next bytes, to be filled in place: at most want, at least one. pdbp_filled takes how many were filled, 0 to *got, and ends the loan. */
pdbp_status pdbp_room(pdbp_writer *writer, size_t want, pdbp_ns wait, void **room, size_t *got);
pdbp_status pdbp_filled(pdbp_writer *writer, size_t size);
/* Sends what was written so far. Waits for the time in the setting timeout_ms. */
pdbp_status pdbp_writer_flush(pdbp_writer *writer);
/* Sends the rest and ends the stream. Waits for the time in the setting timeout_ms. After an error the stream is abandoned. */
pdbp_status pdbp_finish(pdbp_writer *writer);
/* Abandons a stream that was not finished: its reader gets PDBP_E_STREAM after what was sent. */
void pdbp_writer_free(pdbp_writer *writer);

/* Accepts the next stream opened to this part. */
pdbp_status pdbp_accept(pdbp_part *part, pdbp_ns wait, pdbp_reader **out, pdbp_target *from_or_null);
/* Reads available bytes, at least one and at most size. PDBP_END at the end. *got is always the number of bytes read. */
pdbp_status pdbp_read(pdbp_reader *reader, void *to, size_t size, size_t *got, pdbp_ns wait);
/* The next segment, whole and in place, to be released like a message. PDBP_END at the end. */
pdbp_status pdbp_segment(pdbp_reader *reader, pdbp_message *segment, pdbp_ns wait);
/* If freed before the end, the rest is discarded as it arrives. */
void pdbp_reader_free(pdbp_reader *reader);

/* Reads all streams to a part on its thread: the next segment of any stream that pdbp_accept has not returned, to be released like a message.
 * Streams with data take turns; segment->source is the writer. *stream is the stream's number, the lowest one, from 0 on, that none of the
 * others has, like a file descriptor: use it as an index into an array of per-stream state. PDBP_END: that stream has ended.
 * PDBP_E_STREAM: it ended early, since its writer abandoned it or failed. In both cases *stream and segment->source are written, there is nothing to
 * release, and the number is free again. pdbp_wait and pdbp_arm with PDBP_RECV report PDBP_STREAM when this call has something. */
pdbp_status pdbp_any_segment(pdbp_part *part, pdbp_message *segment, uint32_t *stream, pdbp_ns wait);
/* Gives up a stream that pdbp_any_segment reads: the rest is discarded as it arrives, and the number is free. pdbp_part_free gives up all. */
pdbp_status pdbp_discard(pdbp_part *part, uint32_t stream);

/* -- Groups: collective calls of several parts, over any transport -- */

/* All members must make the same calls in the same order, with the same sizes, types and operations; otherwise they get PDBP_E_GROUP, whose text
 * names both calls. A call returns when this member has done its part of it; while nothing moves, it waits for the group's patience
 * (then PDBP_TIMEOUT). If a member dies, the call fails at all others (PDBP_E_PEER_FAILED). After any error except PDBP_E_ARGUMENT, PDBP_E_NULL and
 * PDBP_E_THREAD the group is over: free it, and make a new one of the remaining members. Results are the same at all members and in every run
 * of a group of that size. Inputs and the room for results must not overlap. */

/* Types of combined values: unsigned and signed integers of the given width in bits, float and double. They need not be aligned. */
#define PDBP_U8 1
#define PDBP_U16 2
#define PDBP_U32 3
#define PDBP_U64 4
#define PDBP_I8 5
#define PDBP_I16 6
#define PDBP_I32 7
#define PDBP_I64 8
#define PDBP_F32 9
#define PDBP_F64 10
/* Operations: sums and products of integers wrap around; for minimum and maximum, -0 is below +0, and NaN wins; the last three are bitwise, for
 * integers. */
#define PDBP_SUM 1
#define PDBP_PRODUCT 2
#define PDBP_MIN 3
#define PDBP_MAX 4
#define PDBP_AND 5
#define PDBP_OR 6
#define PDBP_XOR 7

/* A group of one member on each node of the cluster, ranked by the node's index; each node calls this, with the same name. */
pdbp_status pdbp_group_of_nodes(pdbp_node *node, const char *name, pdbp_ns patience, pdbp_group **out);
/* A group of parts, ranked by their place in the list; the owner of each calls this with its part, and the same list of addresses and name. The
 * group's traffic does not reach the part. */
pdbp_status pdbp_group_of(pdbp_part *part, const char *name, const char *const *members, size_t count, pdbp_ns patience, pdbp_group **out);
/* A group of the members that share memory with this one, or are on its board of a fabric: all of these call this. */
pdbp_status pdbp_group_local(pdbp_group *group, pdbp_group **out);
/* A group of the members that pass the same colour: all members call this. */
pdbp_status pdbp_group_split(pdbp_group *group, uint64_t colour, pdbp_group **out);
uint32_t pdbp_group_rank(const pdbp_group *group);
uint32_t pdbp_group_size(const pdbp_group *group);
/* Sets how long calls wait while nothing moves: above 0. */
pdbp_status pdbp_group_patience(pdbp_group *group, pdbp_ns patience);
/* Leaves the group; may wait up to a second for room to announce it. Call pdbp_quiesce and pdbp_barrier before the cluster is freed. */
void pdbp_group_free(pdbp_group *group);

/* Waits until all members have called this. */
pdbp_status pdbp_group_barrier(pdbp_group *group);
/* Copies the root's data to all members. */
pdbp_status pdbp_group_broadcast(pdbp_group *group, uint32_t root, void *data, size_t size);
/* Distributes the root's `all`, one block of `each` bytes for each member, by rank. At other members `all` may be null. */
pdbp_status pdbp_group_scatter(pdbp_group *group, uint32_t root, const void *all, void *own, size_t each);
/* Collects a block of each member at the root, by rank. At other members `all` may be null. */
pdbp_status pdbp_group_gather(pdbp_group *group, uint32_t root, const void *own, void *all, size_t each);
/* Collects a block of each member at all members, by rank. */
pdbp_status pdbp_group_all_gather(pdbp_group *group, const void *own, void *all, size_t each);
/* Exchanges a block of `each` bytes between every two members: the i-th of `give` goes to member i, the i-th of `get` comes from it. */
pdbp_status pdbp_group_all_to_all(pdbp_group *group, const void *give, void *get, size_t each);
/* Combines `count` values of each member one by one, in place: the root has the result; the data of the others is then undefined. */
pdbp_status pdbp_group_reduce(pdbp_group *group, uint32_t root, void *data, size_t count, uint32_t type, uint32_t operation);
/* The same; all members have the result. */
pdbp_status pdbp_group_all_reduce(pdbp_group *group, void *data, size_t count, uint32_t type, uint32_t operation);
/* The same; this member has *got values of the result, from number *first on, and the rest of its data is undefined. Shares are equal; if that is
 * impossible, the first ones have one more value. */
pdbp_status pdbp_group_reduce_scatter(pdbp_group *group, void *data, size_t count, uint32_t type, uint32_t operation, size_t *first, size_t *got);
/* Sends to a member, which receives the message by its tag. Up to three short messages may be in flight; longer ones wait for their receiver, so a
 * ring whose members all send first deadlocks: use pdbp_group_send_recv there. */
pdbp_status pdbp_group_send(pdbp_group *group, uint32_t to, uint32_t tag, const void *data, size_t size);
/* Receives the first message of a member with this tag, of exactly this many bytes. */
pdbp_status pdbp_group_recv(pdbp_group *group, uint32_t from, uint32_t tag, void *into, size_t size);
/* Sends to one member and receives from another at the same time, both with the same tag. */
pdbp_status pdbp_group_send_recv(pdbp_group *group, uint32_t to, const void *data, size_t size, uint32_t from, void *into, size_t room, uint32_t tag);

#ifdef __cplusplus
}
#endif

#endif
