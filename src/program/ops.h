// Defines the kinds of op of which a step program is made: for each a small struct of attributes, and the order of its
// operands.
//
// In the lists below r, w and rw say whether an operand is read, written or both; T is the number of tokens of a pass,
// `?` marks an operand that is there only if the attribute named with it asks for it. Matrices are row-major;
// activations are [T, n] in the dtype of the products ("compute dtype": fp32 or bf16), sums are in fp32 whatever the
// dtype, and every result is rounded once. An op that needs scratch gets it as one more operand, the last: U8, w
// (OpFacts::scratch_bytes).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/rng.h"
#include "program/loss_ops.h"
#include "program/row_ops.h"
#include "program/runtime_scalars.h"
#include "program/update_ops.h"

namespace snug {

// ---- Products -------------------------------------------------------------------------------------------------------

// d = alpha op(a) op(b) + c + bias.   a r [m, k] ([k, m] if transpose_a), b r [k, n] ([n, k] if transpose_b),
// c r [m, n] ? addend (it may be the very bytes of d: accumulation in place), bias r [n] ? bias, d w [m, n].
// a and b have one dtype; c and d are fp32 or that dtype; rows of all may be strided.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  float alpha = 1;
  bool addend = false, bias = false;
};

// d = a b^T + c + bias, where a and b are codes that Quantize wrote in Fp8, with the scales of their rows.   a r uint8
// [m, k], a_scales r [m] fp32, b r uint8 [n, k], b_scales r [n] fp32, c r [m, n] ? addend (it may be the very bytes of
// d), bias r [n] ? bias, d w [m, n]; c, bias and d are bf16; k and n are multiples of kFp8Multiple. A GPU keeps fewer
// than 24 bits of its sums (fast accumulation), which loses far less than the four significant bits of the codes do.
inline constexpr int64_t kFp8Multiple = 16;
struct Fp8Gemm {
  bool addend = false, bias = false;
};

// Lists the parts of a linear that have a low-rank adapter (q, k and v; gate and up), in their order, as columns of the
// linear's result. With fewer than three parts, the remaining entries are empty.
struct AdaptedParts {
  std::array<int64_t, 3> begin{}, end{};
  int64_t columns() const;  // of all parts together
  int count() const;
};

// A linear and its low-rank adapter in one: d = a op(b) + what comes through the adapter + bias + c. The result is
// rounded once, or after each sum where a backend computes it as the ops of which it is made (program/adapter.h). a r
// [m, k], b r [n, k] if transpose_b, else [k, n], c r [m, n] ? addend (none of d's bytes), bias r [n] ? bias, d w [m,
// n]; and before c, with P parts and rank r,
//   if transpose_b: u r [m, P r], v r [parts.columns(), r]: part p's columns of d get the p-th r columns of u times its
//     rows of v transposed;
//   else: u r [m, q], v r [q, n]: all of d gets u v; no parts.
struct AdaptedGemm {
  bool transpose_b = false;
  AdaptedParts parts{};
  bool addend = false, bias = false;
};

// The gradients of an adapter, in one traversal of dy: for every part p, dxa's p-th r columns = scale dy[., part]
// b[part], db[part] = dy[., part]^T times the p-th r columns of xa.   dy r [T, n], b r [parts.columns(), r], xa r [T, P
// r], dxa w [T, P r], db w [parts.columns(), r] fp32 or dy's dtype.
struct AdapterBackward {
  float scale = 1;
  AdaptedParts parts{};
};

// ---- Weight-decomposed adapters -------------------------------------------------------------------------------------

// DoRA (Liu et al., arXiv:2402.09353): an adapted linear's result is z m / g, z = x (W + scale B A)^T, where m is
// trained and g are the norms of the rows of W + scale B A, taken for constants.

// norms[i] = the root of the sum of squares of row i.   x r [n, k] fp32|bf16, norms w [n] fp32.
struct RowNorms {};

