// Cases of products: by themselves, of codes in fp8, with a low-rank adapter, with SwiGLU.
#pragma once

#include "backend/cuda/facts.h"
#include "op_case.h"
#include "program/adapter.h"

namespace snug {

inline void add_gemm(OpCases& cases) {
  for (const DType t : kActivations) {
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        cases.push_back({fmt::format("gemm.{}.ta{:d}.tb{:d}", name(t), ta, tb),
                         Gemm{.transpose_a = ta, .transpose_b = tb, .alpha = 0.5f},
                         {in("a", t, ta ? Shape{13, 7} : Shape{7, 13}), in("b", t, tb ? Shape{5, 13} : Shape{13, 5}),
                          out("d", t, {7, 5})},
                         {}});
    cases.push_back({fmt::format("gemm.{}.addend_and_bias", name(t)),
                     Gemm{.transpose_b = true, .addend = true, .bias = true},
                     {in("a", t, {9, 24}, uniform(), 3), in("b", t, {17, 24}, uniform(), 5), in("c", t, {9, 17}),
                      in("bias", t, {17}), out("d", t, {9, 17}, 6)},
                     {}});
    cases.push_back(
        {fmt::format("gemm.{}.fp32_result", name(t)),
         Gemm{.transpose_a = true, .addend = true},
         {in("a", t, {33, 8}), in("b", t, {33, 9}), in("c", DType::F32, {8, 9}), out("d", DType::F32, {8, 9})},
         {}});
    for (const int64_t k : {8, 16, 48})  // adapters' ranks
      for (const bool tb : {false, true})
        cases.push_back(
            {fmt::format("gemm.{}.rank{}.tb{:d}", name(t), k, tb),
             Gemm{.transpose_b = tb, .alpha = 2, .addend = tb},
             tb ? std::vector{in("a", t, {150, k}, uniform(), 16), in("b", t, {288, k}), in("c", t, {150, 288}),
                              out("d", t, {150, 288}, 8)}
                : std::vector{in("a", t, {150, k}), in("b", t, {k, 288}, uniform(), 8), out("d", t, {150, 288})},
             {}});
  }
}

inline void add_fp8_gemm(OpCases& cases) {
  const Filling codes = [](ref::Tensor& x, Numbers& numbers) {  // any but those that say NaN
    integers(0, 254)(x, numbers);
    for (double& code : x.values) code += code >= 0x7f ? 1 : 0;
  };
  const Filling scales = uniform(1e-3, 2e-2);
  const DType u8 = DType::U8, bf16 = DType::BF16, f32 = DType::F32;
  const auto add = [&](std::string what, const Shape& a, int64_t n, bool addend, bool bias) {
    const int64_t m = a[0], k = a[1];
    std::vector<CaseOperand> operands{in("a", u8, a, codes), in("a_scales", f32, {m}, scales),
                                      in("b", u8, {n, k}, codes), in("b_scales", f32, {n}, scales)};
    if (addend) operands.push_back(in("c", bf16, {m, n}));
    if (bias) operands.push_back(in("bias", bf16, {n}));
    operands.push_back(out("d", bf16, {m, n}, 16));
    // Sums of products of up to (448 x 2e-2)^2, each rounded to 2^-12 of the largest so far; results are around 16.
    cases.push_back({"fp8_gemm." + what, Fp8Gemm{addend, bias}, operands, {}, 4e-6, 0.15});
  };
  add("plain", {37, 64}, 48, false, false);
  add("one_row", {1, 32}, 16, false, false);
  add("addend", {64, 160}, 96, true, false);
  add("bias", {33, 96}, 64, false, true);
  add("addend_and_bias", {129, 256}, 144, true, true);
}

// Three parts, one of all columns, one of some; forward and back. What is computed op by op is rounded after each.
inline void add_adapted(OpCases& cases) {
  struct Case {
    std::string_view name;
    int64_t m, n, k, rank;
    AdaptedParts parts;
    bool addend, bias;
  };
  for (const DType t : kActivations)
    for (const Case& c : {Case{"three_parts", 70, 96, 64, 8, {{0, 48, 64}, {48, 64, 96}}, false, true},
                          Case{"one_part", 33, 64, 40, 16, {{0}, {64}}, true, false},
                          Case{"some_columns", 21, 96, 32, 8, {{16, 64}, {48, 96}}, true, true},
                          Case{"whole_tiles", 256, 768, 192, 16, {{0, 256, 512}, {256, 512, 768}}, false, false},
                          Case{"several_blocks", 200, 2304, 64, 16, {{0, 1280}, {1280, 2304}}, false, false},
                          Case{"whole_tiles_and_addend", 384, 512, 128, 24, {{0, 256}, {256, 512}}, true, false},
                          Case{"ragged", 129, 520, 72, 8, {{0, 256}, {256, 520}}, true, false},
                          Case{"bias", 130, 512, 64, 16, {{0}, {512}}, false, true},
                          Case{"rank72", 128, 256, 64, 72, {{0}, {256}}, false, false},
                          Case{"rank48", 128, 768, 64, 48, {{0, 256, 512}, {256, 512, 768}}, false, false},
                          Case{"many_tiles", 2304, 2048, 8, 8, {{0}, {2048}}, true, false}}) {
      if (c.m > 2000 && t == DType::F32) continue;  // of blocks that have several tiles one after the other
      const double error = t == DType::BF16 ? 8e-3 : 4e-6;
      const int64_t inner = c.parts.count() * c.rank;
      std::vector<CaseOperand> operands{in("a", t, {c.m, c.k}, uniform(), 8), in("b", t, {c.n, c.k}),
                                        in("u", t, {c.m, inner}), in("v", t, {c.parts.columns(), c.rank})};
      if (c.addend) operands.push_back(in("c", t, {c.m, c.n}));
      if (c.bias) operands.push_back(in("bias", t, {c.n}));
      operands.push_back(out("d", t, {c.m, c.n}, 16));
      cases.push_back({fmt::format("adapted_gemm.{}.{}", name(t), c.name),
                       AdaptedGemm{true, c.parts, c.addend, c.bias},
                       operands,
                       {},
                       error,
                       error * std::sqrt(static_cast<double>(c.k))});
      if (!c.bias)
        cases.push_back(
            {fmt::format("adapted_gemm.{}.{}.back", name(t), c.name),
             AdaptedGemm{},
             {in("a", t, {c.m, c.n}), in("b", t, {c.n, c.k}, uniform(), 8), in("u", t, {c.m, inner}, uniform(), 8),
              in("v", t, {inner, c.k}), out("d", t, {c.m, c.k}, 24)},
             {},
             error,
             error * std::sqrt(static_cast<double>(c.n))});
      for (const DType gradient : {t, DType::F32}) {
        if (gradient == t && t == DType::F32) continue;
        cases.push_back({fmt::format("adapter_backward.{}.{}.{}", name(t), c.name, name(gradient)),
                         AdapterBackward{0.5f, c.parts},
                         {in("dy", t, {c.m, c.n}, uniform(), 8), in("b", t, {c.parts.columns(), c.rank}),
                          in("xa", t, {c.m, inner}, uniform(), 8), out("dxa", t, {c.m, inner}),
                          out("db", gradient, {c.parts.columns(), c.rank})},
                         {},
                         error,
                         error * std::sqrt(static_cast<double>(c.n))});
      }
    }
}

// With and without an adapter. Where a backend computes it op by op, gate and up, or dh, are rounded twice, and once
// more before SwiGLU: results are held more loosely than those of its parts; what SwiGLU makes of them is held to
// the bit by fused_wrongly() (op_runner.h).
inline void add_swiglu_gemm(OpCases& cases) {
  struct Case {
    std::string_view name;
    int64_t m, n, k, rank;
  };
  for (const DType t : kActivations)
    for (const Case& c :
         {Case{"small", 21, 40, 32, 0}, Case{"small_adapted", 33, 72, 40, 8}, Case{"tiles", 256, 384, 192, 0},
          Case{"tiles_adapted", 384, 256, 64, 16}, Case{"ragged", 129, 640, 72, 8}, Case{"odd_half", 130, 264, 128, 16},
          Case{"rank48", 128, 128, 64, 48}, Case{"deep", 256, 128, 1152, 8}, Case{"many_tiles", 2304, 2048, 8, 8}}) {
      if (c.m * c.n > 150000 && t == DType::F32) continue;  // of blocks that have several tiles one after the other
      const double error = t == DType::BF16 ? 2e-2 : 8e-6;
      const Filling weights =
          uniform(-1 / std::sqrt(static_cast<double>(c.k)), 1 / std::sqrt(static_cast<double>(c.k)));
      const bool adapted = c.rank > 0;
      for (const bool asked : {false, true}) {  // for h
        const AdaptedParts both{{0, c.n}, {c.n, 2 * c.n}};
        OpCase forward{fmt::format("swiglu_gemm.{}.{}{}", name(t), c.name, asked ? "" : ".gate_up"),
                       SwiGluGemm{adapted ? both : AdaptedParts{}, asked},
                       {in("x", t, {c.m, c.k}, uniform(-2, 2), 8), in("w", t, {2 * c.n, c.k}, weights)},
                       {},
                       error,
                       error};
        OpCase back{fmt::format("swiglu_gemm_backward.{}.{}{}", name(t), c.name, asked ? ".restore" : ""),
                    SwiGluGemmBackward{adapted, asked},
                    {in("dy", t, {c.m, c.k}, uniform(), 8), in("w", t, {c.k, c.n}, weights, 8)},
                    {},
                    error,
                    error};
        if (adapted) {
          forward.operands.insert(forward.operands.end(),
                                  {in("u", t, {c.m, 2 * c.rank}, uniform(-0.1, 0.1)), in("v", t, {2 * c.n, c.rank})});
          back.operands.insert(back.operands.end(),
                               {in("u", t, {c.m, c.rank}, uniform(-0.1, 0.1), 8), in("v", t, {c.rank, c.n})});
        }
        forward.operands.push_back(out("gate_up", t, {c.m, 2 * c.n}, 16));
        if (asked) forward.operands.push_back(out("h", t, {c.m, c.n}, 8));
        back.operands.insert(back.operands.end(),
                             {in("gate_up", t, {c.m, 2 * c.n}, uniform(-3, 3), 8),
                              out("dgate_up", t, {c.m, 2 * c.n}, 24), out("dh", t, {c.m, c.n}, 8)});
        // Of gate alone, and of up alone: what no kernel has.
        for (const int64_t begin : {int64_t{0}, c.n}) {
          if (c.name != "tiles_adapted" || !asked) continue;
          OpCase part = forward;
          part.name += begin == 0 ? ".of_gate" : ".of_up";
          part.attrs = SwiGluGemm{{{begin}, {begin + c.n}}, asked};
          part.operands[2].shape = {c.m, c.rank};
          part.operands[3].shape = {c.n, c.rank};
          cases.push_back(part);
        }
        const bool long_one = c.m > 2000;
        if (!long_one || asked) cases.push_back(forward);
        if (!long_one || !asked) cases.push_back(back);
        if (!c.name.starts_with("tiles")) continue;
        for (const Activation activation : kAllActivations) {
          const bool one_is_enough = activation != Activation::GeluTanh;
          if (activation == Activation::Silu) continue;
          if (one_is_enough && (t != DType::BF16 || c.name != "tiles_adapted")) continue;
          for (OpCase other : {forward, back}) {
            other.name += fmt::format(".{}", word(activation));
            if (auto* const op = std::get_if<SwiGluGemm>(&other.attrs)) op->activation = activation;
            if (auto* const op = std::get_if<SwiGluGemmBackward>(&other.attrs)) op->activation = activation;
            cases.push_back(other);
          }
        }
      }
    }
}

// With codes of what SwiGLU and its backward give. A number that is rounded otherwise may have the code beside: what is
// written is held to the bit by codes_wrongly() (op_runner.h).
inline void add_swiglu_codes(OpCases& cases) {
  const DType f32 = DType::F32, u8 = DType::U8;
  for (const DType t : kActivations)
    for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{21, 40}, {9, 35}, {300, 24}, {2, 8200}})
      for (const bool other : {false, true}) {  // scales of columns, and h restored
        const Activation activation = n == 40 ? Activation::GeluTanh : n == 35 ? Activation::Gelu : Activation::Silu;
        const std::string what = fmt::format("{}.{}{}", name(t), n, other ? ".column_scales" : "");
        const CaseOperand gate_up = in("gate_up", t, {rows, 2 * n}, uniform(-3, 3), 8);
        OpCase forward{
            "swiglu_quantize." + what,
            SwiGluQuantize{other, activation},
            {gate_up, out("h", t, {rows, n}, 16), out("codes", u8, {rows, n}, 8), out("scales", f32, {rows})},
            {},
            2e-2,
            1.01};
        OpCase back{"swiglu_backward_quantize." + what,
                    SwiGluBackwardQuantize{other, other, activation},
                    {other ? inout("dh", t, {rows, n}, uniform(), 8) : in("dh", t, {rows, n}, uniform(), 8), gate_up,
                     in("factors", f32, {2 * n}, uniform(0.5, 3)), out("dgate_up", t, {rows, 2 * n}, 24),
                     out("codes", u8, {rows, 2 * n}, 16), out("scales", f32, {rows})},
                    {},
                    2e-2,
                    1.01};
        if (other) forward.operands.push_back(out("column_scales", f32, {n}));
        if (other) back.operands.push_back(out("column_scales", f32, {2 * n}));
        cases.push_back(forward);
        cases.push_back(back);
      }
}
inline OpCases codes_cases() {
  OpCases cases;
  add_swiglu_codes(cases);
  return cases;
}

// Those of fused_wrongly(), of as many rows as cards have kernels for.
inline OpCases fused_cases() {
  OpCases cases;
  add_swiglu_gemm(cases);
  std::erase_if(cases, [](const OpCase& c) {
    const auto* const forward = std::get_if<SwiGluGemm>(&c.attrs);
    const bool other = forward ? !forward->result : std::get<SwiGluGemmBackward>(c.attrs).restore;
    return other || c.operands[0].shape.rows() < cuda::kProductTileRows;
  });
  return cases;
}

}  // namespace snug
