// What pdbp.hpp has: each check says its line and ends the program when it fails. Compiled by ci/c, and run plain and with AddressSanitizer.
#include <pdbp.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

using namespace std::chrono_literals;

#define EXPECT(what)                                                                                       \
    do {                                                                                                   \
        if (!(what)) {                                                                                     \
            std::fprintf(stderr, "classes.cpp:%d: %s; the last failure: %s\n", __LINE__, #what, pdbp_error()); \
            std::exit(1);                                                                                  \
        }                                                                                                  \
    } while (0)

// Expects that `what` throws `kind` with that status and a text that has `text`.
#define THROWS(kind, code, text, ...)                                                                      \
    do {                                                                                                   \
        bool thrown = false;                                                                               \
        try {                                                                                              \
            __VA_ARGS__;                                                                                   \
        } catch (const kind &error) {                                                                      \
            thrown = true;                                                                                 \
            EXPECT(error.status() == (code));                                                              \
            EXPECT(std::string(error.what()).find(text) != std::string::npos);                             \
        }                                                                                                  \
        EXPECT(thrown);                                                                                    \
    } while (0)

struct sample {
    std::int32_t sensor;
    float value;
};

static void messages(const pdbp::cluster &cluster) {
    const pdbp::node here = cluster.node(0), there = cluster.node(1);
    pdbp::part a(here, "a"), b(there, "b", PDBP_GPU);
    const pdbp::target to = here.find("b@node1");
    EXPECT(to == b.id() && here.index() == 0);

    EXPECT(!b.try_recv() && !b.try_recv_batch());
    THROWS(pdbp::timeout, PDBP_TIMEOUT, "PDBP_TIMEOUT: ", b.recv(1ms));
    // The time left until a deadline that has passed.
    THROWS(pdbp::error, PDBP_WOULD_BLOCK, "PDBP_WOULD_BLOCK", b.recv(-5s));
    THROWS(pdbp::error, PDBP_WOULD_BLOCK, "PDBP_WOULD_BLOCK", b.recv(-1ns));
    // The nodes are those of this failure, not of an earlier one.
    THROWS(pdbp::timeout, PDBP_TIMEOUT, "node0", there.barrier(1ms));
    EXPECT(pdbp_error_nodes(nullptr, 0) == 1);
    try {
        b.recv(0ns);
        EXPECT(false);
    } catch (const pdbp::error &error) {
        EXPECT(error.nodes().empty());
    }
    // That was its arrival.
    here.barrier();
    a.send(to, "text");
    a.send_value(to, sample{7, 1.5f});
    const std::string before = pdbp_error();
    a.send_in_place(to, 3, [](void *room) { std::memcpy(room, "abc", 3); });
    EXPECT(pdbp_error() == before);
    a.flush();
    pdbp::message first = b.recv();
    EXPECT(first.text() == "text" && first.source() == a.id() && !first.is_command() && first.command() == 0);
    EXPECT(!first.value<sample>());
    const pdbp::message second = b.recv();
    EXPECT(second.value<sample>()->sensor == 7 && second.value<sample>()->value == 1.5f);
    // Moved, into one that holds another.
    pdbp::message third = b.recv();
    first = std::move(third);
    EXPECT(first.text() == "abc");

    // A loan whose filling fails is given up, so that the next message is not in its way.
    try {
        a.send_in_place(to, 100, [](void *) { throw std::runtime_error("no data"); });
        EXPECT(false);
    } catch (const std::runtime_error &error) {
        EXPECT(std::string(error.what()) == "no data");
    }
    const std::array<std::uint64_t, 3> values{1, 2, 3};
    a.send_each(to, values.data(), values.size());
    EXPECT(a.try_send(to, "longer", 6));
    a.send_command(to, 9, "now", 3);
    a.flush();
    const pdbp::message command = b.recv();
    EXPECT(command.is_command() && command.command() == 9 && command.text() == "now");
    pdbp::batch moved = b.recv_batch();
    const pdbp::batch batch = std::move(moved);
    EXPECT(batch.size() == 3 && batch.message_size() == 8 && batch.source() == a.id() && moved.size() == 0);
    EXPECT(std::memcmp(batch[2].data(), &values[2], 8) == 0);
    EXPECT(b.recv().text() == "longer");

    THROWS(pdbp::error, PDBP_E_ARGUMENT, "PDBP_E_ARGUMENT: ", here.find("a name\n", 1ms));
    THROWS(pdbp::error, PDBP_E_NO_PART, "nobody", here.find("nobody@node1", 1ms));
    THROWS(pdbp::error, PDBP_E_REFUSED, "a", pdbp::part(here, "a"));
    THROWS(pdbp::error, PDBP_E_NO_NODE, "9", cluster.node(9));

    // To another thread, and back.
    b.disown();
    std::thread([&b] {
        b.adopt();
        EXPECT(!b.try_recv());
        b.disown();
    }).join();
    THROWS(pdbp::error, PDBP_E_THREAD, "pdbp_adopt", b.try_recv());
    b.adopt();
}

static void events(const pdbp::cluster &cluster) {
    const pdbp::node here = cluster.node(0), there = cluster.node(1);
    pdbp::part a(here, "a");
    for (bool sent = false; !sent;) {
        const pdbp::target gone = [&] { return pdbp::part(there, "gone").id(); }();
        try {
            a.send(gone, "too late");
            sent = true;
        } catch (const pdbp::error &error) {
            // This node has been told of it by now.
            EXPECT(error.status() == PDBP_E_NO_PART);
        }
    }
    a.flush();
    pdbp::event event{};
    while ((event = there.wait_event()).kind != PDBP_EVENT_UNROUTABLE) {}
    EXPECT(event.peer == 0 && event.count == 1);
    while (there.try_event()) {}
    THROWS(pdbp::timeout, PDBP_TIMEOUT, "no node has caused an event", there.wait_event(1ms));
    THROWS(pdbp::error, PDBP_WOULD_BLOCK, "PDBP_WOULD_BLOCK", there.wait_event(-5s));
}

static void streams(const pdbp::cluster &cluster) {
    pdbp::part a(cluster.node(0), "a"), b(cluster.node(1), "b");
    pdbp::writer writer = a.open(b.id());
    writer.write("some bytes", 10);
    writer.flush();
    pdbp::reader reader = b.accept();
    EXPECT(reader.source() == a.id());
    char text[4];
    EXPECT(reader.read(text, sizeof text) == 4 && std::memcmp(text, "some", 4) == 0);
    writer.write("more", 4);
    writer.finish();
    EXPECT(reader.segment()->text() == " bytes" && reader.segment()->text() == "more" && !reader.segment());
    EXPECT(reader.read(text, sizeof text) == 0);
    {
        pdbp::writer given_up = a.open(b.id());
        given_up.write("x", 1);
        given_up.flush();
    }
    pdbp::reader broken = b.accept();
    EXPECT(broken.segment()->text() == "x");
    THROWS(pdbp::error, PDBP_E_STREAM, "PDBP_E_STREAM", broken.segment());

    // Without room it receives.
    pdbp::writer full = a.open(b.id());
    const std::string data(1 << 16, 'x');
    const auto nothing = [](const pdbp::message &) { EXPECT(false); };
    THROWS(pdbp::error, PDBP_WOULD_BLOCK, "PDBP_WOULD_BLOCK", while (true) full.write_or(data.data(), data.size(), nothing, 0ns));
    b.send(a.id(), "a message");
    b.flush();
    const auto refuse = [](pdbp::message message) { throw std::runtime_error(std::string(message.text())); };
    try {
        full.write_or(data.data(), data.size(), refuse);
        EXPECT(false);
    } catch (const std::runtime_error &error) {
        EXPECT(std::string(error.what()) == "a message");
    }
}

static void member(pdbp::node node) {
    pdbp::group all = node.group("all", 60s);
    const std::uint32_t rank = all.rank();
    EXPECT(all.size() == 2 && rank == node.index());
    all.patience(60s);
    all.barrier();
    std::vector<std::int16_t> values{static_cast<std::int16_t>(rank), 5};
    all.all_reduce(values, pdbp::op::max);
    EXPECT(values[0] == 1 && values[1] == 5);
    float sums[4] = {1, 2, 3, 4};
    all.all_reduce(sums);
    EXPECT(sums[3] == 8);
    const auto [first, count] = all.reduce_scatter(sums, 4, pdbp::op::min);
    EXPECT(first == 2 * rank && count == 2 && sums[first] == 2.0f * static_cast<float>(first + 1));
    std::uint8_t bits = static_cast<std::uint8_t>(1 << rank);
    all.reduce(&bits, 1, pdbp::op::bit_or);
    EXPECT(rank != 0 || bits == 3);
    std::array<sample, 1> one{{{static_cast<std::int32_t>(rank), 0.5f}}};
    sample both[2];
    all.all_gather(one.data(), both, 1);
    EXPECT(both[0].sensor == 0 && both[1].sensor == 1);
    all.gather(one.data(), rank == 0 ? both : nullptr, 1);
    all.scatter(rank == 0 ? both : nullptr, one.data(), 1);
    EXPECT(one[0].sensor == static_cast<std::int32_t>(rank));
    all.broadcast(one, 1);
    EXPECT(one[0].sensor == 1);
    // After an array the number is a count, whatever its type.
    std::uint32_t some[2] = {rank, rank};
    all.broadcast(some, 1u);
    EXPECT(some[0] == 0 && some[1] == rank);
    all.broadcast(some, 2, 1);
    EXPECT(some[1] == 1);
    all.broadcast(some);
    const std::int64_t give[2] = {10 * rank, 10 * rank + 1};
    std::int64_t got[2];
    all.all_to_all(give, got, 1);
    EXPECT(got[0] == rank && got[1] == 10 + rank);
    if (rank == 0) all.send(1, "tag", 3, 4);
    char text[3];
    if (rank == 1) all.recv(0, text, 3, 4);
    THROWS(pdbp::error, PDBP_E_ARGUMENT, "there is no member 5", all.broadcast(values, 5));
    pdbp::group alone = all.split(rank);
    EXPECT(alone.size() == 1 && all.local().size() == 2);
    alone.barrier();
    {
        pdbp::part part(node, "member");
        pdbp::group pair = part.group("pair", {"member@node1", "member@node0"});
        EXPECT(pair.rank() == 1 - rank);
        pair.barrier();
    }
    if (rank == 0) {
        pdbp::group gone = std::move(all); // leaves here
    } else {
        THROWS(pdbp::peer_failed, PDBP_E_PEER_FAILED, "all#0@node0", all.barrier());
    }
    node.quiesce();
    node.barrier();
}

int main() {
    pdbp::settings settings;
    THROWS(pdbp::error, PDBP_E_SETTINGS, "nodse", settings.set("nodse", "2"));
    const pdbp::cluster cluster(settings.set("nodes", "2").set("transport", "local").set("progress", "inline"));
    EXPECT(cluster.size() == 2);
    messages(cluster);
    events(cluster);
    streams(cluster);
    std::vector<std::thread> threads;
    for (pdbp::node &node : cluster.nodes()) threads.emplace_back(member, std::move(node));
    for (std::thread &thread : threads) thread.join();
    std::printf("all of it is as it should be\n");
}
