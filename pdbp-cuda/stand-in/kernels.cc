#include "kernels.h"

#include <cstdio>
#include <cstdlib>
#include <map>

namespace stand_in {
namespace {

// Made when the first kernel comes.
std::map<std::string, const Kernel *> &all() {
    static std::map<std::string, const Kernel *> kernels;
    return kernels;
}

}  // namespace

void Kernel::add(const char *name, const Kernel *kernel) {
    if (all().emplace(name, kernel).second) return;
    fprintf(stderr, "stand-in driver: two kernels are called %s\n", name);
    abort();
}

const Kernel *Kernel::find(const std::string &name) {
    auto found = all().find(name);
    return found == all().end() ? nullptr : found->second;
}

}  // namespace stand_in
