#include "plan/lowering/placement.h"

#include <algorithm>

namespace snug {
namespace {

// Returns a new buffer with an array's dtype and shape, in another space.
Operand buffer_like(Emitter& e, std::string_view what, const Operand& like, Role role, Space space) {
  return e.tensor(what, like.dtype, like.shape, role, space);
}

}  // namespace

Operand fetch(Emitter& e, std::string_view what, const Operand& stored, Role role) {
  if (on_device(e.set(), stored)) return stored;
  Operand host = stored;
  if (e.set().buffers[stored.buffer].space == Space::Disk) {
    host = buffer_like(e, fmt::format("{}.host", what), stored, Role::Staging, Space::Host);
    e.op(fmt::format("{}.read", what), Copy{}, {read(stored), write(host)}, Lane::DiskIn);
  }
  const Operand device = buffer_like(e, what, stored, role, Space::Device);
  e.op(fmt::format("{}.fetch", what), Copy{}, {read(host), write(device)}, Lane::CopyIn);
  return device;
}

Operand allocate(Emitter& e, std::string_view what, const Operand& stored, Role role) {
  return on_device(e.set(), stored) ? stored : buffer_like(e, what, stored, role, Space::Device);
}

void store(Emitter& e, std::string_view what, const Operand& value, const Operand& stored) {
  if (on_device(e.set(), stored)) {
    if (value.buffer != stored.buffer) e.op(fmt::format("{}.store", what), Copy{}, {read(value), write(stored)});
    return;
  }
  const bool on_disk = e.set().buffers[stored.buffer].space == Space::Disk;
  const Operand host =
      on_disk ? buffer_like(e, fmt::format("{}.host", what), stored, Role::Staging, Space::Host) : stored;
  e.op(fmt::format("{}.store", what), Copy{}, {read(value), write(host)}, Lane::CopyOut);
  if (on_disk) e.op(fmt::format("{}.write", what), Copy{}, {read(host), write(stored)}, Lane::DiskOut);
}

Operand fetch_whole(Emitter& e, std::string_view what, const ShardedArray& sharded, int64_t elements) {
  const Operand shard = fetch(e, what, sharded.values, Role::Gather);
  if (sharded.span.count() == elements) return shard;
  const Operand full = e.tensor(fmt::format("{}.full", what), shard.dtype, {elements / sharded.block}, Role::Gather);
  e.op(fmt::format("{}.gather", what), AllGather{Ranks::Replica}, {read(shard), write(full)}, Lane::Gather);
  return full;
}

std::vector<Operand> fetch_weights(Emitter& e, const JobContext& job, int group, SegmentKind kind) {
  std::vector<Operand> arrays;
  for (const Array& array : job.storage.weights(group, kind))
    arrays.push_back(fetch_whole(e, array.name, array.sharded, job.layout().segment(group, kind).elements));
  return arrays;
}

void dequantize(Emitter& e, const JobContext& job, std::span<const Operand> arrays, ParamId id, const Operand& target) {
  std::vector<Operand> operands = job.storage.quantized(arrays, id);
  for (Operand& operand : operands) operand = read(operand);
  operands.push_back(write(target));
  e.op("dequantize", Dequantize{job.numerics.base_format, job.numerics.plain_scales}, std::move(operands));
}

void retire_later(Program& program, int64_t lag) {
  const auto end = static_cast<int64_t>(program.ops.size()) - 1;
  for (int64_t i = 0; i <= end; i++) {
    Op& op = program.ops[static_cast<size_t>(i)];
    op.retire = static_cast<OpId>(op.lane == Lane::Compute ? i : std::min(i + lag, end));
  }
}

ProgramId add_program(ProgramSet& set, std::string name) {
  set.programs.push_back({std::move(name), {}, {}});
  return static_cast<ProgramId>(set.programs.size() - 1);
}

int ProgramPlacement::quantized(ParamId first, int count) const {
  int found = 0;
  for (ParamId id = first; id < first + count; id++) found += job_.layout().kind(id) == SegmentKind::Quantized;
  return found;
}

bool ProgramPlacement::together(ParamId first, int count) const {
  for (ParamId id = first + 1; id < first + count; id++)
    if (job_.layout().kind(id) != job_.layout().kind(first)) return false;
  return true;
}

Operand ProgramPlacement::weight(ParamId first, int count) {
  std::optional<Operand> stored;  // unless some of it is quantized, or a part is trained and another is not
  if (quantized(first, count) == 0 && together(first, count)) stored = job_.storage.view(whole(first), first, count);
  if (stored && stored->dtype == job_.numerics.compute) return *stored;
  // Where several passes go through a layer together, a weight that one of them converts serves all.
  const int group = job_.table[first].group;
  auto& converted = converted_[static_cast<size_t>(group)];
  if (const auto found = converted.find({first, count}); found != converted.end()) return found->second;
  const Operand values =
      emitter_.tensor("weight", job_.numerics.compute, job_.storage.joined_shape(first, count), Role::Weight);
  if (stored) {
    emitter_.op("weight", Cast{}, {read(*stored), write(values)});
  } else {
    int64_t row = 0;
    for (ParamId id = first; id < first + count; id++) {
      const int64_t end = row + job_.table[id].shape[0];
      const Operand part = values.shape.rank == 1 ? elements(values, row, end) : rows(values, row, end);
      if (quantized(id, 1) > 0)
        dequantize(emitter_, job_, whole(group, SegmentKind::Quantized), id, part);
      else
        emitter_.op("weight", Cast{}, {read(job_.storage.view(whole(id), id)), write(part)});
      row = end;
    }
  }
  if (strategy_ && strategy_->layer_major) converted[{first, count}] = values;
  return values;
}

Fp8Rows ProgramPlacement::once(ParamId first, bool transposed, const std::function<Fp8Rows()>& make) {
  auto& known = fp8_[static_cast<size_t>(job_.table[first].group)];
  if (const auto found = known.find({first, transposed}); found != known.end()) return found->second;
  const Fp8Rows rows = make();
  if (strategy_ && strategy_->layer_major) known[{first, transposed}] = rows;
  return rows;
}

Fp8Rows ProgramPlacement::fp8_weight(ParamId first, int count) {
  return once(first, false, [&] {
    if (quantized(first, count) == count) return joined_codes(first, count);
    return in_fp8(emitter_, "weight", weight(first, count), {.role = Role::Weight});
  });
}

Fp8Rows ProgramPlacement::fp8_transposed(ParamId first, const Fp8Rows& weight) {
  return once(first, true, [&] {
    const int64_t rows = weight.codes.shape.rows(), cols = weight.codes.shape.cols();
    const Operand codes = emitter_.tensor("weight.transposed", DType::U8, {cols, rows}, Role::Weight);
    emitter_.op("transpose", Transpose{}, {read(weight.codes), write(codes)});
    return Fp8Rows{codes, ones(cols)};
  });
}

Fp8Rows ProgramPlacement::joined_codes(ParamId first, int count) {
  const std::vector<Operand>& arrays = whole(job_.table[first].group, SegmentKind::Quantized);
  const Shape shape = job_.storage.joined_shape(first, count);
  std::vector<Operand> parts = job_.storage.quantized(arrays, first);  // codes and scales
  Operand codes = parts[0], scales = parts[1];
  const Layout& layout = job_.layout();
  bool together = true;
  for (ParamId id = first + 1; id < first + count; id++)
    together = together && layout.span(id).begin == layout.span(id - 1).end;
  codes.shape = shape;
  scales.shape = {shape.rows()};  // tables have no gaps
  if (together) return {codes, scales};
  codes = emitter_.tensor("weight.joined", DType::U8, shape, Role::Weight);
  int64_t row = 0;
  for (ParamId id = first; id < first + count; id++) {
    const int64_t end = row + job_.table[id].shape.rows();
    emitter_.op("join", Copy{}, {read(job_.storage.quantized(arrays, id)[0]), write(rows(codes, row, end))});
    row = end;
  }
  return {codes, scales};
}

Operand ProgramPlacement::ones(int64_t count) {
  const auto [found, missing] = ones_.try_emplace(count);
  if (missing) {
    found->second = emitter_.tensor("ones", DType::F32, {count}, Role::Staging);
    emitter_.op("ones", RandomFill{Distribution::Constant, 1}, {write(found->second)});
  }
  return found->second;
}

Operand ProgramPlacement::stored(ParamId param) { return job_.storage.view(whole(param), param); }

Operand ProgramPlacement::gradient(ParamId first, int count) {
  const std::optional<Operand>& whole = gradients->at(static_cast<size_t>(job_.table[first].group));
  return job_.storage.view(whole.value(), first, count);
}

bool ProgramPlacement::keeps(int layer, ActivationClass kind) {
  if (layer == kNoLayer) return true;
  static const ActivationPolicy nothing = policy_of(Recompute::Block);
  const ActivationPolicy& policy = strategy_ ? strategy_->activations[static_cast<size_t>(layer)] : nothing;
  return policy[kind] != Retention::Recompute;
}

void ProgramPlacement::prefetch(int group) {
  if (group < 0 || group >= job_.table.group_count()) return;
  // A head that is the embedding has its matrix in the embedding's group.
  const int embedding = job_.table.group_of(job_.table.embedding);
  if (job_.table.tied() && group == job_.table.head_group()) prefetch(embedding);
  for (const SegmentKind kind : kSegmentKinds)
    if (job_.layout().segment(group, kind).elements > 0) whole(group, kind);
}

void ProgramPlacement::release(int group) {
  gathered_[static_cast<size_t>(group)] = {};
  converted_[static_cast<size_t>(group)].clear();
  fp8_[static_cast<size_t>(group)].clear();
}

const std::vector<Operand>& ProgramPlacement::whole(int group, SegmentKind kind) {
  std::vector<Operand>& gathered = gathered_[static_cast<size_t>(group)][static_cast<size_t>(kind)];
  if (!gathered.empty()) return gathered;
  const std::string before = emitter_.scope();
  emitter_.scope(fmt::format("group.{}", group));
  gathered = fetch_weights(emitter_, job_, group, kind);
  emitter_.scope(before);
  return gathered;
}

}  // namespace snug
