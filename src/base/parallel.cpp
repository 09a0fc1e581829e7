#include "base/parallel.h"

#include <algorithm>

#ifdef SNUG_PLAIN_THREADS
#include <atomic>
#include <thread>
#include <utility>
#include <vector>
#else
#include <omp.h>
#endif

namespace snug {

#ifdef SNUG_PLAIN_THREADS  // the thread sanitizer cannot see into OpenMP's runtime
namespace {
thread_local int team_size = 1;
thread_local bool inside = false;
}  // namespace

void set_threads(int threads) { team_size = std::max(1, threads); }
int threads() { return team_size; }

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  const int64_t team = inside ? 1 : std::min<int64_t>(team_size, count);
  std::atomic<int64_t> next = 0;
  auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::jthread> helpers;
  for (int64_t t = 1; t < team; t++)
    helpers.emplace_back([&] {
      inside = true;
      work();
    });
  const bool was_inside = std::exchange(inside, true);
  work();
  inside = was_inside;
}
#else
void set_threads(int threads) { omp_set_num_threads(std::max(1, threads)); }
int threads() { return omp_get_max_threads(); }

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 1 || omp_in_parallel()) {
    for (int64_t i = 0; i < count; i++) body(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t i = 0; i < count; i++) body(i);
}
#endif

}  // namespace snug
