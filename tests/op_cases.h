// One list of cases for every op kind, for every backend. op_runner.h runs them.
//
// To add an op: its reference in ref/reference.h, a function of its cases here or in an op_cases_*.h, a line in
// op_cases().
#pragma once

#include <numeric>

#include "op_case.h"
#include "op_cases_attention.h"
#include "op_cases_distillation.h"
#include "op_cases_dora.h"
#include "op_cases_norm.h"
#include "op_cases_products.h"
#include "op_cases_quantize.h"
#include "op_cases_update.h"

namespace snug {

// ---- Rope
// ----------------------------------------------------------------------------------------------------------------

inline void add_rope(OpCases& cases) {
  // Angles are rounded to fp32, so that those at position p may be off by p 2^-24.
  const std::vector<float> frequencies{1, 0.3f, 0.1f, 0.03f, 0.01f};
  cases.push_back({"rope_table", RopeTable{frequencies}, {out("table", DType::F32, {65, 10})}, {}, 0, 64 * 0x1p-24});
  cases.push_back({"rope_table.magnitude",
                   RopeTable{frequencies, 1.2f},
                   {out("table", DType::F32, {300, 10}, 4)},
                   {},
                   0,
                   300 * 0x1p-23});
  cases.push_back({"rope_table.growth",
                   RopeTable{frequencies, 1.2f, 0.3f, 7},
                   {out("table", DType::F32, {100, 10})},
                   {},
                   0,
                   200 * 0x1p-24});
  // More columns than heads have: those of sines that are added.
  std::vector<float> many(700);
  for (size_t i = 0; i < many.size(); i++) many[i] = 1 / (1 + static_cast<float>(i));
  cases.push_back({"rope_table.wide", RopeTable{many}, {out("table", DType::F32, {33, 1400})}, {}, 0, 32 * 0x1p-24});
  for (const DType t : kActivations)
    for (const bool backward : {false, true}) {
      cases.push_back({fmt::format("rope.{}.{}", name(t), backward ? "backward" : "forward"),
                       Rope{10, backward},
                       {inout("x", t, {11, 40}, uniform(), 2), in("positions", DType::I32, {11}, integers(0, 9)),
                        in("table", DType::F32, {9, 10})},
                       {}});
      // Part of a head turns, or neighbours: in elements alone, and in groups of them.
      for (const bool interleaved : {false, true})
        for (const auto& [dim, turned] : {std::pair(10, 6), std::pair(10, 10), std::pair(32, 16), std::pair(64, 64)})
          if (interleaved || turned < dim)
            cases.push_back({fmt::format("rope.{}.{}.{}of{}.{}", name(t), interleaved ? "neighbours" : "halves", turned,
                                         dim, backward ? "backward" : "forward"),
                             Rope{dim, backward, interleaved},
                             {inout("x", t, {11, 4 * dim}, uniform()),
                              in("positions", DType::I32, {11}, integers(0, 9)), in("table", DType::F32, {9, turned})},
                             {}});
      // Positions of two axes and of three: pairs in groups, and alone.
      for (const auto& [dim, pairs] : {std::pair(80, RopeAxes{{20, 20}}), std::pair(128, RopeAxes{{16, 24, 24}}),
                                       std::pair(14, RopeAxes{{3, 2, 2}})})
        cases.push_back(
            {fmt::format("rope.{}.{}axes.of{}.{}", name(t), pairs.count(), dim, backward ? "backward" : "forward"),
             Rope{dim, backward, false, pairs},
             {inout("x", t, {11, 3 * dim}, uniform()), in("positions", DType::I32, {pairs.count(), 11}, integers(0, 9)),
              in("table", DType::F32, {9, dim})},
             {}});
    }
}

// ---- Row-wise and element-wise --------------------------------------------------------------------------------------

inline void add_transpose(OpCases& cases) {
  for (const Shape& shape : {Shape{5, 7}, Shape{64, 64}, Shape{72, 200}, Shape{131, 264}})
    cases.push_back({fmt::format("transpose.{}x{}", shape[0], shape[1]),
                     Transpose{},
                     {in("x", DType::U8, shape, integers(0, 256), 8), out("y", DType::U8, {shape[1], shape[0]}, 16)},
                     {},
                     0,
                     0});
}

// Wider and narrower, by groups of elements and one by one, over numbers that are no zeros.
inline void add_fit_columns(OpCases& cases) {
  for (const DType t : kActivations)
    for (const auto& [n, k] : {std::pair(12, 16), std::pair(16, 12), std::pair(3, 8), std::pair(8, 8), std::pair(9, 1),
                               std::pair(4000, 4096), std::pair(4096, 3000)})
      for (const int64_t rows : {1, 3, 517})
        cases.push_back({fmt::format("fit_columns.{}.{}to{}.of{}", name(t), n, k, rows),
                         FitColumns{},
                         {in("x", t, {rows, n}, strewn({kInfinity, -0.0, kNaN}), 4), out("y", t, {rows, k}, 8)},
                         {},
                         0,
                         0});
}

inline void add_norm(OpCases& cases) {
  for (const DType t : kActivations)
    for (const Shape& shape :
         {Shape{1, 1}, Shape{7, 72}, Shape{67, 33}, Shape{3, 4096}, Shape{3, 5000}, Shape{33000, 8}}) {
      const int64_t rows = shape[0], n = shape[1];
      const auto suffix = fmt::format("{}.{}x{}", name(t), rows, n);
      for (const bool plus_one : {false, true})
        cases.push_back({fmt::format("rms_norm.{}{}", suffix, plus_one ? ".plus_one" : ""),
                         RmsNorm{1e-5f, plus_one},
                         {in("x", t, shape, uniform(-3, 3), 7), in("gain", t, {n}), out("y", t, shape),
                          out("rstd", DType::F32, {rows})},
                         {}});
      for (const auto& [accumulate, restore] : {std::pair(false, false), {true, false}, {true, true}})
        for (const bool gain : {false, true}) {
          if (rows > 1000 && !(gain && accumulate && !restore)) continue;  // more rows than a part of the sum has
          OpCase c{fmt::format("rms_norm_backward.{}{}{}{}", suffix, accumulate ? ".accumulate" : "",
                               gain ? ".gain" : "", restore ? ".restore" : ""),
                   RmsNormBackward{accumulate, gain, restore},
                   {restore ? inout("dy", t, shape) : in("dy", t, shape), in("x", t, shape, uniform(-3, 3)),
                    in("gain", t, {n}), in("rstd", DType::F32, {rows}, uniform(0.5, 2)),
                    accumulate ? inout("dx", t, shape) : out("dx", t, shape)},
                   {},
                   4e-6,
                   1e-4};  // rstd here is not x's own: terms up to 100 cancel
          if (gain) c.operands.push_back(out("dgain", DType::F32, {n}));
          cases.push_back(c);
          c.name += ".plus_one";
          std::get<RmsNormBackward>(c.attrs).plus_one = true;
          cases.push_back(c);
        }
    }
  for (const DType t : kActivations)
    for (const auto& [heads, n] : {std::pair<int64_t, int64_t>{3, 5}, {4, 128}, {1, 300}}) {
      const Shape shape{37, heads * n};
      const auto suffix = fmt::format("{}.{}x{}heads{}", name(t), 37, heads, n);
      const auto x = in("x", t, shape, uniform(-3, 3), 7), gain = in("gain", t, {n});
      for (const bool plus_one : {false, true})
        cases.push_back({fmt::format("rms_norm.{}{}", suffix, plus_one ? ".plus_one" : ""),
                         RmsNorm{1e-5f, plus_one},
                         {x, gain, out("y", t, shape, 3), out("rstd", DType::F32, {37 * heads})},
                         {}});
      for (const bool trained : {false, true}) {
        OpCase c{fmt::format("rms_norm_backward.{}{}", suffix, trained ? ".gain" : ""),
                 RmsNormBackward{false, trained},
                 {in("dy", t, shape), x, gain, in("rstd", DType::F32, {37 * heads}, uniform(0.5, 2)),
                  out("dx", t, shape, 5)},
                 {},
                 4e-6,
                 1e-4};
        if (trained) c.operands.push_back(out("dgain", DType::F32, {n}));
        cases.push_back(c);
        c.name += ".plus_one";
        std::get<RmsNormBackward>(c.attrs).plus_one = true;
        cases.push_back(c);
      }
    }
  cases.push_back({"rms_norm.zeros",
                   RmsNorm{1e-5f},
                   {in("x", DType::F32, {2, 8}, list(std::vector<double>{0})), in("gain", DType::F32, {8}),
                    out("y", DType::F32, {2, 8}), out("rstd", DType::F32, {2})},
                   {}});
}

inline void add_pointwise(OpCases& cases) {
  // Where e^-x overflows or vanishes the limits are 0 and x.
  const Filling gates = strewn({0, -100, 100, -88.5, 88.5, -1e4, 1e4});
  for (const DType t : kActivations) {
    for (const Activation activation : kAllActivations) {
      const auto suffix = fmt::format("{}.{}", name(t), word(activation));
      for (const Shape& shape : {Shape{9, 35}, Shape{16, 1032}}) {
        const auto size = fmt::format("{}.{}x{}", suffix, shape[0], shape[1]);
        cases.push_back(
            {"activate." + size, Activate{activation}, {in("x", t, shape, gates, 8), out("h", t, shape)}, {}});
        for (const bool restore : {false, true})
          cases.push_back({fmt::format("activate_backward.{}{}", size, restore ? ".restore" : ""),
                           ActivateBackward{restore, activation},
                           {restore ? inout("dh", t, shape, uniform(), 8) : in("dh", t, shape, uniform(), 8),
                            in("x", t, shape, gates), out("dx", t, shape, 8)},
                           {},
                           2e-5});
      }
      cases.push_back(
          {"swiglu." + suffix, SwiGlu{activation}, {in("gate_up", t, {9, 70}, gates, 1), out("h", t, {9, 35}, 2)}, {}});
      for (const bool restore : {false, true})
        cases.push_back({fmt::format("swiglu_backward.{}{}", suffix, restore ? ".restore" : ""),
                         SwiGluBackward{restore, activation},
                         {restore ? inout("dh", t, {9, 35}, uniform(), 1) : in("dh", t, {9, 35}, uniform(), 1),
                          in("gate_up", t, {9, 70}, gates), out("dgate_up", t, {9, 70}, 3)},
                         {},
                         2e-5});
    }
    cases.push_back({fmt::format("column_sum.{}", name(t)),
                     ColumnSum{},
                     {in("x", t, {203, 150}, uniform(), 9), out("sum", t, {150})},
                     {}});
    for (const Shape& shape : {Shape{5, 33}, Shape{40, 4096}}) {
      const auto suffix = fmt::format("{}.{}x{}", name(t), shape[0], shape[1]);
      cases.push_back({"rescale." + suffix, Rescale{0.22f}, {in("x", t, shape, uniform(), 3), out("y", t, shape)}, {}});
      cases.push_back({"rescale.addend." + suffix,
                       Rescale{0.22f, true},
                       {in("x", t, shape), in("c", t, shape, uniform(), 2), out("y", t, shape)},
                       {}});
    }
    for (const DType u : kActivations) {
      cases.push_back({fmt::format("accumulate.{}.to.{}", name(t), name(u)),
                       Accumulate{},
                       {in("x", t, {5, 33}), inout("sum", u, {5, 33}, uniform(), 3)},
                       {},
                       1e-7,
                       0});
      for (const int64_t cols : {33, 264})
        cases.push_back({fmt::format("accumulate.{}.to.{}.repeated.{}", name(t), name(u), cols),
                         Accumulate{},
                         {in("x", t, {3, cols}, uniform(), 8), inout("sum", u, {15, cols})},
                         {},
                         1e-7,
                         1e-7});
      cases.push_back({fmt::format("accumulate.{}.to.{}.long", name(t), name(u)),
                       Accumulate{},
                       {in("x", t, {40001}), inout("sum", u, {40001})},
                       {},
                       1e-7,
                       1e-7});
    }
  }
}

inline void add_conversions(OpCases& cases) {
  const std::array floats{DType::F32, DType::BF16, DType::F16};
  // Ties of both kinds, the largest of each format and what rounds beyond it, subnormals, signed zero, no numbers.
  const Filling edges = strewn({0.0, -0.0, 1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 1 + 0x3p-11, 65504, 65520, 3.4e38,
                                -3.4e38, 0x1p-24, 0x1p-25, 0x3p-25, 0x1p-133, 0x1p-149, kInfinity, -kInfinity, kNaN});
  for (const DType from : floats)
    for (const DType to : floats) {
      cases.push_back({fmt::format("cast.{}.to.{}", name(from), name(to)),
                       Cast{},
                       {in("x", from, {7, 45}, edges, 2), out("y", to, {7, 45})},
                       {},
                       0,
                       0});
      cases.push_back({fmt::format("cast.{}.to.{}.from_any_byte", name(from), name(to)),
                       Cast{},
                       {in("x", from, {20011}, edges), out("y", to, {20011})},
                       {},
                       0,
                       0});
      cases.back().operands[0].shift = 3;
    }
  for (const DType t : {DType::F32, DType::BF16, DType::F16, DType::I32, DType::I16, DType::U8}) {
    cases.push_back({fmt::format("copy.{}", name(t)),
                     Copy{},
                     {in("x", t, {6, 11}, integers(0, 100), 1), out("y", t, {6, 11}, 2)},
                     {},
                     0,
                     0});
    cases.push_back({fmt::format("fill.{}", name(t)), Fill{}, {out("x", t, {6, 11}, 3)}, {}, 0, 0});
  }
  for (const DType t : floats)
    cases.push_back({fmt::format("split_master.{}", name(t)),
                     SplitMaster{},
                     {in("x", t, {5003}, edges), out("hi", DType::BF16, {5003}), out("lo", DType::I16, {5003})},
                     {},
                     0,
                     0});
  cases.push_back({"join_master",
                   JoinMaster{},
                   {in("hi", DType::BF16, {5003}, strewn({1, -1, 0x1p-126, 3e38})),
                    in("lo", DType::I16, {5003}, integers(-32768, 32768)), out("x", DType::F32, {5003})},
                   {},
                   0,
                   0});
  for (const DType t : kActivations) {
    cases.push_back({fmt::format("random_fill.{}.normal", name(t)),
                     RandomFill{Distribution::Normal, 0.02f, 42, 7, 3},
                     {out("x", t, {333})},
                     {},
                     1e-7,
                     0});
    cases.push_back({fmt::format("random_fill.{}.normal.every", name(t)),
                     RandomFill{Distribution::Normal, 0.02f, 42, 7, 3, 5},
                     {out("x", t, {333})},
                     {.step = 11},
                     1e-7,
                     0});
    cases.push_back({fmt::format("random_fill.{}.uniform", name(t)),
                     RandomFill{Distribution::Uniform, 0.25f, uint64_t{1} << 40, 1, (uint64_t{1} << 34) + 1},
                     {out("x", t, {20000})},
                     {},
                     1e-7,
                     0});
    cases.push_back({fmt::format("random_fill.{}.constant", name(t)),
                     RandomFill{Distribution::Constant, 1.5f, 42, 7, 0},
                     {out("x", t, {333})},
                     {},
                     0,
                     0});
  }
}

// ---- Embedding and head ---------------------------------------------------------------------------------------------

// Order, segment starts and segment ids of tokens, as the batcher makes them.
struct SortedTokens {
  explicit SortedTokens(const std::vector<int32_t>& tokens)
      : order(tokens.size()), starts(tokens.size() + 1), ids(tokens.size()) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return ref::at(tokens, a) < ref::at(tokens, b); });
    for (size_t i = 0; i < order.size(); i++) {
      const int32_t id = ref::at(tokens, order[i]);
      if (i > 0 && ids[segments - 1] == id) continue;
      starts[segments] = static_cast<int32_t>(i);
      ids[segments++] = id;
    }
    starts[segments] = static_cast<int32_t>(order.size());
  }
  std::vector<int32_t> order, starts, ids;
  size_t segments = 0;
};