// What a part's columns are multiplied by: factors[0, i] = (initial[i] + change[i]) / g[i] and factors[1, i] = 1 /
// g[i], g[i]^2 = norms[i]^2 + 2 scale (wa[i] . b[i]) + scale^2 b[i] aa b[i]^T; where that is 0 or less, 1 and 0.   wa =
// W A^T r [n, r] fp32, aa = A A^T r [r, r] fp32, b r [n, r], norms r [n] fp32 (W's), initial r [n] fp32 and change r
// [n], of which m is the sum, factors w [2, n] fp32.
struct AdaptedNorms {
  float scale = 1;
};

// y = z with the columns of all parts times their factors + bias + c.   z r [T, n], factors r [2, parts.columns()] fp32
// (AdaptedNorms), c r [T, n] ? addend, bias r [n] ? bias, y w [T, n].
struct ScaleColumns {
  AdaptedParts parts{};
  bool addend = false, bias = false;
};

// Gradient of ScaleColumns: dz = dy with the columns of all parts times their factors; dm[j] = factors[1, j] times the
// sum over rows of dy z in the column of j.   dy r [T, n], z r [T, n], factors r [2, parts.columns()] fp32, dz w [T,
// n], dm w [parts.columns()].
struct ScaleColumnsBackward {
  AdaptedParts parts{};
};

// Gives row i the norm magnitudes[i]; rows of zeros stay.   x rw [n, k] fp32, magnitudes r [n] fp32.
struct SetRowNorms {};

// sum[j] = sum over rows of x[., j].   x r [T, n], sum w [n]. Rows are added in fixed blocks, so that the number of
// threads does not change the result.
struct ColumnSum {};

// ---- Attention ------------------------------------------------------------------------------------------------------

struct HeadShape {
  int64_t heads = 0, kv_heads = 0, dim = 0;
  int64_t query_columns() const { return heads * dim; }
  int64_t key_columns() const { return kv_heads * dim; }
};

// cos and sin of rotary angles, times a factor: table w [P, 2 n] fp32, row p is cos(p f_0..f_{n-1}) then sin(...). With
// `growth` the factor of row p is (1 + growth ln(1 + floor(p / growth_length))) times as large.
struct RopeTable {
  std::vector<float> frequencies{};
  float attention_factor = 1;
  float growth = 0;
  int64_t growth_length = 0;
};

// Says how many pairs of a head turn by the positions of each axis; none at all where there is one axis.
struct RopeAxes {
  std::array<int64_t, 3> pairs{};
  bool operator==(const RopeAxes&) const = default;
  explicit operator bool() const { return pairs[0] > 0; }
  int64_t count() const { return *this ? 1 + (pairs[1] > 0) + (pairs[2] > 0) : 1; }
  // Returns the first pair that does not turn by axis `axis` or one before it.
  int64_t end_of(size_t axis) const { return axis == 0 ? pairs[0] : end_of(axis - 1) + pairs[axis]; }
};

// Rotary embedding (Su et al., arXiv:2104.09864) of heads of `dim` elements side by side, in place, of which the first
// d turn: by halves, elements i and i + d / 2 (as Hugging Face most often has it), or interleaved, elements 2i and 2i +
// 1; backward turns the other way. Positions may have several axes, to each of which some pairs belong, one axis after
// the other (M-RoPE, Wang et al., arXiv:2409.12191).   x rw [T, n dim] of any n, positions r [T] int32, or [axes, T] ?
// pairs, table r [P, d] fp32, d <= dim.
struct Rope {
  int64_t dim = 0;
  bool backward = false, interleaved = false;
  RopeAxes pairs{};
};

// Attention within documents; head h reads key head h / (heads / kv_heads). A token attends to its document up to
// itself, or as the attributes say.   q r [T, heads * dim], k r [K, kv_heads * dim], v r [K, kv_heads * dim of values]
// (they may be columns of one matrix), documents r [D + 1] int32: starts of the documents in [0, T) and the end of the
// last, as many as RuntimeScalars says; key_documents r [D + 1] int32 ? cross; sinks r [heads] fp32 ? sinks; out w
// [T, heads * dim of values], lse w [heads, T] fp32: log of the sum of exp(score), the sink's among them. Rows outside
// documents: out 0, lse 0.
struct Attention {
  HeadShape shape;
  float scale = 1;
  int64_t longest = 0;    // keys of a document that fills its block; those of tokens have no more
  int64_t window = 0;     // tokens that a token attends to, itself the last; 0: all of its document up to itself
  float cap = 0;          // scores s become cap tanh(s / cap) (Bello et al., arXiv:1611.09940); 0: they stay
  int64_t chunk = 0;      // a document's tokens attend to none before their chunk of so many (Llama 4); 0: no chunks
  int64_t value_dim = 0;  // elements of a head of values and of the result; 0: as many as of keys
  bool bidirectional = false;  // a token attends to all of its document
  bool cross = false;          // keys have documents of their own, K tokens in all: only if bidirectional; else K is T
  bool sinks = false;  // every head has one more score, without a key and a value (Xiao et al., arXiv:2309.17453)
  Documents documents = Documents::Tokens;

