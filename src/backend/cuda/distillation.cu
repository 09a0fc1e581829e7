// Finds a teacher's most likely tokens, and how far a row's softmax is from what the teacher gives them and all others.
// A block takes a row: its walks after the first find the row in the L2 cache.
#include "backend/cuda/device.cuh"
#include "backend/divergence.h"

namespace snug::cuda {
namespace {

constexpr int kRowThreads = 1024;
constexpr int kMostTokens = static_cast<int>(kMostTeacherTokens);
constexpr int kDigits = 256;  // of a key, which is selected by digits of eight bits
static_assert(kMostTokens <= kDigits && kDigits <= kRowThreads);

// Returns the sum, or the largest, of numbers of a block, in an order that its size alone decides; every thread gets
// it. `shared` has 32 values, and is free again after the call.
template <class Combine>
__device__ double reduce(double x, double* shared, const Combine& combine, double neutral) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAll, x, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : neutral;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAll, x, step));
  __syncthreads();
  return x;
}
__device__ double sum_of(double x, double* shared) {
  return reduce(
      x, shared, [](double a, double b) { return a + b; }, 0.0);
}
__device__ double largest_of(double x, double* shared) {
  return reduce(
      x, shared, [](double a, double b) { return fmax(a, b); }, -INFINITY);
}

__device__ void cap_row(float* x, int64_t n, float cap) {
  if (cap > 0)
    for (int64_t i = threadIdx.x; i < n; i += kRowThreads) x[i] = capped(x[i], cap);
  __syncthreads();
}

// Holds what a block knows of its row, in shared memory.
struct RowState {
  double reduced[32];
  double log_probs[kMostTokens + 1];  // of the model, rounded to fp32; the others' last
  double slopes[kMostTokens + 1];
  float logits[kMostTokens];  // at the tokens
  float maximum, sum;         // of the others: their largest logit, and the sum of exponentials relative to it
};

// Divides the row's softmax between each of k tokens and all others; the logits at the tokens become -inf.
__device__ void divide(float* x, int64_t n, const int32_t* ids, int k, float temperature, RowState& row) {
  const int own = static_cast<int>(threadIdx.x);
  if (own < k) {
    row.logits[own] = x[ids[own]];
    x[ids[own]] = -INFINITY;
  }
  __syncthreads();
  float mine = -INFINITY;
  for (int64_t i = own; i < n; i += kRowThreads) mine = fmaxf(mine, x[i]);
  const auto maximum = static_cast<float>(largest_of(mine, row.reduced));
  const float inverse = 1.0f / temperature;
  float part = 0;
  for (int64_t i = own; i < n && maximum != -INFINITY; i += kRowThreads) part += exact_exp((x[i] - maximum) * inverse);
  const auto sum = static_cast<float>(sum_of(part, row.reduced));
  const double t = temperature;
  const double rest = log(static_cast<double>(sum)) + (maximum == -INFINITY ? 0 : static_cast<double>(maximum) / t);
  const double logit = own < k ? static_cast<double>(row.logits[own]) / t : own == k ? rest : -INFINITY;
  const double largest = largest_of(logit, row.reduced);
  const double all = log(sum_of(exp(logit - largest), row.reduced)) + largest;
  if (own <= k) row.log_probs[own] = static_cast<double>(static_cast<float>(logit - all));
  if (own == 0) row.maximum = maximum, row.sum = sum;
  __syncthreads();
}

__device__ void put_back(float* x, const int32_t* ids, int k, const RowState& row) {
  const int own = static_cast<int>(threadIdx.x);
  if (own < k) x[ids[own]] = row.logits[own];
}

// Returns a key that is larger for a larger logit, and of equal ones for the token with the lower number.
__device__ uint64_t key_of(float logit, uint32_t token) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // of two zeros neither is larger
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | ~token;
}

// Holds the keys that were selected and how.
struct Selection {
  uint64_t keys[kDigits];
  int counts[kDigits];
  uint64_t prefix;
  int left, found;
  bool ended;
};