// Tokens of which so many have ids 0, 1, 2, ..., strewn.
inline std::vector<int32_t> tokens_of(const std::vector<int64_t>& counts) {
  std::vector<int32_t> tokens;
  for (size_t id = 0; id < counts.size(); id++)
    tokens.insert(tokens.end(), static_cast<size_t>(counts[id]), static_cast<int32_t>(id));
  Numbers numbers(7);
  for (size_t i = tokens.size(); i > 1; i--) std::swap(tokens[i - 1], tokens[numbers.bits() % i]);
  return tokens;
}

// Runs of equal ids around kLongRun, of which more make lanes; one of all tokens of a large pass.
inline void add_long_runs(OpCases& cases) {
  const std::vector<std::vector<int64_t>> runs{
      {255, 1, 256, 257, 0, 2, 300, 1000}, {kLongRun + 1}, {3, 4 * kLongRun, 1}, {131072}};
  for (const DType t : kActivations)
    for (const std::vector<int64_t>& counts : runs)
      for (const int64_t cols : {int64_t{8}, int64_t{39}, int64_t{600}})
        for (const bool accumulate : {false, true}) {
          const std::vector<int32_t> tokens = tokens_of(counts);
          const auto n = std::ssize(tokens);
          if (n > 10000 && (cols != 8 || accumulate)) continue;
          const SortedTokens sorted(tokens);
          const Shape table{std::ssize(counts) + 1, cols};
          cases.push_back({fmt::format("embedding_backward.{}.runs{}of{}x{}{}", name(t), counts.size(), n, cols,
                                       accumulate ? ".accumulate" : ""),
                           EmbeddingBackward{accumulate},
                           {in("dx", t, {n, cols}), in("token_order", DType::I32, {n}, list(sorted.order)),
                            in("segment_starts", DType::I32, {n + 1}, list(sorted.starts)),
                            in("segment_ids", DType::I32, {n}, list(sorted.ids)),
                            accumulate ? inout("dtable", DType::F32, table) : out("dtable", DType::F32, table)},
                           RuntimeScalars{.segments = static_cast<int64_t>(sorted.segments)},
                           4e-6,
                           n > 10000 ? 3e-4 : 4e-5});
        }
}

