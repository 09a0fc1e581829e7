// One step of a Chrome trace that `snug train --trace` wrote: what ran when, on which lane.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// What bars are coloured by.
enum class OpGroup : uint8_t { Products, Attention, OtherCompute, Update, Transfer, Wait };
inline constexpr OpGroup kOpGroups[] = {OpGroup::Products, OpGroup::Attention, OpGroup::OtherCompute,
                                        OpGroup::Update,   OpGroup::Transfer,  OpGroup::Wait};
std::string_view name(OpGroup group);

struct TimelineOp {
  size_t lane = 0;  // of Timeline::lanes
  OpGroup group = OpGroup::OtherCompute;
  std::string name, kind;          // "layer.3.fwd.gate_up", "gemm"
  double begin = 0, duration = 0;  // microseconds since the step began
};

struct Timeline {
  std::vector<std::string> lanes;  // those that anything ran on
  std::vector<TimelineOp> ops;
  double duration = 0;         // microseconds
  size_t step = 0, steps = 0;  // which of the traced steps this is, from 1, and how many there are
};

// The last step of the trace that is whole. UserError with `source` and line for what is no such trace; its last line
// may be cut. A trace without ops is a timeline without any.
Timeline parse_trace(std::string_view text, const std::string& source);

}  // namespace snug
