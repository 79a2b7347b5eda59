// What was allocated, with what nobody may touch around it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace stand_in {

// Pool: of the device, too, in the order of streams.
enum class Kind { Device, Pool, Host, Registered };

class Memory {
  public:
    // Filled with nonsense; null when there is no room. Of the device with that number.
    void *allocate(Kind kind, size_t bytes, int owner);
    // Whether such memory begins there; it is gone then, and nothing else ever lies there.
    bool free(Kind kind, const void *at);
    // Takes note of memory of the program. Whether none of it is known.
    bool enter(const void *at, size_t bytes);
    // Whether memory of the device lies there.
    bool has(uint64_t at, size_t bytes) const;
    // What was allocated, or entered, and has that address: where it begins, and its bytes; 0 bytes if there is none.
    std::pair<uint64_t, size_t> around(uint64_t at) const;
    // Whether such memory begins there.
    bool begins(Kind kind, uint64_t at) const;
    // The number of the device to which it belongs, below 0 if it is none of a device's.
    int owner_of(uint64_t at) const;
    // What was written beside what was allocated, or nothing.
    std::string damage() const;
    // How much of the device is taken.
    size_t taken() const { return device; }

  private:
    struct Entry {
        Kind kind;
        size_t bytes;
        int owner;
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
