#include "format/gguf_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/ascii.h"
#include "base/error.h"
#include "format/gguf_blocks.h"
#include "tensor/dtype.h"

namespace snug {
namespace {

template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// Stores a scale in fp16 and returns the stored value.
float store_half(std::byte* to, float value) {
  const Float16 half(value);
  store(to, half.bits);
  return static_cast<float>(half);
}

void put_bits(std::byte& to, uint32_t bits, size_t shift) { to |= static_cast<std::byte>(bits << shift); }

uint32_t clamped(float value, int32_t low, int32_t high, int32_t offset = 0) {
  return static_cast<uint32_t>(std::clamp(static_cast<int32_t>(std::lround(value)), low, high) + offset);
}

float inverse(float scale) { return scale == 0 ? 0 : 1 / scale; }

void quantize_q8_0(const float* x, std::byte* out) {
  float largest = 0;
  for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  const float scale = largest / 127, by = inverse(scale);
  store_half(out, scale);
  for (size_t i = 0; i < 32; ++i) store(out + 2 + i, static_cast<int8_t>(std::round(x[i] * by)));
}

// Stores codes of five bits: the lower four two a byte, the fifth ones as a word before these.
void put_five_bits(std::byte* out, const std::array<uint32_t, 32>& codes) {
  uint32_t fifth = 0;
  std::fill(out + 4, out + 20, std::byte{0});
  for (size_t i = 0; i < 32; ++i) {
    put_bits(out[4 + i % 16], codes[i] & 15, i / 16 * 4);
    fifth |= codes[i] >> 4 << i;
  }
  store(out, fifth);
}

void quantize_q5_0(const float* x, std::byte* out) {
  const float* largest = std::max_element(x, x + 32, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = *largest / -16, by = inverse(scale);
  store_half(out, scale);
  std::array<uint32_t, 32> codes;
  for (size_t i = 0; i < 32; ++i) codes[i] = std::min(31u, static_cast<uint32_t>(x[i] * by + 16.5f));
  put_five_bits(out + 2, codes);
}

void quantize_q5_1(const float* x, std::byte* out) {
  const float low = *std::min_element(x, x + 32), high = *std::max_element(x, x + 32);
  const float scale = (high - low) / 31, by = inverse(scale);
  store_half(out, scale);
  store_half(out + 2, low);
  std::array<uint32_t, 32> codes;
  for (size_t i = 0; i < 32; ++i) codes[i] = std::min(31u, static_cast<uint32_t>((x[i] - low) * by + 0.5f));
  put_five_bits(out + 4, codes);
}

// Returns the weight of each value's error.
template <size_t n>
std::array<float, n> importance(const float* x) {
  float squares = 0;
  for (size_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float usual = std::sqrt(squares / static_cast<float>(n));
  std::array<float, n> weights;
  for (size_t i = 0; i < n; ++i) weights[i] = usual + std::abs(x[i]);
  return weights;
}

// Holds a line x = scale q - minimum, neither of which is below 0.
struct Line {
  float scale = 0, minimum = 0;
};

// Returns the line through weighted points (q, x) with the least squares of errors.
Line fitted(const std::array<float, 32>& weights, const float* x, const std::array<float, 32>& q) {
  float w = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
  for (size_t i = 0; i < 32; ++i) {
    w += weights[i];
    wq += weights[i] * q[i];
    wqq += weights[i] * q[i] * q[i];
    wx += weights[i] * x[i];
    wxq += weights[i] * x[i] * q[i];
  }
  const float determinant = w * wqq - wq * wq;
  if (determinant <= 0) return {};
  const Line line{(w * wxq - wx * wq) / determinant, (wq * wxq - wqq * wx) / determinant};
  return line.minimum < 0 ? Line{wxq / wqq, 0} : line;
}

// Returns the codes from 0 to `highest` that are nearest to `by (x + offset)`.
std::array<float, 32> codes_of(const float* x, float by, float offset, float highest) {
  std::array<float, 32> q;
  for (size_t i = 0; i < 32; ++i) q[i] = std::clamp(std::nearbyint(by * (x[i] + offset)), 0.0f, highest);
  return q;
}

// Returns the weighted squares of the errors of codes on a line.
float error_of(const std::array<float, 32>& weights, const float* x, const std::array<float, 32>& q, const Line& line) {
  float error = 0;
  for (size_t i = 0; i < 32; ++i) {
    const float difference = line.scale * q[i] - line.minimum - x[i];
    error += weights[i] * difference * difference;
  }
  return error;
}

// This many step sizes are tried for a group: from one value less than the codes have to one more.
constexpr int kTries = 21;
// In this many rounds the codes nearest to the best line make another, while that is better.
constexpr int kRounds = 4;

// Tries lines through 32 values, and keeps the best one and its weighted squares of errors.
class LineSearch {
 public:
  LineSearch(const float* x, float highest) : x_(x), highest_(highest), weights_(importance<32>(x)) {}

  // Tries the line through the codes of `by (x + offset)`. Returns whether it is better than the best so far.
  bool take(float by, float offset) {
    const std::array<float, 32> q = codes_of(x_, by, offset, highest_);
    const Line line = fitted(weights_, x_, q);
    if (line.scale <= 0) return false;
    const float error = error_of(weights_, x_, q, line);
    if (error >= least_) return false;
    least_ = error;
    best_ = line;
    return true;
  }
  const Line& best() const { return best_; }

 private:
  const float* x_;
  float highest_;
  std::array<float, 32> weights_;
  Line best_;
  float least_ = INFINITY;
};

// Returns the best line for 32 values and codes from 0 to `highest`.
Line find_line(const float* x, float highest) {
  const float low = std::min(0.0f, *std::min_element(x, x + 32)), high = *std::max_element(x, x + 32);
  if (high <= low) return {0, -low};
  LineSearch search(x, highest);
  for (int t = 0; t < kTries; ++t) search.take((highest - 1 + 0.1f * static_cast<float>(t)) / (high - low), -low);
  for (int round = 0; round < kRounds; ++round)
    if (!search.take(inverse(search.best().scale), search.best().minimum)) break;
  return search.best();
}

// Holds a line in the units that a block has for scales and minima: each from 0 to 63.
struct CodedLine {
  uint32_t scale = 0, minimum = 0;
};

// Returns the coded line next to `line` whose codes have the least weighted squares of errors.
CodedLine coded(const float* x, const Line& line, const Line& units, float highest) {
  const std::array<float, 32> weights = importance<32>(x);
  const auto near = [](float value, float unit) { return static_cast<int32_t>(std::lround(value * inverse(unit))); };
  const int32_t scale = near(line.scale, units.scale), minimum = near(line.minimum, units.minimum);
  CodedLine best;
  float least = INFINITY;
  for (int32_t s = std::max(0, scale - 1); s <= std::min(63, scale + 1); ++s) {
    for (int32_t m = std::max(0, minimum - 1); m <= std::min(63, minimum + 1); ++m) {
      const Line tried{units.scale * static_cast<float>(s), units.minimum * static_cast<float>(m)};
      const float error = error_of(weights, x, codes_of(x, inverse(tried.scale), tried.minimum, highest), tried);
      if (error >= least) continue;
      least = error;
      best = {static_cast<uint32_t>(s), static_cast<uint32_t>(m)};
    }
  }
  return best;
}

// Writes what Q4_K and Q5_K have in common: d, m and the groups' scales and minima at `out`, in 16 bytes that are zero
// before. Calls put(i, code) for each value.
template <class Put>
void quantize_groups(const float* x, std::byte* out, int32_t highest, const Put& put) {
  constexpr float kLargest = 63;  // scales and minima have six bits
  std::array<Line, 8> lines;
  Line most;
  for (size_t g = 0; g < 8; ++g) {
    lines[g] = find_line(x + 32 * g, static_cast<float>(highest));
    most.scale = std::max(most.scale, lines[g].scale);
    most.minimum = std::max(most.minimum, lines[g].minimum);
  }
  const float scale = store_half(out, most.scale / kLargest), minimum = store_half(out + 2, most.minimum / kLargest);
  for (size_t g = 0; g < 8; ++g) {
    const auto [s, m] = coded(x + 32 * g, lines[g], {scale, minimum}, static_cast<float>(highest));
    if (g < 4) {
      put_bits(out[4 + g], s, 0);
      put_bits(out[8 + g], m, 0);
    } else {
      put_bits(out[8 + g], (s & 15) | (m & 15) << 4, 0);
      put_bits(out[g], s >> 4, 6);
      put_bits(out[4 + g], m >> 4, 6);
    }
    const float by = inverse(scale * static_cast<float>(s)), offset = minimum * static_cast<float>(m);
    for (size_t i = 32 * g; i < 32 * g + 32; ++i) put(i, clamped((x[i] + offset) * by, 0, highest));
  }
}

void quantize_q4_k(const float* x, std::byte* out) {
  std::fill(out, out + 144, std::byte{0});
  quantize_groups(x, out, 15,
                  [out](size_t i, uint32_t code) { put_bits(out[16 + i / 64 * 32 + i % 32], code, i % 64 / 32 * 4); });
}

void quantize_q5_k(const float* x, std::byte* out) {
  std::fill(out, out + 176, std::byte{0});
  quantize_groups(x, out, 31, [out](size_t i, uint32_t code) {
    put_bits(out[16 + i % 32], code >> 4, i / 32);
    put_bits(out[48 + i / 64 * 32 + i % 32], code & 15, i % 64 / 32 * 4);
  });
}

// Returns the best scale for 16 values and codes from -32 to 31.
float find_scale(const float* x) {
  const float largest = *std::max_element(x, x + 16, [](float a, float b) { return std::abs(a) < std::abs(b); });
  if (largest == 0) return 0;
  const std::array<float, 16> weights = importance<16>(x);
  float best = 0, most = 0;
  for (int t = 0; t < kTries; ++t) {
    const float by = -(31 + 0.1f * static_cast<float>(t)) / largest;  // takes it to the end that reaches further
    float wqq = 0, wxq = 0;
    for (size_t i = 0; i < 16; ++i) {
      const float q = std::clamp(std::nearbyint(by * x[i]), -32.0f, 31.0f);
      wqq += weights[i] * q * q;
      wxq += weights[i] * x[i] * q;
    }
    // The squares of errors are smaller by this than those of zeros.
    if (wqq > 0 && wxq * wxq / wqq > most) most = wxq * wxq / wqq, best = wxq / wqq;
  }
  return best;
}

void quantize_q6_k(const float* x, std::byte* out) {
  std::array<float, 16> scales;
  for (size_t g = 0; g < 16; ++g) scales[g] = find_scale(x + 16 * g);
  const float largest = *std::ranges::max_element(scales, [](float a, float b) { return std::abs(a) < std::abs(b); });
  std::fill(out, out + 210, std::byte{0});
  const float scale = store_half(out + 208, largest / -128);
  for (size_t g = 0; g < 16; ++g) {
    const auto s = static_cast<int8_t>(std::clamp<long>(std::lround(scales[g] * inverse(scale)), -128, 127));
    store(out + 192 + g, s);
    const float by = inverse(scale * static_cast<float>(s));
    for (size_t i = 16 * g; i < 16 * g + 16; ++i) {
      const uint32_t code = clamped(x[i] * by, -32, 31, 32);
      put_bits(out[i / 128 * 64 + i % 64], code & 15, i % 128 / 64 * 4);
      put_bits(out[128 + i / 128 * 32 + i % 32], code >> 4, i % 128 / 32 * 2);
    }
  }
}

struct FileType {
  GgufFileType type;
  std::string_view name;
  uint32_t number;
  GgufType of_matrices;
};
constexpr std::array<FileType, 4> kFileTypes{{{GgufFileType::F16, "F16", 1, GgufType::F16},
                                              {GgufFileType::BF16, "BF16", 32, GgufType::BF16},
                                              {GgufFileType::Q8_0, "Q8_0", 7, GgufType::Q8_0},
                                              {GgufFileType::Q4_K_M, "Q4_K_M", 15, GgufType::Q4_K}}};

const FileType& facts_of(GgufFileType type) { return *std::ranges::find(kFileTypes, type, &FileType::type); }

// Returns whether a layer's v and down matrices take more bits: in the first and the last eighth of the layers, and in
// each third of the others.
bool takes_more_bits(int64_t layer, int64_t layers) {
  const int64_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

// Returns the type in Q4_K_M of a tensor whose rows are whole blocks.
GgufType type_in_mixture(const GgufTensorName& tensor, const GgufSizes& sizes) {
  const std::string_view name = tensor.gguf;
  if (name == (sizes.own_head ? "output.weight" : "token_embd.weight")) return GgufType::Q6_K;
  if (name.ends_with(".attn_qkv.weight")) return GgufType::Q5_K;
  const bool values = name.ends_with(".attn_v.weight");
  if (!values && !name.ends_with(".ffn_down.weight")) return GgufType::Q4_K;
  const int64_t layer = std::stoll(tensor.gguf.substr(4));  // "blk.7."
  if (takes_more_bits(layer, sizes.layers)) return GgufType::Q6_K;
  // In models like Llama 70B, many heads share a v.
  const std::string_view kind = sizes.architecture->name;
  const bool of_70b = sizes.layers == 80 && ((kind == "llama" && sizes.heads != sizes.kv_heads) || kind == "qwen2");
  return values && of_70b ? GgufType::Q5_K : GgufType::Q4_K;
}

}  // namespace

void quantize(GgufType type, std::span<const float> values, std::span<std::byte> out) {
  check(values.size() % block_values(type) == 0 && out.size() == row_bytes(type, values.size()),
        "{} values of {} do not take {} bytes", values.size(), name(type), out.size());
  const auto each = [&](void (*block)(const float*, std::byte*)) {
    const uint64_t step = block_values(type), bytes = row_bytes(type, step);
    for (size_t i = 0; i * step < values.size(); ++i) block(values.data() + i * step, out.data() + i * bytes);
  };
  switch (type) {
    case GgufType::F32:
      return each([](const float* x, std::byte* to) { store(to, *x); });
    case GgufType::F16:
      return each([](const float* x, std::byte* to) { store_half(to, *x); });
    case GgufType::BF16:
      return each([](const float* x, std::byte* to) { store(to, BFloat16(*x).bits); });
    case GgufType::Q8_0:
      return each(quantize_q8_0);
    case GgufType::Q5_0:
      return each(quantize_q5_0);
    case GgufType::Q5_1:
      return each(quantize_q5_1);
    case GgufType::Q4_K:
      return each(quantize_q4_k);
    case GgufType::Q5_K:
      return each(quantize_q5_k);
    case GgufType::Q6_K:
      return each(quantize_q6_k);
    default:
      internal_error("values are not written in {}", name(type));
  }
}

std::string_view name(GgufFileType type) { return facts_of(type).name; }

uint32_t number_of(GgufFileType type) { return facts_of(type).number; }

std::optional<GgufFileType> gguf_file_type(std::string_view word) {
  for (const FileType& file : kFileTypes)
    if (lower_case(word) == lower_case(file.name)) return file.type;
  return std::nullopt;
}

GgufType gguf_tensor_type(GgufFileType file, const GgufTensorName& tensor, const GgufSizes& sizes) {
  if (tensor.shape.rank < 2 || tensor.gguf.ends_with("_norm.weight")) return GgufType::F32;
  const auto whole = [&](GgufType type) {
    return static_cast<uint64_t>(tensor.shape.cols()) % block_values(type) == 0;
  };
  GgufType type = file == GgufFileType::Q4_K_M ? type_in_mixture(tensor, sizes) : facts_of(file).of_matrices;
  // The head takes eight bits at once if six do not fit its rows; other matrices take the nearest type.
  if (type == GgufType::Q4_K && !whole(type)) type = GgufType::Q5_0;
  if (type == GgufType::Q5_K && !whole(type)) type = GgufType::Q5_1;
  if (type == GgufType::Q6_K && !whole(type)) type = GgufType::Q8_0;
  return whole(type) ? type : GgufType::F16;
}

}  // namespace snug
