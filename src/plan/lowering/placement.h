// Tells the builder's ops where their bytes are, for one program: weights, which are resident, fetched, gathered or
// converted; gradients; and values kept for the backward.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "model/builder.h"
#include "plan/lowering/job.h"

namespace snug {

inline bool on_device(const ProgramSet& set, const Operand& stored) {
  return set.buffers[stored.buffer].space == Space::Device;
}

// Returns an array's values on the device, in whatever space it lies: the array itself, or a copy that the ops emitted
// here make.
Operand fetch(Emitter& e, std::string_view what, const Operand& stored, Role role);
// Returns room on the device for values that are to be stored: their own place, if that is on the device.
Operand allocate(Emitter& e, std::string_view what, const Operand& stored, Role role = Role::Staging);
// Writes values on the device back to where they are stored; emits nothing if they are there already.
void store(Emitter& e, std::string_view what, const Operand& value, const Operand& stored);

// Returns an array over the whole segment, on the device: the array itself, or what fetching and gathering bring.
Operand fetch_whole(Emitter& e, std::string_view what, const ShardedArray& sharded, int64_t elements);
// Returns all arrays of Storage::weights() over the whole segment, on the device, in their order.
std::vector<Operand> fetch_weights(Emitter& e, const JobContext& job, int group, SegmentKind kind);

// Emits the values of a quantized parameter, out of arrays over its whole segment.
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
  Fp8Rows fp8_weight(ParamId first, int count) override;
  Fp8Rows fp8_transposed(ParamId first, const Fp8Rows& weight) override;
  Operand stored(ParamId param) override;
  Operand constant(ParamId param) override { return job_.storage.constant(param); }
  Operand gradient(ParamId first, int count) override;
  bool keeps(int layer, ActivationClass kind) override;

  // Emits the ops that fetch a group's weights, so that they are there when its ops come; it emits nothing for weights
  // that are resident or already fetched, or beyond the last group.
  void prefetch(int group);
  // Drops the group's fetched weights; the next use fetches them again.
  void release(int group);

  // Holds, by group, arrays over whole trained segments: a pass writes its gradients to them, or adds them to what is
  // there.
  const std::vector<std::optional<Operand>>* gradients = nullptr;

 private:
  // Returns what `make` does, or where several passes go through a layer together what it has done before.
  Fp8Rows once(ParamId first, bool transposed, const std::function<Fp8Rows()>& make);
  // Returns how many of these parameters are quantized.
  int quantized(ParamId first, int count) const;
  // Returns whether they lie in one segment.
  bool together(ParamId first, int count) const;
  const std::vector<Operand>& whole(int group, SegmentKind kind);
  // Returns the parameters' codes, joined: in place where they are stored one after the other, else brought together.
  Fp8Rows joined_codes(ParamId first, int count);
  // Returns a vector of `count` ones.
  Operand ones(int64_t count);
  // Returns the whole segment's array of a parameter that is not quantized.
  Operand whole(ParamId id) { return whole(job_.table[id].group, job_.layout().kind(id))[0]; }

  const JobContext& job_;
  Emitter& emitter_;
  const Strategy* strategy_;
  std::vector<std::array<std::vector<Operand>, kSegmentKinds.size()>> gathered_;  // by group, SegmentKind
  std::vector<std::map<std::pair<ParamId, int>, Operand>>
      converted_;                                                 // by group, first and count: in the products' dtype
  std::vector<std::map<std::pair<ParamId, bool>, Fp8Rows>> fp8_;  // by group: and whether transposed
  std::map<int64_t, Operand> ones_;                               // by their count
};

}  // namespace snug
