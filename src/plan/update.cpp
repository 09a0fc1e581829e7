#include "plan/update.h"

#include <algorithm>

namespace snug {
namespace {

constexpr int64_t kTile = 16 << 20;  // elements updated by one op, wherever their state lives

void emit_adamw(Emitter& e, const JobContext& job, ParamId id, const Operand& gradient, const Operand& clip) {
  const Storage& storage = job.storage;
  const Numerics& n = job.numerics;
  const bool split = storage.split(id);
  const AdamW adamw{n.beta1, n.beta2, n.epsilon, job.table[id].decay ? n.weight_decay : 0.0, split};
  const int64_t count = job.table[id].shape.count();
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t end = std::min(begin + kTile, count);
    auto tile = [&](const Operand& whole) { return elements(whole, begin, end); };
    std::vector<Operand> operands{read(tile(gradient)), update(tile(storage.weight(id)))};
    if (split) operands.push_back(update(tile(storage.low(id))));
    operands.push_back(update(tile(storage.first_moment(id))));
    operands.push_back(update(tile(storage.second_moment(id))));
    operands.push_back(read(clip));
    e.op("adamw", adamw, operands);
  }
}

}  // namespace

UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step) {
  Emitter e(job.set, program, job.facts);
  e.scope("update");
  UpdateProgram result;
  int64_t units = 0;
  std::vector<Operand> gradients;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const ParamSpec& param = job.table.params[i];
    if (!param.trainable) continue;
    const auto id = static_cast<ParamId>(i);
    const int64_t count = (param.shape.count() + kUnit - 1) / kUnit;
    result.parts.push_back({id, units, units + count});
    gradients.push_back(job.storage.part(step.gradients[static_cast<size_t>(param.group)], id));
    units += count;
  }
  result.partials = e.tensor("partials", DType::F32, {units}, Role::Metrics);
  for (size_t i = 0; i < result.parts.size(); i++) {
    const NormPart& part = result.parts[i];
    e.scope("norm." + job.table[part.param].name);
    e.op("partials", NormPartials{},
         {read(flat(gradients[i])), write(elements(result.partials, part.begin, part.end))});
  }
  e.scope("update");
  const Operand clip = e.tensor("clip", DType::F32, {3}, Role::Metrics);
  const OpId clip_op =
      e.op("clip", ClipFactor{job.numerics.max_grad_norm}, {read(result.partials), read(step.loss), write(clip)});
  const Operand loss_host = copy_to_host(e, "loss.host", step.loss), clip_host = copy_to_host(e, "clip.host", clip);
  e.op("take", HostTask{HostJob::TakeMetrics}, {read(loss_host), read(clip_host)}, Lane::Host);
  for (size_t i = 0; i < result.parts.size(); i++) {
    e.scope(job.table[result.parts[i].param].name);
    emit_adamw(e, job, result.parts[i].param, gradients[i], clip);
  }
  retire_later(e.program(), 4);
  // Whoever meets a norm that is not finite reads the partials after the program.
  e.program().ops[clip_op].retire = static_cast<OpId>(e.program().ops.size() - 1);
  return result;
}

}  // namespace snug