inline void add_embedding(OpCases& cases) {
  const std::vector<int32_t> tokens{3, 0, 12, 3, 3, 7, 0, 3, 12, 5, 3};
  const SortedTokens sorted(tokens);
  const auto t11 = static_cast<int64_t>(tokens.size());
  const std::vector<double> rows{4, -1, 0, 10, -1, 7};
  for (const DType t : kActivations)
    for (const DType u : kActivations) {
      cases.push_back(
          {fmt::format("embedding.{}.to.{}", name(t), name(u)),
           Embedding{},
           {in("ids", DType::I32, {t11}, list(tokens)), in("table", t, {13, 39}), out("x", u, {t11, 39}, 1)},
           {},
           0,
           0});
      for (const bool patches : {false, true})
        for (const bool accumulate : {false, true}) {
          RuntimeScalars facts;
          (patches ? facts.patch_segments : facts.segments) = static_cast<int64_t>(sorted.segments);
          cases.push_back({fmt::format("embedding_backward.{}.to.{}{}{}", name(t), name(u),
                                       accumulate ? ".accumulate" : "", patches ? ".patches" : ""),
                           EmbeddingBackward{accumulate, patches},
                           {in("dx", t, {t11, 600}), in("token_order", DType::I32, {t11}, list(sorted.order)),
                            in("segment_starts", DType::I32, {t11 + 1}, list(sorted.starts)),
                            in("segment_ids", DType::I32, {t11}, list(sorted.ids)),
                            accumulate ? inout("dtable", u, {13, 600}) : out("dtable", u, {13, 600})},
                           facts});
        }
    }
  add_long_runs(cases);
  for (const DType t : kActivations) {
    cases.push_back(
        {fmt::format("gather_rows.{}", name(t)),
         GatherRows{},
         {in("x", t, {11, 21}, uniform(), 2), in("rows", DType::I32, {6}, list(rows)), out("y", t, {6, 21}, 1)},
         {},
         0,
         0});
    for (const int64_t cols : {21, 264})
      for (const auto& [how, word] : {std::pair(Scatter::OverZeros, ""), std::pair(Scatter::Replace, ".replace"),
                                      std::pair(Scatter::Add, ".add")})
        cases.push_back(
            {fmt::format("scatter_rows.{}.{}{}", name(t), cols, word),
             ScatterRows{how},
             {in("y", t, {6, cols}, uniform(), 8), in("rows", DType::I32, {6}, list(rows)),
              how == Scatter::OverZeros ? out("x", t, {11, cols}, 8) : inout("x", t, {11, cols}, uniform(), 8)},
             {},
             0,
             how == Scatter::Add ? 1e-7 : 0});
  }
}

