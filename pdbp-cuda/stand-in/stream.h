// Streams, whose work may be done later than it was asked for.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace stand_in {

class Stream {
  public:
    // Work that comes behind what was asked for before.
    void ask(std::function<void()> work) {
        pending.push_back(std::move(work));
        asked++;
    }
    // Does all that was asked for.
    void finish() { finish(asked); }
    // Does what was asked for first, so many.
    void finish(uint64_t count) {
        while (done < count) {
            std::function<void()> work = std::move(pending.front());
            pending.pop_front();
            work();
            done++;
        }
    }
    uint64_t asked = 0, done = 0;

  private:
    std::deque<std::function<void()>> pending;
};

// The end of what was asked for on a stream before.
struct Event {
    // Of nothing.
    Event() = default;
    explicit Event(std::shared_ptr<Stream> of) : stream(std::move(of)), end(stream->asked) {}

    bool is_over() const { return !stream || stream->done >= end; }
    void finish() {
        if (stream) stream->finish(end);
    }

    std::shared_ptr<Stream> stream;
    uint64_t end = 0;
    // How many times somebody wanted to know.
    int asked = 0;
};

}  // namespace stand_in
