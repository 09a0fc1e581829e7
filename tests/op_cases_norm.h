// Cases of LayerNorm and its backward (op_cases.h).
#pragma once

#include "op_case.h"

namespace snug {

// A LayerNorm of so many heads of n, with one gain or with one for each, and its backward, with every attribute.
inline void add_layer_norm(OpCases& cases, DType t, int64_t rows, int64_t heads, int64_t n, bool own_gains = false) {
  const Shape shape{rows, heads * n}, moments{2, rows * heads}, gains = own_gains ? Shape{heads, n} : Shape{n};
  const auto suffix = fmt::format("{}.{}x{}{}{}", name(t), rows, n, heads > 1 ? fmt::format(".heads{}", heads) : "",
                                  own_gains ? ".own" : "");
  const auto x = in("x", t, shape, uniform(-2, 4), 8), gain = in("gain", t, gains), shift = in("bias", t, gains);
  const bool many = rows > 1000;
  for (const bool plus_one : {false, true})
    for (const bool bias : {false, true}) {
      OpCase c{fmt::format("layer_norm.{}{}{}", suffix, plus_one ? ".plus_one" : "", bias ? ".bias" : ""),
               LayerNorm{1e-5f, plus_one, bias},
               {x, gain},
               {}};
      if (bias) c.operands.push_back(shift);
      c.operands.push_back(out("y", t, shape, 8));
      c.operands.push_back(out("moments", DType::F32, moments));
      cases.push_back(c);
    }
  for (const auto& [accumulate, restore] : {std::pair(false, false), {true, false}, {true, true}})
    for (const auto& [dgain, dbias] : {std::pair(false, false), {true, false}, {true, true}, {false, true}})
      for (const bool bias : {false, true}) {
        if ((restore && heads > 1) || (bias && !restore) || (many && !(dgain && dbias && !restore))) continue;
        OpCase c{
            fmt::format("layer_norm_backward.{}{}{}{}{}{}", suffix, accumulate ? ".accumulate" : "",
                        dgain ? ".dgain" : "", dbias ? ".dbias" : "", restore ? ".restore" : "", bias ? ".bias" : ""),
            LayerNormBackward{accumulate, dgain, dbias, restore, dbias, bias},
            {restore ? inout("dy", t, shape, uniform(), 8) : in("dy", t, shape), x, gain},
            {},
            4e-6,
            many ? 1e-3 : 1e-4};  // moments here are not x's own: terms up to 100 cancel
        if (bias) c.operands.push_back(shift);
        c.operands.push_back(in("moments", DType::F32, moments, uniform(0.5, 2)));
        c.operands.push_back(accumulate ? inout("dx", t, shape) : out("dx", t, shape, 8));
        if (dgain) c.operands.push_back(out("dgain", DType::F32, gains));
        if (dbias) c.operands.push_back(out("dbias", t, gains));
        cases.push_back(c);
      }
}

inline void add_layer_norms(OpCases& cases) {
  for (const DType t : kActivations) {
    for (const Shape& shape : {Shape{1, 1}, Shape{7, 72}, Shape{67, 33}, Shape{3, 4096}, Shape{3, 5000},
                               Shape{21, 2560}, Shape{3, 9000}, Shape{20000, 8}})
      add_layer_norm(cases, t, shape[0], 1, shape[1]);
    for (const bool own_gains : {false, true})
      for (const auto& [heads, n] : {std::pair<int64_t, int64_t>{3, 5}, {4, 128}})
        add_layer_norm(cases, t, 37, heads, n, own_gains);
    add_layer_norm(cases, t, 2100, 3, 16, true);
  }
  cases.push_back({"layer_norm.constant",
                   LayerNorm{1e-5f, false, true},
                   {in("x", DType::F32, {2, 8}, list(std::vector<double>{3})), in("gain", DType::F32, {8}),
                    in("bias", DType::F32, {8}), out("y", DType::F32, {2, 8}), out("moments", DType::F32, {2, 2})},
                   {}});
}

}  // namespace snug