  int64_t dim_of_values() const { return value_dim ? value_dim : shape.dim; }
  int64_t value_columns() const { return shape.kv_heads * dim_of_values(); }
  int64_t result_columns() const { return shape.heads * dim_of_values(); }
};

// Gradient of Attention.   dout r [T, heads * dim of values], q r, k r, v r, out r, lse r, documents r, key_documents r
// ? cross, sinks r ? sinks; dq, dk and dv w have the shapes of q, k and v (0 outside documents), dsinks w [heads] fp32
// ? sinks.
struct AttentionBackward : Attention {};

// Writes the keys and values of n new tokens into a cache, from row RuntimeScalars::position on.   k and v r [n,
// kv_heads * dim], cache w [P, 2 kv_heads dim].
struct CacheAppend {
  HeadShape shape;
};

// Attention of n new tokens (already in the cache) over the cache: token i attends to rows 0 .. position + i, or with a
// window to the last `window` of them.   q r [n, heads * dim], cache r [P, 2 kv_heads dim], out w [n, heads * dim].
struct CachedAttention {
  HeadShape shape;
  float scale = 1;
  int64_t window = 0;
  float cap = 0;
};

// ---- Row-wise and element-wise --------------------------------------------------------------------------------------

// RMSNorm (Zhang and Sennrich, arXiv:1910.07467): y = gain x rstd, rstd = 1 / sqrt(mean(x^2) + epsilon). With
// `plus_one` the operand is gain - 1, and the sum is fp32's.
// x r [T, n], gain r [n], y w [T, n], rstd w [T] fp32. Or by heads: x [T, k n], y likewise, rstd [T k]; every n values
// of a row are normed by themselves, with the same gain.
struct RmsNorm {
  float epsilon = 0;
  bool plus_one = false;
};

// Gradient of RmsNorm: dx = (accumulate ? dx : 0) + rstd (gain dy - x rstd^2 mean(gain dy x)); dgain = sum over rows of
// dy x rstd. With `restore` dy becomes y, as RmsNorm gave it. dy r|rw [T, n], x r [T, n], gain r [n], rstd r [T] fp32,
// dx rw|w [T, n], dgain w [n] ? gain_gradient. A norm of heads restores nothing.
struct RmsNormBackward {
  bool accumulate = false, gain_gradient = false, restore = false, plus_one = false;
};

// LayerNorm (Ba et al., arXiv:1607.06450): y = gain z + bias, z = (x - mean(x)) rstd, rstd = 1 / sqrt(mean((x -
// mean(x))^2) + epsilon). `plus_one` is RmsNorm's.
// x r [T, n], gain r [n], bias r [n] ? bias, y w [T, n], moments w [2, T] fp32: the means, then rstd. Or by heads, as
// RmsNorm: moments [2, T k]; then gain and bias may be [k, n], a row for each head.
struct LayerNorm {
  float epsilon = 0;
  bool plus_one = false, bias = false;
};

// Gradient of LayerNorm: dx = (accumulate ? dx : 0) + rstd (gain dy - mean(gain dy) - z mean(gain dy z)); dgain = sum
// over rows of dy z; dbias = sum over rows of dy. With `restore` dy becomes y, as LayerNorm gave it, for which alone
// the bias is read. dy r|rw [T, n], x r [T, n], gain r [n], bias r [n] ? bias, moments r [2, T] fp32, dx rw|w [T, n],
// dgain w [n] ? gain_gradient, dbias w [n] ? bias_gradient. A norm of heads restores nothing; where the gain is [k, n],
// so are bias, dgain and dbias.
struct LayerNormBackward {
  bool accumulate = false, gain_gradient = false, bias_gradient = false, restore = false, plus_one = false,
       bias = false;
};

