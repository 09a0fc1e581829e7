// The program that begins a run: everything in place.
#pragma once

#include <variant>

#include "plan/transfer.h"

namespace snug {

// A linear's weight that a file holds in fewer bits, in the form of Numerics::base_format (format/bnb.h).
struct CodedPlace {
  TensorPlace codes;
  TensorPlace scales;                         // Nf4: codes of scales, unless they are plain
  std::optional<TensorPlace> block_scales{};  //   and then their scales
  float offset = 0;                           //   and what they are counted from
};

// A matrix whose elements lie in several places: each from its first element on, up to the next one's.
struct PlacedPiece {
  int64_t first = 0;
  TensorPlace place;
};
using PiecedPlace = std::vector<PlacedPiece>;  // from element 0 on

// Where a parameter's first value comes from.
using ParamSource = std::variant<TensorPlace, RandomFill, CodedPlace, PiecedPlace>;

// Everything that training or evaluation finds in place: parameters by their sources (by ParamId), optimizer state
// zero, the table of rotary angles. Each rank reads its part, group after group, quantised as it comes where the base
// is; who shares an array gathers it.
void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes);

// After every sharer has its part of an array over so many elements in place: all of them have all of it.
void share(const JobContext& job, Emitter& e, const ShardedArray& held, int64_t elements);

}  // namespace snug
