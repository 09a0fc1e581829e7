#include "train/principal_halves.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "base/rounding.h"

namespace snug {
namespace {

// A block of the search has this many columns more than singular values are asked for; its basis holds up to kBasis
// blocks, of which kKept are left when it is full.
constexpr int64_t kMoreColumns = 16, kBasis = 4, kKept = 2;
// A singular value s is found once |W W^T u - s^2 u| is below this share of s and the largest. Weights take some 20
// steps, matrices of random numbers 30.
constexpr double kTolerance = 1e-9;
constexpr double kSmall = 1e-6;  // below this share of the largest, values in fp32 say nothing
constexpr int kMostSteps = 1000;
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

// Describes a matrix of either precision, row by row.
template <class Value>
struct Rows {
  const Value* values;
  int64_t rows, cols;
  const Value* row(int64_t i) const { return values + i * cols; }
};

Rows<float> rows_of(const MatrixView& w) { return {w.values.data(), w.rows, w.cols}; }
Rows<double> rows_of(const Tall& x) { return {x.values.data(), x.rows, x.width}; }

// Returns x z.
Tall times(const auto& matrix, const Tall& z) {
  const auto x = rows_of(matrix);
  Tall y(x.rows, z.width);
  parallel_for(x.rows, [&](int64_t i) {
    for (int64_t j = 0; j < x.cols; j++)
      for (int64_t t = 0; t < z.width; t++) y.row(i)[t] += static_cast<double>(x.row(i)[j]) * z.row(j)[t];
  });
  return y;
}

// Returns x^T y.
Tall transposed_times(const auto& matrix, const Tall& y) {
  const auto x = rows_of(matrix);
  Tall z(x.cols, y.width);
  parallel_for(ceil_div(x.cols, kTile), [&](int64_t tile) {
    const int64_t begin = tile * kTile, end = std::min(x.cols, begin + kTile);
    for (int64_t i = 0; i < x.rows; i++)
      for (int64_t j = begin; j < end; j++)
        for (int64_t t = 0; t < y.width; t++) z.row(j)[t] += static_cast<double>(x.row(i)[j]) * y.row(i)[t];
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

// Returns these columns.
Tall selected(const Tall& x, const std::vector<int64_t>& columns) {
  Tall some(x.rows, std::ssize(columns));
  for (int64_t i = 0; i < x.rows; i++)
    for (int64_t t = 0; t < some.width; t++) some.at(i, t) = x.at(i, columns[static_cast<size_t>(t)]);
  return some;
}

// Returns x with y's columns behind its own.
Tall joined(const Tall& x, const Tall& y) {
  Tall both(x.rows, x.width + y.width);
  for (int64_t i = 0; i < x.rows; i++) std::copy_n(y.row(i), y.width, std::copy_n(x.row(i), x.width, both.row(i)));
  return both;
}

// Holds eigenvalues, the largest first, and their vectors as columns.
struct Eigen {
  std::vector<double> values;
  Tall vectors;
};

// Returns the eigenvalues of x^T x.
Eigen eigen_of_products(const Tall& x) {
  Tall products = transposed_times(x, x);
  const Tall vectors = diagonalise(products);
  std::vector<int64_t> order(static_cast<size_t>(x.width));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), [&](int64_t i) { return products.at(i, i); });
  Eigen eigen{{}, selected(vectors, order)};
  for (const int64_t i : order) eigen.values.push_back(std::max(0.0, products.at(i, i)));
  return eigen;
}

// Returns the vectors of the largest eigenvalues.
Tall largest(const Eigen& eigen, int64_t count) {
  std::vector<int64_t> columns(static_cast<size_t>(std::min(count, eigen.vectors.width)));
  std::iota(columns.begin(), columns.end(), 0);
  return selected(eigen.vectors, columns);
}

// Returns an orthonormal basis of what y's columns have beside those of v, which are orthonormal: without the
// directions that are lost in rounding.
Tall orthonormal_beside(const Tall& v, Tall y) {
  constexpr double kLost = 1e-20;  // of squares
  for (int round = 0; round < 2; round++) {
    const Tall within = times(v, transposed_times(v, y));
    for (size_t i = 0; i < y.values.size(); i++) y.values[i] -= within.values[i];
    const Eigen eigen = eigen_of_products(y);
    Tall scaled = largest(
        eigen, std::ranges::count_if(eigen.values, [&](double value) { return value > kLost * eigen.values[0]; }));
    for (int64_t i = 0; i < scaled.rows; i++)
      for (int64_t t = 0; t < scaled.width; t++) scaled.at(i, t) /= std::sqrt(eigen.values[static_cast<size_t>(t)]);
    y = times(y, scaled);
  }
  return y;
}

// Holds singular values' vectors as columns, those on the right times their values.
struct SingularVectors {
  std::vector<double> values;
  Tall left, right;
};

// Returns the largest `count` singular values of w, or as many as are not zero. It builds a basis v of blocks, projects
// w on it, and extends it by what the best approximations lack (Davidson's method, of blocks, without a preconditioner:
// the basis is Lanczos's; Saad, Numerical Methods for Large Eigenvalue Problems, chapter 8).
SingularVectors largest_singular_vectors(const MatrixView& w, int64_t count, uint64_t seed,
                                         const Heartbeat& heartbeat) {
  const int64_t block = std::min(count + kMoreColumns, std::min(w.rows, w.cols));
  Tall start(w.cols, block);
  const Random random(seed, RandomPurpose::Initialisation);
  for (size_t i = 0; i < start.values.size(); i++) start.values[i] = static_cast<double>(random.normal(i));
  Tall v(w.rows, 0), z(w.cols, 0), added = orthonormal_beside(v, times(w, start));
  for (int step = 0; step < kMostSteps; step++) {
    call(heartbeat);
    z = joined(z, transposed_times(w, added));
    v = joined(v, added);
    const Eigen eigen = eigen_of_products(z);
    const Tall best = largest(eigen, block);
    SingularVectors found{{}, times(v, best), times(z, best)};
    Tall lacking = times(w, found.right);
    std::vector<int64_t> open;
    bool done = true;
    for (int64_t t = 0; t < best.width; t++) {
      const double square = eigen.values[static_cast<size_t>(t)];
      double length = 0;
      for (int64_t i = 0; i < w.rows; i++) {
        lacking.at(i, t) -= square * found.left.at(i, t);
        length += lacking.at(i, t) * lacking.at(i, t);
      }
      const double share = std::sqrt(length) / std::max(std::sqrt(square * eigen.values[0]), kSmall * eigen.values[0]);
      if (t < count && share > kTolerance) done = false;
      if (share > kTolerance / 10) open.push_back(t);
      found.values.push_back(std::sqrt(square));
    }
    if (done) return found;
    if (v.width + block > kBasis * block) {
      const Tall kept = largest(eigen, kKept * block);
      v = times(v, kept);
      z = times(z, kept);
    }
    added = orthonormal_beside(v, selected(lacking, open));
  }
  user_error("singular values of a matrix of {} x {}: the largest {} were not found in {} steps", w.rows, w.cols, count,
             kMostSteps);
}

}  // namespace

// Counts the matrix, the result and its copy; in doubles the basis on both sides, both once more as they are joined or
// what is kept of them, the best of them, what these lack, and the small ones.
uint64_t halves_bytes(int64_t rows, int64_t cols, int64_t rank) {
  const int64_t width = rank + kMoreColumns;
  return static_cast<uint64_t>(rows * cols + 2 * (rows + cols) * rank) * sizeof(float) +
         static_cast<uint64_t>((2 * kBasis + 4) * (rows + cols) * width + 4 * kBasis * kBasis * width * width) *
             sizeof(double);
}

LoraHalves principal_halves(const MatrixView& w, int64_t rank, double scale, uint64_t seed,
                            const Heartbeat& heartbeat) {
  const SingularVectors found = largest_singular_vectors(w, rank, seed, heartbeat);
  LoraHalves halves{std::vector<float>(static_cast<size_t>(rank * w.cols)),
                    std::vector<float>(static_cast<size_t>(w.rows * rank))};
  for (int64_t r = 0; r < std::min(rank, found.left.width); r++) {
    const double value = found.values[static_cast<size_t>(r)];
    if (value == 0) continue;
    const double root = std::sqrt(value / scale);
    for (int64_t i = 0; i < w.rows; i++)
      halves.b[static_cast<size_t>(i * rank + r)] = static_cast<float>(found.left.at(i, r) * root);
    for (int64_t j = 0; j < w.cols; j++)
      halves.a[static_cast<size_t>(r * w.cols + j)] = static_cast<float>(found.right.at(j, r) / value * root);
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
