// Cases of numbers in 8 and 4 bits. What bitsandbytes itself gives: quantize_test.cpp.
#pragma once

#include "op_case.h"

namespace snug {

// Rows and blocks that are zero, all of one huge or one subnormal number, or hold one that is no number.
inline Filling quantized_edges(int64_t run) {
  return [=](ref::Tensor& x, Numbers& numbers) {
    uniform(-3, 3)(x, numbers);
    const auto set = [&](int64_t first, int64_t count, double value) {
      for (int64_t i = first; i < first + count && i < x.shape.count(); i++) x[i] = value;
    };
    set(0, run, 0);
    set(run, run, 0x1p-149);
    set(2 * run, run - 1, -0x1p-130);
    set(3 * run, 1, -3e38);
    set(4 * run, run, -0.0);
    set(5 * run + 7, 1, kNaN);
    set(6 * run + 8, 1, -kInfinity);
    set(7 * run, run, -1e-38);
  };
}

// Scales of columns that are found with the rows' codes, and columns whose scales are known.
inline void add_column_scales(OpCases& cases) {
  const DType f32 = DType::F32, u8 = DType::U8;
  for (const DType t : {f32, DType::BF16, DType::F16}) {
    for (const bool factors : {false, true})
      for (const Shape& shape : {Shape{19, 331}, Shape{600, 144}, Shape{3, 4096}, Shape{2, 8200}, Shape{1, 20000}}) {
        OpCase c{fmt::format("quantize.fp8.{}.column_scales{}.{}", name(t), factors ? ".factors" : "", shape[1]),
                 Quantize{BaseFormat::Fp8, factors, false, true},
                 {in("x", t, shape, shape[1] == 144 ? quantized_edges(144) : uniform(-0.1, 0.1))},
                 {},
                 0,
                 0};
        if (factors) c.operands.push_back(in("factors", f32, {shape[1]}, uniform(0, 3)));
        c.operands.insert(c.operands.end(), {out("codes", u8, shape), out("scales", f32, {shape[0]}),
                                             out("column_scales", f32, {shape[1]})});
        cases.push_back(c);
      }
    for (const Shape& shape : {Shape{19, 331}, Shape{1040, 144}})
      cases.push_back({fmt::format("quantize.fp8.{}.known_columns.{}", name(t), shape[1]),
                       Quantize{BaseFormat::Fp8, false, true, true},
                       {in("x", t, shape, uniform(-0.1, 0.1)), out("codes", u8, {shape[1], shape[0]}),
                        in("scales", f32, {shape[1]}, strewn({0, 1e-4, 3e-3, 1e-40, 2e38}))},
                       {},
                       0,
                       0});
  }
}

inline void add_quantize_rows(OpCases& cases) {
  for (const DType t : {DType::F32, DType::BF16, DType::F16})
    for (const BaseFormat format : {BaseFormat::Int8, BaseFormat::Fp8}) {
      const DType code = format == BaseFormat::Int8 ? DType::I8 : DType::U8;
      const auto suffix = fmt::format("{}.{}", format == BaseFormat::Int8 ? "int8" : "fp8", name(t));
      const auto add = [&](std::string what, const Shape& shape, Filling fill) {
        cases.push_back(
            {fmt::format("quantize.{}{}", suffix, what),
             Quantize{format},
             {in("x", t, shape, std::move(fill), 5), out("codes", code, shape), out("scales", DType::F32, {shape[0]})},
             {},
             0,
             0});
      };
      add("", {19, 331}, uniform(-0.1, 0.1));
      add(".long_rows", {2, 20011}, uniform(-0.1, 0.1));
      add(".one_column", {77, 1}, uniform());
      add(".edges", {12, 96}, quantized_edges(96));
      add(".from_any_byte", {3, 100}, uniform());
      cases.back().operands[0].shift = 1;
    }
  for (const DType t : {DType::F32, DType::BF16, DType::F16})
    for (const Shape& shape : {Shape{19, 331}, Shape{3, 4096}})
      cases.push_back({fmt::format("quantize.fp8.{}.factors.{}", name(t), shape[1]),
                       Quantize{BaseFormat::Fp8, true},
                       {in("x", t, shape, uniform(-0.1, 0.1)), in("factors", DType::F32, {shape[1]}, uniform(0, 3)),
                        out("codes", DType::U8, shape), out("scales", DType::F32, {shape[0]})},
                       {},
                       0,
                       0});
  for (const DType t : {DType::F32, DType::BF16, DType::F16}) {
    const auto add = [&](std::string what, const Shape& shape, Filling fill, int64_t padding) {
      const Shape turned{shape[1], shape[0]};
      cases.push_back({fmt::format("quantize.fp8.{}.columns{}", name(t), what),
                       Quantize{.format = BaseFormat::Fp8, .columns = true},
                       {in("x", t, shape, std::move(fill), padding), out("codes", DType::U8, turned),
                        out("scales", DType::F32, {shape[1]})},
                       {},
                       0,
                       0});
    };
    add("", {19, 331}, uniform(-0.1, 0.1), 5);
    add(".in_sixteens", {1040, 144}, uniform(-0.1, 0.1), 16);
    add(".one", {77, 1}, uniform(), 0);
    add(".edges", {96, 96}, quantized_edges(96), 0);
  }
  add_column_scales(cases);
  const Filling scales = strewn({0, 1e-40, 3e38, kNaN, kInfinity});
  for (const DType t : kActivations) {
    cases.push_back({fmt::format("dequantize.int8.{}", name(t)),
                     Dequantize{BaseFormat::Int8},
                     {in("codes", DType::I8, {66, 331}, integers(-128, 128), 3), in("scales", DType::F32, {66}, scales),
                      out("x", t, {66, 331}, 5)},
                     {},
                     0,
                     0});
    cases.push_back({fmt::format("dequantize.fp8.{}", name(t)),
                     Dequantize{BaseFormat::Fp8},
                     {in("codes", DType::U8, {66, 331}, integers(0, 256), 3), in("scales", DType::F32, {66}, scales),
                      out("x", t, {66, 331}, 5)},
                     {},
                     0,
                     0});
  }
}

inline void add_quantize_blocks(OpCases& cases) {
  for (const DType t : {DType::F32, DType::BF16, DType::F16}) {
    const auto add = [&](std::string what, const Shape& shape, Filling fill) {
      const int64_t n = shape.count();
      cases.push_back({fmt::format("quantize.nf4.{}{}", name(t), what),
                       Quantize{BaseFormat::Nf4},
                       {in("x", t, shape, std::move(fill)), out("codes", DType::U8, {n / 2}),
                        out("scales", DType::F32, {n / kNf4Block})},
                       {},
                       0,
                       0});
    };
    add("", {16, 72}, uniform(-0.1, 0.1));
    add(".large", {33, 1024}, uniform(-0.1, 0.1));
    add(".edges", {12, 96}, quantized_edges(kNf4Block));
    add(".from_any_byte", {128}, uniform());
    cases.back().operands[0].shift = 3;
  }
  const auto scales = [&](std::string what, int64_t k, Filling fill, double offset) {
    cases.push_back(
        {"quantize_scales." + what,
         QuantizeScales{},
         {in("scales", DType::F32, {k}, std::move(fill)), in("offset", DType::F32, {1}, list(std::vector{offset})),
          out("codes", DType::U8, {k}), out("block_scales", DType::F32, {(k + 255) / 256})},
         {},
         0,
         0});
  };
  scales("whole", 1024, uniform(0, 0.2), 0.1);
  scales("part_of_a_block", 1031, uniform(0, 0.2), 0.1);
  scales("one", 1, uniform(0, 1), 0.25);
  scales("all_alike", 300, list(std::vector{0.125}), 0.125);
  scales("not_finite", 600, strewn({0, kNaN, kInfinity, 1e-40}), 0.1);
  for (const DType t : kActivations)
    for (const bool plain : {false, true})
      for (const auto& [rows, cols, tail] : {std::array{264, 72, 0}, std::array{264, 72, 8}, std::array{40, 448, 16}}) {
        const int64_t n = rows * cols, blocks = n / kNf4Block;
        OpCase c{fmt::format("dequantize.nf4.{}{}.{}x{}+{}", name(t), plain ? ".plain_scales" : "", rows, cols, tail),
                 Dequantize{BaseFormat::Nf4, plain},
                 {in("codes", DType::U8, {n / 2}, integers(0, 256))},
                 {},
                 0,
                 0};
        if (plain) {
          c.operands.push_back(in("scales", DType::F32, {blocks}, strewn({0, 1e-40, kNaN, kInfinity, 3e38})));
        } else {
          c.operands.push_back(in("scale_codes", DType::U8, {blocks}, integers(0, 256)));
          c.operands.push_back(in("block_scales", DType::F32, {(blocks + 255) / 256}, uniform(0, 0.1)));
          c.operands.push_back(in("offset", DType::F32, {1}, uniform(0, 0.1)));
        }
        c.operands.push_back(out("x", t, {rows, cols}, tail));
        cases.push_back(c);
      }
}

inline void add_quantize(OpCases& cases) {
  add_quantize_rows(cases);
  add_quantize_blocks(cases);
}

}  // namespace snug
