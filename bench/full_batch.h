// A pass of random tokens for benchmarks: documents fill their blocks, every token has a loss.
#pragma once

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "plan/arrangement.h"
#include "program/ops.h"
#include "tensor/view.h"

namespace snug {

// `views`: the arrays of HostJob::FillBatch.
inline void fill_batch(std::span<const TensorView> views, PassFacts& facts, const Cut& cut, int64_t vocabulary) {
  const auto tokens = static_cast<size_t>(cut.tokens());
  const Random random(1, RandomPurpose::DataOrder);
  auto array = [&](size_t i) { return std::span(views[i].as<int32_t>(), static_cast<size_t>(views[i].count())); };
  const auto ids = array(0), order = array(5), starts = array(6), segments = array(7);
  for (size_t t = 0; t < tokens; t++) {
    ids[t] = static_cast<int32_t>(random.below(t, static_cast<uint64_t>(vocabulary)));
    array(1)[t] = static_cast<int32_t>(t % static_cast<size_t>(cut.sequence_length));
    array(3)[t] = static_cast<int32_t>(t);
    array(4)[t] = static_cast<int32_t>(random.below(t + 1, static_cast<uint64_t>(vocabulary)));
  }
  for (int64_t d = 0; d <= cut.micro_batch; d++)
    array(2)[static_cast<size_t>(d)] = static_cast<int32_t>(d * cut.sequence_length);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t t) { return ids[static_cast<size_t>(t)]; });
  size_t count = 0;
  for (size_t t = 0; t < tokens; t++) {
    const int32_t id = ids[static_cast<size_t>(order[t])];
    if (count > 0 && segments[count - 1] == id) continue;
    starts[count] = static_cast<int32_t>(t);
    segments[count++] = id;
  }
  starts[count] = static_cast<int32_t>(tokens);
  facts.documents = cut.micro_batch;
  facts.loss_rows = cut.tokens();
  facts.segments = static_cast<int64_t>(count);
}

}  // namespace snug
