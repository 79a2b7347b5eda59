/* pdbp.hpp: pdbp.h as classes, for C++17. What a call does, and on which threads, is in pdbp.h; here handles and messages free themselves, and errors
 * are exceptions. What has no class here (event loops, pdbp_any_segment, statistics, device memory) takes the handles that get() returns.
 *
 * Objects can be moved, not copied. A call that waits takes the time as its last parameter, by default as long as the setting timeout_ms says; a time below 0,
 * such as what is left until a deadline that has passed, does not wait. Calls that begin with try_ return without waiting. Licence: MIT or Apache-2.0. */
#ifndef PDBP_HPP
#define PDBP_HPP

#include <pdbp.h>

#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace pdbp {

using target = pdbp_target; /* a part, as a plain value */
using event = pdbp_event_info;
using nanoseconds = std::chrono::nanoseconds;

/* As long as the setting timeout_ms says. No time that is left until a deadline. */
inline constexpr nanoseconds set_timeout = nanoseconds::min();

/* A call that failed; what() begins with the name of the status, then tells what was wrong and what to do about it. */
class error : public std::runtime_error {
public:
    explicit error(pdbp_status status) : std::runtime_error(text(status)), status_(status) {
        if (!says_more(status)) return;
        nodes_.resize(pdbp_error_nodes(nullptr, 0));
        pdbp_error_nodes(nodes_.data(), nodes_.size());
    }
    pdbp_status status() const noexcept { return status_; }
    /* The nodes that the call waited for, or that have failed. */
    const std::vector<std::uint16_t> &nodes() const noexcept { return nodes_; }

private:
    /* Otherwise pdbp_error() and pdbp_error_nodes() are of an earlier failure. */
    static bool says_more(pdbp_status status) { return status != PDBP_WOULD_BLOCK && status != PDBP_END; }
    static std::string text(pdbp_status status) {
        const std::string name = pdbp_status_name(status);
        return says_more(status) ? name + ": " + pdbp_error() : name;
    }
    pdbp_status status_;
    std::vector<std::uint16_t> nodes_;
};

struct timeout : error { using error::error; };      /* the wait timed out */
struct interrupted : error { using error::error; };  /* by node::interrupt */
struct peer_failed : error { using error::error; };  /* a node has failed, or left */

/* Throws unless a call of pdbp.h is done. */
inline void check(pdbp_status status) {
    switch (status) {
    case PDBP_DONE: return;
    case PDBP_TIMEOUT: throw timeout(status);
    case PDBP_INTERRUPTED: throw interrupted(status);
    case PDBP_E_PEER_FAILED: throw peer_failed(status);
    default: throw error(status);
    }
}

namespace detail {

inline pdbp_ns time(nanoseconds wait) {
    if (wait == set_timeout) return PDBP_SET_TIMEOUT;
    return wait < nanoseconds(0) ? 0 : wait.count();
}

template <auto Free> struct freed {
    template <class T> void operator()(T *handle) const noexcept { Free(handle); }
};
template <class T, auto Free> using owned = std::unique_ptr<T, freed<Free>>;

/* Receives the handle that a call creates. */
template <class Owned> class out {
public:
    explicit out(Owned &to) : to_(to) {}
    ~out() {
        if (handle_ != nullptr) to_.reset(handle_);
    }
    out(const out &) = delete;
    operator typename Owned::pointer *() { return &handle_; }

private:
    Owned &to_;
    typename Owned::pointer handle_ = nullptr;
};

template <class T> constexpr std::uint32_t number() {
    constexpr bool can_be = std::is_integral_v<T> ? !std::is_same_v<T, bool> : std::is_floating_point_v<T> && sizeof(T) >= 4;
    static_assert(can_be && sizeof(T) <= 8, "integers of 8 to 64 bits, float and double can be combined");
    if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? PDBP_F32 : PDBP_F64;
    constexpr std::uint32_t power = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return (std::is_signed_v<T> ? PDBP_I8 : PDBP_U8) + power;
}

template <class T> constexpr void check_plain() {
    static_assert(std::is_trivially_copyable_v<T>, "other nodes get the bytes of a value, so that it must be trivially copyable");
}

} // namespace detail

