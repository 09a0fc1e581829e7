// Defines the kinds of op that make losses of logits, as ops.h does the others.
#pragma once

#include <cstdint>

namespace snug {

// Cross-entropy of rows [row_begin, row_begin + n) of the pass's loss rows, each with its own weight.   logits rw [n,
// V], targets r [n] int32, weights r [n] fp32, loss w [n] fp32: (log(sum exp logits) - logits[target]) weight. With
// `gradient` logits become (softmax - onehot) weight RuntimeScalars::loss_scale. With `cap` (0: none) x of the logits
// is taken for cap tanh(x / cap), and the gradient is x's. Rows at or beyond RuntimeScalars::loss_rows have loss 0 and
// gradient 0. With e = `smoothing` (Szegedy et al., arXiv:1512.00567) the target has 1 - e of a row's probability and
// all V share e; `z_loss` (Chowdhery et al., arXiv:2204.02311) times the square of log(sum exp logits) is added:
//   loss = (lse - (1 - e) logits[target] - e mean(logits) + z_loss lse^2) weight
struct CrossEntropy {
  int64_t row_begin = 0;
  bool gradient = false;
  float cap = 0;
  float smoothing = 0, z_loss = 0;
};

// x = cap tanh(x / cap).   x rw fp32.
struct SoftCap {
  float cap = 1;
};

// sum = (accumulate ? sum : 0) + the first RuntimeScalars::loss_rows elements of loss, added in order in fp64, rounded
// once. loss r [T] fp32, sum rw|w [1] fp32.
struct LossSum {
  bool accumulate = false;
};

// A teacher's most likely tokens of a row, and what share of the probability each has.
inline constexpr int64_t kMostTeacherTokens = 256;

// The k tokens of each row with the largest logits, the largest first (of equal ones the one with the lower number),
// and the logarithms of what each of them has of softmax(logits / temperature), and of what all others have together
// (-inf if there are none).   logits rw [n, V] fp32 (they become what the cap makes of them), ids w [n, k] int32,
// log_probs w [n, k + 1] fp32, the others' last; 1 <= k <= min(V, kMostTeacherTokens). row_begin and cap are
// CrossEntropy's. Rows at or beyond RuntimeScalars::loss_rows have zeros.
struct TopTokens {
  int64_t row_begin = 0;
  float cap = 0, temperature = 1;
};

// How far a row's distribution is from a teacher's, of which TopTokens says the k largest shares and the rest: both are
// taken over k + 1 outcomes, the k tokens and any other token. With q the row's softmax(logits / temperature) over
// these, p the teacher's and m = beta p + (1 - beta) q,
//   divergence = beta 0: KL(p | q), 1: KL(q | p), between: beta KL(p | m) + (1 - beta) KL(q | m)
//   loss = (1 - share) cross-entropy of the logits + share divergence
// (Hinton et al., arXiv:1503.02531; Agarwal et al., arXiv:2306.13649). Nothing is multiplied by the square of the
// temperature.   logits rw [n, V] fp32, targets r [n] int32, weights r [n] fp32, ids r [n, k] int32 (of a row all
// differ), log_probs r [n, k + 1] fp32; losses w, divergences w, agreements w [n] fp32: loss and divergence times the
// row's weight, and 1 where no token has a larger logit than the teacher's first, else 0. With `gradient` logits become
// the loss's gradient times weight RuntimeScalars::loss_scale; else what the cap makes of them. row_begin and cap
// are CrossEntropy's; rows at or beyond RuntimeScalars::loss_rows have zeros in all results.
struct Distillation {
  int64_t row_begin = 0;
  bool gradient = false;
  float cap = 0, temperature = 1, beta = 0, share = 1;
};

}  // namespace snug
