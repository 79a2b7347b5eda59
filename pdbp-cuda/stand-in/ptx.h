// What the driver reads of a module.
#pragma once
#include <map>
#include <string>

namespace stand_in {

struct Entry {
    unsigned arguments = 0, threads = 1024, shared = 0;
};

struct Ptx {
    // 82 is 8.2; 0 when it is no PTX.
    int version = 0;
    std::map<std::string, Entry> kernels;

    explicit Ptx(const std::string &text);
};

}  // namespace stand_in
