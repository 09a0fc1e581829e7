#include "train/stream_source.h"

namespace snug {

StreamSource::StreamSource(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
                           const StepShape& shape, const RunLength& length, int rank)
    : stream_(dataset, std::move(selection), packing, shape, length),
      batcher_(dataset, shape.micro_batch, packing.sequence_length, packing.pools),
      rank_(rank) {}

BatchSource::Step StreamSource::begin_step(int64_t step) {
  stream_.seek(step - 1);
  return {stream_.tokens(), stream_.loss_tokens(), stream_.ends_epoch(), stream_.samples()};
}

void StreamSource::fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) {
  const BatchCounts counts = batcher_.fill(stream_, pass, rank_, views, half_);
  const StepShape& shape = stream_.shape();
  runtime.first_token = (pass * shape.ranks + rank_) * shape.micro_batch * stream_.sequence_length();
  runtime.documents = counts.documents;
  runtime.loss_rows = counts.loss_rows;
  runtime.segments = counts.segments;
}

}  // namespace snug
