#include "train/principal_halves.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/parallel.h"
#include "base/rng.h"
#include "base/rounding.h"

namespace snug {
namespace {

constexpr int64_t kMoreColumns = 16;  // of the subspace than singular values are asked for
constexpr int kIterations = 16;
constexpr int64_t kTile = 64;

// Is a matrix [rows, width] in doubles, row by row.
struct Tall {
  int64_t rows = 0, width = 0;
  std::vector<double> values;
  Tall(int64_t r, int64_t w) : rows(r), width(w), values(static_cast<size_t>(r * w)) {}
  double& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * width + col)]; }
  double at(int64_t row, int64_t col) const { return values[static_cast<size_t>(row * width + col)]; }
  double* row(int64_t i) { return values.data() + i * width; }
  const double* row(int64_t i) const { return values.data() + i * width; }
};

// Returns w z.
Tall times(const MatrixView& w, const Tall& z) {
  Tall y(w.rows, z.width);
  parallel_for(w.rows, [&](int64_t i) {
    const float* const row = w.values.data() + i * w.cols;
    double* const sum = y.row(i);
    for (int64_t j = 0; j < w.cols; j++)
      for (int64_t t = 0; t < z.width; t++) sum[t] += static_cast<double>(row[j]) * z.row(j)[t];
  });
  return y;
}

// Returns w^T y.
Tall transposed_times(const MatrixView& w, const Tall& y) {
  Tall z(w.cols, y.width);
  parallel_for(ceil_div(w.cols, kTile), [&](int64_t tile) {
    const int64_t begin = tile * kTile, end = std::min(w.cols, begin + kTile);
    for (int64_t i = 0; i < w.rows; i++) {
      const float* const row = w.values.data() + i * w.cols;
      for (int64_t j = begin; j < end; j++)
        for (int64_t t = 0; t < y.width; t++) z.row(j)[t] += static_cast<double>(row[j]) * y.row(i)[t];
    }
  });
  return z;
}

// Makes the columns orthonormal, by Gram and Schmidt's method applied twice. A column that depends on those before it
// becomes zero.
void orthonormalise(Tall& y) {
  constexpr double kDependent = 1e-12;
  for (int64_t t = 0; t < y.width; t++) {
    double length = 0;
    for (int64_t i = 0; i < y.rows; i++) length += y.at(i, t) * y.at(i, t);
    const double before = std::sqrt(length);
    for (int round = 0; round < 2; round++)
      for (int64_t other = 0; other < t; other++) {
        double dot = 0;
        for (int64_t i = 0; i < y.rows; i++) dot += y.at(i, t) * y.at(i, other);
        for (int64_t i = 0; i < y.rows; i++) y.at(i, t) -= dot * y.at(i, other);
      }
    length = 0;
    for (int64_t i = 0; i < y.rows; i++) length += y.at(i, t) * y.at(i, t);
    const double factor = std::sqrt(length) <= kDependent * before ? 0 : 1 / std::sqrt(length);
    for (int64_t i = 0; i < y.rows; i++) y.at(i, t) = factor == 0 ? 0 : factor * y.at(i, t);
  }
}

// Turns a symmetric matrix into its eigenvalues, on its diagonal, by Jacobi's rotations, and returns the eigenvectors
// as columns.
Tall diagonalise(Tall& g) {
  constexpr int kMostSweeps = 60;
  const int64_t n = g.width;
  Tall vectors(n, n);
  for (int64_t i = 0; i < n; i++) vectors.at(i, i) = 1;
  for (int sweep = 0; sweep < kMostSweeps; sweep++) {
    bool turned = false;
    for (int64_t p = 0; p < n; p++)
      for (int64_t q = p + 1; q < n; q++) {
        const double apq = g.at(p, q);
        if (std::abs(apq) <= 1e-17 * std::sqrt(std::abs(g.at(p, p) * g.at(q, q))) || apq == 0) continue;
        turned = true;
        const double theta = (g.at(q, q) - g.at(p, p)) / (2 * apq);
        const double tangent = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(tangent * tangent + 1), s = tangent * c;
        const auto turn = [&](double& x, double& y) {
          const double u = x, v = y;
          x = c * u - s * v;
          y = s * u + c * v;
        };
        for (int64_t i = 0; i < n; i++) turn(g.at(i, p), g.at(i, q));
        for (int64_t i = 0; i < n; i++) turn(g.at(p, i), g.at(q, i));
        for (int64_t i = 0; i < n; i++) turn(vectors.at(i, p), vectors.at(i, q));
      }
    if (!turned) break;
  }
  return vectors;
}