// Selects the k largest keys of a row: the digits of the smallest of them follow, from the first on, from how many keys
// begin alike. Afterwards keys[0 .. k) hold them, the largest first.
__device__ void select(const float* x, int64_t n, int k, Selection& of) {
  const int own = static_cast<int>(threadIdx.x);
  if (own == 0) of.prefix = 0, of.left = k, of.found = 0, of.ended = false;
  int shift = 64;
  do {
    shift -= 8;
    if (own < kDigits) of.counts[own] = 0;
    __syncthreads();
    const uint64_t above = shift == 56 ? 0 : ~uint64_t{0} << (shift + 8), prefix = of.prefix;
    for (int64_t i = own; i < n; i += kRowThreads) {
      const uint64_t key = key_of(x[i], static_cast<uint32_t>(i));
      if ((key & above) == prefix) atomicAdd(&of.counts[key >> shift & 0xff], 1);
    }
    __syncthreads();
    if (own == 0) {
      int digit = kDigits - 1, left = of.left;
      while (of.counts[digit] < left) left -= of.counts[digit--];
      of.prefix = prefix | static_cast<uint64_t>(digit) << shift;
      of.ended = of.counts[digit] == left;  // all that begin so are among them
      of.left = left;
    }
    __syncthreads();
  } while (!of.ended && shift > 0);
  const uint64_t least = of.prefix;
  if (own < kDigits) of.keys[own] = 0;
  __syncthreads();
  for (int64_t i = own; i < n; i += kRowThreads) {
    const uint64_t key = key_of(x[i], static_cast<uint32_t>(i));
    if (key >= least) of.keys[atomicAdd(&of.found, 1)] = key;
  }
  __syncthreads();
  for (int width = 2; width <= kDigits; width *= 2)  // a bitonic sort, downwards
    for (int step = width / 2; step > 0; step /= 2) {
      const int other = own ^ step;
      if (own < other && other < kDigits) {
        const uint64_t a = of.keys[own], b = of.keys[other];
        if ((own & width) == 0 ? a < b : a > b) of.keys[own] = b, of.keys[other] = a;
      }
      __syncthreads();
    }
}

__global__ void __launch_bounds__(kRowThreads)
    top_tokens_kernel(Rows<float> logits, int64_t vocabulary, Rows<int32_t> all_ids, Rows<float> all_log_probs, int k,
                      int64_t active, TopTokens op) {
  __shared__ Selection selection;
  __shared__ RowState state;
  const int64_t row = blockIdx.x;
  const int own = static_cast<int>(threadIdx.x);
  float* const x = logits.at(row, 0);
  int32_t* const ids = all_ids.at(row, 0);
  float* const log_probs = all_log_probs.at(row, 0);
  if (row >= active) {
    if (own < k) ids[own] = 0;
    if (own <= k) log_probs[own] = 0;
    return;
  }
  cap_row(x, vocabulary, op.cap);
  select(x, vocabulary, k, selection);
  if (own < k) ids[own] = static_cast<int32_t>(~static_cast<uint32_t>(selection.keys[own]));
  __syncthreads();
  divide(x, vocabulary, ids, k, op.temperature, state);
  if (own <= k) log_probs[own] = static_cast<float>(state.log_probs[own]);
  put_back(x, ids, k, state);
}

// Holds the operands of a Distillation for its kernel.
struct DistillationRows {
  Rows<float> logits;
  int64_t vocabulary;
  const int32_t* targets;
  const float* weights;
  Rows<int32_t> ids;
  Rows<float> log_probs;
  int k;
  float *losses, *divergences, *agreements;
};

// Makes the gradients of a row's logits, times `scale`, of its division and of the slopes of its outcomes.
__device__ void make_gradient(const DistillationRows& of, float* x, const int32_t* ids, int64_t target,
                              const Distillation& op, double cross_lse, float hit, float scale, RowState& state) {
  const int own = static_cast<int>(threadIdx.x), k = of.k;
  const double mean = sum_of(own <= k ? state.slopes[own] : 0, state.reduced);
  const auto of_outcome = [&](int j) {
    return static_cast<float>((state.slopes[j] - exp(state.log_probs[j]) * mean) *
                              static_cast<double>(op.share / op.temperature));
  };
  const float rest = 1 - op.share, lse = static_cast<float>(cross_lse), inverse = 1.0f / op.temperature;
  const float others = state.sum > 0 ? of_outcome(k) / state.sum : 0, maximum = state.maximum;
  const auto gradient = [&](float of_divergence, float y) {
    const float cross = rest > 0 ? rest * exact_exp(y - lse) : 0.0f;
    return (of_divergence + cross) * scale * cap_slope(y, op.cap);
  };
  for (int64_t i = own; i < of.vocabulary; i += kRowThreads) {
    const float y = x[i];
    x[i] = gradient(others * exact_exp((y - maximum) * inverse), y);
  }
  __syncthreads();
  if (own < k) x[ids[own]] = gradient(of_outcome(own), state.logits[own]);
  __syncthreads();
  if (own == 0 && rest > 0) x[target] -= rest * scale * cap_slope(hit, op.cap);
}

