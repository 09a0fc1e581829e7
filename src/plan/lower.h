// Joins the mathematics of a model with a strategy: one program for each kind of pass.
#pragma once

#include "format/hf_config.h"
#include "model/head.h"
#include "plan/storage.h"

namespace snug {

// What all programs of a job share. Everything referred to must outlive the lowering.
struct JobContext {
  ProgramSet& set;
  const OpFacts& facts;
  const HfConfig& config;
  const ParamTable& table;
  const Storage& storage;
  const Numerics& numerics;
  Operand rope_table;  // [P, head_dim] fp32, persistent
};

// Adds an empty program.
ProgramId add_program(ProgramSet& set, std::string name);

// What passes leave to the update.
struct StepBuffers {
  Operand loss;                       // [1] fp32: summed over the passes
  std::vector<Operand> gradients;     // by group, in the gradient dtype: of the whole step
  std::vector<Operand> accumulators;  // by group, where a step has several passes; may be `gradients` themselves
};
StepBuffers make_step_buffers(const JobContext& job, bool several_passes);

enum class PassPosition : uint8_t { Only, First, Middle, Last };

// Forward and backward of one pass: reads a batch from the host, leaves loss and gradients in `step`.
void lower_train_pass(const JobContext& job, ProgramId program, const Cut& cut, const Strategy& strategy,
                      PassPosition position, const StepBuffers& step);

// Loss of one pass, handed to the host (HostJob::TakeLoss).
void lower_evaluation(const JobContext& job, ProgramId program, const Cut& cut);

// `tokens` new tokens through the model, over the caches of earlier ones; the last one's logits go to the host.
void lower_generation(const JobContext& job, ProgramId program, int64_t tokens, std::span<const Operand> caches);
// One cache a block, for at most `positions` tokens.
std::vector<Operand> make_caches(const JobContext& job, int64_t positions);

// At most so many documents lie in a pass: a block holds at most max(64, sequence_length / 32).
int64_t max_documents(const Cut& cut);

// Copies to a new buffer of the host space, for HostTask ops to read.
Operand copy_to_host(Emitter& e, std::string_view what, const Operand& operand);
// Reserves the buffers of ops off the compute lane for `lag` further ops, so that lanes may run ahead of each other.
void retire_later(Program& program, int64_t lag);

}  // namespace snug
