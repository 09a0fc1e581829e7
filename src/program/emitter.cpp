#include "program/emitter.h"

namespace snug {

Operand read(Operand operand) {
  operand.access = Access::Read;
  return operand;
}

Operand write(Operand operand) {
  operand.access = Access::Write;
  return operand;
}

Operand update(Operand operand) {
  operand.access = Access::ReadWrite;
  return operand;
}

Operand rows(const Operand& operand, int64_t begin, int64_t end) {
  check(0 <= begin && begin <= end && end <= operand.shape.rows(), "rows {} to {} of {}", begin, end,
        to_string(operand.shape));
  Operand part = operand;
  part.offset += static_cast<uint64_t>(begin * operand.row_stride) * element_bytes(operand.dtype);
  part.shape = {end - begin, operand.shape.cols()};
  return part;
}

Operand columns(const Operand& operand, int64_t begin, int64_t end) {
  check(0 <= begin && begin <= end && end <= operand.shape.cols(), "columns {} to {} of {}", begin, end,
        to_string(operand.shape));
  Operand part = operand;
  part.offset += static_cast<uint64_t>(begin) * element_bytes(operand.dtype);
  part.shape = {operand.shape.rows(), end - begin};
  return part;
}

Operand elements(const Operand& operand, int64_t begin, int64_t end) {
  Operand part = columns(flat(operand), begin, end);
  part.shape = {end - begin};
  return part;
}

Operand reshaped(const Operand& operand, const Shape& shape) {
  check(operand.shape.rows() <= 1 || operand.row_stride == operand.shape.cols(), "rows of {} lie {} elements apart",
        to_string(operand.shape), operand.row_stride);
  check(shape.count() == operand.shape.count(), "{} as {}", to_string(operand.shape), to_string(shape));
  Operand all = operand;
  all.shape = shape;
  all.row_stride = shape.cols();
  return all;
}

Operand flat(const Operand& operand) { return reshaped(operand, {operand.shape.count()}); }

Operand in_rows(const Operand& operand, int64_t count) {
  return reshaped(operand, {count, operand.shape.count() / count});
}

Operand new_tensor(ProgramSet& set, std::string name, DType dtype, const Shape& shape, Role role, Space space,
                   Life life) {
  const auto id = static_cast<BufferId>(set.buffers.size());
  const uint64_t bytes = static_cast<uint64_t>(shape.count()) * element_bytes(dtype);
  set.buffers.push_back({std::move(name), bytes, space, role, life});
  return {
      .buffer = id, .access = Access::Write, .dtype = dtype, .shape = shape, .offset = 0, .row_stride = shape.cols()};
}

Operand Emitter::tensor(std::string_view what, DType dtype, const Shape& shape, Role role, Space space, Life life) {
  return new_tensor(set_, full_name(what), dtype, shape, role, space, life);
}

OpId Emitter::op(std::string_view what, Attrs attrs, std::vector<Operand> operands, Lane lane) {
  if (const uint64_t bytes = facts_.scratch_bytes(attrs, operands))
    operands.push_back(
        new_tensor(set_, full_name(what) + ".scratch", DType::U8, {static_cast<int64_t>(bytes)}, Role::Scratch));
  const auto id = static_cast<OpId>(program().ops.size());
  Op op;
  op.attrs = std::move(attrs);
  op.lane = lane;
  op.operands = std::move(operands);
  op.pass = pass_;
  op.retire = id;
  op.site = full_name(what);
  program().ops.push_back(std::move(op));
  return id;
}

OpId Emitter::op_if(int64_t min_loss_rows, std::string_view what, Attrs attrs, std::vector<Operand> operands) {
  const OpId id = op(what, std::move(attrs), std::move(operands));
  program().ops[id].min_loss_rows = min_loss_rows;
  return id;
}

std::string Emitter::full_name(std::string_view what) const {
  return scope_.empty() ? std::string(what) : fmt::format("{}.{}", scope_, what);
}

}  // namespace snug
