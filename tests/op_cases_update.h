// Cases of the update, of sums over ranks and of dropout.
#pragma once

#include "op_case.h"

namespace snug {

inline void add_dropout(OpCases& cases) {
  for (const DType t : kActivations)
    for (const double p : {0.0, 0.1, 0.9}) {
      const Shape shape{7, 333};
      const Dropout attrs{p, 42, 9};
      const RuntimeScalars runtime{.step = 5, .first_token = 13};
      const auto suffix = fmt::format("{}.p{}", name(t), p);
      cases.push_back({"dropout." + suffix,
                       attrs,
                       {in("x", t, shape, strewn({-0.0, kInfinity, kNaN}), 3), out("y", t, shape, 2)},
                       runtime,
                       1e-7,
                       0});
      cases.push_back(
          {"dropout.long." + suffix, attrs, {in("x", t, {9, 2501}), out("y", t, {9, 2501})}, runtime, 1e-7, 0});
    }
}

// Of three documents, one of a token, and padding behind them.
inline void add_embedding_noise(OpCases& cases) {
  for (const DType t : kActivations)
    for (const int64_t cols : {21, 264, 2504})
      for (const int64_t gap : {0, 8})
        cases.push_back({fmt::format("embedding_noise.{}.n{}{}", name(t), cols, gap > 0 ? ".strided" : ""),
                         EmbeddingNoise{5, 42},
                         {inout("x", t, {11, cols}, uniform(), gap),
                          in("documents", DType::I32, {6}, list(std::vector<double>{0, 3, 4, 9, 9, 9}))},
                         RuntimeScalars{.documents = 3, .step = 5, .tokens_before = 16},
                         1e-6,
                         1e-7});
}

inline void add_sums(OpCases& cases) {
  for (const DType t : kActivations)
    for (const int64_t n : {1, 4096, 3 * 4096 + 5})
      cases.push_back({fmt::format("norm_partials.{}.n{}", name(t), n),
                       NormPartials{},
                       {in("g", t, {n}), out("partial", DType::F32, {(n + kUnit - 1) / kUnit})},
                       {}});
  for (const DType t : kActivations)
    cases.push_back({fmt::format("norm_partials.{}.of_four", name(t)),
                     NormPartials{},
                     {in("g", t, {3}), in("g", t, {2 * 4096}), in("g", t, {4097}), in("g", t, {3 * 4096 + 5}),
                      out("partial", DType::F32, {9})},
                     {}});
  const auto clip = [&](std::string what, float max_norm, Filling partial, double loss) {
    cases.push_back({"clip_factor." + what,
                     ClipFactor{max_norm},
                     {in("partial", DType::F32, {1001}, std::move(partial)),
                      in("loss", DType::F32, {1}, list(std::vector{loss})), out("clip", DType::F32, {3})},
                     {}});
  };
  clip("clips", 1, uniform(0, 2), 3);
  clip("leaves_small_norms", 1, uniform(0, 1e-4), 3);
  clip("is_off_at_0", 0, uniform(0, 2), 3);
  clip("sees_infinity", 1, strewn({0, kInfinity}), 3);
  clip("sees_no_number_in_the_loss", 1, uniform(0, 2), kNaN);
  for (const int64_t count : {0, 1, 37, 63})
    cases.push_back({fmt::format("tree_sum.{}", count),
                     TreeSum{count},
                     {in("x", DType::F32, {7, 9}, uniform(0, 2), 4), out("sums", DType::F32, {1})},
                     {}});
  for (const int64_t count : {0, 8, 61, 63})
    cases.push_back({fmt::format("tree_sum.{}.by_blocks_of_8", count),
                     TreeSum{count, 8, 0.3f},
                     {in("x", DType::F32, {7, 9}, uniform(0, 2), 4), out("sums", DType::F32, {(count + 7) / 8})},
                     {}});
  for (const DType t : kActivations)
    for (const DType u : kActivations)
      for (const bool accumulate : {false, true})
        for (const Shape& shape : {Shape{1, 5}, Shape{3, 20011}})
          cases.push_back({fmt::format("sum_ranks.{}.to.{}.{}x{}{}", name(t), name(u), shape[0], shape[1],
                                       accumulate ? ".accumulate" : ""),
                           SumRanks{accumulate},
                           {in("parts", t, shape, uniform(), 8),
                            accumulate ? inout("sum", u, {shape[1]}) : out("sum", u, {shape[1]})},
                           {},
                           0,
                           3e-7});
}

inline void add_lion(OpCases& cases) {
  const auto lion = [&](std::string what, DType gradient, bool split, double finite, int64_t count) {
    const Shape n{count};
    OpCase c{"lion." + what, Lion{0.9, 0.99, 0.1, split}, {in("g", gradient, n)}, {.step = 7, .learning_rate = 1e-2}};
    c.relative = 1e-6, c.absolute = 1e-7;
    c.operands.push_back(inout("w", split ? DType::BF16 : DType::F32, n));
    if (split) c.operands.push_back(inout("lo", DType::I16, n, integers(-32768, 32768)));
    if (split) c.master = 1;
    c.operands.push_back(inout("m", DType::F32, n));
    c.operands.push_back(in("clip", DType::F32, {3}, list(std::vector{2.5, 0.4, finite})));
    cases.push_back(c);
  };
  for (const bool split : {false, true})
    for (const DType gradient : kActivations)
      for (const double finite : {1.0, 0.0})
        for (const int64_t count : {20011, 20016})
          lion(
              fmt::format("{}{}{}.n{}", name(gradient), split ? ".split" : "", finite != 0 ? "" : ".not_finite", count),
              gradient, split, finite, count);
}

inline void add_muon(OpCases& cases) {
  const RuntimeScalars runtime{.step = 7, .learning_rate = 1e-2};
  for (const DType t : kActivations)
    for (const int64_t count : {20011, 20016}) {
      const Shape n{count};
      for (const double sum : {2.5, 0.0})
        cases.push_back(
            {fmt::format("normalize.{}.n{}{}", name(t), count, sum > 0 ? "" : ".of_zeros"),
             Normalize{},
             {in("x", t, n, uniform(-1e-8, 1e-8)), in("sum", DType::F32, {1}, list(std::vector{sum})), out("y", t, n)},
             runtime,
             1e-6,
             1e-12});
      for (const double finite : {1.0, 0.0}) {
        const std::string what = fmt::format("{}{}.n{}", name(t), finite != 0 ? "" : ".not_finite", count);
        const auto clip = in("clip", DType::F32, {3}, list(std::vector{2.5, 0.4, finite}));
        cases.push_back({"momentum." + what,
                         Momentum{},
                         {in("g", t, n), inout("m", DType::F32, n), out("d", t, n), clip},
                         runtime,
                         1e-6,
                         1e-7});
        for (const bool split : {false, true}) {
          OpCase c{fmt::format("descend.{}{}", split ? "split." : "", what),
                   Descend{0.1, split, 0.5},
                   {in("u", t, n), inout("w", split ? DType::BF16 : DType::F32, n)},
                   runtime,
                   1e-6,
                   1e-7};
          if (split) c.operands.push_back(inout("lo", DType::I16, n, integers(-32768, 32768)));
          if (split) c.master = 1;
          c.operands.push_back(clip);
          cases.push_back(c);
        }
      }
    }
}

// Matrices of some rows, of many, and of one, by words and one by one.
inline void add_scaled_matrices(OpCases& cases) {
  const RuntimeScalars runtime{.step = 7};
  const auto positive = uniform(0.1, 2);
  const auto number = [](const char* of, double value) { return in(of, DType::F32, {1}, list(std::vector{value})); };
  const auto clip = [](double finite) { return in("clip", DType::F32, {3}, list(std::vector{2.5, 0.4, finite})); };
  for (const DType t : kActivations)
    for (const Shape& shape :
         {Shape{37, 129}, Shape{300, 64}, Shape{3, 5000}, Shape{1, 20016}, Shape{1, 1}, Shape{700, 8}})
      for (const double finite : {1.0, 0.0}) {
        const int64_t rows = shape.rows(), cols = shape.cols();
        const std::string what = fmt::format("{}.{}x{}{}", name(t), rows, cols, finite != 0 ? "" : ".not_finite");
        cases.push_back({"factored_means." + what,
                         FactoredMeans{},
                         {in("g", t, shape), inout("rows", DType::F32, {rows}, positive),
                          inout("columns", DType::F32, {cols}, positive), clip(finite)},
                         runtime,
                         2e-6,
                         1e-7});
        for (const auto& [by_rows, by_columns] : {std::pair(true, true), {true, false}, {false, true}}) {
          std::vector<CaseOperand> scales;
          if (by_rows) scales.push_back(in("row_scales", DType::F32, {rows}, positive));
          if (by_columns) scales.push_back(in("column_scales", DType::F32, {cols}, positive));
          const auto with = [&](const CaseOperand& first, const CaseOperand& then) {
            std::vector<CaseOperand> all = scales;
            all.insert(all.begin(), first);
            all.insert(all.end(), {then, clip(finite)});
            return all;
          };
          const std::string how = fmt::format("{}{}{}", by_rows ? "rows." : "", by_columns ? "columns." : "", what);
          cases.push_back({"scaled_squares." + how, ScaledSquares{by_rows, by_columns},
                           with(in("g", t, shape), out("squares", DType::F32, {rows})), runtime, 2e-6, 1e-6});
          cases.push_back({"scale_matrix." + how, ScaleMatrix{by_rows, by_columns},
                           with(inout("g", t, shape), number("factor", 0.3)), runtime, 2e-6, 1e-7});
        }
      }
  for (const auto& [rows, cols] : {std::pair(1, 1), std::pair(300, 7000)})
    cases.push_back(
        {fmt::format("factored_scales.{}x{}", rows, cols),
         FactoredScales{},
         {in("rows", DType::F32, {rows}, positive), in("columns", DType::F32, {cols}, positive), number("mean", 0.7),
          out("row_scales", DType::F32, {rows}), out("column_scales", DType::F32, {cols})},
         runtime,
         1e-6,
         1e-7});
  for (const double square : {0.5, 4.0})
    cases.push_back({fmt::format("square_limit.{}", square),
                     SquareLimit{1.5},
                     {number("square", square), out("factor", DType::F32, {1})},
                     runtime,
                     1e-6,
                     0});
  for (const auto& [n, r] : {std::pair(1, 1), std::pair(300, 1), std::pair(129, 256), std::pair(4000, 33)})
    for (const double finite : {1.0, 0.0})
      cases.push_back({fmt::format("projected_moments.{}x{}{}", n, r, finite != 0 ? "" : ".not_finite"),
                       ProjectedMoments{0.9, 0.99, 1e-6},
                       {in("low", DType::F32, {n, r}), inout("m", DType::F32, {n, r}),
                        inout("v", DType::F32, {n, r}, positive), out("squares", DType::F32, {2, n}), clip(finite)},
                       runtime,
                       2e-6,
                       1e-7});
  for (const int64_t k : {1, 300})
    cases.push_back({fmt::format("channel_scales.of{}", k),
                     ChannelScales{},
                     {in("squares", DType::F32, {2, k}, uniform(0, 2)), out("scales", DType::F32, {300})},
                     runtime,
                     1e-6,
                     1e-7});
  for (const double last : {0.0, 0.5, 2.0})
    for (const double finite : {1.0, 0.0})
      cases.push_back({fmt::format("growth_limit.after{}{}", last, finite != 0 ? "" : ".not_finite"),
                       GrowthLimit{4, 0.9, 0.99},
                       {number("square", 1.7), inout("last", DType::F32, {1}, list(std::vector{last})),
                        out("factor", DType::F32, {1}), clip(finite)},
                       runtime,
                       1e-6,
                       1e-7});
}

inline void add_schedule_free(OpCases& cases) {
  const auto weights = [](OpCase& c, bool split, const Shape& n) {
    c.operands.push_back(inout("w", split ? DType::BF16 : DType::F32, n));
    if (split) c.operands.push_back(inout("lo", DType::I16, n, integers(-32768, 32768)));
  };
  for (const bool split : {false, true})
    for (const int64_t count : {20011, 20016}) {
      const Shape n{count};
      for (const DType gradient : kActivations)
        for (const double finite : {1.0, 0.0}) {
          const std::string what =
              fmt::format("{}{}{}.n{}", name(gradient), split ? ".split" : "", finite != 0 ? "" : ".not_finite", count);
          OpCase c{"schedule_free_adamw." + what,
                   ScheduleFreeAdamW{0.9, 0.99, 1e-8, 0.1, split},
                   {in("g", gradient, n)},
                   {.step = 7, .learning_rate = 1e-2, .average_share = 0.3},
                   1e-6,
                   1e-7};
          weights(c, split, n);
          if (split) c.master = 1;
          c.operands.push_back(inout("d", DType::F32, n));
          c.operands.push_back(inout("v", DType::F32, n, uniform(0, 1)));
          c.operands.push_back(in("clip", DType::F32, {3}, list(std::vector{2.5, 0.4, finite})));
          cases.push_back(c);
        }
      OpCase c{fmt::format("schedule_free_average{}.n{}", split ? ".split" : "", count),
               ScheduleFreeAverage{0.9, split},
               {in("d", DType::F32, n)},
               {},
               1e-6,
               1e-7};
      weights(c, split, n);
      if (split) c.master = 1;
      cases.push_back(c);
    }
}

inline void add_adamw(OpCases& cases) {
  const auto adamw = [&](std::string what, DType gradient, bool split, const RuntimeScalars& runtime, double finite) {
    const Shape n{20011};
    OpCase c{"adamw." + what, AdamW{0.9f, 0.999f, 1e-8f, 0.1f, split}, {in("g", gradient, n)}, runtime, 1e-6, 1e-7};
    if (split) c.operands.push_back(inout("w", DType::BF16, n));
    if (split) c.operands.push_back(inout("lo", DType::I16, n, integers(-32768, 32768)));
    if (split) c.master = 1;
    if (!split) c.operands.push_back(inout("w", DType::F32, n));
    c.operands.push_back(inout("m", DType::F32, n));
    c.operands.push_back(inout("v", DType::F32, n, uniform(0, 1)));
    c.operands.push_back(in("clip", DType::F32, {3}, list(std::vector{2.5, 0.4, finite})));
    cases.push_back(c);
  };
  for (const bool split : {false, true})
    for (const DType gradient : kActivations) {
      const auto suffix = fmt::format("{}{}", name(gradient), split ? ".split" : "");
      adamw(suffix, gradient, split, {.step = 7, .learning_rate = 1e-2f}, 1);
      adamw(suffix + ".first_step", gradient, split, {.step = 1, .learning_rate = 1e-2f}, 1);
      adamw(suffix + ".not_finite", gradient, split, {.step = 7, .learning_rate = 1e-2f}, 0);
    }
  // Rounding by random bits and codes is all or nothing: here the reference follows every rounding of the step.
  const auto reduced = [&](std::string what, DType gradient, DType weight, bool split, StateFormat format,
                           double finite, int64_t count = 20011) {
    const Shape n{count}, blocks{(count + kStateBlock - 1) / kStateBlock};
    const AdamW attrs{0.9, 0.999, 1e-8, 0.1, split, format, 77, 3, 4096};
    OpCase c{"adamw." + what, attrs, {in("g", gradient, n)}, {.step = 7, .learning_rate = 1e-2}, 0, 0};
    c.operands.push_back(inout("w", weight, n));
    if (split) c.operands.push_back(inout("lo", DType::I16, n, integers(-32768, 32768)));
    const bool bit8 = format == StateFormat::Bit8;
    const DType kept = bit8 ? DType::U8 : DType::BF16;
    c.operands.push_back(inout("m", kept, n, bit8 ? integers(0, 256) : uniform()));
    c.operands.push_back(inout("v", kept, n, bit8 ? integers(0, 256) : uniform(0, 1)));
    if (bit8) c.operands.push_back(inout("m_scales", DType::F32, blocks, list(std::vector{0.5, 0.0, 1e-20, 3.0})));
    if (bit8) c.operands.push_back(inout("v_scales", DType::F32, blocks, list(std::vector{0.25, 7.0, 0.0, 1e-30})));
    c.operands.push_back(in("clip", DType::F32, {3}, list(std::vector{2.5, 0.4, finite})));
    cases.push_back(c);
  };
  for (const DType gradient : kActivations)
    for (const double finite : {0.0, 1.0}) {
      const auto suffix = fmt::format("{}{}", name(gradient), finite != 0 ? "" : ".not_finite");
      reduced("bf16_state." + suffix, gradient, DType::F32, false, StateFormat::Bf16, finite);
      reduced("bf16_state.split." + suffix, gradient, DType::BF16, true, StateFormat::Bf16, finite);
      reduced("bit8_state." + suffix, gradient, DType::BF16, false, StateFormat::Bit8, finite);
      reduced("bit8_state.fp32_weight." + suffix, gradient, DType::F32, false, StateFormat::Bit8, finite);
    }
  // More blocks than all warps of a GPU take at once.
  reduced("bit8_state.bf16.long", DType::BF16, DType::BF16, false, StateFormat::Bit8, 1, (1 << 20) + 5);
  reduced("bit8_state.bf16.rate_0", DType::BF16, DType::BF16, false, StateFormat::Bit8, 1);
  cases.back().runtime.learning_rate = 0;
  // What a file may have brought.
  reduced("bit8_state.bf16.strange_scales", DType::BF16, DType::BF16, false, StateFormat::Bit8, 1);
  const std::vector<double> strange{kNaN, kInfinity, -1, -0x1p-100, 3e38, 0.5, -0.0};
  for (CaseOperand& operand : cases.back().operands)
    if (operand.name == "m_scales" || operand.name == "v_scales") operand.fill = list(strange);
  reduced("bit8_state.bf16.strange_numbers", DType::BF16, DType::BF16, false, StateFormat::Bit8, 1);
  for (CaseOperand& operand : cases.back().operands)
    if (operand.name == "g" || operand.name == "w") operand.fill = strewn({-0.0, kInfinity, 3e38, kNaN, 0.25});
  for (const DType gradient : kActivations) {  // several numbers to a thread
    const auto suffix = fmt::format("{}.groups", name(gradient));
    reduced("bf16_state." + suffix, gradient, DType::F32, false, StateFormat::Bf16, 1, 20016);
    reduced("bf16_state.split." + suffix, gradient, DType::BF16, true, StateFormat::Bf16, 1, 20016);
    reduced("bit8_state." + suffix, gradient, DType::BF16, false, StateFormat::Bit8, 1, 20016);
  }
}

}  // namespace snug