/* A message, or a segment of a stream, read where it arrived. It holds its sender's room until it is destroyed. */
class message {
public:
    message() noexcept : message_{} {}
    message(message &&other) noexcept : message_(std::exchange(other.message_, pdbp_message{})) {}
    message &operator=(message &&other) noexcept {
        std::swap(message_, other.message_);
        return *this;
    }
    ~message() { pdbp_release(&message_, 1); }

    const void *data() const noexcept { return message_.data; }
    std::size_t size() const noexcept { return message_.size; }
    std::string_view text() const noexcept { return {static_cast<const char *>(message_.data), message_.size}; }
    /* The part that sent it: the target for a reply. */
    target source() const noexcept { return message_.source; }
    std::uint16_t command() const noexcept { return message_.command; }
    bool is_command() const noexcept { return (message_.flags & PDBP_COMMAND) != 0; }
    /* The message as a value; nothing if the sizes differ. */
    template <class T> std::optional<T> value() const {
        detail::check_plain<T>();
        if (size() != sizeof(T)) return std::nullopt;
        T value;
        std::memcpy(&value, data(), sizeof(T));
        return value;
    }
    pdbp_message *get() noexcept { return &message_; }

private:
    pdbp_message message_;
};

/* Messages of one size from one part that arrived together. */
class batch {
public:
    batch() noexcept : batch_{} {}
    batch(batch &&other) noexcept : batch_(std::exchange(other.batch_, pdbp_batch{})) {}
    batch &operator=(batch &&other) noexcept {
        std::swap(batch_, other.batch_);
        return *this;
    }
    ~batch() { pdbp_release_batch(&batch_); }

    std::size_t size() const noexcept { return batch_.count; }
    std::size_t message_size() const noexcept { return batch_.each; }
    std::string_view operator[](std::size_t i) const noexcept {
        return {static_cast<const char *>(batch_.data) + i * batch_.each, batch_.each};
    }
    target source() const noexcept { return batch_.source; }
    std::uint16_t command() const noexcept { return batch_.command; }
    pdbp_batch *get() noexcept { return &batch_; }

private:
    pdbp_batch batch_;
};

/* The writing end of a stream. Destroying it before finish() gives the stream up. */
class writer {
public:
    void write(const void *data, std::size_t size, nanoseconds wait = set_timeout) { check(pdbp_write(get(), data, size, nullptr, detail::time(wait))); }
    /* Writes all bytes, but while there is no room, passes each message that arrives for the part to `receive`. If that throws, the rest is not written. */
    template <class F> void write_or(const void *data, std::size_t size, F &&receive, nanoseconds wait = set_timeout) {
        const char *rest = static_cast<const char *>(data);
        for (std::size_t written = 0;; rest += written, size -= written, written = 0) {
            message next;
            check(pdbp_write_or(get(), rest, size, &written, next.get(), detail::time(wait)));
            if (written == size) return;
            receive(std::move(next));
        }
    }
    void flush() { check(pdbp_writer_flush(get())); }
    void finish() { check(pdbp_finish(get())); }
    pdbp_writer *get() const noexcept { return handle_.get(); }

private:
    friend class part;
    detail::owned<pdbp_writer, pdbp_writer_free> handle_;
};

/* The reading end of a stream. */
class reader {
public:
    /* Reads what there is, at most `size` bytes; 0 at the end. */
    std::size_t read(void *to, std::size_t size, nanoseconds wait = set_timeout) {
        std::size_t got = 0;
        const pdbp_status status = pdbp_read(get(), to, size, &got, detail::time(wait));
        if (status != PDBP_END) check(status);
        return got;
    }
    /* The next segment, in place; nothing at the end. */
    std::optional<message> segment(nanoseconds wait = set_timeout) {
        message next;
        const pdbp_status status = pdbp_segment(get(), next.get(), detail::time(wait));
        if (status == PDBP_END) return std::nullopt;
        check(status);
        return next;
    }
    /* The part that writes. */
    target source() const noexcept { return source_; }
    pdbp_reader *get() const noexcept { return handle_.get(); }

private:
    friend class part;
    detail::owned<pdbp_reader, pdbp_reader_free> handle_;
    target source_ = PDBP_NOBODY;
};

