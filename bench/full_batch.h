// A pass of random tokens for benchmarks: documents fill their blocks, every token has a loss.
#pragma once

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "plan/spec/arrangement.h"
#include "program/ops.h"
#include "tensor/batch.h"

namespace snug {

// `views`: of HostJob::FillBatch.
inline void fill_batch(std::span<const TensorView> views, RuntimeScalars& runtime, const Cut& cut, int64_t vocabulary) {
  const auto tokens = static_cast<size_t>(cut.tokens());
  const Random random(1, RandomPurpose::DataOrder);
  const BatchViews batch = batch_views(views);
  const auto ids = batch.ids, order = batch.token_order, starts = batch.segment_starts, segments = batch.segment_ids;
  for (size_t t = 0; t < tokens; t++) {
    ids[t] = static_cast<int32_t>(random.below(t, static_cast<uint64_t>(vocabulary)));
    batch.positions[t] = static_cast<int32_t>(t % static_cast<size_t>(cut.sequence_length));
    batch.loss_rows[t] = static_cast<int32_t>(t);
    batch.loss_weights[t] = 1;
    batch.loss_targets[t] = static_cast<int32_t>(random.below(t + 1, static_cast<uint64_t>(vocabulary)));
  }
  for (int64_t d = 0; d <= cut.micro_batch; d++)
    batch.documents[static_cast<size_t>(d)] = static_cast<int32_t>(d * cut.sequence_length);
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
  runtime.documents = cut.micro_batch;
  runtime.loss_rows = cut.tokens();
  runtime.segments = static_cast<int64_t>(count);
}

}  // namespace snug
