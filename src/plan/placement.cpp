#include "plan/placement.h"

#include <algorithm>

namespace snug {
namespace {

// A new buffer like an array, in another space.
Operand beside(Emitter& e, std::string_view what, const Operand& like, Role role, Space space) {
  return e.tensor(what, like.dtype, like.shape, role, space);
}

}  // namespace

Operand fetch(Emitter& e, std::string_view what, const Operand& stored, Role role) {
  const Space space = e.set().buffers[stored.buffer].space;
  if (space == Space::Device) return stored;
  Operand host = stored;
  if (space == Space::Disk) {
    host = beside(e, fmt::format("{}.host", what), stored, Role::Staging, Space::Host);
    e.op(fmt::format("{}.read", what), Copy{}, {read(stored), write(host)}, Lane::DiskIo);
  }
  const Operand device = beside(e, what, stored, role, Space::Device);
  e.op(fmt::format("{}.fetch", what), Copy{}, {read(host), write(device)}, Lane::CopyIn);
  return device;
}

void store(Emitter& e, std::string_view what, const Operand& value, const Operand& stored) {
  const Space space = e.set().buffers[stored.buffer].space;
  if (space == Space::Device) {
    if (value.buffer != stored.buffer) e.op(fmt::format("{}.store", what), Copy{}, {read(value), write(stored)});
    return;
  }
  Operand host = stored;
  if (space == Space::Disk) host = beside(e, fmt::format("{}.host", what), stored, Role::Staging, Space::Host);
  e.op(fmt::format("{}.store", what), Copy{}, {read(value), write(host)}, Lane::CopyOut);
  if (space == Space::Disk) e.op(fmt::format("{}.write", what), Copy{}, {read(host), write(stored)}, Lane::DiskIo);
}

Operand fetch_whole(Emitter& e, std::string_view what, const Held& held, int64_t elements) {
  const Operand shard = fetch(e, what, held.array, Role::Gather);
  if (held.span.count() == elements) return shard;
  const Operand full = e.tensor(fmt::format("{}.full", what), shard.dtype, {elements}, Role::Gather);
  e.op(fmt::format("{}.gather", what), AllGather{Ranks::Replica}, {read(shard), write(full)}, Lane::Gather);
  return full;
}

void retire_later(Program& program, int64_t lag) {
  const auto end = static_cast<int64_t>(program.ops.size()) - 1;
  for (int64_t i = 0; i <= end; i++) {
    Op& op = program.ops[static_cast<size_t>(i)];
    if (op.lane != Lane::Compute) op.retire = static_cast<OpId>(std::min(i + lag, end));
  }
}

ProgramId add_program(ProgramSet& set, std::string name) {
  set.programs.push_back({std::move(name), {}, {}});
  return static_cast<ProgramId>(set.programs.size() - 1);
}

Operand PassPlacement::weight(ParamId first, int count) {
  const ParamSpec& param = job_.table[first];
  const Operand stored = job_.storage.view(whole(param.group, param.trainable), first, count);
  if (stored.dtype == job_.numerics.compute) return stored;
  const Operand converted = emitter_.tensor("weight", job_.numerics.compute, stored.shape, Role::Weight);
  emitter_.op("weight", Cast{}, {read(stored), write(converted)});
  return converted;
}

Operand PassPlacement::stored(ParamId param) {
  return job_.storage.view(whole(job_.table[param].group, job_.table[param].trainable), param);
}

Operand PassPlacement::gradient(ParamId first, int count) {
  return job_.storage.view(gradients[static_cast<size_t>(job_.table[first].group)], first, count);
}

bool PassPlacement::keeps(int block, Keep keep) {
  if (keep == Keep::Input || block < 0) return true;
  if (keep == Keep::Cheap || !strategy_) return false;
  switch (strategy_->recompute[static_cast<size_t>(block)]) {
    case Recompute::None:
      return true;
    case Recompute::Mlp:
      return keep != Keep::Mlp;
    case Recompute::Attention:
      return keep != Keep::Attention;
    case Recompute::Block:
      return false;
  }
  return true;
}

void PassPlacement::bring(int group) {
  if (group < 0 || group >= job_.table.groups) return;
  for (const bool trainable : {false, true})
    if (job_.layout().segment(group, trainable).elements > 0) whole(group, trainable);
}

void PassPlacement::release(int group) {
  for (const bool trainable : {false, true}) brought_[static_cast<size_t>(2 * group + trainable)].reset();
}

Operand PassPlacement::whole(int group, bool trainable) {
  std::optional<Operand>& brought = brought_[static_cast<size_t>(2 * group + trainable)];
  if (brought) return *brought;
  const std::string before = emitter_.scope();
  emitter_.scope(fmt::format("group.{}", group));
  brought = fetch_whole(emitter_, trainable ? "weights" : "frozen", job_.storage.weights(group, trainable),
                        job_.layout().segment(group, trainable).elements);
  emitter_.scope(before);
  return *brought;
}

}  // namespace snug
