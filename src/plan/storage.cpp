#include "plan/storage.h"

namespace snug {
namespace {

// Parameters start at multiples of this many elements: of 256 bytes in the narrowest format kept for them.
constexpr int64_t kElementAlignment = 128;

}  // namespace

Storage::Storage(ProgramSet& set, const ParamTable& table, const Numerics& numerics, bool states)
    : table_(table), numerics_(numerics), states_(states), groups_(static_cast<size_t>(table.groups)) {
  for (const ParamSpec& param : table.params) {
    Group& group = groups_[static_cast<size_t>(param.group)];
    Segment& segment = param.trainable ? group.trainable : group.frozen;
    if (!param.joined)
      segment.elements = (segment.elements + kElementAlignment - 1) / kElementAlignment * kElementAlignment;
    offset_.push_back(segment.elements);
    segment.elements += param.shape.count();
  }
  for (size_t g = 0; g < groups_.size(); g++) {
    auto add = [&](Operand& operand, std::string_view what, int64_t elements, DType dtype, Role role) {
      operand = new_tensor(set, fmt::format("group.{}.{}", g, what), dtype, {elements}, role, Space::Device,
                           Life::Persistent);
    };
    Segment& frozen = groups_[g].frozen;
    if (frozen.elements > 0) add(frozen.weights, "frozen", frozen.elements, numerics.base, Role::Weight);
    Segment& trained = groups_[g].trainable;
    if (trained.elements == 0) continue;
    add(trained.weights, "weights", trained.elements, numerics.compute, Role::Weight);
    if (numerics.split_master()) add(trained.low, "low", trained.elements, DType::I16, Role::State);
    if (!states) continue;
    add(trained.first_moments, "first_moments", trained.elements, DType::F32, Role::State);
    add(trained.second_moments, "second_moments", trained.elements, DType::F32, Role::State);
  }
}

const Storage::Segment& Storage::segment(ParamId id) const {
  const Group& group = groups_[static_cast<size_t>(table_[id].group)];
  return table_[id].trainable ? group.trainable : group.frozen;
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
  part.offset += static_cast<uint64_t>(offset_[static_cast<size_t>(first)]) * element_bytes(whole.dtype);
  part.shape = shape;
  part.row_stride = shape.cols();
  return part;
}

Operand Storage::weight(ParamId first, int count) const { return view(segment(first).weights, first, count); }
Operand Storage::low(ParamId id) const { return view(segment(id).low, id, 1); }
Operand Storage::first_moment(ParamId id) const { return view(segment(id).first_moments, id, 1); }
Operand Storage::second_moment(ParamId id) const { return view(segment(id).second_moments, id, 1); }

Operand Storage::group_tensor(ProgramSet& set, std::string name, int group, DType dtype, Role role, Life life) const {
  return new_tensor(set, std::move(name), dtype, {trainable_elements(group)}, role, Space::Device, life);
}

Operand Storage::part(const Operand& group_tensor, ParamId first, int count) const {
  return view(group_tensor, first, count);
}

}  // namespace snug
