// Cases of attention, its gradient, and attention over a cache.
#pragma once

#include <numbers>

#include "op_case.h"

namespace snug {

// Weights of keys are rounded to the products' dtype before they meet the values.
inline double attention_error(DType t) { return t == DType::BF16 ? 1.5e-2 : 4e-6; }

// Attention of so many tokens in three documents, and its backward; `keys` are the documents of keys, if they have any
// of their own.
inline void add_attention_and_backward(OpCases& cases, const std::string& suffix, DType t, const Attention& attention,
                                       int64_t tokens, const std::vector<int32_t>& documents, int64_t key_tokens = 0,
                                       const std::vector<int32_t>& key_documents = {}) {
  const double error = attention_error(t);
  const RuntimeScalars runtime{.documents = 3};
  const int64_t key_rows = attention.cross ? key_tokens : tokens;
  const Shape queries{tokens, attention.shape.query_columns()}, results{tokens, attention.result_columns()},
      keys{key_rows, attention.shape.key_columns()}, values{key_rows, attention.value_columns()},
      lse{attention.shape.heads, tokens}, heads{attention.shape.heads};
  const auto q = in("q", t, queries, uniform(-2, 2), 8), k = in("k", t, keys, uniform(-2, 2)),
             v = in("v", t, values, uniform(-2, 2));
  std::vector<CaseOperand> bounds{in("documents", DType::I32, {std::ssize(documents)}, list(documents))};
  if (attention.cross)
    bounds.push_back(in("key_documents", DType::I32, {std::ssize(key_documents)}, list(key_documents)));
  if (attention.sinks) bounds.push_back(in("sinks", DType::F32, heads, uniform(-2, 2)));
  OpCase forward{"attention." + suffix, attention, {q, k, v}, runtime, error, error};
  forward.operands.insert(forward.operands.end(), bounds.begin(), bounds.end());
  forward.operands.push_back(out("out", t, results));
  forward.operands.push_back(out("lse", DType::F32, lse));
  cases.push_back(forward);
  OpCase backward{"attention_backward." + suffix,
                  AttentionBackward{attention},
                  {in("dout", t, results), q, k, v, in("out", t, results), in("lse", DType::F32, lse)},
                  runtime,
                  2 * error,
                  2 * error,
                  [attention](std::vector<ref::Tensor>& o) {
                    const size_t sinks = attention.cross ? 8 : 7;
                    ref::Reference(o, RuntimeScalars{.documents = 3})
                        .attend(attention, o[1], o[2], o[3], 6, attention.sinks ? &o[sinks] : nullptr, o[4], o[5]);
                  }};
  backward.operands.insert(backward.operands.end(), bounds.begin(), bounds.end());
  for (const auto& [name, shape] : {std::pair("dq", queries), {"dk", keys}, {"dv", values}})
    backward.operands.push_back(out(name, t, shape));
  if (attention.sinks) backward.operands.push_back(out("dsinks", DType::F32, heads));
  cases.push_back(backward);
}

// "bf16.h4_2x16.w5"
inline std::string attention_suffix(const std::string& kind, const HeadShape& shape, int64_t window) {
  return fmt::format("{}.h{}_{}x{}{}", kind, shape.heads, shape.kv_heads, shape.dim,
                     window ? fmt::format(".w{}", window) : "");
}

inline void add_attention(OpCases& cases) {
  for (const DType t : kActivations)
    for (const HeadShape& shape : {HeadShape{3, 3, 24}, HeadShape{7, 1, 8}, HeadShape{4, 2, 16}})
      for (const int64_t window : {0, 5}) {
        const auto suffix = attention_suffix(std::string(name(t)), shape, window);
        add_attention_and_backward(cases, suffix, t, {shape, 0.3f, 0, window}, 37,
                                   {0, 1, 20, 33, 0});  // the last is beyond RuntimeScalars::documents
        for (const int64_t n : {1, 5}) {
          const RuntimeScalars cached{.position = 11};
          const Shape cache{20, 2 * shape.key_columns()};
          const Shape queries{n, shape.query_columns()}, keys{n, shape.key_columns()};
          if (window == 0)
            cases.push_back({fmt::format("cache_append.{}.n{}", suffix, n),
                             CacheAppend{shape},
                             {in("k", t, keys), in("v", t, keys), inout("cache", t, cache)},
                             cached,
                             0,
                             0});
          cases.push_back(
              {fmt::format("cached_attention.{}.n{}", suffix, n),
               CachedAttention{shape, 0.3f, window},
               {in("q", t, queries, uniform(-2, 2)), in("cache", t, cache, uniform(-2, 2)), out("out", t, queries)},
               cached,
               attention_error(t),
               attention_error(t)});
        }
      }
}

// Scores of up to the cap, and beyond.
inline void add_capped_attention(OpCases& cases) {
  for (const DType t : kActivations)
    for (const HeadShape& shape : {HeadShape{7, 1, 8}, HeadShape{4, 2, 64}})
      for (const int64_t window : {0, 40}) {
        const auto suffix = attention_suffix(fmt::format("{}.capped", name(t)), shape, window);
        add_attention_and_backward(cases, suffix, t, {shape, 0.3f, 0, window, 2.0f}, 150, {3, 70, 71, 145});
        const Shape keys{20, 2 * shape.key_columns()}, queries{5, shape.query_columns()};
        cases.push_back(
            {"cached_attention." + suffix,
             CachedAttention{shape, 0.3f, window, 2.0f},
             {in("q", t, queries, uniform(-2, 2)), in("cache", t, keys, uniform(-2, 2)), out("out", t, queries)},
             {.position = 11},
             attention_error(t),
             attention_error(t)});
      }
}

// Heads and documents as they are in training: longer than the tiles that kernels cut them into.
inline void add_long_attention(OpCases& cases) {
  for (const DType t : kActivations)
    for (const HeadShape& shape : {HeadShape{4, 2, 64}, HeadShape{2, 1, 128}})
      for (const int64_t window : {0, 40, 150})
        add_attention_and_backward(cases, attention_suffix(fmt::format("{}.long", name(t)), shape, window), t,
                                   {shape, 0.1f, 0, window}, 333, {3, 150, 151, 325});
  // Heads of all sizes that tiles are made for, of sizes between, and of those whose rows begin at no 16 bytes.
  for (const HeadShape& shape :
       {HeadShape{2, 1, 8}, HeadShape{2, 1, 32}, HeadShape{2, 1, 36}, HeadShape{2, 2, 48}, HeadShape{2, 1, 72},
        HeadShape{3, 1, 80}, HeadShape{2, 1, 96}, HeadShape{4, 2, 100}, HeadShape{2, 1, 112}, HeadShape{1, 1, 160},
        HeadShape{2, 1, 192}, HeadShape{1, 1, 196}, HeadShape{1, 1, 240}, HeadShape{2, 1, 256}})
    for (const int64_t window : {0, 100})
      add_attention_and_backward(cases, attention_suffix("bf16.sizes", shape, window), DType::BF16,
                                 {shape, 0.1f, 0, window}, 205, {3, 150, 151, 200});
  for (const HeadShape& shape : {HeadShape{2, 1, 36}, HeadShape{4, 2, 128}, HeadShape{2, 1, 256}})
    add_attention_and_backward(cases, attention_suffix("bf16.capped.sizes", shape, 100), DType::BF16,
                               {shape, 0.3f, 0, 100, 2.0f}, 333, {3, 150, 151, 325});
}

// Scores that grow from one step of a kernel to the next, by so much that weights relative to the first step's largest
// are large numbers, and by more than a number can hold.
inline void add_attention_of_large_scores(OpCases& cases) {
  for (const int64_t dim : {32, 64, 72, 80, 96, 128, 160, 256})
    for (const float scale : {2.0f, 30.0f})
      for (const bool bidirectional : {false, true}) {
        OpCases both;
        Attention attention{{2, 1, dim}, scale};
        attention.bidirectional = bidirectional;
        add_attention_and_backward(
            both, fmt::format("bf16.times{}.dim{}{}", scale, dim, bidirectional ? ".bidirectional" : ""), DType::BF16,
            attention, 420, {3, 5, 6, 417});
        cases.push_back(both.front());
      }
  // One key after the first step's has a score that is larger than all others, which are 0, by a power of two near the
  // largest that a number holds.
  for (const double growth : {60.0, 126.5, 127.5, 128.5}) {
    constexpr int64_t kTokens = 300, kDim = 64;
    std::vector<double> q(kTokens * kDim), k(kTokens * kDim);
    for (int64_t t = 0; t < kTokens; t++) q[static_cast<size_t>(t * kDim)] = 1;
    k[200 * kDim] = 1;
    Attention attention{{1, 1, kDim}, static_cast<float>(growth * std::numbers::ln2)};
    attention.bidirectional = true;
    const Shape shape{kTokens, kDim};
    cases.push_back({fmt::format("attention.bf16.growth{}", growth),
                     attention,
                     {in("q", DType::BF16, shape, list(q)), in("k", DType::BF16, shape, list(k)),
                      in("v", DType::BF16, shape, uniform(-2, 2)),
                      in("documents", DType::I32, {4}, list(std::vector<int32_t>{0, 1, 2, kTokens})),
                      out("out", DType::BF16, shape), out("lse", DType::F32, {1, kTokens})},
                     {.documents = 3},
                     attention_error(DType::BF16),
                     attention_error(DType::BF16)});
  }
}

// What a token attends to other than its document up to itself, or a window of that.
inline void add_other_attention(OpCases& cases) {
  struct Kind {
    std::string_view name;
    void (*set)(Attention&);
  };
  const Kind kinds[]{
      {"bidirectional", [](Attention& a) { a.bidirectional = true; }},
      {"cross", [](Attention& a) { a.bidirectional = a.cross = true; }},
      {"chunk", [](Attention& a) { a.chunk = 30; }},
      {"chunk.w20", [](Attention& a) { a.chunk = 30, a.window = 20; }},
      {"sinks", [](Attention& a) { a.sinks = true; }},
      {"sinks.cross", [](Attention& a) { a.sinks = a.bidirectional = a.cross = true; }},
      {"values", [](Attention& a) { a.value_dim = a.shape.dim == 8 ? 16 : a.shape.dim / 2; }},
  };
  for (const DType t : kActivations)
    for (const Kind& kind : kinds)
      for (const HeadShape& shape :
           {HeadShape{3, 1, 8}, HeadShape{2, 2, 64}, HeadShape{2, 1, 80}, HeadShape{2, 1, 128}, HeadShape{1, 1, 256}}) {
        if (t == DType::F32 && shape.dim > 64) continue;
        Attention attention{shape, 0.1f};
        kind.set(attention);
        const auto suffix = attention_suffix(fmt::format("{}.{}", name(t), kind.name), shape, 0);
        // Of keys some documents have more, and some fewer, than of queries; tiles are of 64 or 128 rows.
        add_attention_and_backward(cases, suffix, t, attention, 333, {3, 150, 151, 325}, 300, {2, 3, 190, 290});
        if (attention.cap == 0 && kind.name == "bidirectional") {
          attention.cap = 2;
          add_attention_and_backward(cases, "capped." + suffix, t, attention, 333, {3, 150, 151, 325});
        }
      }
}

}  // namespace snug
