#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace stand_in {
namespace {

// The driver aligns memory of the device to it.
constexpr size_t ALIGN = 256;
constexpr int NONSENSE = 0xEE;
constexpr unsigned char GUARD = 0xCC;
// Before and behind what is allocated, so much that nobody can touch.
constexpr size_t RESERVE = size_t(64) << 20;

size_t page() { return size_t(sysconf(_SC_PAGESIZE)); }

bool is_of_device(Kind kind) { return kind == Kind::Device || kind == Kind::Pool; }

}  // namespace

// Pages in a reserve that nobody can touch, of which the end is used: who goes on behind it is caught at once, or leaves a trace
// in the few bytes that alignment costs. What lies further away is nobody's either, wherever the system puts other memory.
void *Memory::allocate(Kind kind, size_t bytes, int owner) {
    const size_t align = kind == Kind::Host ? page() : ALIGN, used = (bytes + align - 1) / align * align;
    const size_t inside = (used + page() - 1) / page() * page(), length = inside + 2 * RESERVE;
    void *got = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return nullptr;
    char *pages = static_cast<char *>(got), *at = pages + RESERVE + inside - used;
    if (mprotect(pages + RESERVE, inside, PROT_READ | PROT_WRITE)) {
        munmap(pages, length);
        return nullptr;
    }
    memset(pages + RESERVE, GUARD, size_t(at - (pages + RESERVE)));
    memset(at, NONSENSE, bytes);
    memset(at + bytes, GUARD, used - bytes);
    entries[reinterpret_cast<uintptr_t>(at)] = {kind, bytes, owner, pages, length};
    if (is_of_device(kind)) device += bytes;
    return at;
}

bool Memory::free(Kind kind, const void *at) {
    auto found = entries.find(reinterpret_cast<uintptr_t>(at));
    if (found == entries.end() || found->second.kind != kind) return false;
    if (is_of_device(kind)) device -= found->second.bytes;
    // The addresses stay taken: who uses them yet finds nothing there, and not what somebody else has put there.
    const Entry &entry = found->second;
    if (entry.pages) mmap(entry.pages, entry.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    entries.erase(found);
    return true;
}

bool Memory::enter(const void *at, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(at);
    auto next = entries.lower_bound(begin);
    if (next != entries.end() && next->first < begin + bytes) return false;
    if (find(begin) != entries.end()) return false;
    entries[begin] = {Kind::Registered, bytes, -1, nullptr, 0};
    return true;
}

// That in which the address lies.
std::map<uint64_t, Memory::Entry>::const_iterator Memory::find(uint64_t at) const {
    auto next = entries.upper_bound(at);
    if (next == entries.begin()) return entries.end();
    --next;
    return at - next->first < next->second.bytes ? next : entries.end();
}

bool Memory::has(uint64_t at, size_t bytes) const {
    auto found = find(at);
    return found != entries.end() && is_of_device(found->second.kind) && bytes <= found->second.bytes - (at - found->first);
}

std::pair<uint64_t, size_t> Memory::around(uint64_t at) const {
    auto found = find(at);
    return found == entries.end() ? std::make_pair(at, size_t(0)) : std::make_pair(found->first, found->second.bytes);
}

bool Memory::begins(Kind kind, uint64_t at) const {
    auto found = entries.find(at);
    return found != entries.end() && found->second.kind == kind;
}

int Memory::owner_of(uint64_t at) const {
    auto found = find(at);
    return found != entries.end() && is_of_device(found->second.kind) ? found->second.owner : -1;
}

bool Memory::is_whole(uint64_t at, const Entry &entry) {
    const auto *begin = reinterpret_cast<const unsigned char *>(at);
    const auto *first = reinterpret_cast<const unsigned char *>(entry.pages + RESERVE);
    const auto *last = reinterpret_cast<const unsigned char *>(entry.pages + entry.length - RESERVE);
    for (const auto *byte = first; byte < begin; byte++)
        if (*byte != GUARD) return false;
    for (const auto *byte = begin + entry.bytes; byte < last; byte++)
        if (*byte != GUARD) return false;
    return true;
}

std::string Memory::damage() const {
    for (const auto &[at, entry] : entries)
        if (entry.pages && !is_whole(at, entry))
            return "bytes were written beside a memory of " + std::to_string(entry.bytes) + " bytes";
    return "";
}

}  // namespace stand_in
