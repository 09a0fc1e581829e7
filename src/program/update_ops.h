// Describes what a step's update does: the norm of gradients, and optimizers. program/ops.h says how to read this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace snug {

// Sums of squares of units of kUnit elements, of which each g's last may be short: up to kMost g r [n], partial w
// [all units] fp32.
inline constexpr int64_t kUnit = 4096;
struct NormPartials {
  static constexpr size_t kMost = 32;
};

// The first `count` values of x in row order, every `block` of them (0: all; the last block may be short) added
// pairwise in a fixed tree (neighbours, their sums, and so on; an odd one out goes up as it is), times `scale`.
// x r [k, n] fp32, rows may be strided; sums w [ceil(count / block)] fp32.
struct TreeSum {
  int64_t count = 0, block = 0;
  float scale = 1;
};

// From sums of squares that together are the model's (TreeSum gives a group's), in order, added in TreeSum's tree:
// scalars w StepScalars: norm = sqrt(sum); factor = max_norm / (norm + 1e-6) if that is below 1 and
// max_norm > 0, else 1 (torch's clip_grad_norm_); finite = 1 if norm and loss are finite, else 0.   partial r [n] fp32,
// loss r [1] fp32.
struct ClipFactor {
  float max_norm = 0;
};

// Says how optimizer state is kept. Fp32: m and v in fp32. Bf16: m and v in bf16, rounded stochastically. Bit8: m and v
// as uint8 codes of the signed and the unsigned dynamic map (tensor/codebook.h), in blocks of kStateBlock that each
// have an fp32 scale; w is fp32, or bf16 without lo and rounded stochastically.
enum class StateFormat : uint8_t { Fp32, Bf16, Bit8 };
inline constexpr int64_t kStateBlock = 256;

// AdamW (Loshchilov and Hutter, arXiv:1711.05101) in torch's order of operations, on gradient x clip factor; nothing is
// changed where the scalars say that norm or loss is not finite.   g r [n], w rw [n] (fp32; or bf16, with lo unless
// Bit8), lo rw [n] int16 ? split, m rw [n], v rw [n], m_scales rw and v_scales rw [ceil(n / kStateBlock)] fp32 ? Bit8,
// scalars r StepScalars. RuntimeScalars has the learning rate and the step. `first`, a multiple of kStateBlock, is the
// index in the parameter of the first of these elements. Stochastic rounding adds 16 random bits to the lower half of
// the fp32 and drops that half. The bits come from word at_step(RuntimeScalars::step, first + i) of the stream (seed,
// Rounding, stream): m takes its lower half, v its upper. With Bit8, w takes one half of word at_step(step, (first + i)
// / 2), the lower where first + i is even, and quotients are products with rounded inverses.
struct AdamW {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool split = false;
  StateFormat format = StateFormat::Fp32;
  uint64_t seed = 0;
  uint32_t stream = 0;
  uint64_t first = 0;
  double rate = 1;  // by which the learning rate is multiplied
};

// Lion (Chen et al., arXiv:2302.06675) on gradient x clip factor: w = w (1 - lr decay) - lr sign(beta1 m + (1 - beta1)
// g), then m = beta2 m + (1 - beta2) g; nothing is changed where the scalars say that norm or loss is not finite.   g r
// [n], w rw [n] (fp32; or bf16, with lo), lo rw [n] int16 ? split, m rw [n] fp32, scalars r StepScalars. RuntimeScalars
// has the learning rate.
struct Lion {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool split = false;
  double rate = 1;  // by which the learning rate is multiplied
};

// Schedule-free AdamW (Defazio et al., arXiv:2405.15682), as AdamW but for this: w is y, where gradients are taken, and
// d is z - y of the base sequence z. With u = g / (sqrt(v / (1 - beta2^step)) + epsilon) + decay y and c, the share of
// the newest z in the average: y += c d - lr (1 - beta1 (1 - c)) u, d = (1 - c) (d - lr beta1 u).   g r [n], w rw [n]
// (fp32; or bf16, with lo), lo rw [n] int16 ? split, d rw [n] fp32, v rw [n] fp32, scalars r. RuntimeScalars has c too.
struct ScheduleFreeAdamW {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  bool split = false;
  double rate = 1;  // by which the learning rate is multiplied
};

// Muon (Jordan et al., 2024; torch.optim.Muon) gives a matrix the orthogonal factor of its momentum. Three ops do what
// products do not (plan/lowering/orthogonalize.h); none changes weights or momentum where the scalars say that norm or
// loss is not finite.

