#include "backend/attention_operands.h"

namespace snug {
namespace {

void expect_heads(const HeadShape& shape, const Operands& operands) {
  operands.expect(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
                  "{} heads over {} key heads found", shape.heads, shape.kv_heads);
}

void expect_attributes(const Attention& attention, const Operands& operands) {
  expect_heads(attention.shape, operands);
  operands.expect(!attention.cross || attention.bidirectional, "keys have documents of their own under a causal mask");
  operands.expect(!attention.bidirectional || (attention.window == 0 && attention.chunk == 0),
                  "found a window or chunks without a causal mask");
}

// Takes the first operand: rows of `columns` columns.
const TensorView& take_rows(Operands& operands, std::string_view name, int64_t columns) {
  const TensorView& rows = operands.take(name, kActivation);
  operands.expect(rows.cols() == columns, "'{}' is {}, expected {} columns", name, to_string(rows.shape), columns);
  return rows;
}

// Takes the keys that `q` meets: as many, unless they have documents of their own.
const TensorView& take_keys(const Attention& attention, const TensorView& q, Operands& operands) {
  const TensorView& k = take_rows(operands, "k", attention.shape.key_columns());
  operands.expect(k.dtype == q.dtype && (attention.cross || k.rows() == q.rows()), "'k' is {} {}, 'q' {} {}",
                  name(k.dtype), to_string(k.shape), name(q.dtype), to_string(q.shape));
  return k;
}

// Takes what says who sees whom: bounds of documents, those of keys, and sinks.
template <class Of>
void take_visibility(const Attention& attention, Operands& operands, Of& of) {
  of.documents = of.key_documents = operands.dense("documents", {DType::I32});
  operands.expect(2 <= of.documents.count(), "'documents' is {}, expected 2 bounds or more",
                  to_string(of.documents.shape));
  if (attention.cross) of.key_documents = operands.vector("key_documents", {DType::I32}, of.documents.count());
  if (attention.sinks) of.sinks = operands.vector("sinks", {DType::F32}, attention.shape.heads);
}

// Takes keys and values of earlier tokens, side by side.
const TensorView& take_cache(Operands& operands, DType dtype, const HeadShape& shape) {
  const TensorView& cache = operands.take("cache", {dtype});
  operands.expect(cache.cols() == 2 * shape.key_columns(), "'cache' is {}, expected {} columns", to_string(cache.shape),
                  2 * shape.key_columns());
  return cache;
}

}  // namespace

AttentionOperands attention_operands(const Attention& attention, Operands& operands) {
  expect_attributes(attention, operands);
  AttentionOperands of;
  of.q = take_rows(operands, "q", attention.shape.query_columns());
  const DType dtype = of.q.dtype;
  const int64_t tokens = of.q.rows();
  of.k = take_keys(attention, of.q, operands);
  of.v = operands.matrix("v", {dtype}, of.k.rows(), attention.value_columns());
  take_visibility(attention, operands, of);
  of.out = operands.matrix("out", {dtype}, tokens, attention.result_columns());
  of.lse = operands.matrix("lse", {DType::F32}, attention.shape.heads, tokens);
  return of;
}

AttentionBackwardOperands attention_backward_operands(const AttentionBackward& attention, Operands& operands) {
  expect_attributes(attention, operands);
  const HeadShape& shape = attention.shape;
  AttentionBackwardOperands of;
  of.dout = take_rows(operands, "dout", attention.result_columns());
  const DType dtype = of.dout.dtype;
  const int64_t tokens = of.dout.rows();
  of.q = operands.matrix("q", {dtype}, tokens, shape.query_columns());
  of.k = take_keys(attention, of.q, operands);
  const int64_t keys = of.k.rows();
  of.v = operands.matrix("v", {dtype}, keys, attention.value_columns());
  of.out = operands.matrix("out", {dtype}, tokens, attention.result_columns());
  of.lse = operands.matrix("lse", {DType::F32}, shape.heads, tokens);
  take_visibility(attention, operands, of);
  of.dq = operands.matrix("dq", {dtype}, tokens, shape.query_columns());
  of.dk = operands.matrix("dk", {dtype}, keys, shape.key_columns());
  of.dv = operands.matrix("dv", {dtype}, keys, attention.value_columns());
  if (attention.sinks) of.dsinks = operands.vector("dsinks", {DType::F32}, shape.heads);
  return of;
}

CacheAppendOperands cache_append_operands(const CacheAppend& append, Operands& operands) {
  expect_heads(append.shape, operands);
  const int64_t width = append.shape.key_columns();
  CacheAppendOperands of;
  of.k = take_rows(operands, "k", width);
  of.v = operands.matrix("v", {of.k.dtype}, of.k.rows(), width);
  of.cache = take_cache(operands, of.k.dtype, append.shape);
  operands.done();
  return of;
}

CachedAttentionOperands cached_attention_operands(const CachedAttention& attention, Operands& operands) {
  expect_heads(attention.shape, operands);
  CachedAttentionOperands of;
  of.q = take_rows(operands, "q", attention.shape.query_columns());
  of.cache = take_cache(operands, of.q.dtype, attention.shape);
  of.out = operands.matrix("out", {of.q.dtype}, of.q.rows(), attention.shape.query_columns());
  operands.done();
  return of;
}

int64_t documents_of(const Attention& attention, const RuntimeScalars& runtime, const TensorView& documents) {
  const int64_t count = runtime.documents_of(attention.documents);
  check(0 <= count && count < documents.count(), "attention: {} documents, at most {} were planned", count,
        documents.count() - 1);
  return count;
}

}  // namespace snug