enum class op : std::uint32_t {
    sum = PDBP_SUM,
    product = PDBP_PRODUCT,
    min = PDBP_MIN,
    max = PDBP_MAX,
    bit_and = PDBP_AND,
    bit_or = PDBP_OR,
    bit_xor = PDBP_XOR,
};

/* A member of a group. Sizes count values; a container contributes its size(). */
class group {
public:
    std::uint32_t rank() const noexcept { return pdbp_group_rank(get()); }
    std::uint32_t size() const noexcept { return pdbp_group_size(get()); }
    /* How long calls wait while nothing moves. */
    void patience(nanoseconds time) { check(pdbp_group_patience(get(), detail::time(time))); }
    group local() const {
        group made;
        check(pdbp_group_local(get(), detail::out(made.handle_)));
        return made;
    }
    group split(std::uint64_t colour) const {
        group made;
        check(pdbp_group_split(get(), colour, detail::out(made.handle_)));
        return made;
    }

    void barrier() { check(pdbp_group_barrier(get())); }
    template <class T> void broadcast(T *data, std::size_t count, std::uint32_t root = 0) {
        detail::check_plain<T>();
        check(pdbp_group_broadcast(get(), root, data, count * sizeof(T)));
    }
    /* At members other than the root, `all` may be null. */
    template <class T> void scatter(const T *all, T *own, std::size_t each, std::uint32_t root = 0) {
        detail::check_plain<T>();
        check(pdbp_group_scatter(get(), root, all, own, each * sizeof(T)));
    }
    template <class T> void gather(const T *own, T *all, std::size_t each, std::uint32_t root = 0) {
        detail::check_plain<T>();
        check(pdbp_group_gather(get(), root, own, all, each * sizeof(T)));
    }
    template <class T> void all_gather(const T *own, T *all, std::size_t each) {
        detail::check_plain<T>();
        check(pdbp_group_all_gather(get(), own, all, each * sizeof(T)));
    }
    template <class T> void all_to_all(const T *give, T *get_, std::size_t each) {
        detail::check_plain<T>();
        check(pdbp_group_all_to_all(get(), give, get_, each * sizeof(T)));
    }
    template <class T> void reduce(T *data, std::size_t count, op by = op::sum, std::uint32_t root = 0) {
        check(pdbp_group_reduce(get(), root, data, count, detail::number<T>(), static_cast<std::uint32_t>(by)));
    }
    template <class T> void all_reduce(T *data, std::size_t count, op by = op::sum) {
        check(pdbp_group_all_reduce(get(), data, count, detail::number<T>(), static_cast<std::uint32_t>(by)));
    }
    /* Returns where this member's share is: the number of its first value, and how many. */
    template <class T> std::pair<std::size_t, std::size_t> reduce_scatter(T *data, std::size_t count, op by = op::sum) {
        std::size_t first = 0, got = 0;
        check(pdbp_group_reduce_scatter(get(), data, count, detail::number<T>(), static_cast<std::uint32_t>(by), &first, &got));
        return {first, got};
    }
    template <class C, class = std::enable_if_t<!std::is_array_v<std::remove_reference_t<C>>>>
    auto broadcast(C &&data, std::uint32_t root = 0) -> decltype(std::data(data), void()) {
        broadcast(std::data(data), std::size(data), root);
    }
    /* From member 0. A number after an array is a count, as after a pointer, and the root follows it. */
    template <class T, std::size_t N> void broadcast(T (&data)[N]) { broadcast(&data[0], N); }
    template <class C> auto all_reduce(C &&data, op by = op::sum) -> decltype(std::data(data), void()) {
        all_reduce(std::data(data), std::size(data), by);
    }
    template <class T> void send(std::uint32_t to, const T *data, std::size_t count, std::uint32_t tag = 0) {
        detail::check_plain<T>();
        check(pdbp_group_send(get(), to, tag, data, count * sizeof(T)));
    }
    template <class T> void recv(std::uint32_t from, T *into, std::size_t count, std::uint32_t tag = 0) {
        detail::check_plain<T>();
        check(pdbp_group_recv(get(), from, tag, into, count * sizeof(T)));
    }
    pdbp_group *get() const noexcept { return handle_.get(); }

private:
    friend class node;
    friend class part;
    detail::owned<pdbp_group, pdbp_group_free> handle_;
};

