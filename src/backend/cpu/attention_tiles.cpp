#include "backend/cpu/attention_tiles.h"

#include <cstring>
#include <limits>
#include <utility>

#include "backend/cpu/math.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace snug::cpu {

HeadColumns::HeadColumns(const HeadShape& shape, int64_t value_dim)
    : heads(shape.heads),
      kv_heads(shape.kv_heads),
      dim(shape.dim),
      value_dim(value_dim),
      group(0),
      padded(round_up_to_step(shape.dim)),
      padded_values(round_up_to_step(value_dim)) {
  check(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "attention with {} heads over {} key heads", heads,
        kv_heads);
  for (const int64_t size : {dim, value_dim})
    check(size > 0 && size <= kMaxDim, "attention heads of {} elements, at most {} are supported", size, kMaxDim);
  group = heads / kv_heads;
}

DocumentTiles::DocumentTiles(ScratchWalk& walk, const AttentionSize& size, bool by_document)
    : cross_(size.cross), packed_rows_(size.keys + (kTileStep - 1) * std::min(size.keys, size.documents)) {
  const auto tiles = [&](int64_t tokens) {
    return walk.take<DocumentTile>(tokens / kTile + std::min(tokens, size.documents));
  };
  queries_ = tiles(size.tokens);
  keys_ = cross_ ? tiles(size.keys) : queries_;
  if (by_document) first_ = walk.take<int32_t>(size.documents + 1);
  if (cross_) first_key_ = walk.take<int32_t>(size.documents + 1);
}

namespace {

// Writes the tiles of documents, and to `first`, if there is one, how many come before each; returns how many there
// are.
int64_t cut_into(std::span<const int32_t> documents, DocumentTile* tiles, int32_t* first) {
  int64_t count = 0;
  int32_t packed = 0;
  for (size_t d = 0; d + 1 < documents.size(); d++) {
    const int32_t begin = documents[d], end = documents[d + 1];
    if (first) first[d] = static_cast<int32_t>(count);
    for (int32_t row = begin; row < end; row += kTile) {
      tiles[count] = {begin, end, row, packed};
      packed += static_cast<int32_t>(tiles[count].padded_rows());
      count++;
    }
  }
  if (first) first[documents.size() - 1] = static_cast<int32_t>(count);
  return count;
}

}  // namespace

void DocumentTiles::cut(std::span<const int32_t> documents, std::span<const int32_t> key_documents) {
  documents_ = documents;
  query_count_ = cut_into(documents, queries_, first_);
  key_count_ = cross_ ? cut_into(key_documents, keys_, first_key_) : query_count_;
}

DocumentTiles::Keys DocumentTiles::keys_of(int64_t index, const Visibility& visibility) const {
  const DocumentTile& tile = queries_[index];
  Keys keys{queries_ + index - tile.index(), tile.document_end - tile.document_begin, 0, 0};
  if (cross_) {
    const int64_t document = std::ranges::upper_bound(documents_, tile.begin) - documents_.begin() - 1;
    keys.tiles = keys_ + first_key_[document];
    keys.tokens =
        first_key_[document] < first_key_[document + 1] ? keys.tiles->document_end - keys.tiles->document_begin : 0;
  }
  const int64_t start = tile.index() * kTile;
  keys.first = visibility.begin(start) / kTile;
  keys.end = ceil_div(visibility.end(start + tile.rows() - 1, keys.tokens), kTile);
  return keys;
}

// ---- Packing --------------------------------------------------------------------------------------------------------

namespace {

// Holds sixteen elements of 32 bits, for which the compiler uses the processor's vectors.
using Words = uint32_t __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(64)));
constexpr int64_t kLanesOfWords = 16;

