// The GPUs that this process may use, as their driver sees them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

struct Card {
  std::string name;
  uint64_t memory_bytes = 0, free_bytes = 0;  // free: for all processes together, this one's context taken off
};

// By device number; none where there is no driver or no GPU. Takes nothing of them.
std::vector<Card> cuda_cards();

}  // namespace snug
