#include "pending.h"

#include <cstring>

namespace stand_in {
namespace {

constexpr int NONSENSE = 0xEE;

bool overlap(const Use &use, uint64_t at, size_t bytes) { return use.at < at + bytes && at < use.at + use.bytes; }

}  // namespace

bool Pending::is_used(const Use &use, bool also_read) const {
    for (const Item &item : items)
        for (const Use &other : item.uses)
            if ((other.writes || also_read) && overlap(other, use.at, use.bytes)) return true;
    return false;
}

// What work that comes before is to read is not spoilt, and what that writes changes by right.
Pending::Ticket Pending::add(const std::string &call, std::vector<Use> uses, bool watched) {
    Item item{call, std::move(uses), {}};
    for (const Use &use : item.uses) {
        item.expected.emplace_back();
        if (!watched || !use.host || is_used(use, use.writes)) continue;
        auto *bytes = reinterpret_cast<unsigned char *>(use.at);
        if (use.writes) memset(bytes, NONSENSE, use.bytes);
        item.expected.back().assign(bytes, bytes + use.bytes);
    }
    items.push_back(std::move(item));
    return --items.end();
}

std::string Pending::end(Ticket ticket) {
    const Item item = std::move(*ticket);
    items.erase(ticket);
    for (size_t at = 0; at < item.uses.size(); at++) {
        const Use &use = item.uses[at];
        const auto &expected = item.expected[at];
        if (expected.empty() || !memcmp(expected.data(), reinterpret_cast<const void *>(use.at), use.bytes)) continue;
        return item.call + ": " + std::to_string(use.bytes) + " bytes of the host were written while a copy " +
               (use.writes ? "to" : "from") + " them was under way";
    }
    return "";
}

std::string Pending::user_of(uint64_t at, size_t bytes) const {
    for (const Item &item : items)
        for (const Use &use : item.uses)
            if (overlap(use, at, bytes)) return item.call;
    return "";
}

}  // namespace stand_in
