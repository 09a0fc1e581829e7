#include "format/merge_table.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace snug {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t capacity) : slots_(std::bit_ceil(2 * capacity + 1)), capacity_(capacity) {}

size_t MergeTable::slot_of(uint64_t pair) const {
  const uint64_t mixed = pair * 0x9e3779b97f4a7c15;  // Fibonacci hashing: the upper bits are the good ones
  const size_t last = slots_.size() - 1;
  size_t slot = static_cast<size_t>(mixed >> 32) & last;
  while (slots_[slot].pair != pair && slots_[slot].pair != kFree) slot = (slot + 1) & last;
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.pair == kFree) check(++used_ <= capacity_, "more than {} merges", capacity_);
  slot = {pair_key(left, right), merge};
}

bool MergeTable::has_side_among(std::span<const int32_t> ids) const {
  const auto is_among = [&](uint64_t id) {
    return std::binary_search(ids.begin(), ids.end(), static_cast<int32_t>(id & 0xffffffff));
  };
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.pair != kFree && (is_among(slot.pair >> 32) || is_among(slot.pair));
  });
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

}  // namespace snug