// What an MLP does between its linears, to all numbers or to its gate: SiLU x / (1 + e^-x); GELU x P(x) (Hendrycks and
// Gimpel, arXiv:1606.08415), P the normal distribution, by tanh's approximation of it, exactly, or with 1 / (1 +
// e^(-1.702 x)) in its place; the square of max(x, 0) (So et al., arXiv:2109.08668).
enum class Activation : uint8_t { Silu, GeluTanh, Gelu, GeluQuick, ReluSquared };

// h = activation(x).   x r [T, n], h w [T, n].
struct Activate {
  Activation activation = Activation::Silu;
};

// Gradient of Activate.   dh r|rw [T, n], x r [T, n], dx w [T, n]. With `restore` dh becomes h, as Activate gave it.
struct ActivateBackward {
  bool restore = false;
  Activation activation = Activation::Silu;
};

// A gated linear unit (Shazeer, arXiv:2002.05202): h = activation(gate) up.   gate_up r [T, 2F] (gate columns first), h
// w [T, F].
struct SwiGlu {
  Activation activation = Activation::Silu;
};

// Gradient of SwiGlu.   dh r|rw [T, F], gate_up r [T, 2F], dgate_up w [T, 2F]. With `restore` dh becomes h, as SwiGlu
// gave it.
struct SwiGluBackward {
  bool restore = false;
  Activation activation = Activation::Silu;
};

// A linear without bias and the SwiGLU after it in one: gate_up is the linear's result, rounded; h is what SwiGlu makes
// of gate_up.   x r [T, k], w r [2F, k] (rows of gate first), u r, v r ? parts, as in AdaptedGemm, gate_up w [T, 2F], h
// w [T, F] ? result.
struct SwiGluGemm {
  AdaptedParts parts{};  // none: no adapter
  bool result = true;
  Activation activation = Activation::Silu;
};

// Gradient of a linear and the SwiGLU before it: dh = dy w (+ u v), rounded, then as SwiGluBackward. dy r [T, k], w r
// [k, F], u r [T, q] and v r [q, F] ? adapted, gate_up r [T, 2F], dgate_up w [T, 2F], dh w [T, F]; with `restore` dh
// ends as h.
struct SwiGluGemmBackward {
  bool adapted = false, restore = false;
  Activation activation = Activation::Silu;
};

// sum += x.   x r [k, n], sum rw [m, n]; any two floating-point dtypes, computed in fp32. Where k < m, which it
// divides, x is added to each k rows.
struct Accumulate {};

// y = factor x + c.   x r [m, n], c r [m, n] ? addend, y w [m, n] (it may be the very bytes of x or c); all of one
// dtype, fp32 or bf16.
struct Rescale {
  float factor = 1;
  bool addend = false;
};

// y = x with the dtype changed, to nearest even.   x r, y w: same shape, any two floating-point dtypes. x may start at
// any byte (file bytes do).
struct Cast {};

// y = x^T.   x r [m, n] uint8, y w [n, m].
struct Transpose {};

// y = x, byte by byte.   x r, y w. The op runs on a copy lane between spaces, on Compute within one.
struct Copy {};

// x = 0.   x w.
struct Fill {};

// y = x in the columns that both have, 0 in those that y alone has.   x r [m, n], y w [m, k], fp32|bf16, of one dtype.
struct FitColumns {};

// hi is the bf16 weight, lo the 16 bits that complete it to fp32: hi = (bits + 0x8000) >> 16, lo = the signed
// remainder; for exponent 255 hi = bits >> 16 with the quiet bit set for NaN, lo = 0.   x r fp32|bf16|fp16, hi w bf16,
// lo w int16.
struct SplitMaster {};

// The inverse of SplitMaster.   hi r bf16, lo r int16, x w fp32.
struct JoinMaster {};

