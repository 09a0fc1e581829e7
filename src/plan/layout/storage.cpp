#include "plan/layout/storage.h"

#include "base/rounding.h"
#include "model/hidden_matrices.h"

namespace snug {
namespace {

Operand slice(const Operand& array, int64_t start, int64_t block, const Span& span) {
  return elements(array, (span.begin - start) / block, ceil_div(span.end - start, block));
}

}  // namespace

Operand slice(const Operand& array, int64_t start, const Span& span) { return slice(array, start, 1, span); }

Operand slice(const ShardedArray& sharded, const Span& span) {
  return slice(sharded.values, sharded.span.begin, sharded.block, span);
}

namespace {

// Returns, by ParamId, what the optimizer updates as matrices, from the whole of their gradients.
std::vector<bool> matrices_of(Optimizer optimizer, const ParamTable& table) {
  if (optimizer == Optimizer::Muon || optimizer == Optimizer::Apollo) return trained_hidden_matrices(table);
  std::vector<bool> matrices(table.params.size());
  if (optimizer == Optimizer::Adafactor)
    for (size_t i = 0; i < matrices.size(); i++) matrices[i] = table.params[i].trainable;
  return matrices;
}

}  // namespace

// Adds the arrays of a group.
class Storage::ArrayAllocator {
 public:
  // `prefix` begins the names of back buffers.
  ArrayAllocator(ProgramSet& set, const Layout& layout, const GroupPlacement& placement, int group,
                 std::string_view prefix = "")
      : set_(set), layout_(layout), placement_(placement), group_(group), prefix_(prefix) {}

  int64_t elements(SegmentKind kind) const { return layout_.segment(group_, kind).elements; }

  Array weights(std::string name, SegmentKind kind, DType dtype, int64_t block = 1) const {
    return hold(std::move(name), kind, dtype, block, Role::Weight, placement_.weights, shard_weights());
  }
  ShardedArray updated() const { return place(SegmentKind::Trained, shard_states()); }
  Array state(std::string name, DType dtype, int64_t block = 1) const {
    return hold(std::move(name), SegmentKind::Trained, dtype, block, Role::State, placement_.states, shard_states());
  }
  // Allocates a state of a run that is no matrix.
  Array state_of(const Layout::Run& run, std::string name, DType dtype) const {
    ShardedArray array;
    array.only = run.span;
    array.span = {run.span.begin, round_up(run.span.end, kUnit)};
    array.values = new_tensor(set_, fmt::format("group.{}.{}.{}", group_, name, run.first), dtype, {array.span.count()},
                              Role::State, placement_.states, Life::Persistent);
    return {std::move(name), array};
  }
  Array training_point(std::string name, DType dtype, bool where_gradients_are) const {
    return hold(std::move(name), SegmentKind::Trained, dtype, 1, Role::State,
                where_gradients_are ? placement_.gradients : placement_.states, shard_states(), Life::Carried);
  }
  MatrixState matrix_state(std::string name, ParamId id, const Shape& shape, std::optional<Space> where = {}) const {
    const Space space = where.value_or(placement_.states);
    const int64_t count = space == Space::Device ? shape.count() : round_up(shape.count(), kUnit);
    const Operand values = new_tensor(set_, fmt::format("group.{}.{}.{}", group_, name, id), DType::F32, {count},
                                      Role::State, space, Life::Persistent);
    return {std::move(name), shape, values};
  }
  Operand numbers(std::string_view name, int64_t count) const {
    if (count == 0) return {};
    return new_tensor(set_, fmt::format("group.{}.{}", group_, name), DType::F32, {count}, Role::Weight, Space::Device,
                      Life::Persistent);
  }

 private:
  bool shard_states() const { return placement_.shard_states || shard_weights(); }
  bool shard_weights() const { return placement_.shard_weights || placement_.weights != Space::Device; }

  // Says what this rank holds of a segment.
  ShardedArray place(SegmentKind kind, bool sharded) const {
    const Topology& topology = layout_.topology();
    ShardedArray array;
    array.span = sharded ? layout_.shard(elements(kind)) : Span{0, elements(kind)};
    if (topology.ranks > 1 && !sharded) array.sharers = Ranks::Parts;
    if (topology.replicas > 1 && sharded) array.sharers = Ranks::Peers;
    return array;
  }

  Array hold(std::string name, SegmentKind kind, DType dtype, int64_t block, Role role, Space space, bool sharded,
             Life life = Life::Persistent) const {
    ShardedArray array = place(kind, sharded);
    array.block = block;
    array.values = new_tensor(set_, fmt::format("group.{}.{}{}", group_, prefix_, name), dtype,
                              {array.span.count() / block}, role, space, life);
    return {std::move(name), array};
  }