// Squares as large, of which all places are at the edge, and whose sides are no multiples.
inline void add_resizes(OpCases& cases) {
  for (const DType t : kActivations)
    for (const DType u : kActivations)
      for (const auto& [from, to] : {std::pair<int64_t, int64_t>{3, 3}, {1, 4}, {2, 5}, {7, 16}, {16, 32}})
        for (const int64_t kept : {0, 1})
          for (const bool antialias : {false, true}) {
            const int64_t cols = from == 7 ? 264 : 13, small = kept + from * from, large = kept + to * to;
            const auto suffix = fmt::format("{}.to.{}.{}.to.{}.behind.{}{}", name(t), name(u), from, to, kept,
                                            antialias ? ".antialias" : "");
            const ResizeRows resize{from, to, kept, antialias};
            cases.push_back({"resize_rows." + suffix,
                             resize,
                             {in("x", t, {small, cols}, uniform(), 8), out("y", u, {large, cols}, 8)},
                             {},
                             1e-6,
                             1e-6});
            cases.push_back({"resize_rows_backward." + suffix,
                             ResizeRowsBackward{resize},
                             {in("dy", t, {large, cols}, uniform(), 8), out("dx", u, {small, cols}, 8)},
                             {},
                             1e-6,
                             4e-6});
          }
}