/* A node of this process. */
class node {
public:
    std::uint16_t index() const noexcept { return pdbp_node_index(get()); }
    target find(const std::string &address, nanoseconds wait = set_timeout) const {
        target found = PDBP_NOBODY;
        check(pdbp_find(get(), address.c_str(), detail::time(wait), &found));
        return found;
    }
    void barrier(nanoseconds wait = set_timeout) const { check(pdbp_barrier(get(), detail::time(wait))); }
    void quiesce(nanoseconds wait = set_timeout) const { check(pdbp_quiesce(get(), detail::time(wait))); }
    void interrupt() const noexcept { pdbp_interrupt(get()); }
    /* The next event at the node; its kind is one of PDBP_EVENT_... */
    event wait_event(nanoseconds wait = set_timeout) const {
        event next{};
        next.size = sizeof next;
        check(pdbp_wait_event(get(), &next, detail::time(wait)));
        return next;
    }
    std::optional<event> try_event() const {
        event next{};
        next.size = sizeof next;
        const pdbp_status status = pdbp_event(get(), &next);
        if (status == PDBP_END) return std::nullopt;
        check(status);
        return next;
    }
    /* A group of one member on each node; each node calls this, with the same name. */
    pdbp::group group(const std::string &name, nanoseconds patience = set_timeout) const {
        pdbp::group made;
        check(pdbp_group_of_nodes(get(), name.c_str(), detail::time(patience), detail::out(made.handle_)));
        return made;
    }
    pdbp_node *get() const noexcept { return handle_.get(); }

private:
    friend class cluster;
    detail::owned<pdbp_node, pdbp_node_free> handle_;
};

/* A part. It belongs to the thread that registered it, until disown() and adopt() hand it over. */
class part {
public:
    part(const node &of, const std::string &name, std::uint32_t kind = PDBP_CPU) {
        check(pdbp_register(of.get(), name.c_str(), kind, detail::out(handle_)));
    }
    target id() const noexcept { return pdbp_self(get()); }
    void disown() { check(pdbp_disown(get())); }
    void adopt() { check(pdbp_adopt(get())); }

    void send(target to, const void *data, std::size_t size, nanoseconds wait = set_timeout) {
        check(pdbp_send(get(), to, data, size, detail::time(wait)));
    }
    void send(target to, std::string_view text, nanoseconds wait = set_timeout) { send(to, text.data(), text.size(), wait); }
    template <class T> void send_value(target to, const T &value, nanoseconds wait = set_timeout) {
        detail::check_plain<T>();
        send(to, &value, sizeof(T), wait);
    }
    /* `count` messages of one value each. */
    template <class T> void send_each(target to, const T *values, std::size_t count, nanoseconds wait = set_timeout) {
        detail::check_plain<T>();
        check(pdbp_send_train(get(), to, values, sizeof(T), count, nullptr, detail::time(wait)));
    }
    /* Whether there was room. */
    bool try_send(target to, const void *data, std::size_t size) {
        const pdbp_status status = pdbp_send(get(), to, data, size, 0);
        if (status != PDBP_WOULD_BLOCK) check(status);
        return status == PDBP_DONE;
    }
    void send_command(target to, std::uint16_t command, const void *data = nullptr, std::size_t size = 0, nanoseconds wait = set_timeout) {
        check(pdbp_send_command(get(), to, command, data, size, detail::time(wait)));
    }
    /* Calls `fill` to write a message of `size` bytes directly into the outgoing block; if it throws, the message is given up. */
    template <class F> void send_in_place(target to, std::size_t size, F &&fill, nanoseconds wait = set_timeout) {
        void *room = nullptr;
        check(pdbp_loan(get(), to, size, detail::time(wait), &room));
        struct abandon {
            pdbp_part *part;
            ~abandon() {
                /* A call with null would be this thread's last failure. */
                if (part) pdbp_abandon(part);
            }
        } unless_sent{get()};
        std::forward<F>(fill)(room);
        check(pdbp_commit(std::exchange(unless_sent.part, nullptr)));
    }
    void flush() { check(pdbp_flush(get())); }

