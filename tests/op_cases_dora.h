// Cases of the ops of adapters with trained norms of rows (op_cases.h).
#pragma once

#include "op_case.h"

namespace snug {

inline void add_scale_columns(OpCases& cases, DType t, const AdaptedParts& parts, const Shape& shape) {
  const int64_t n = shape[1], scaled = parts.columns();
  const auto suffix = fmt::format("{}.{}x{}.{}parts{}", name(t), shape[0], n, parts.count(), scaled);
  const auto z = in("z", t, shape, uniform(), 8), factors = in("factors", DType::F32, {2, scaled}, uniform(0.5, 2), 3);
  for (const bool addend : {false, true})
    for (const bool bias : {false, true}) {
      OpCase c{fmt::format("scale_columns.{}{}{}", suffix, addend ? ".addend" : "", bias ? ".bias" : ""),
               ScaleColumns{parts, addend, bias},
               {z, factors},
               {}};
      if (addend) c.operands.push_back(in("c", t, shape));
      if (bias) c.operands.push_back(in("bias", t, {n}));
      c.operands.push_back(out("y", t, shape, 8));
      cases.push_back(c);
    }
  for (const DType u : kActivations)
    cases.push_back({fmt::format("scale_columns_backward.{}.to.{}", suffix, name(u)),
                     ScaleColumnsBackward{parts},
                     {in("dy", t, shape, uniform(), 8), z, factors, out("dz", t, shape), out("dm", u, {scaled})},
                     {},
                     4e-6,
                     1e-4});
}

inline void add_dora(OpCases& cases) {
  for (const DType t : kActivations) {
    for (const Shape& shape : {Shape{1, 1}, Shape{67, 33}, Shape{5, 5000}})
      cases.push_back({fmt::format("row_norms.{}.{}x{}", name(t), shape[0], shape[1]),
                       RowNorms{},
                       {in("x", t, shape, uniform(-3, 3), 7), out("norms", DType::F32, {shape[0]})},
                       {},
                       1e-6,
                       1e-6});
    for (const auto& [n, rank] : {std::pair<int64_t, int64_t>{1, 1}, {300, 3}, {70, 16}})
      for (const DType u : kActivations)
        cases.push_back({fmt::format("adapted_norms.{}.{}.{}x{}", name(t), name(u), n, rank),
                         AdaptedNorms{0.5f},
                         {in("wa", DType::F32, {n, rank}, uniform(), 2), in("aa", DType::F32, {rank, rank}),
                          in("b", t, {n, rank}, uniform(-0.5, 0.5), 1), in("norms", DType::F32, {n}, uniform(6, 9)),
                          in("initial", DType::F32, {n}, uniform(6, 9)), in("change", u, {n}),
                          out("factors", DType::F32, {2, n}, 5)},
                         {},
                         1e-6,
                         1e-6});
    for (const auto& [parts, shape] : {std::pair(AdaptedParts{{0}, {33}}, Shape{70, 33}),
                                       {AdaptedParts{{0, 40}, {16, 64}}, Shape{9, 72}},
                                       {AdaptedParts{{8, 200, 300}, {200, 264, 1000}}, Shape{40, 1000}}})
      add_scale_columns(cases, t, parts, shape);
  }
  // A row that is nothing stays so, and nothing is trained of it.
  cases.push_back({"adapted_norms.zeros",
                   AdaptedNorms{0.5f},
                   {in("wa", DType::F32, {3, 2}, list(std::vector<double>{0})), in("aa", DType::F32, {2, 2}),
                    in("b", DType::F32, {3, 2}, list(std::vector<double>{0})),
                    in("norms", DType::F32, {3}, list(std::vector<double>{0})), in("initial", DType::F32, {3}),
                    in("change", DType::F32, {3}), out("factors", DType::F32, {2, 3})},
                   {},
                   0,
                   0});
  for (const Shape& shape : {Shape{1, 1}, Shape{67, 33}, Shape{5, 5000}})
    cases.push_back(
        {fmt::format("set_row_norms.{}x{}", shape[0], shape[1]),
         SetRowNorms{},
         {inout("x", DType::F32, shape, uniform(-3, 3), 7), in("magnitudes", DType::F32, {shape[0]}, uniform(0.5, 2))},
         {},
         1e-6,
         1e-6});
  cases.push_back({"set_row_norms.zeros",
                   SetRowNorms{},
                   {inout("x", DType::F32, {3, 8}, list(std::vector<double>{0})), in("magnitudes", DType::F32, {3})},
                   {},
                   0,
                   0});
}

}  // namespace snug
