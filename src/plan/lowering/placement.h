// Where the builder's ops find their bytes, for one program: weights resident, fetched, gathered or converted;
// gradients; and what is kept for the backward.
#pragma once

#include <map>
#include <optional>

#include "model/builder.h"
#include "plan/lowering/job.h"

namespace snug {

inline bool on_device(const ProgramSet& set, const Operand& stored) {
  return set.buffers[stored.buffer].space == Space::Device;
}

// The values of an array that may lie in any space, on the device: the array itself, or a copy that the ops emitted
// here bring.
Operand fetch(Emitter& e, std::string_view what, const Operand& stored, Role role);
// Room on the device for values that are to be stored: where they are stored, if that is there.
Operand allocate(Emitter& e, std::string_view what, const Operand& stored, Role role = Role::Staging);
// Writes values on the device back to where they are stored; nothing where they are one and the same.
void store(Emitter& e, std::string_view what, const Operand& value, const Operand& stored);

// An array over the whole segment, on the device: the array itself, or what fetching and gathering bring.
Operand fetch_whole(Emitter& e, std::string_view what, const ShardedArray& sharded, int64_t elements);
// All that products need of a segment, likewise: Storage::weights() by Storage::weights().
std::vector<Operand> fetch_weights(Emitter& e, const JobContext& job, int group, SegmentKind kind);

// Emits the values of a quantized parameter, from arrays over its whole segment.
void dequantize(Emitter& e, const JobContext& job, std::span<const Operand> arrays, ParamId id, const Operand& target);

class ProgramPlacement : public Placement {
 public:
  // Without a strategy nothing is kept for a backward.
  ProgramPlacement(const JobContext& job, Emitter& emitter, const Strategy* strategy)
      : job_(job),
        emitter_(emitter),
        strategy_(strategy),
        gathered_(static_cast<size_t>(job.table.group_count())),
        converted_(gathered_.size()),
        fp8_(gathered_.size()) {}

  Operand weight(ParamId first, int count) override;
  bool fp8_products() const override { return job_.numerics.fp8_products; }
  Fp8Factor fp8_weight(ParamId first, int count, bool transposed) override;
  Operand stored(ParamId param) override;
  Operand gradient(ParamId first, int count) override;
  bool keeps(int layer, ActivationClass kind) override;

  // Emits the ops that bring a group's weights, so that they are there when its ops come; what is resident or was
  // brought already needs none. Groups beyond the last are none.
  void prefetch(int group);
  // Gives up what was brought: who uses it again brings it again.
  void release(int group);

  // By group, arrays over whole trained segments: what a pass writes its gradients to, or updates by adding them.
  const std::vector<std::optional<Operand>>* gradients = nullptr;

 private:
  // How many of these parameters are.
  int quantized(ParamId first, int count) const;
  const std::vector<Operand>& whole(int group, SegmentKind kind);
  // As they are stored: one after the other, or brought together.
  Fp8Rows joined_codes(ParamId first, int count);
  // So many ones.
  Operand ones(int64_t count);
  // Of a parameter that is not quantized.
  Operand whole(ParamId id) { return whole(job_.table[id].group, job_.layout().kind(id))[0]; }

  const JobContext& job_;
  Emitter& emitter_;
  const Strategy* strategy_;
  std::vector<std::array<std::vector<Operand>, kSegmentKinds.size()>> gathered_;  // by group, SegmentKind
  std::vector<std::map<std::pair<ParamId, int>, Operand>>
      converted_;                                                   // by group, first and count: in the products' dtype
  std::vector<std::map<std::pair<ParamId, bool>, Fp8Factor>> fp8_;  // by group: and whether transposed
  std::map<int64_t, Operand> ones_;                                 // by their number
};

}  // namespace snug