// Normal has standard deviation `scale`, Uniform lies in [-scale, scale), Constant is `scale` itself.
enum class Distribution : uint8_t { Normal, Uniform, Constant };

// x w fp32|bf16: element i is element `first` + i of the stream (seed, Initialisation, stream) of base/rng.h; if
// `every` is not 0, others are drawn every so many steps: element at_step(1 + (RuntimeScalars::step - 1) / every, first
// + i).
struct RandomFill {
  Distribution distribution = Distribution::Normal;
  float scale = 1;
  uint64_t seed = 0;
  uint32_t stream = 0;
  uint64_t first = 0;
  int64_t every = 0;

  uint64_t place(int64_t step) const { return every == 0 ? first : at_step(1 + (step - 1) / every, first); }
};

// y = x / (1 - p) where a random number says to keep it, else 0; the op serves the gradient as well.   x r [T, n], y w
// [T, n]. Element j of token t draws at_step(RuntimeScalars::step, (RuntimeScalars::first_token + t) n + j) of the
// stream (seed, Dropout, stream).
struct Dropout {
  double p = 0;
  uint64_t seed = 0;
  uint32_t stream = 0;
};

// ---- Embedding and head ---------------------------------------------------------------------------------------------

// x[t] = table[ids[t]].   ids r [T] int32, table r [V, n], x w [T, n]; table and x may differ in dtype.
struct Embedding {};

// NEFTune's noise (Jain et al., arXiv:2310.05914): adds to each row of a document of L tokens uniform numbers in [-a,
// a), a = alpha / sqrt(L n).   x rw [T, n], documents r [D + 1] int32: starts of RuntimeScalars::documents documents,
// and the end of the last; rows beyond it stay. Element j of token t takes at_step(RuntimeScalars::step,
// (RuntimeScalars::tokens_before + t) n + j) of the stream (seed, EmbeddingNoise, 0).
struct EmbeddingNoise {
  double alpha = 0;
  uint64_t seed = 0;
};

// Gradient of Embedding: dtable[id] = (accumulate ? dtable[id] : 0) + sum of dx over the tokens with that id; rows
// without tokens keep their value if accumulate, else become 0. Up to kLongRun tokens are added in order. Of more, lane
// l of kRunLanes adds tokens l, l + kRunLanes, ... of the run in order, then the lanes are added pairwise: l and l +
// kRunLanes / 2, then l and l + kRunLanes / 4, and so on. So sums are the same on every backend, and work of many
// threads.   dx r [T, n], token_order r [T] int32: token
// indices sorted by id, segment_starts r [T + 1] int32, segment_ids r [T] int32: as many runs of equal ids as
// RuntimeScalars says of tokens or of patches; dtable rw|w [V, n].
inline constexpr int64_t kLongRun = 256, kRunLanes = 64;
struct EmbeddingBackward {
  bool accumulate = false;
  bool patches = false;  // whether the rows are of patches, not of tokens
};

// ---- Frozen bases in fewer bits -------------------------------------------------------------------------------------

// Quantised formats. Each step is one fp32 operation in the order of bitsandbytes 0.50 (its default kernels), / and
// round included; codes round to nearest, ties to even, but in Nf4's two codebooks, where a tie goes to the lower
// number (tensor/codebook.h).
//   Int8 (Dettmers et al., arXiv:2208.07339): a row's scale is its absmax, code = round(x ((1 / scale) 127)),
//     x = (code scale) (1/127).
//   Fp8: a row's scale is absmax / 448, code = e4m3fn of x / scale, saturating, x = code scale.
//   Nf4 (Dettmers et al., arXiv:2305.14314): 64 elements after one another in row order, wherever rows end, share the
//     scale absmax; a code is the number of 16 that is nearest to x (1 / max(scale, 1e-38)), two codes a byte, the
//     first in the upper half; x = number scale.
// Zeros (with scale 0) stay zeros. Where 1 / scale overflows, codes of Int8 saturate. A row or block that holds NaN or
// infinity has a scale that is NaN or infinity, and its dequantised values are not finite: with Int8 and Fp8 all of
// them are NaN, with Nf4 they are NaN or infinity, and after QuantizeScales all values of every block under that offset
// are NaN.
enum class BaseFormat : uint8_t { Plain, Int8, Fp8, Nf4 };
std::string_view name(BaseFormat format);  // "int8"