template <class Vector>
Vector load(const void* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

// Returns elements of two vectors: those of the second whose number has the bit `width`, `shift` before it, and those
// of the first that lie `width - shift` behind the others.
template <uint32_t width, uint32_t shift, uint32_t... e>
Words chosen(Words first, Words second, std::integer_sequence<uint32_t, e...>) {
  return __builtin_shufflevector(first, second, (e & width ? 16 + e - shift : e + width - shift)...);
}

// Exchanges, in rows i and i + width, the upper half of each 2 width elements of one with the lower half of the
// other's.
template <uint32_t width>
void exchange(Words (&rows)[kLanesOfWords]) {
  constexpr auto lanes = std::make_integer_sequence<uint32_t, kLanesOfWords>();
#pragma GCC unroll 16
  for (uint32_t i = 0; i < kLanesOfWords; i++) {
    if (i & width) continue;
    const Words first = rows[i], second = rows[i + width];
    rows[i] = chosen<width, width>(first, second, lanes);
    rows[i + width] = chosen<width, 0>(first, second, lanes);
  }
}

// Transposes a matrix of words; rows and cols are multiples of 16.
void transpose_words(const uint32_t* from, int64_t rows, int64_t cols, uint32_t* to) {
  for (int64_t r = 0; r < rows; r += kLanesOfWords)
    for (int64_t c = 0; c < cols; c += kLanesOfWords) {
      Words block[kLanesOfWords];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanesOfWords; i++) block[i] = load<Words>(from + (r + i) * cols + c);
      exchange<1>(block);
      exchange<2>(block);
      exchange<4>(block);
      exchange<8>(block);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanesOfWords; i++) std::memcpy(to + (c + i) * rows + r, &block[i], sizeof block[i]);
    }
}

}  // namespace

template <class T>
void pack_a(const HeadRows<T>& from, T* to) {
  const int64_t rows = round_up_to_step(from.rows), width = round_up_to_step(from.dim);
  for (int64_t r = 0; r < rows; r++, to += width) {
    const int64_t filled = r < from.rows ? from.dim : 0;
    if (filled) std::copy_n(from.data + r * from.stride, filled, to);
    std::fill(to + filled, to + width, T(0.0f));
  }
}

template <class T>
void pack_b_transposed(const HeadRows<T>& from, T* to) {
  StackArray<T, kTile * kMaxDim> filled_up;
  pack_a(from, filled_up.data());
  transpose_words(reinterpret_cast<const uint32_t*>(filled_up.data()), round_up_to_step(from.rows),
                  round_up_to_step(from.dim) / kGroup<T>, reinterpret_cast<uint32_t*>(to));
}

template <>
void pack_a_transposed<float>(const HeadRows<float>& from, float* to) {
  pack_b_transposed(from, to);
}

template <>
void pack_a_transposed<BFloat16>(const HeadRows<BFloat16>& from, BFloat16* to) {
  StackArray<BFloat16, kTile * kMaxDim> pairs;
  pack_b_transposed(from, pairs.data());
  const int64_t rows = round_up_to_step(from.rows), dim = round_up_to_step(from.dim);
  for (int64_t d = 0; d < dim; d += 2) {
    const BFloat16* pair = pairs.data() + d * rows;
    for (int64_t r = 0; r < rows; r++) {
      to[d * rows + r].bits = pair[2 * r].bits;
      to[(d + 1) * rows + r].bits = pair[2 * r + 1].bits;
    }
  }
}

template <>
void pack_b<float>(const HeadRows<float>& from, float* to) {
  pack_a(from, to);
}

template <>
void pack_b<BFloat16>(const HeadRows<BFloat16>& from, BFloat16* to) {
  StackArray<BFloat16, kTile * kMaxDim> filled_up;
  pack_a(from, filled_up.data());
  const int64_t rows = round_up_to_step(from.rows), width = round_up_to_step(from.dim);
  for (int64_t r = 0; r < rows; r += 2) {
    const BFloat16* first = filled_up.data() + r * width;
    for (int64_t d = 0; d < width; d++) {
      to[r * width + 2 * d].bits = first[d].bits;
      to[r * width + 2 * d + 1].bits = first[width + d].bits;
    }
  }
}

template <>
void round_row<float>(const float* from, int64_t n, float* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

template <>
void round_row<BFloat16>(const float* from, int64_t n, BFloat16* to) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  for (const int64_t end = has_avx512_bf16() ? n : 0; i + 32 <= end; i += 32) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
    _mm512_storeu_si512(to + i, std::bit_cast<__m512i>(rounded));
  }
#endif
  for (; i < n; i++) to[i] = BFloat16(from[i]);
}

template <>
void round_row_pair<float>(const float* first, const float* second, int64_t n, float* to) {
  round_row(first, n, to);
  round_row(second, n, to + n);
}

