#include "plan/storage.h"

namespace snug {

Operand slice(const Operand& array, int64_t start, const Span& span) {
  return elements(array, span.begin - start, span.end - start);
}

Operand slice(const Held& held, const Span& span) {
  const int64_t g = held.granule;
  return elements(held.array, (span.begin - held.span.begin) / g, (span.end - held.span.begin + g - 1) / g);
}

Storage::Storage(ProgramSet& set, const ParamTable& table, const Layout& layout, const Numerics& numerics,
                 const Strategy& strategy, bool states)
    : table_(table), layout_(layout), numerics_(numerics), states_(states) {
  const Topology& topology = layout.topology();
  for (int g = 0; g < table.groups; g++) {
    const GroupPlacement& placement = strategy.groups[static_cast<size_t>(g)];
    auto hold = [&](std::string_view what, int64_t total, DType dtype, Role role, Space space, bool sharded,
                    int64_t granule = 1) {
      Held held;
      held.granule = granule;
      held.span = sharded ? layout.shard(total) : Span{0, total};
      if (topology.ranks > 1 && !sharded) held.sharers = Ranks::Parts;
      if (topology.replicas > 1 && sharded) held.sharers = Ranks::Peers;
      held.array = new_tensor(set, fmt::format("group.{}.{}", g, what), dtype, {held.span.count() / granule}, role,
                              space, Life::Persistent);
      return held;
    };
    const bool shard_weights = placement.shard_weights || placement.weights != Space::Device;
    const int64_t frozen = layout.segment(g, false).elements, trained = layout.segment(g, true).elements;
    Arrays of_frozen, of_trained;
    if (frozen > 0)
      of_frozen.weights = hold("frozen", frozen, numerics.base, Role::Weight, placement.weights, shard_weights);
    if (trained > 0) {
      auto add_state = [&](std::string_view what, DType dtype, int64_t granule = 1) {
        of_trained.states.push_back({std::string(what), hold(what, trained, dtype, Role::State, placement.states,
                                                             placement.shard_states || shard_weights, granule)});
      };
      of_trained.weights = hold("weights", trained, numerics.compute, Role::Weight, placement.weights, shard_weights);
      if (numerics.split_master()) add_state("low", DType::I16);
      const DType moment = numerics.state == StateFormat::Fp32   ? DType::F32
                           : numerics.state == StateFormat::Bf16 ? DType::BF16
                                                                 : DType::U8;
      for (const std::string_view name : {"first_moment", "second_moment"})
        if (states) add_state(name, moment);
      for (const std::string_view name : {"first_moment_scales", "second_moment_scales"})
        if (states && numerics.state == StateFormat::Bit8) add_state(name, DType::F32, kStateBlock);
    }
    arrays_.push_back(std::move(of_frozen));
    arrays_.push_back(std::move(of_trained));
  }
}

Operand Storage::view(const Operand& whole, ParamId first, int count) const {
  Shape shape = table_[first].shape;
  for (int i = 1; i < count; i++) {
    const ParamSpec& next = table_[first + i];
    check(next.joined && next.trainable == table_[first].trainable, "parameter '{}' does not follow '{}'", next.name,
          table_[first].name);
    shape.dims[0] += next.shape[0];
  }
  Operand part = whole;
  part.offset += static_cast<uint64_t>(layout_.span(first).begin) * element_bytes(whole.dtype);
  part.shape = shape;
  part.row_stride = shape.cols();
  return part;
}

}  // namespace snug
