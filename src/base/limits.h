// Bounds that the data and the plan of its memory share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace snug {

// Returns how many documents `blocks` blocks hold at most.
constexpr int64_t max_documents(int64_t blocks, int64_t sequence_length) {
  return blocks * std::max<int64_t>(64, sequence_length / 32);
}

}  // namespace snug
