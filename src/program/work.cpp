#include <algorithm>

#include "program/adapter.h"
#include "program/facts.h"
#include "program/swiglu_gemm.h"

namespace snug {
namespace {

double elements(const Operand& operand) { return static_cast<double>(operand.shape.count()); }

double bytes(const Operand& operand) { return elements(operand) * static_cast<double>(element_bytes(operand.dtype)); }

// Returns the bytes that the first `count` operands read and write; an operand that is both counts twice.
double all_bytes(std::span<const Operand> operands, size_t count) {
  double sum = 0;
  for (const Operand& operand : operands.first(std::min(count, operands.size())))
    sum += bytes(operand) * (operand.access == Access::ReadWrite ? 2 : 1);
  return sum;
}
double all_bytes(const Op& op) { return all_bytes(op.operands, op.operands.size()); }

// Returns two operations for each of m n k.
double flops(const Gemm& gemm, std::span<const Operand> operands) {
  const Shape &a = operands[0].shape, &b = operands[1].shape;
  const int64_t n = gemm.transpose_b ? b.rows() : b.cols();
  return 2.0 * static_cast<double>(a.count()) * static_cast<double>(n);
}

// Returns the operations of so many products with keys or of their size, and so many with values or of theirs, as if
// all documents were as long as they may be: an upper bound. Without a mask, half of them would count twice.
double attention_flops(const Attention& a, const Op& op, double with_keys, double with_values) {
  const auto tokens = static_cast<double>(op.operands[0].shape.rows());
  const double columns =
      with_keys * static_cast<double>(a.shape.dim) + with_values * static_cast<double>(a.dim_of_values());
  return tokens * seen_length(a) * static_cast<double>(a.shape.heads) * columns;
}

// Returns the operations of every new token over the whole cache: an upper bound.
double attention_flops(const CachedAttention& attention, const Op& op) {
  const auto tokens = static_cast<double>(op.operands[0].shape.rows());
  const int64_t rows = op.operands[1].shape.rows();
  const auto cached = static_cast<double>(attention.window > 0 ? std::min(rows, attention.window) : rows);
  return 4.0 * tokens * cached * static_cast<double>(attention.shape.heads * attention.shape.dim);
}

// Returns the bytes that the composite op itself reads and writes, and the operations of the ops of which it is made.
template <class Kind>
Work work_of_ops(const Kind& kind, std::span<const Operand> operands) {
  Work sum{0, all_bytes(operands, operand_count(kind))};
  for (OpCall<Operand>& call : ops_of(kind, operands)) {
    Op op;
    op.attrs = std::move(call.attrs);
    op.operands = std::move(call.operands);
    sum.flops += work(op).flops;
  }
  return sum;
}

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace

Kernel OpFacts::kernel(const Attrs& attrs, std::span<const Operand>) const {
  return {.composed = std::holds_alternative<AdaptedGemm>(attrs) || std::holds_alternative<SwiGluGemm>(attrs) ||
                      std::holds_alternative<SwiGluGemmBackward>(attrs) ||
                      std::holds_alternative<SwiGluQuantize>(attrs) ||
                      std::holds_alternative<SwiGluBackwardQuantize>(attrs)};
}

double seen_length(const Attention& a) {
  const auto all = static_cast<double>(a.longest), seen = static_cast<double>(a.window);
  if (a.bidirectional) return 2 * all;
  const double causal = a.window == 0 || a.window >= a.longest ? all : 2 * seen - seen * seen / all;
  return a.chunk == 0 ? causal : std::min(causal, static_cast<double>(a.chunk));
}

Work work(const Op& op) {
  const auto& operands = op.operands;
  return std::visit(
      Overloaded{
          [&](const Gemm& gemm) {
            return Work{flops(gemm, operands), all_bytes(op)};
          },
          [&](const Fp8Gemm&) {
            return Work{2.0 * elements(operands[0]) * static_cast<double>(operands[2].shape.rows()), all_bytes(op)};
          },
          [&](const AdaptedGemm& gemm) { return work_of_ops(gemm, operands); },
          [&](const AdapterBackward& backward) {
            return Work{0, all_bytes(operands, operand_count(backward))};
          },
          [&](const SwiGluGemm& gemm) { return work_of_ops(gemm, operands); },
          [&](const SwiGluGemmBackward& gemm) { return work_of_ops(gemm, operands); },
          [&](const Attention& a) {
            return Work{attention_flops(a, op, 1, 1), all_bytes(op)};
          },
          [&](const AttentionBackward& a) {
            return Work{attention_flops(a, op, 3, 2), all_bytes(op)};
          },
          [&](const CachedAttention& a) {
            return Work{attention_flops(a, op), all_bytes(op)};
          },
          // Of the table, of x and of the cache only the rows that are used count.
          [&](const Embedding&) {
            return Work{0, bytes(operands[0]) + 2 * bytes(operands[2])};
          },
          [&](const EmbeddingBackward& e) {
            return Work{0, e.accumulate ? 3 * bytes(operands[0]) : bytes(operands[0]) + bytes(operands[4])};
          },
          [&](const GatherRows&) {
            return Work{0, bytes(operands[1]) + 2 * bytes(operands[2])};
          },
          [&](const ScatterRows& scatter) {
            const double rows = bytes(operands[1]) + bytes(operands[0]) * (scatter.how == Scatter::Add ? 3 : 2);
            return Work{0, scatter.how == Scatter::OverZeros ? all_bytes(op) : rows};
          },
          [&](const CacheAppend&) {
            return Work{0, 2 * (bytes(operands[0]) + bytes(operands[1]))};
          },
          // Columns are read once more, first, to find their largest values, unless those are known.
          [&](const Quantize& quantize) {
            return Work{0, all_bytes(op) + (quantize.columns && !quantize.column_scales ? bytes(operands[0]) : 0)};
          },
          // The gradient is read once for rows, and once for columns.
          [&](const FactoredMeans&) {
            return Work{0, all_bytes(op) + bytes(operands[0])};
          },
          [&](const auto&) {
            return Work{0, all_bytes(op)};
          },
      },
      op.attrs);
}

}  // namespace snug