    message recv(nanoseconds wait = set_timeout) {
        message next;
        check(pdbp_recv(get(), next.get(), detail::time(wait)));
        return next;
    }
    std::optional<message> try_recv() {
        message next;
        const pdbp_status status = pdbp_recv(get(), next.get(), 0);
        if (status == PDBP_WOULD_BLOCK) return std::nullopt;
        check(status);
        return next;
    }
    batch recv_batch(nanoseconds wait = set_timeout) {
        batch next;
        check(pdbp_recv_batch(get(), next.get(), detail::time(wait)));
        return next;
    }
    std::optional<batch> try_recv_batch() {
        batch next;
        const pdbp_status status = pdbp_recv_batch(get(), next.get(), 0);
        if (status == PDBP_WOULD_BLOCK) return std::nullopt;
        check(status);
        return next;
    }

    writer open(target to) {
        writer made;
        check(pdbp_open(get(), to, detail::out(made.handle_)));
        return made;
    }
    reader accept(nanoseconds wait = set_timeout) {
        reader made;
        check(pdbp_accept(get(), detail::time(wait), detail::out(made.handle_), &made.source_));
        return made;
    }
    /* A group of parts; the owner of each calls this, with the same name and list of addresses. */
    pdbp::group group(const std::string &name, const std::vector<std::string> &members, nanoseconds patience = set_timeout) {
        std::vector<const char *> list;
        for (const std::string &member : members) list.push_back(member.c_str());
        pdbp::group made;
        check(pdbp_group_of(get(), name.c_str(), list.data(), list.size(), detail::time(patience), detail::out(made.handle_)));
        return made;
    }
    pdbp_part *get() const noexcept { return handle_.get(); }

private:
    detail::owned<pdbp_part, pdbp_part_free> handle_;
};

/* Settings from the environment, from the file that PDBP_CONFIG names, and from set(). */
class settings {
public:
    settings() { check(pdbp_settings_new(detail::out(handle_))); }
    settings &set(const std::string &key, const std::string &value) {
        check(pdbp_settings_set(get(), key.c_str(), value.c_str()));
        return *this;
    }
    pdbp_settings *get() const noexcept { return handle_.get(); }

private:
    detail::owned<pdbp_settings, pdbp_settings_free> handle_;
};

/* A running cluster, as far as this process hosts it. */
class cluster {
public:
    explicit cluster(const settings &with = settings()) { check(pdbp_start(with.get(), detail::out(handle_))); }
    /* Nodes of the whole cluster. */
    std::uint16_t size() const noexcept { return pdbp_cluster_size(get()); }
    /* A node that this process hosts. */
    pdbp::node node(std::uint16_t index) const {
        pdbp::node made;
        check(pdbp_cluster_node(get(), index, detail::out(made.handle_)));
        return made;
    }
    /* All nodes that this process hosts: one, where each process has one. */
    std::vector<pdbp::node> nodes() const {
        std::vector<pdbp::node> all;
        for (std::uint32_t index = 0; index < size(); index++) {
            pdbp::node made;
            const pdbp_status status = pdbp_cluster_node(get(), static_cast<std::uint16_t>(index), detail::out(made.handle_));
            if (status == PDBP_E_NO_NODE) continue;
            check(status);
            all.push_back(std::move(made));
        }
        return all;
    }
    pdbp_cluster *get() const noexcept { return handle_.get(); }

private:
    detail::owned<pdbp_cluster, pdbp_cluster_free> handle_;
};

} // namespace pdbp

#endif
