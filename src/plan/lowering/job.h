// Holds what all programs of a job share.
#pragma once

#include "objective/objective.h"
#include "plan/layout/storage.h"

namespace snug {

// Everything that a JobContext refers to must outlive the lowering.
struct JobContext {
  ProgramSet& set;
  const OpFacts& facts;
  const ModelSpec& model;
  const ParamTable& table;
  const Storage& storage;
  const Numerics& numerics;
  const Strategy& strategy;
  const ObjectiveOptions& objective;
  bool given_embeddings = false;            // JobSpec::given_embeddings
  bool new_adapter = false;                 // JobSpec::new_adapter
  Operand rope_table;                       // [P, columns of a head that turn] fp32, persistent
  std::optional<Operand> local_rope_table;  // of layers with a local rope, where there are any
  std::optional<Operand> query_rope_table;  // of queries, where they grow with their positions
  std::optional<Operand> tower_rope_table;  // of rows and columns of patches, where passes have any

  const Operand& rope_table_of(size_t layer) const {
    return model.layers[layer].local_rope ? local_rope_table.value() : rope_table;
  }
  const Layout& layout() const { return storage.layout(); }
  const Topology& topology() const { return storage.layout().topology(); }
  // Returns whether a group is updated within the backward, for good or by speculation, as soon as its gradient is
  // complete.
  bool updates_early(int group) const {
    return storage.speculates(group) || (strategy.update_in_backward && storage.updated(group).exists());
  }
};

// Adds an empty program.
ProgramId add_program(ProgramSet& set, std::string name);

// Reserves the buffers of ops off the compute lane for `lag` further ops, so that lanes may run ahead of each other.
void retire_later(Program& program, int64_t lag);

}  // namespace snug