template <>
void round_row_pair<BFloat16>(const float* first, const float* second, int64_t n, BFloat16* to) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  constexpr __mmask16 kAll = 0xffff;
  for (const int64_t end = has_avx512_bf16() ? n : 0; i + 16 <= end; i += 16) {
    const __m512i low =
        _mm512_maskz_cvtepu16_epi32(kAll, std::bit_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(first + i))));
    const __m512i high =
        _mm512_maskz_cvtepu16_epi32(kAll, std::bit_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(second + i))));
    _mm512_storeu_si512(to + 2 * i, _mm512_or_si512(low, _mm512_maskz_slli_epi32(kAll, high, 16)));
  }
#endif
  for (; i < n; i++) {
    to[2 * i] = BFloat16(first[i]);
    to[2 * i + 1] = BFloat16(second[i]);
  }
}

template <class T>
void round_columns(const float* from, int64_t n, int64_t count, int64_t dim, T* to, int64_t to_stride) {
  StackArray<float, kTile * kMaxDim> rows;
  const int64_t padded = round_up_to_step(dim);
  transpose_words(reinterpret_cast<const uint32_t*>(from), padded, n, reinterpret_cast<uint32_t*>(rows.data()));
  for (int64_t r = 0; r < count; r++) round_row(rows.data() + r * padded, dim, to + r * to_stride);
}

void scale_columns(float* sums, int64_t rows, int64_t cols, const float* factors) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) sums[r * cols + c] *= factors[c];
}

template void pack_a(const HeadRows<float>&, float*);
template void pack_a(const HeadRows<BFloat16>&, BFloat16*);
template void pack_b_transposed(const HeadRows<float>&, float*);
template void pack_b_transposed(const HeadRows<BFloat16>&, BFloat16*);
template void round_columns(const float*, int64_t, int64_t, int64_t, float*, int64_t);
template void round_columns(const float*, int64_t, int64_t, int64_t, BFloat16*, int64_t);

// ---- Softmax --------------------------------------------------------------------------------------------------------

RunningSoftmax::RunningSoftmax() {
  std::fill_n(maximum, kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, kTile, 0.0f);
  std::fill_n(factor, kTile, 0.0f);
}

namespace {

using Ints = int32_t __attribute__((vector_size(64)));
constexpr float kLog2E = 0x1.715476p0f;

// Returns 2^x for x <= 127, within 2^-22; results that would underflow become 2^-126, NaN stays. x = n + r with |r| <=
// 1/2; 2^r by its Taylor series to r^6. Weights tolerate this; the general exponential of math.h takes twice as long.
inline Floats exp2(Floats x) {
  constexpr float kRound = 0x1.8p23f;  // added and subtracted again: rounds to a whole number, kept in the low bits
  x = x < -126.0f ? Floats{} - 126.0f : x;
  const Floats shifted = x + kRound;
  const Floats r = x - (shifted - kRound);
  Floats p = r * 1.540353e-4f + 1.3333558e-3f;
  p = p * r + 9.6181291e-3f;
  p = p * r + 5.5504109e-2f;
  p = p * r + 2.4022651e-1f;
  p = p * r + 6.9314718e-1f;
  p = p * r + 1.0f;
  const Words power = (std::bit_cast<Words>(shifted) << 23) + 0x3f800000u;
  return p * std::bit_cast<Floats>(power);
}

// Masks the keys of as many queries as a vector has lanes.
struct MaskVector {
  MaskVector(const VisibleKeys* visible, int64_t query, int64_t keys)
      : begin(visible ? load<Ints>(visible->begin + query) : Ints{}),
        end(visible ? load<Ints>(visible->end + query) : Ints{} + static_cast<int32_t>(keys)) {}

  // Returns `values` of key u, and `none` where a query does not attend to it.
  Floats select(Floats values, int64_t u, Floats none) const {
    const Ints key = Ints{} + static_cast<int32_t>(u);
    return ((key >= begin) & (key < end)) ? values : none;
  }

  Ints begin, end;
};

}  // namespace

const VisibleKeys* Visibility::of_tiles(int64_t query, int64_t key, int64_t keys, VisibleKeys& room) const {
  if (end(query, keys) >= key + kTile && begin(query + kTile - 1) <= key) return nullptr;
  for (int64_t q = 0; q < kTile; q++) {
    room.begin[q] = static_cast<int32_t>(std::clamp<int64_t>(begin(query + q) - key, 0, kTile));
    room.end[q] = static_cast<int32_t>(std::clamp<int64_t>(end(query + q, keys) - key, 0, kTile));
  }
  return &room;
}

