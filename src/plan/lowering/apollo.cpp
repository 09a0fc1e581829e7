#include "plan/lowering/apollo.h"

#include <algorithm>
#include <cmath>

namespace snug {
namespace {

// Return how many rows or columns of a matrix are scaled, those of which it has more, and how many numbers each has.
int64_t channels_of(const Shape& matrix) { return std::max(matrix.rows(), matrix.cols()); }
int64_t width_of(const Shape& matrix) { return std::min(matrix.rows(), matrix.cols()); }

}  // namespace

Apollo::Apollo(Emitter& emitter, const Numerics& numerics, DType gradient, std::span<const Shape> matrices)
    : emitter_(emitter), numerics_(numerics), scaler_(emitter, matrices) {
  int64_t channels = 1, projection = 1, low = 1;
  for (const Shape& matrix : matrices) {
    const int64_t rank = numerics.projected_to(matrix);
    channels = std::max(channels, channels_of(matrix));
    projection = std::max(projection, rank * width_of(matrix));
    low = std::max(low, rank * channels_of(matrix));
  }
  projection_ = emitter.tensor("projection", gradient, {projection}, Role::State);
  low_ = emitter.tensor("low", DType::F32, {low}, Role::State);
  squares_ = emitter.tensor("channel_squares", DType::F32, {2 * channels}, Role::Metrics);
  sums_ = emitter.tensor("sums", DType::F32, {2}, Role::Metrics);
  scales_ = emitter.tensor("channel_scales", DType::F32, {channels}, Role::Metrics);
  factor_ = emitter.tensor("factor", DType::F32, {1}, Role::Metrics);
}

void Apollo::direct(const Operand& gradient, ParamId id, const State& state, const Operand& scalars) {
  const int64_t rank = numerics_.projected_to(gradient.shape), channels = channels_of(gradient.shape),
                width = width_of(gradient.shape);
  const bool by_rows = gradient.shape.rows() >= gradient.shape.cols();
  const Operand projection = reshaped(elements(projection_, 0, rank * width), {rank, width}),
                low = reshaped(elements(low_, 0, channels * rank), {channels, rank}),
                squares = reshaped(elements(squares_, 0, 2 * channels), {2, channels}), sums = reshaped(sums_, {2, 1}),
                scales = elements(scales_, 0, channels);
  RandomFill random{.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(rank)))};
  random.seed = numerics_.seed;
  random.stream = static_cast<uint32_t>(id);
  random.every = numerics_.apollo_update_interval;
  emitter_.op("projection", random, {write(projection)});
  emitter_.op("project", Gemm{.transpose_a = !by_rows, .transpose_b = true},
              {read(gradient), read(projection), write(low)});
  emitter_.op("moments", ProjectedMoments{numerics_.beta1, numerics_.beta2, numerics_.epsilon},
              {read(low), update(state.first), update(state.second), write(squares), read(scalars)});
  const bool by_channel = numerics_.apollo_scale_type == ScaleType::Channel;
  if (!by_channel)
    emitter_.op("sums", TreeSum{.count = 2 * channels, .block = channels}, {read(squares), write(sums_)});
  emitter_.op("scales", ChannelScales{}, {read(by_channel ? squares : sums), write(scales)});
  MatrixScales of_matrix;
  (by_rows ? of_matrix.rows : of_matrix.columns) = scales;
  emitter_.op(
      "limit", GrowthLimit{numerics_.apollo_scale, numerics_.beta1, numerics_.beta2},
      {read(scaler_.squares(gradient, of_matrix, 1, scalars)), update(state.norm), write(factor_), read(scalars)});
  scaler_.scale(gradient, of_matrix, factor_, scalars);
}

}  // namespace snug
