// Divides work among a fixed team of threads, one team for each calling thread.
#pragma once

#include <cstdint>
#include <functional>

namespace snug {

// Sets how many threads parallel_for() uses when called from this thread (at least 1). The team is OpenMP's, which
// oneDNN's products use as well, so that the two never compete for cores.
void set_threads(int threads);
int threads();

// Runs body(i) for every i in [0, count), in any order and on any thread of the team, and returns when all have run.
// What body computes must depend on i alone, so that results do not depend on the number of threads. Within a body it
// runs serially. body must not throw.
void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

}  // namespace snug
