// What work that was asked for, and is not done yet, reads and writes; and whether anybody else touches that meanwhile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

namespace stand_in {

// Bytes that work uses.
struct Use {
    uint64_t at;
    size_t bytes;
    bool writes;
    // Of the host, which can touch them.
    bool host;
};

class Pending {
    struct Item;

  public:
    using Ticket = std::list<Item>::iterator;

    // Takes note of work. Watched: what it writes on the host holds nonsense until it is done, so that it shows who reads too early.
    Ticket add(const std::string &call, std::vector<Use> uses, bool watched);
    // It is to be done now. Says what the host did to its bytes meanwhile, or nothing.
    std::string end(Ticket ticket);
    // Which call has asked for work on some of these bytes, or nothing.
    std::string user_of(uint64_t at, size_t bytes) const;

  private:
    struct Item {
        std::string call;
        std::vector<Use> uses;
        // What the host's bytes have to hold when it is done, by use; nothing where they are not watched.
        std::vector<std::vector<unsigned char>> expected;
    };
    std::list<Item> items;

    bool is_used(const Use &use, bool also_read) const;
};

}  // namespace stand_in
