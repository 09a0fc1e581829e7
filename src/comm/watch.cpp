#include "comm/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace snug {

Watch::Watch(int ranks, double patience)
    : patience_(static_cast<int64_t>(patience * 1e9)), signs_(static_cast<size_t>(ranks)) {
  for (int rank = 0; rank < ranks; rank++) advanced(rank), heard(rank);
}

int64_t Watch::now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Watch::silent(int64_t last, int64_t since, int64_t patience) const noexcept {
  return now() - std::max(last, since) > patience;
}

std::string Watch::complaint(int rank, int64_t since, bool messages) const {
  const Signs& signs = at(rank);
  if (signs.ended != 0 && (!messages || now() - std::max<int64_t>(signs.ended, since) > 1'000'000'000))
    return "has ended while others wait for it";
  if (messages && silent(signs.heard, since, patience_ / 2))
    return lost(rank, since) ? fmt::format("has not been heard of for {:g} s", patience()) : std::string();
  if (signs.waiting == 0 && silent(signs.advanced, since, patience_))
    return fmt::format("has given no sign of life for {:g} s while others wait for it", patience());
  return {};
}

// Waits slightly longer than a complaint does, which names the rank at fault.
bool Watch::stuck(int64_t since) const noexcept {
  return std::ranges::all_of(signs_, [&](const Signs& signs) {
    return now() - std::max<int64_t>(signs.advanced, since) > patience_ + patience_ / 10;
  });
}

std::optional<Watch::Fault> Watch::fault(int own, int64_t since, bool messages) const {
  if (!silent(since, since, patience_)) return std::nullopt;
  for (int rank = 0; rank < static_cast<int>(signs_.size()); rank++) {
    if (rank == own) continue;
    if (std::string what = complaint(rank, since, messages); !what.empty()) return Fault{rank, std::move(what)};
  }
  if (stuck(since)) return Fault{own, "and others wait for each other"};
  return std::nullopt;
}

void pause(int turn) {
  if (turn < 64)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace snug
