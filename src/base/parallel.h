// Work shared out over a fixed team of threads, one team for each calling thread.
#pragma once

#include <cstdint>
#include <functional>

namespace snug {

// Sets how many threads parallel_for() uses when called from this thread (at least 1). The team is OpenMP's, the same
// one that oneDNN's products run on, so that the two never compete for cores.
void set_threads(int threads);
int threads();

// Runs body(i) for every i in [0, count), in any order and on any thread of the team, and returns when all have run.
// What body computes must depend on i alone: then results do not depend on the number of threads. Not for nesting:
// inside a body it runs serially. body must not throw.
void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

}  // namespace snug