void cap_scores(float* products, float* slopes, int64_t keys, int64_t queries, float scale, float cap) {
  const float ratio = scale / cap;
  for (int64_t u = 0; u < keys; u++) {
    float *row = products + u * kTile, *slope = slopes ? slopes + u * kTile : nullptr;
#pragma omp simd
    for (int64_t q = 0; q < queries; q++) {
      const float t = tanh(row[q] * ratio);
      row[q] = cap * t;
      if (slope) slope[q] = 1.0f - t * t;
    }
  }
}

void RunningSoftmax::add(float* products, int64_t keys, int64_t queries, const VisibleKeys* visible, float scale) {
  const Floats none = Floats{} - std::numeric_limits<float>::infinity();
  const float to_log2 = scale * kLog2E;
  for (int64_t q = 0; q < queries; q += kLanesOfWords) {
    float* column = products + q;
    const MaskVector mask(visible, q, keys);
    const auto before = load<Floats>(maximum + q);
    Floats most = before;
    for (int64_t u = 0; u < keys; u++) {
      const Floats row = mask.select(load<Floats>(column + u * kTile), u, none);
      most = row > most ? row : most;
    }
    const Floats base = most == none ? Floats{} : most;  // no key was visible yet
    const Floats rescale = exp2((before - base) * to_log2), shift = base * to_log2;
    Floats total = load<Floats>(sum + q) * rescale;
    for (int64_t u = 0; u < keys; u++) {
      const Floats weights = mask.select(exp2(load<Floats>(column + u * kTile) * to_log2 - shift), u, Floats{});
      total += weights;
      std::memcpy(column + u * kTile, &weights, sizeof weights);
    }
    std::memcpy(maximum + q, &most, sizeof most);
    std::memcpy(factor + q, &rescale, sizeof rescale);
    std::memcpy(sum + q, &total, sizeof total);
  }
}

void RunningSoftmax::add_sink(float score, float scale) {
  for (int64_t q = 0; q < kTile; q++) {
    const float most = std::max(maximum[q] * scale, score);
    factor[q] = std::exp(maximum[q] * scale - most);
    sum[q] = sum[q] * factor[q] + std::exp(score - most);
    maximum[q] = most / scale;
  }
}

void differentiate_softmax(float* products, float* gradients, int64_t keys, int64_t queries, const VisibleKeys* visible,
                           float scale, const float* lse, const float* delta) {
  const float to_log2 = scale * kLog2E;
  for (int64_t q = 0; q < queries; q += kLanesOfWords) {
    const MaskVector mask(visible, q, keys);
    const Floats shift = load<Floats>(lse + q) * kLog2E, mean = load<Floats>(delta + q);
    for (int64_t u = 0; u < keys; u++) {
      float* p = products + u * kTile + q;
      float* dp = gradients + u * kTile + q;
      const Floats weights = mask.select(exp2(load<Floats>(p) * to_log2 - shift), u, Floats{});
      const Floats dproducts = mask.select(weights * (load<Floats>(dp) - mean), u, Floats{});
      std::memcpy(p, &weights, sizeof weights);
      std::memcpy(dp, &dproducts, sizeof dproducts);
    }
  }
}

template <class T>
void row_products(const HeadRows<T>& a, const HeadRows<T>& b, float* sums) {
  StackArray<float, kTile * kMaxDim> terms, transposed;
  const int64_t rows = round_up_to_step(a.rows), width = round_up_to_step(a.dim);
  std::fill_n(terms.data(), rows * width, 0.0f);
  for (int64_t r = 0; r < a.rows; r++)
    for (int64_t d = 0; d < a.dim; d++)
      terms.data()[r * width + d] = to_float(a.data[r * a.stride + d]) * to_float(b.data[r * b.stride + d]);
  transpose_words(reinterpret_cast<const uint32_t*>(terms.data()), rows, width,
                  reinterpret_cast<uint32_t*>(transposed.data()));
  for (int64_t r = 0; r < rows; r += kLanesOfWords) {
    Floats total{};
    for (int64_t d = 0; d < width; d++) total += load<Floats>(transposed.data() + d * rows + r);
    std::memcpy(sums + r, &total, sizeof total);
  }
}

template void row_products(const HeadRows<float>&, const HeadRows<float>&, float*);
template void row_products(const HeadRows<BFloat16>&, const HeadRows<BFloat16>&, float*);

}  // namespace snug::cpu
