// The decoder layer of dense families: grouped-query attention, most often with rotary embedding, and an MLP with a
// gate, each normed before it, after it, or both, and added to the residual stream, one after the other or side by
// side. LayerSpec holds what families vary.
#pragma once

#include "model/builder.h"

namespace snug {

// Holds what every layer of a pass shares.
struct LayerContext {
  Operand positions, rope_table;
  Operand documents;                          // training and evaluation
  int64_t longest_document = 0;               // tokens of one that fills its block
  std::optional<Operand> cache{};             // generating: this layer's keys and values
  std::optional<Operand> query_rope_table{};  // where that of queries is not rope_table
  RopeAxes rope_axes{};
  std::optional<Operand> image_rows{}, queries{};  // of a projector with queries: ImageArrays'
  // Of a projector where images are of one size: patches a side of each, and of how many a class row comes before them.
  int64_t image_side = 0, class_rows = 0;
};

// Records the layer: x [T, width] -> [T, width], or of a projector [T, width] -> [rows it makes, hidden].
Value decoder_layer(Builder& b, const LayerSpec& spec, const LayerParams& params, const LayerContext& context, Value x);

}  // namespace snug