__global__ void __launch_bounds__(kRowThreads)
    distillation_kernel(DistillationRows of, int64_t active, float loss_scale, Distillation op) {
  __shared__ RowState state;
  const int64_t row = blockIdx.x;
  const int own = static_cast<int>(threadIdx.x), k = of.k;
  float* const x = of.logits.at(row, 0);
  if (row >= active) {
    if (own == 0) of.losses[row] = of.divergences[row] = of.agreements[row] = 0;
    for (int64_t i = own; op.gradient && i < of.vocabulary; i += kRowThreads) x[i] = 0;
    return;
  }
  const int32_t* const ids = of.ids.at(row, 0);
  const int64_t target = of.targets[row];
  const auto known = [&](int64_t token) { return 0 <= token && token < of.vocabulary; };
  if (__syncthreads_or(!known(target) || (own < k && !known(ids[own])))) {  // no number is right
    if (own == 0) of.losses[row] = of.divergences[row] = of.agreements[row] = __int_as_float(0x7fffffff);
    return;
  }
  cap_row(x, of.vocabulary, op.cap);
  float mine = -INFINITY;
  for (int64_t i = own; i < of.vocabulary; i += kRowThreads) mine = fmaxf(mine, x[i]);
  const auto largest = static_cast<float>(largest_of(mine, state.reduced));
  const float hit = x[target], first = x[ids[0]], weight = of.weights[row];
  double cross_lse = 0;
  if (op.share < 1) {
    float part = 0;
    for (int64_t i = own; i < of.vocabulary; i += kRowThreads) part += exact_exp(x[i] - largest);
    cross_lse = log(sum_of(part, state.reduced)) + static_cast<double>(largest);
  }
  __syncthreads();  // all have read what is taken out now
  divide(x, of.vocabulary, ids, k, op.temperature, state);
  DivergenceTerm term;
  if (own <= k) {
    term = divergence_term(static_cast<double>(of.log_probs.at(row, 0)[own]), state.log_probs[own],
                           static_cast<double>(op.beta));
    state.slopes[own] = term.slope;
  }
  const double divergence = sum_of(own <= k ? term.value : 0, state.reduced);
  if (own == 0) {
    const double share = op.share, loss = share * divergence + (1 - share) * (cross_lse - static_cast<double>(hit));
    of.losses[row] = static_cast<float>(static_cast<double>(weight) * loss);
    of.divergences[row] = static_cast<float>(static_cast<double>(weight) * divergence);
    of.agreements[row] = first >= largest ? 1 : 0;
  }
  if (op.gradient)
    make_gradient(of, x, ids, target, op, cross_lse, hit, loss_scale * weight, state);
  else
    put_back(x, ids, k, state);
}

}  // namespace

Launch bind_top_tokens(const TopTokens& attrs, Operands operands, cudaStream_t stream) {
  const auto of = top_tokens_operands(attrs, operands);
  const int64_t rows = of.logits.rows(), vocabulary = of.logits.cols();
  return [=](const RuntimeScalars& runtime) {
    const int64_t active = std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows);
    top_tokens_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(
        Rows<float>(of.logits), vocabulary, Rows<int32_t>(of.ids), Rows<float>(of.log_probs),
        static_cast<int>(of.tokens), active, attrs);
    check_launch("top_tokens");
  };
}

Launch bind_distillation(const Distillation& attrs, Operands operands, cudaStream_t stream) {
  const auto of = distillation_operands(attrs, operands);
  const int64_t rows = of.logits.rows();
  const DistillationRows views{Rows<float>(of.logits),
                               of.logits.cols(),
                               of.targets,
                               of.weights,
                               Rows<int32_t>(of.ids),
                               Rows<float>(of.log_probs),
                               static_cast<int>(of.tokens),
                               of.losses,
                               of.divergences,
                               of.agreements};
  return [=](const RuntimeScalars& runtime) {
    const int64_t active = std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows);
    distillation_kernel<<<static_cast<unsigned>(rows), kRowThreads, 0, stream>>>(views, active, runtime.loss_scale,
                                                                                 attrs);
    check_launch("distillation");
  };
}

}  // namespace snug::cuda