inline void add_loss(OpCases& cases) {
  for (const DType t : kActivations)
    for (const bool gradient : {false, true})
      for (const int64_t vocabulary : {1, 997, 20011}) {
        // Row 3 of this chunk is row 8 of the pass, the first without a target.
        const RuntimeScalars runtime{.loss_rows = 8, .loss_scale = 0.125f};
        cases.push_back({fmt::format("cross_entropy.{}.v{}{}", name(t), vocabulary, gradient ? ".gradient" : ""),
                         CrossEntropy{5, gradient},
                         {inout("logits", t, {4, vocabulary}, uniform(-15, 15), 2),
                          in("targets", DType::I32, {4}, integers(0, vocabulary)),
                          in("weights", DType::F32, {4}, uniform(-1, 2)), out("loss", DType::F32, {4})},
                         runtime,
                         1e-5,
                         1e-7});
        if (vocabulary == 997)  // sums of exponentials overflow without the maximum taken off
          cases.push_back({fmt::format("cross_entropy.{}.large{}", name(t), gradient ? ".gradient" : ""),
                           CrossEntropy{0, gradient},
                           {inout("logits", t, {2, vocabulary}, strewn({1000, 1010, -1e4, -1e30})),
                            in("targets", DType::I32, {2}, integers(0, vocabulary)),
                            in("weights", DType::F32, {2}, uniform(-1, 2)), out("loss", DType::F32, {2})},
                           runtime,
                           1e-5,
                           1e-7});
      }
  for (const DType t : kActivations)
    for (const bool gradient : {false, true})
      cases.push_back(
          {fmt::format("cross_entropy.{}.capped{}", name(t), gradient ? ".gradient" : ""),
           CrossEntropy{0, gradient, 6.0f},
           {inout("logits", t, {4, 4104}, uniform(-15, 15), 8), in("targets", DType::I32, {4}, integers(0, 4104)),
            in("weights", DType::F32, {4}, uniform(-1, 2)), out("loss", DType::F32, {4})},
           RuntimeScalars{.loss_rows = 3, .loss_scale = 0.125f},
           1e-5,
           1e-6});
  // Label smoothing and z-loss, each alone and both, under a cap too.
  for (const DType t : kActivations)
    for (const bool gradient : {false, true})
      for (const auto& [cap, smoothing, z_loss] :
           {std::tuple(0.0f, 0.125f, 0.0f), {0.0f, 0.0f, 0.01f}, {0.0f, 0.25f, 0.01f}, {6.0f, 0.25f, 0.01f}})
        cases.push_back(
            {fmt::format("cross_entropy.{}.terms{}{}{}{}", name(t), cap > 0 ? ".capped" : "",
                         smoothing > 0 ? ".smoothing" : "", z_loss > 0 ? ".z_loss" : "", gradient ? ".gradient" : ""),
             CrossEntropy{0, gradient, cap, smoothing, z_loss},
             {inout("logits", t, {4, 4104}, uniform(-15, 15), 8), in("targets", DType::I32, {4}, integers(0, 4104)),
              in("weights", DType::F32, {4}, uniform(-1, 2)), out("loss", DType::F32, {4})},
             RuntimeScalars{.loss_rows = 3, .loss_scale = 0.125f},
             1e-5,
             1e-6});
  cases.push_back({"soft_cap", SoftCap{30}, {inout("x", DType::F32, {1, 997}, uniform(-90, 90))}, {}, 4e-6, 1e-5});
  // Rows that several threads' groups, and several blocks of threads, share.
  for (const bool gradient : {false, true})
    for (const int64_t vocabulary : {4104, 70008, 263000})
      cases.push_back(
          {fmt::format("cross_entropy.bf16.groups.v{}{}", vocabulary, gradient ? ".gradient" : ""),
           CrossEntropy{0, gradient},
           {inout("logits", DType::BF16, {3, vocabulary}, uniform(-15, 15), 8),
            in("targets", DType::I32, {3}, list(std::vector<double>{0, static_cast<double>(vocabulary - 1), 9})),
            in("weights", DType::F32, {3}, uniform(-1, 2)), out("loss", DType::F32, {3})},
           RuntimeScalars{.loss_rows = 2, .loss_scale = 0.125f},
           1e-5,
           1e-7});
  // More rows than are worked on at the same time.
  cases.push_back({"cross_entropy.bf16.rows",
                   CrossEntropy{0, true},
                   {inout("logits", DType::BF16, {900, 4104}, uniform(-15, 15), 8),
                    in("targets", DType::I32, {900}, integers(0, 4104)),
                    in("weights", DType::F32, {900}, uniform(-1, 2)), out("loss", DType::F32, {900})},
                   RuntimeScalars{.loss_rows = 890, .loss_scale = 0.125f},
                   1e-5,
                   1e-7});
  for (const bool accumulate : {false, true})
    cases.push_back({fmt::format("loss_sum{}", accumulate ? ".accumulate" : ""),
                     LossSum{accumulate},
                     {in("loss", DType::F32, {300}, uniform(0, 12)),
                      accumulate ? inout("sum", DType::F32, {1}) : out("sum", DType::F32, {1})},
                     RuntimeScalars{.loss_rows = 257},
                     1e-7,
                     0});
}

inline OpCases op_cases() {
  OpCases cases;
  add_gemm(cases);
  add_fp8_gemm(cases);
  add_adapted(cases);
  add_swiglu_gemm(cases);
  add_swiglu_codes(cases);
  add_transpose(cases);
  add_fit_columns(cases);
  add_attention(cases);
  add_capped_attention(cases);
  add_long_attention(cases);
  add_attention_of_large_scores(cases);
  add_other_attention(cases);
  add_rope(cases);
  add_norm(cases);
  add_dora(cases);
  add_layer_norms(cases);
  add_pointwise(cases);
  add_conversions(cases);
  add_embedding(cases);
  add_resizes(cases);
  add_loss(cases);
  add_distillation(cases);
  add_quantize(cases);
  add_dropout(cases);
  add_embedding_noise(cases);
  add_sums(cases);
  add_adamw(cases);
  add_lion(cases);
  add_muon(cases);
  add_scaled_matrices(cases);
  add_schedule_free(cases);
  return cases;
}

}  // namespace snug