inline constexpr int64_t kNf4Block = 64, kNf4ScaleBlock = 256;

// Quantizes x.   x r [m, n] any floating-point dtype, codes w (Int8: int8 [m, n]; Fp8: uint8 [m, n]; Nf4: uint8 [m n /
// 2]), scales w fp32 (Int8, Fp8: [m]; Nf4: [m n / 64]). x may start at any byte (bytes from a file do). For Nf4 it is
// dense and m n is a multiple of 64. It may be a part of a parameter: whole rows, for Nf4 whole blocks. With `factors`
// (Fp8 only) x is multiplied by its column's factor first, in fp32: factors r [n] fp32, after x. With `columns` (Fp8
// only, without factors) the columns of x are quantized as if they were rows: codes [n, m], scales [n]. With
// `column_scales` (Fp8 only) the scales of x's columns, without factors, are found while its rows are quantized:
// column_scales w [n] fp32, the last operand. Then `columns` need not find them again: its scales are r.
struct Quantize {
  BaseFormat format = BaseFormat::Int8;
  bool factors = false, columns = false, column_scales = false;
};

// SwiGlu, and Quantize (Fp8) of its result, in one (program/swiglu_quantize.h).   gate_up r [T, 2F], h w [T, F], codes
// w uint8 [T, F], scales w [T] fp32, column_scales w [F] fp32 ? column_scales.
struct SwiGluQuantize {
  bool column_scales = false;
  Activation activation = Activation::Silu;
};

// SwiGluBackward, and Quantize (Fp8, with factors) of what it gives, in one.   dh r|rw [T, F], gate_up r [T, 2F],
// factors r [2F] fp32, dgate_up w [T, 2F], codes w uint8 [T, 2F], scales w [T] fp32, column_scales w [2F] fp32 ?
// column_scales.
struct SwiGluBackwardQuantize {
  bool restore = false, column_scales = false;
  Activation activation = Activation::Silu;
};

// The second quantisation of Nf4's scales: scales - offset are quantized in 8 bits on bitsandbytes' dynamic codebook,
// by blocks of 256 that each have a scale, as Nf4 does it.   scales r fp32 [k], offset r [1] fp32, codes w uint8 [k],
// block_scales w [ceil(k / 256)] fp32. The offset is the mean (by TreeSum) of the scales of the whole parameter, of
// which these may be a part; a part starts at a multiple of 256.
struct QuantizeScales {};

// The inverse of Quantize, row by row or block by block, rounded once to x's dtype.   codes r, scales r, as Quantize
// wrote them, x w [m, n] fp32|bf16. For Nf4, unless the scales are plain, three operands stand in place of scales:
// scale codes r, block_scales r, as QuantizeScales wrote them, and its offset r; a scale is number block_scale +
// offset.
struct Dequantize {
  BaseFormat format = BaseFormat::Int8;
  bool plain_scales = false;
};

// ---- Ranks ----------------------------------------------------------------------------------------------------------

// Says which ranks take part in a collective, and in which order: all ranks by the part they own; all by their number;
// the ranks that hold one replica together, by shard; those that hold one shard, by replica (program/topology.h).
enum class Ranks : uint8_t { Parts, Everyone, Replica, Peers };

// full = the parts of all ranks that take part, in their order.   part r [n] of any dtype, full w [k n]; part may be
// the very bytes of full where this rank's part belongs. This is a collective: on each rank it reads its part until all
// ranks have finished it and writes full after all have begun it.
struct AllGather {
  Ranks ranks = Ranks::Parts;
};

// Row p of `in` goes to the rank that owns part p; row r of `out` came from rank r.   in r [W, n] of any dtype, out w
// [W, n]. This is a collective like AllGather.
struct Exchange {};

// sum = (accumulate ? sum : 0) + the sum of the rows of parts, one after the other, in fp32, rounded once.
// parts r [k, n] fp32|bf16, sum rw|w [n] fp32|bf16.
struct SumRanks {
  bool accumulate = false;
};

