// What was allocated, with what nobody may touch around it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace stand_in {

enum class Kind { Device, Host, Registered };

class Memory {
  public:
    // Filled with nonsense; null when there is no room.
    void *allocate(Kind kind, size_t bytes);
    // Whether such memory begins there; it is gone then.
    bool free(Kind kind, const void *at);
    // Takes note of memory of the program. Whether none of it is known.
    bool enter(const void *at, size_t bytes);
    // Whether memory of the device lies there.
    bool has(uint64_t at, size_t bytes) const;
    // Whether a kernel can use the address.
    bool is_known(uint64_t at) const;
    // What was written beside what was allocated, or nothing.
    std::string damage() const;
    // How much of the device is taken.
    size_t taken() const { return device; }

  private:
    struct Entry {
        Kind kind;
        size_t bytes;
        // Of the pages it lies in.
        char *pages;
        size_t length;
    };
    std::map<uint64_t, Entry> entries;
    size_t device = 0;

    std::map<uint64_t, Entry>::const_iterator find(uint64_t at) const;
    static bool is_whole(uint64_t at, const Entry &entry);
};

}  // namespace stand_in
