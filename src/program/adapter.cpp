#include "program/adapter.h"

#include "program/emitter.h"

namespace snug {
namespace {

// Holds where one part of an adapter lies: columns of the linear's result, rows of b, columns of x A^T.
struct PartColumns {
  int64_t begin, end, first_row, last_row, first, last;
};

std::vector<PartColumns> places_of(const AdaptedParts& parts, int64_t b_rows, int64_t rank, int64_t inner) {
  check(parts.count() > 0 && b_rows == parts.columns() && inner == parts.count() * rank,
        "an adapter of {} parts with {} columns: found {} rows of rank {} and {} columns between", parts.count(),
        parts.columns(), b_rows, rank, inner);
  std::vector<PartColumns> places;
  int64_t row = 0;
  for (int64_t i = 0; i < parts.count(); i++) {
    const auto p = static_cast<size_t>(i);
    const int64_t next = row + parts.end[p] - parts.begin[p];
    places.push_back({parts.begin[p], parts.end[p], row, next, i * rank, (i + 1) * rank});
    row = next;
  }
  return places;
}

}  // namespace

int AdaptedParts::count() const {
  int parts = 0;
  for (size_t i = 0; i < end.size(); i++) parts += end[i] > begin[i];
  return parts;
}

int64_t AdaptedParts::columns() const {
  int64_t sum = 0;
  for (size_t i = 0; i < end.size(); i++) sum += end[i] - begin[i];
  return sum;
}

template <class View>
std::vector<OpCall<View>> adapter_products(bool transpose_b, const AdaptedParts& parts, const View& u, const View& v,
                                           const View& d) {
  if (!transpose_b) return {{Gemm{}, {u, v, d}}};
  std::vector<OpCall<View>> calls;
  int64_t done = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > done) calls.push_back({Fill{}, {columns(d, done, end)}});
  };
  for (const PartColumns& at : places_of(parts, v.shape.rows(), v.shape.cols(), u.shape.cols())) {
    clear_to(at.begin);
    calls.push_back(
        {Gemm{.transpose_b = true},
         {columns(u, at.first, at.last), rows(v, at.first_row, at.last_row), columns(d, at.begin, at.end)}});
    done = at.end;
  }
  clear_to(d.shape.cols());
  return calls;
}

template <class View>
std::vector<OpCall<View>> ops_of(const AdaptedGemm& op, std::span<const View> operands) {
  const size_t count = expect_operands(op, operands.size());
  const View &u = operands[2], &v = operands[3], &d = operands[count - 1];
  check(!op.addend || !same_bytes(operands[4], d), "adapted_gemm: c and d share bytes");
  std::vector<OpCall<View>> calls = adapter_products(op.transpose_b, op.parts, u, v, d);
  OpCall<View> linear{Gemm{.transpose_b = op.transpose_b, .addend = true, .bias = op.bias},
                      {operands[0], operands[1], read(d)}};
  if (op.bias) linear.operands.push_back(operands[count - 2]);
  linear.operands.push_back(d);
  calls.push_back(std::move(linear));
  if (op.addend) calls.push_back({Accumulate{}, {read(operands[4]), update(d)}});
  return calls;
}

template <class View>
std::vector<OpCall<View>> ops_of(const AdapterBackward& op, std::span<const View> operands) {
  expect_operands(op, operands.size());
  const View &dy = operands[0], &b = operands[1], &xa = operands[2], &dxa = operands[3], &db = operands[4];
  std::vector<OpCall<View>> calls;
  for (const PartColumns& at : places_of(op.parts, b.shape.rows(), b.shape.cols(), xa.shape.cols())) {
    const View part = columns(dy, at.begin, at.end);
    calls.push_back(
        {Gemm{.alpha = op.scale}, {part, rows(b, at.first_row, at.last_row), columns(dxa, at.first, at.last)}});
    calls.push_back(
        {Gemm{.transpose_a = true}, {part, columns(xa, at.first, at.last), rows(db, at.first_row, at.last_row)}});
  }
  return calls;
}

#define SNUG_INSTANTIATE(View)                                                                             \
  template std::vector<OpCall<View>> adapter_products(bool, const AdaptedParts&, const View&, const View&, \
                                                      const View&);                                        \
  template std::vector<OpCall<View>> ops_of(const AdaptedGemm&, std::span<const View>);                    \
  template std::vector<OpCall<View>> ops_of(const AdapterBackward&, std::span<const View>);
SNUG_INSTANTIATE(Operand)
SNUG_INSTANTIATE(TensorView)
#undef SNUG_INSTANTIATE

}  // namespace snug