// ---- Host and disk --------------------------------------------------------------------------------------------------

// Says what the CPU does to arena bytes, on the Host lane; plan/ emits the op with these operands, train/ does it.
enum class HostJob : uint8_t {
  FillBatch,    // w: the arrays (tensor/batch.h) of the program's pass `index`, and their bytes; sets its counts
  FillTokens,   // w: the arrays (tensor/batch.h) of a generating pass, and the bytes they lie in
  TakeMetrics,  // r: loss [1] fp32, StepScalars
  TakeLoss,     // r: losses [ranks, 1] fp32
  TakeLogits,   // r: logits [n, V] fp32
  FillHeader,   // w: bytes of file `index` from its start: what stands before the tensors
  WeighRows,  // r: cross-entropies of every rank's loss rows [ranks, T] fp32, of the program's pass `index`; w: weights
              // and losses of this rank's rows [T] fp32, and the bytes they lie in
  TakeScores,  // r: cross-entropies of every rank's loss rows [ranks, T] fp32, of the program's pass `index`; where a
               // model learns from a teacher, losses, divergences and agreements of these rows [ranks, 3, T]
  FillImages,  // w: the arrays (tensor/batch.h) of the images of the program's pass `index`, and the bytes they lie in;
               // sets that pass's counts
  FillTeacher,  // w: the arrays (tensor/batch.h) of a teacher's tokens of the program's pass `index`, and their bytes
  KeepTeacher,  // r: those arrays of this rank's loss rows, as a teacher has them
  FillEmbeddings,  // w: as FillImages, of the rows that a tower made of the images before
  TakeEmbeddings,  // r: rows that the tower has made of the images that were filled in [rows, H]
};
struct HostTask {
  HostJob job = HostJob::FillBatch;
  int64_t index = 0;
};

// On the lanes DiskIn and DiskOut: bytes [offset, offset + bytes) of the program's file `file`.   staging w U8 [bytes]
// / r U8 [bytes]. Offsets are multiples of kDirectIo; so are bytes, but for the last range of a file.
inline constexpr uint64_t kDirectIo = kDirectAlignment;
struct ReadFile {
  int64_t file = 0;
  uint64_t offset = 0;
};
struct WriteFile {
  int64_t file = 0;
  uint64_t offset = 0;
};

using Attrs = std::variant<
    Gemm, Fp8Gemm, AdaptedGemm, AdapterBackward, ColumnSum, RopeTable, Rope, Attention, AttentionBackward, CacheAppend,
    CachedAttention, RmsNorm, RmsNormBackward, SwiGlu, SwiGluBackward, SwiGluGemm, SwiGluGemmBackward, Accumulate,
    Rescale, Cast, Transpose, Copy, Fill, SplitMaster, JoinMaster, RandomFill, Dropout, Embedding, EmbeddingBackward,
    GatherRows, ScatterRows, CrossEntropy, SoftCap, LossSum, Quantize, QuantizeScales, Dequantize, AllGather, Exchange,
    SumRanks, NormPartials, TreeSum, ClipFactor, AdamW, HostTask, ReadFile, WriteFile, LayerNorm, LayerNormBackward,
    Activate, ActivateBackward, RowNorms, AdaptedNorms, ScaleColumns, ScaleColumnsBackward, SetRowNorms, Lion,
    FitColumns, EmbeddingNoise, SwiGluQuantize, SwiGluBackwardQuantize, ScheduleFreeAdamW, ScheduleFreeAverage,
    ResizeRows, ResizeRowsBackward, TopTokens, Distillation, Momentum, Normalize, Descend, ScaledSquares, ScaleMatrix,
    FactoredMeans, FactoredScales, SquareLimit, ProjectedMoments, ChannelScales, GrowthLimit>;

// Returns whether the op is a collective: all ranks run it together.
inline bool is_collective(const Attrs& attrs) {
  return std::holds_alternative<AllGather>(attrs) || std::holds_alternative<Exchange>(attrs);
}

// Returns the name of an op's kind in dumps, traces and messages: "gemm", "rms_norm_backward".
std::string_view kind(const Attrs& attrs);

}  // namespace snug
