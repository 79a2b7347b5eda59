#include "ptx.h"

#include <cstdio>
#include <sstream>

namespace stand_in {

// One thing stands in a line, as the compiler writes it.
Ptx::Ptx(const std::string &text) {
    std::istringstream lines(text);
    Entry *kernel = nullptr;
    for (std::string line; std::getline(lines, line);) {
        int major, minor;
        unsigned number;
        char name[256];
        const char *at = line.c_str() + line.find_first_not_of(" \t,") * (line.find_first_not_of(" \t,") != std::string::npos);
        if (sscanf(at, ".version %d.%d", &major, &minor) == 2) version = 10 * major + minor;
        if (sscanf(at, ".visible .entry %255[A-Za-z0-9_]", name) == 1) kernel = &kernels[name];
        if (!kernel) continue;
        if (line.find(".param") != std::string::npos && line.find("ld.param") == std::string::npos) kernel->arguments++;
        if (sscanf(at, ".maxntid %u", &number) == 1) kernel->threads = number;
        // .shared .align 4 .b8 name[1024];
        const size_t bytes = line.rfind('[');
        if (line.find(".shared .align") != std::string::npos && bytes != std::string::npos)
            kernel->shared += unsigned(std::stoul(line.substr(bytes + 1)));
    }
    if (text.find(".address_size 64") == std::string::npos) version = 0;
}

}  // namespace stand_in