  ProgramSet& set_;
  const Layout& layout_;
  const GroupPlacement& placement_;
  int group_;
  std::string_view prefix_;
};

Storage::Storage(ProgramSet& set, const ParamTable& table, const Layout& layout, const Numerics& numerics,
                 const Strategy& strategy, bool moments)
    : table_(table),
      layout_(layout),
      numerics_(numerics),
      matrix_states_(table.params.size()),
      table_spans_(table.params.size()),
      constant_spans_(table.params.size()),
      matrices_(matrices_of(numerics.optimizer, table)),
      matrix_groups_(static_cast<size_t>(table.group_count())) {
  for (size_t i = 0; i < matrices_.size(); i++)
    if (matrices_[i]) matrix_groups_[static_cast<size_t>(table.params[i].group)] = true;
  for (int g = 0; g < table.group_count(); g++) {
    const ArrayAllocator allocator(set, layout, strategy.groups[static_cast<size_t>(g)], g);
    auto& [frozen, quantized, trained] = weights_.emplace_back();
    if (allocator.elements(SegmentKind::Frozen) > 0)
      frozen.push_back(allocator.weights("frozen", SegmentKind::Frozen, numerics.base));
    if (allocator.elements(SegmentKind::Quantized) > 0) quantized = allocate_codes(allocator);
    if (allocator.elements(SegmentKind::Trained) > 0)
      trained.push_back(allocator.weights("weights", SegmentKind::Trained, numerics.compute));
    const bool twice = strategy.speculate && strategy.reduce_in_backward && moments &&
                       strategy.groups[static_cast<size_t>(g)].states != Space::Device;
    const ArrayAllocator second(set, layout, strategy.groups[static_cast<size_t>(g)], g, "back_buffer.");
    updated_.push_back(allocator.updated());
    if (moments)
      for (const Layout::Run& run : layout.segment(g, SegmentKind::Trained).runs)
        for (ParamId id = run.first; id < run.first + run.count; id++)
          matrix_states_[static_cast<size_t>(id)] = allocate_matrix_states(allocator, id);
    states_[0].push_back(trained.empty() ? std::vector<Array>{} : allocate_states(allocator, g, moments));
    states_[1].push_back(trained.empty() || !twice ? std::vector<Array>{} : allocate_states(second, g, moments));
    training_points_.push_back(trained.empty() || !moments ? std::vector<Array>{}
                                                           : allocate_points(allocator, strategy));
    tables_.push_back(allocator.numbers("table", number_table(g)));
    constants_.push_back(allocator.numbers("constants", number_constants(g)));
  }
}

void Storage::swap_buffers() {
  for (size_t g = 0; g < states_[1].size(); g++)
    if (!states_[1][g].empty()) std::swap(states_[0][g], states_[1][g]);
}

std::vector<Array> Storage::allocate_codes(const ArrayAllocator& allocator) const {
  constexpr SegmentKind kind = SegmentKind::Quantized;
  if (numerics_.base_format == BaseFormat::Int8) return {allocator.weights("codes", kind, DType::I8)};
  if (numerics_.base_format == BaseFormat::Fp8) return {allocator.weights("codes", kind, DType::U8)};
  const Array codes = allocator.weights("codes", kind, DType::U8, 2);
  if (numerics_.plain_scales) return {codes, allocator.weights("scales", kind, DType::F32, kNf4Block)};
  return {codes, allocator.weights("scale_codes", kind, DType::U8, kNf4Block),
          allocator.weights("block_scales", kind, DType::F32, kNf4Block * kNf4ScaleBlock)};
}

std::vector<Array> Storage::allocate_states(const ArrayAllocator& allocator, int group, bool moments) const {
  std::vector<Array> states;
  if (numerics_.split_master()) states.push_back(allocator.state("low", DType::I16));
  if (!moments) return states;
  const DType moment = numerics_.state == StateFormat::Fp32   ? DType::F32
                       : numerics_.state == StateFormat::Bf16 ? DType::BF16
                                                              : DType::U8;
  if (numerics_.optimizer == Optimizer::Lion) {
    states.push_back(allocator.state("first_moment", DType::F32));
    return states;
  }
  if (numerics_.optimizer == Optimizer::Adafactor) return states;
  if (updates_matrices(group)) {
    const bool momentum = numerics_.optimizer == Optimizer::Muon;  // of matrices too
    if (momentum) states.push_back(allocator.state("first_moment", DType::F32));
    for (const Layout::Run& run : layout_.segment(group, SegmentKind::Trained).runs) {
      if (updated_as_matrix(run.first)) continue;
      if (!momentum) states.push_back(allocator.state_of(run, "first_moment", DType::F32));
      states.push_back(allocator.state_of(run, "second_moment", DType::F32));
    }
    return states;
  }
  if (numerics_.optimizer == Optimizer::ScheduleFreeAdamW) {
    for (const char* const name : {"z_minus_y", "second_moment"}) states.push_back(allocator.state(name, DType::F32));
    return states;
  }
  for (const std::string_view name : {"first_moment", "second_moment"})
    states.push_back(allocator.state(std::string(name), moment));
  for (const std::string_view name : {"first_moment_scales", "second_moment_scales"})
    if (numerics_.state == StateFormat::Bit8)
      states.push_back(allocator.state(std::string(name), DType::F32, kStateBlock));
  return states;
}

std::vector<MatrixState> Storage::allocate_matrix_states(const ArrayAllocator& allocator, ParamId id) const {
  if (!updated_as_matrix(id)) return {};
  const Shape& shape = table_[id].shape;
  switch (numerics_.optimizer) {
    case Optimizer::Adafactor:  // stay on the device, which hardly notices
      return {allocator.matrix_state("row_means", id, {shape.rows()}, Space::Device),
              allocator.matrix_state("column_means", id, {shape.cols()}, Space::Device)};
    case Optimizer::Apollo: {
      const Shape projected{std::max(shape.rows(), shape.cols()), numerics_.projected_to(shape)};
      return {allocator.matrix_state("first_moment", id, projected),
              allocator.matrix_state("second_moment", id, projected),
              allocator.matrix_state("update_norm", id, {1}, Space::Device)};
    }
    default:
      return {};
  }
}

// Takes the place of gradients, which are gone by then, or of states where gradients are never there as a whole.
std::vector<Array> Storage::allocate_points(const ArrayAllocator& allocator, const Strategy& strategy) const {
  std::vector<Array> points;
  if (numerics_.optimizer != Optimizer::ScheduleFreeAdamW) return points;
  const bool has_gradients = !strategy.update_in_backward;
  points.push_back(allocator.training_point("y", numerics_.compute, has_gradients));
  if (numerics_.split_master()) points.push_back(allocator.training_point("y_low", DType::I16, has_gradients));
  return points;
}

// Gives the quantized parameters of a group their places in its table, and returns the table's length.
int64_t Storage::number_table(int group) {
  if (numerics_.base_format == BaseFormat::Nf4 && numerics_.plain_scales) return 0;
  int64_t count = 0;
  for (const Layout::Run& run : layout_.segment(group, SegmentKind::Quantized).runs) {
    const int64_t begin = count;
    count += numerics_.base_format == BaseFormat::Nf4 ? 1 : table_[run.first].shape.rows();
    table_spans_[static_cast<size_t>(run.first)] = {begin, count};
  }
  return count;
}

// Gives the constants of a group their places, and returns how many numbers they are.
int64_t Storage::number_constants(int group) {
  int64_t count = 0;
  for (size_t i = 0; i < table_.params.size(); i++) {
    if (!table_.params[i].constant || table_.params[i].group != group) continue;
    constant_spans_[i] = {count, count + table_.params[i].shape.count()};
    count = constant_spans_[i].end;
  }
  return count;
}

Operand Storage::constant(ParamId id) const {
  const Span& span = constant_spans_[static_cast<size_t>(id)];
  return elements(constants_[static_cast<size_t>(table_[id].group)], span.begin, span.end);
}

std::vector<Operand> Storage::quantized(std::span<const Operand> whole, ParamId id) const {
  const Span span = layout_.span(id), in_table = table_span(id);
  const std::vector<Array>& arrays = weights(table_[id].group, SegmentKind::Quantized);
  std::vector<Operand> operands;
  for (size_t i = 0; i < arrays.size(); i++) operands.push_back(slice(whole[i], 0, arrays[i].sharded.block, span));
  if (numerics_.base_format != BaseFormat::Nf4) {  // rows
    operands[0].shape = table_[id].shape;
    operands[0].row_stride = table_[id].shape.cols();
  }
  if (in_table.count() > 0) operands.push_back(elements(table(table_[id].group), in_table.begin, in_table.end));
  return operands;
}

Shape Storage::joined_shape(ParamId first, int count) const {
  Shape shape = table_[first].shape;
  for (int i = 1; i < count; i++) {
    const ParamSpec& next = table_[first + i];
    check(next.joined, "parameter '{}' does not follow '{}'", next.name, table_[first].name);
    shape.dims[0] += next.shape[0];
  }
  return shape;
}

Operand Storage::view(const Operand& whole, ParamId first, int count) const {
  for (ParamId id = first + 1; id < first + count; id++)
    check(layout_.kind(id) == layout_.kind(first), "'{}' and '{}' lie in two segments", table_[first].name,
          table_[id].name);
  Operand part = whole;
  part.offset += static_cast<uint64_t>(layout_.span(first).begin) * element_bytes(whole.dtype);
  part.shape = joined_shape(first, count);
  part.row_stride = part.shape.cols();
  return part;
}

}  // namespace snug
