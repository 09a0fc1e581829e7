#include "data/batcher.h"

#include <algorithm>

#include "base/error.h"
#include "base/limits.h"
#include "data/image_rows.h"

namespace snug {
namespace {

template <class T>
void fill_rest(std::span<T> view, int64_t used, T value) {
  std::fill(view.begin() + used, view.end(), value);
}

// Returns T; throws UserError if it is out of range.
int64_t batch_tokens(int64_t micro_batch, int64_t sequence_length) {
  if (micro_batch >= 1 && sequence_length >= 1 && micro_batch <= INT32_MAX / sequence_length) {
    return micro_batch * sequence_length;
  }
  user_error("micro_batch_size {} of sequence_length {}: expected less than 2^31 tokens a pass", micro_batch,
             sequence_length);
}

}  // namespace

Batcher::Batcher(const Dataset& dataset, int64_t micro_batch, int64_t sequence_length, bool pools,
                 const TowerShape& tower)
    : dataset_(dataset),
      micro_batch_(micro_batch),
      tokens_(batch_tokens(micro_batch, sequence_length)),
      documents_(max_documents(micro_batch, sequence_length)),
      pools_(pools),
      tower_(tower),
      replaced_(static_cast<size_t>(tokens_)) {
  labels_.resize(static_cast<size_t>(sequence_length));
  weights_.resize(labels_.size());
  keys_.resize(static_cast<size_t>(tokens_));
}

BatchCounts Batcher::fill(const BlockStream& stream, int64_t pass, int64_t rank, const BatchViews& views, Half half) {
  const auto tokens = std::ssize(views.ids);
  const int64_t axes = tokens > 0 ? std::ssize(views.positions) / tokens : 1;
  const auto expected = batch_fields(tokens, documents_, axes).in_order();
  const auto size = [](const auto& view) { return std::ssize(view); };
  const bool sized = tokens <= tokens_ && std::ranges::equal(views.map(size, size).in_order(), expected,
                                                             [](auto count, const ArrayField& field) {
                                                               return count == field.shape.count();
                                                             });
  check(sized, "views of a batch that are not made for {} tokens at most and {} documents", tokens_, documents_);
  BatchCounts counts;
  for (int64_t i = 0; i < micro_batch_; ++i) {
    for_each_of(stream.block(pass, rank, i), half,
                [&](const DocumentSpan& document) { add_document(document, views, counts); });
  }
  fill_rest(views.ids, counts.tokens, 0);
  for (int64_t axis = 0; axis < axes; ++axis)
    fill_rest(views.positions.subspan(static_cast<size_t>(axis * tokens), static_cast<size_t>(tokens)), counts.tokens,
              0);
  fill_rest(views.documents, counts.documents, static_cast<int32_t>(counts.tokens));
  fill_rest(views.loss_rows, counts.loss_rows, -1);
  fill_rest(views.loss_targets, counts.loss_rows, 0);
  fill_rest(views.loss_weights, counts.loss_rows, 0.0f);
  sort_tokens(views, counts);
  return counts;
}

void Batcher::add_document(const DocumentSpan& document, const BatchViews& views, BatchCounts& counts) {
  const auto start = static_cast<size_t>(counts.tokens), length = size_t{document.length};
  check(start + length <= views.ids.size() && length <= labels_.size() && counts.documents < documents_,
        "a document of {} tokens at token {} of a batch of {}", length, start, views.ids.size());
  const std::span<const int32_t> ids = dataset_.ids(document.sample).subspan(document.begin, length);
  const std::span<int32_t> labels = std::span(labels_).first(length);
  dataset_.labels(document.sample, document.begin, labels);
  const std::span<float> weights = std::span(weights_).first(length);
  dataset_.weights(document.sample, document.begin, weights);
  views.documents[static_cast<size_t>(counts.documents++)] = static_cast<int32_t>(start);
  const int64_t first_row = counts.loss_rows;
  for (size_t i = 0; i < length; ++i) {
    views.ids[start + i] = ids[i];
    if (i == 0 || labels[i] == kNoLabel) continue;
    if (pools_) counts.loss_rows = first_row;  // a later label takes the place of an earlier one
    const auto row = static_cast<size_t>(counts.loss_rows++);
    views.loss_rows[row] = static_cast<int32_t>(pools_ ? start + i : start + i - 1);
    views.loss_targets[row] = labels[i];
    views.loss_weights[row] = weights[i];
  }
  place_tokens(document, counts.tokens, views);
  counts.tokens += static_cast<int64_t>(length);
}

// Writes the positions of a document's tokens, of which `start` is the first in the batch, and notes whose rows a tower
// makes.
void Batcher::place_tokens(const DocumentSpan& document, int64_t start, const BatchViews& views) {
  const auto begin = static_cast<size_t>(start), length = size_t{document.length};
  std::fill_n(replaced_.begin() + start, document.length, false);
  images_.clear();
  for (const DatasetView& view : views_of(dataset_, document)) {
    const int64_t first = view.begin - document.begin;
    const DatasetImage& image = dataset_.images(document.sample)[view.image];
    images_.push_back({first, view.rows / tower_.merge, view.columns / tower_.merge, image.step, image.time});
    std::fill_n(replaced_.begin() + start + first, view.tokens, true);
  }
  if (views.positions.size() > views.ids.size())
    return write_positions(views.positions, std::ssize(views.ids), start, document.length, images_);
  for (size_t i = 0; i < length; ++i) views.positions[begin + i] = static_cast<int32_t>(i);
}

void Batcher::sort_tokens(const BatchViews& views, BatchCounts& counts) {
  size_t tokens = 0;
  for (size_t t = 0; t < static_cast<size_t>(counts.tokens); ++t)
    if (!replaced_[t]) keys_[tokens++] = uint64_t{static_cast<uint32_t>(views.ids[t])} << 32 | t;
  std::sort(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(tokens));
  for (size_t k = 0; k < tokens; ++k) {
    const auto id = static_cast<int32_t>(keys_[k] >> 32);
    views.token_order[k] = static_cast<int32_t>(keys_[k] & UINT32_MAX);
    if (k > 0 && id == views.segment_ids[static_cast<size_t>(counts.segments) - 1]) continue;
    views.segment_starts[static_cast<size_t>(counts.segments)] = static_cast<int32_t>(k);
    views.segment_ids[static_cast<size_t>(counts.segments++)] = id;
  }
  fill_rest(views.token_order, static_cast<int64_t>(tokens), 0);
  fill_rest(views.segment_starts, counts.segments, static_cast<int32_t>(tokens));
  fill_rest(views.segment_ids, counts.segments, 0);
}

}  // namespace snug