// On gradient x clip factor: m = beta m + (1 - beta) g, then d = beta m + (1 - beta) g, which is Nesterov's momentum; 0
// where not finite.   g r [n], m rw [n] fp32, d w [n] in g's dtype, scalars r StepScalars.
struct Momentum {
  double beta = 0.95;
};

// y = x over the root of `sum`, or over 1e-7 where that is more.   x r [n], sum r [1] fp32, y w [n] in x's dtype.
struct Normalize {};

// w = w (1 - lr decay) - lr u; nothing where not finite.   u r [n], w rw [n] (fp32; or bf16, with lo), lo rw [n] int16
// ? split, scalars r StepScalars. RuntimeScalars has the learning rate.
struct Descend {
  double weight_decay = 0;
  bool split = false;
  double rate = 1;  // by which the learning rate is multiplied
};

// Two optimizers scale a matrix's gradient by a number for each row, each column, or both: of G = gradient x clip
// factor [R, C] (a vector is one row), U[i, j] = G[i, j] x row_scales[i] x column_scales[j], without those that are not
// there.

// squares[i] = the sum over row i of U^2.   g r [R, C], row_scales r [R] fp32 ? rows, column_scales r [C] fp32 ?
// columns, squares w [R] fp32, scalars r StepScalars.
struct ScaledSquares {
  bool rows = false, columns = false;
};

// g = U x factor; nothing where not finite.   g rw [R, C], row_scales r [R] fp32 ? rows, column_scales r [C] fp32 ?
// columns, factor r [1] fp32, scalars r StepScalars.
struct ScaleMatrix {
  bool rows = false, columns = false;
};

// Adafactor (Shazeer and Stern, arXiv:1804.04235; transformers' Adafactor without relative steps, scaling by parameters
// and momentum) keeps the means of squared gradients of rows and of columns (plan/lowering/adafactor.h).

// rows = k rows + (1 - k) (means over columns of G^2 + epsilon), columns likewise, with k = 1 - step^-decay; nothing
// where not finite.   g r [R, C], rows rw [R] fp32, columns rw [C] fp32, scalars r StepScalars. RuntimeScalars has the
// step.
struct FactoredMeans {
  double decay = 0.8, epsilon = 1e-30;
};

// row_scales = 1 / root(rows / mean), column_scales = 1 / root(columns).   rows r [R], columns r [C], mean r [1]: of
// the rows, row_scales w [R], column_scales w [C], all fp32.
struct FactoredScales {};

// factor = 1 / max(1, root(square) / threshold).   square r [1] fp32, factor w [1] fp32.
struct SquareLimit {
  double threshold = 1;
};

// APOLLO (Zhu et al., arXiv:2412.05270; its authors' apollo_torch) takes AdamW's steps of a random projection of a
// matrix's gradient, and from them how much each of its rows, or columns, is to be scaled (plan/lowering/apollo.h).

// Of R = low x clip factor: m = beta1 m + (1 - beta1) R, v = beta2 v + (1 - beta2) R^2, unless not finite; squares[0,
// i] = the sum over row i of (m / (root(v) + epsilon))^2, squares[1, i] that of R^2.   low r [n, r] fp32, m rw, v rw
// [n, r] fp32, squares w [2, n] fp32, scalars r StepScalars.
struct ProjectedMoments {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
};

// scales[i] = root(squares[0, i]) / (root(squares[1, i]) + 1e-8); with one column, all are of that.   squares r [2, n
// or 1] fp32, scales w [n] fp32.
struct ChannelScales {};

// Lets the norm of an update, the root of `square`, grow by at most 1 % a step: over = max(1.01, norm / (last + 1e-8))
// / 1.01, 1 in a first step, whose last is 0; last = norm / over unless not finite; factor = root(scale) root(1 -
// beta2^step) / (1 - beta1^step) / over.   square r [1], last rw [1], factor w [1], all fp32, scalars r StepScalars.
// RuntimeScalars has the step.
struct GrowthLimit {
  double scale = 1, beta1 = 0.9, beta2 = 0.999;
};

// Puts schedule-free training's average, y - d (1 - beta1) / beta1, in y's place.   d r [n] fp32, w rw, lo rw ? split.
struct ScheduleFreeAverage {
  double beta1 = 0.9;
  bool split = false;
};

}  // namespace snug
