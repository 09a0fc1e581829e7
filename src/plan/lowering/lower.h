// Programs of a model's mathematics: evaluation and generation, and what they share with training passes.
#pragma once

#include "model/decoder_layer.h"
#include "model/head.h"
#include "plan/lowering/job.h"

namespace snug {

// The summed loss of each rank in one pass, by rank, handed to the host (HostJob::TakeLoss): added up there one after
// the other, they make the sum that one rank would have over as many passes.
void lower_evaluation(const JobContext& job, ProgramId program, const Cut& cut, int shape);

// At most `tokens` new tokens through the model, over the caches of earlier ones; the logits of one of them go to the
// host. Caches have room for all `tokens`, as many as there may be.
void lower_generation(const JobContext& job, ProgramId program, int64_t tokens, std::span<const Operand> caches);
// One cache a layer, for at most `positions` tokens.
std::vector<Operand> make_caches(const JobContext& job, int64_t positions);

// Emits the filling of the batch of a program's pass number `pass`, of a shape of the cut, by the host and its copy to
// the device.
BatchBuffers emit_batch(Emitter& e, const Cut& cut, int shape, int64_t pass = 0);
HeadParams head_params(const JobContext& job);
LayerContext layer_context(const JobContext& job, const Cut& cut, const BatchBuffers& batch, size_t layer);

// The sum of a [1] fp32 value over ranks, in the order of their numbers; the value itself where there is one rank.
Operand sum_over_ranks(const JobContext& job, Emitter& e, std::string_view what, const Operand& value);
// Copies to a new buffer of the host space, for HostTask ops to read.
Operand copy_to_host(Emitter& e, std::string_view what, const Operand& operand);

}  // namespace snug
