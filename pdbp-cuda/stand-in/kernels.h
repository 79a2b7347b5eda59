// The kernels that the library has, by name.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stand_in {

// A kernel with its arguments, and those of them that are addresses.
struct Launch {
    std::function<void()> run;
    std::vector<uint64_t> addresses;
};

struct Kernel {
    unsigned arguments;
    // Reads the arguments.
    std::function<Launch(void **)> bind;

    // Registers it.
    template <typename... A>
    Kernel(const char *name, void (*function)(A...)) : arguments(sizeof...(A)) {
        bind = [function](void **from) { return with(function, from, std::index_sequence_for<A...>()); };
        add(name, this);
    }

    // The one of that name, or null.
    static const Kernel *find(const std::string &name);

  private:
    static void add(const char *name, const Kernel *kernel);

    template <typename... A, size_t... I>
    static Launch with(void (*function)(A...), void **from, std::index_sequence<I...>) {
        std::tuple<A...> arguments{*static_cast<A *>(from[I])...};
        Launch launch;
        (note(std::get<I>(arguments), launch.addresses), ...);
        launch.run = [function, arguments] { std::apply(function, arguments); };
        return launch;
    }

    template <typename T>
    static void note(T *address, std::vector<uint64_t> &all) {
        all.push_back(reinterpret_cast<uintptr_t>(address));
    }
    template <typename T>
    static void note(const T &, std::vector<uint64_t> &) {}
};

}  // namespace stand_in