// Returns an orthonormal basis of the space that w^T w's largest eigenvectors span, mapped by w.
Tall largest_space(const MatrixView& w, int64_t width, uint64_t seed, const Heartbeat& heartbeat) {
  Tall z(w.cols, width);
  const Random random(seed, RandomPurpose::Initialisation);
  for (size_t i = 0; i < z.values.size(); i++) z.values[i] = static_cast<double>(random.normal(i));
  Tall y = times(w, z);
  orthonormalise(y);
  for (int i = 0; i < kIterations && width < std::min(w.rows, w.cols); i++) {
    call(heartbeat);
    z = transposed_times(w, y);
    orthonormalise(z);
    y = times(w, z);
    orthonormalise(y);
  }
  return y;
}

}  // namespace

// Counts the matrix, two pairs of tall ones in doubles, which are made of each other, the result and its copy, and the
// small ones.
uint64_t halves_bytes(int64_t rows, int64_t cols, int64_t rank) {
  const int64_t width = rank + kMoreColumns;
  return static_cast<uint64_t>(rows * cols + 2 * (rows + cols) * rank) * sizeof(float) +
         static_cast<uint64_t>((2 * (rows + cols) + 2 * width) * width) * sizeof(double);
}

LoraHalves principal_halves(const MatrixView& w, int64_t rank, double scale, uint64_t seed,
                            const Heartbeat& heartbeat) {
  const int64_t width = std::min(rank + kMoreColumns, std::min(w.rows, w.cols));
  const Tall q = largest_space(w, width, seed, heartbeat);
  const Tall c = transposed_times(w, q);  // [cols, width]: (Q^T W)^T
  Tall gram(width, width);
  parallel_for(width, [&](int64_t s) {
    for (int64_t j = 0; j < c.rows; j++)
      for (int64_t t = 0; t < width; t++) gram.at(s, t) += c.at(j, s) * c.at(j, t);
  });
  const Tall turned = diagonalise(gram);
  std::vector<int64_t> order(static_cast<size_t>(width));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](int64_t i) { return gram.at(i, i); });
  LoraHalves halves{std::vector<float>(static_cast<size_t>(rank * w.cols)),
                    std::vector<float>(static_cast<size_t>(w.rows * rank))};
  for (int64_t r = 0; r < std::min(rank, width); r++) {
    const int64_t column = order[static_cast<size_t>(r)];
    const double value = std::sqrt(std::max(0.0, gram.at(column, column)));  // a singular value
    if (value == 0) continue;
    const double root = std::sqrt(value / scale);
    for (int64_t i = 0; i < w.rows; i++) {
      double u = 0;
      for (int64_t t = 0; t < width; t++) u += q.at(i, t) * turned.at(t, column);
      halves.b[static_cast<size_t>(i * rank + r)] = static_cast<float>(u * root);
    }
    for (int64_t j = 0; j < w.cols; j++) {
      double v = 0;
      for (int64_t t = 0; t < width; t++) v += c.at(j, t) * turned.at(t, column);
      halves.a[static_cast<size_t>(r * w.cols + j)] = static_cast<float>(v / value * root);
    }
  }
  return halves;
}

LoraHalves orthogonal_halves(const MatrixView& w, int64_t rank, const Heartbeat& heartbeat) {
  Tall q(w.rows, rank);
  for (int64_t i = 0; i < w.rows; i++)
    for (int64_t t = 0; t < rank; t++) q.at(i, t) = static_cast<double>(w.values[static_cast<size_t>(i * w.cols + t)]);
  orthonormalise(q);
  call(heartbeat);
  const Tall r = transposed_times(w, q);
  LoraHalves halves{std::vector<float>(static_cast<size_t>(rank * w.cols)),
                    std::vector<float>(q.values.begin(), q.values.end())};
  for (int64_t t = 0; t < rank; t++)
    for (int64_t j = 0; j < w.cols; j++) halves.a[static_cast<size_t>(t * w.cols + j)] = static_cast<float>(r.at(j, t));
  return halves;
}

}  // namespace snug
