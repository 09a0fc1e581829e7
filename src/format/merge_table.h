#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace snug {

// Says which pairs of tokens join, in which order, and what they become.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;  // lower ones are applied first
    int32_t id;     // the token that the pair becomes
  };

  explicit MergeTable(size_t capacity = 0);
  // Adds a pair; a later entry replaces its earlier one. Throws InternalError beyond the capacity.
  void insert(int32_t left, int32_t right, Merge merge);
  // Returns whether one of the tokens, in ascending order, is the left or the right side of any pair.
  bool has_side_among(std::span<const int32_t> ids) const;
  // Returns null if the two do not join.
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge{};
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  // open addressing; the size is a power of two
  size_t capacity_, used_ = 0;
};

}  // namespace snug
