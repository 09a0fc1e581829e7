// Defines the ops that pick and put rows by number (program/ops.h says how operands are written), and those that make a
// square of rows a larger one, bicubically, with what these read: place i of `to` along a
// side lies at (i + 1/2) from / to - 1/2 of `from` places, and takes the four around it by the cubic convolution of
// Keys (1981), as torch's interpolate does with mode "bicubic" and align_corners false. Kernels of all backends compute
// the weights with these functions.
#pragma once

#include <cstdint>

namespace snug {

// y[i] = x[rows[i]], 0 where rows[i] < 0.   x r [T, n], rows r [R] int32, y w [R, n].
struct GatherRows {};

// Says what becomes of x: it is 0 where no row goes, or stays there, and where one goes it is replaced or added to.
enum class Scatter : uint8_t { OverZeros, Replace, Add };

// Where rows[i] >= 0, x[rows[i]] = (Add: x[rows[i]] +) y[i]; OverZeros: x = 0 first.   y r [R, n], rows r [R] int32
// (each row at most once), x w [T, n], rw unless OverZeros.
struct ScatterRows {
  Scatter how = Scatter::OverZeros;
};

// y is a square of from x from rows made one of to x to rows, in fp32; `kept` rows before the square stay.   x r [kept
// + from^2, n], y w [kept + to^2, n]; fp32|bf16 each; to is at least from.
struct ResizeRows {
  int64_t from = 0, to = 0, kept = 0;
  bool antialias = false;  // as torch's argument of that name
};

// Its gradient: dy r [kept + to^2, n], dx w [kept + from^2, n].
struct ResizeRowsBackward : ResizeRows {};

// Holds the places that one place of the result reads along a side, and their weights.
struct CubicTaps {
  static constexpr int kCount = 4;
  int64_t place[kCount] = {};
  float weight[kCount] = {};
};

// Returns the cubic convolution at a distance below 2; its slope at distance 1 is `a`.
constexpr double cubic_weight(double a, double distance) {
  const double x = distance < 0 ? -distance : distance;
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return (((x - 5) * x + 8) * x - 4) * a;
}

// With antialiasing a is -1/2, and places beyond the edge are left out; without it a is -3/4, and such a place is the
// one at the edge.
constexpr CubicTaps cubic_taps(const ResizeRows& op, int64_t i) {
  const double at = (static_cast<double>(i) + 0.5) * static_cast<double>(op.from) / static_cast<double>(op.to) - 0.5;
  const int64_t below = static_cast<int64_t>(at + 1) - 1;  // at is above -1
  double weights[CubicTaps::kCount] = {}, sum = 0;
  CubicTaps taps;
  for (int k = 0; k < CubicTaps::kCount; k++) {
    const int64_t place = below - 1 + k;
    const bool outside = place < 0 || place >= op.from;
    taps.place[k] = place < 0 ? 0 : place >= op.from ? op.from - 1 : place;
    if (!op.antialias || !outside)
      weights[k] = cubic_weight(op.antialias ? -0.5 : -0.75, static_cast<double>(place) - at);
    sum += weights[k];
  }
  for (int k = 0; k < CubicTaps::kCount; k++) taps.weight[k] = static_cast<float>(weights[k] / sum);
  return taps;
}

// Returns how much of a place there is in place i of the result.
constexpr float cubic_share(const ResizeRows& op, int64_t i, int64_t place) {
  const CubicTaps taps = cubic_taps(op, i);
  float share = 0;
  for (int k = 0; k < CubicTaps::kCount; k++)
    if (taps.place[k] == place) share += taps.weight[k];
  return share;
}

// Return bounds of the places of the result that read a place along a side.
constexpr int64_t first_reader(const ResizeRows& op, int64_t place) {
  const int64_t first = (place - 2) * op.to / op.from - 1;
  return first < 0 ? 0 : first;
}
constexpr int64_t end_of_readers(const ResizeRows& op, int64_t place) {
  const int64_t end = (place + 3) * op.to / op.from + 1;
  return end > op.to ? op.to : end;
}

}  // namespace snug
