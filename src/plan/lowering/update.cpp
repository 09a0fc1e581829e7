#include "plan/lowering/update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/rounding.h"
#include "plan/lowering/adafactor.h"
#include "plan/lowering/apollo.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/orthogonalize.h"
#include "plan/lowering/placement.h"

namespace snug {
namespace {

// The root of the mean square of an update of Muon's, as AdamW's is about (Liu et al., arXiv:2502.16982), so that one
// learning rate serves both.
constexpr double kShareOfAdamW = 0.2;

// Returns where a group's partial sums are among those of all groups.
Span units_of(const JobContext& job, int group) {
  Span units{0, 0};
  for (int g = 0; g <= group; g++)
    units = {units.end,
             units.end + job.layout().segment(g, SegmentKind::Trained).elements / kUnit / job.topology().ranks};
  return units;
}

void clear_partials(Emitter& emitter, const Operand& partials) {
  emitter.scope("norm");
  emitter.op("clear", Fill{}, {write(partials)});
}

// Emits the partial sums of what the rank has of the group's gradient. An offloaded gradient is fetched for its norm,
// and again for its update.
void emit_partials(const JobContext& job, Emitter& emitter, int group, const Operand& gradient, const Operand& partials,
                   Lane lane) {
  const Layout::Segment& segment = job.layout().segment(group, SegmentKind::Trained);
  if (segment.elements == 0) return;
  emitter.scope(fmt::format("norm.group.{}", group));
  const Operand here = fetch(emitter, "gradient", gradient, Role::Gradient);
  const Span part = job.layout().part(segment.elements);
  const int64_t units = units_of(job, group).begin;
  // Adapters are of many short runs: an op takes several of them.
  std::vector<Operand> operands;
  int64_t first = units, end = units;
  const auto emit = [&](int64_t next) {
    if (operands.empty()) return;
    operands.push_back(write(elements(partials, first, next)));
    emitter.op("partials", NormPartials{}, std::exchange(operands, {}), lane);
    first = next;
  };
  for (const Layout::Run& run : segment.runs) {
    const Span span = intersection(run.span, part);
    if (span.count() == 0) continue;
    const int64_t begin = units + (span.begin - part.begin) / kUnit;
    if (operands.empty()) first = begin;
    operands.push_back(read(slice(here, part.begin, span)));
    end = begin + ceil_div(span.count(), kUnit);
    if (operands.size() == NormPartials::kMost) emit(end);
  }
  emit(end);
}

class Update {
 public:
  Update(const JobContext& job, ProgramId program, const StepBuffers& step)
      : job_(job), step_(step), emitter_(job.set, program, job.facts), columns_(norm_units(job)) {}

  UpdateProgram emit() {
    const Operand loss = sum_over_ranks(job_, emitter_, "loss", step_.loss);
    result_.in_backward = job_.strategy.update_in_backward;
    result_.partials = partials();
    clip_factor(loss);
    const Operand loss_host = copy_to_host(emitter_, "loss.host", loss),
                  scalars_host = copy_to_host(emitter_, "scalars.host", step_.scalars);
    emitter_.op("take", HostTask{HostJob::TakeMetrics}, {read(loss_host), read(scalars_host)}, Lane::Host);
    GroupUpdates updates(job_, emitter_, step_);
    if (!job_.strategy.defer_updates) updates.update_through(job_.table.group_count() - 1);
    Program& program = emitter_.program();
    retire_later(program, job_.strategy.buffer_hold_ops);
    // Where a norm is not finite, the host reads the partials after the program.
    program.ops[last_sum_].retire = static_cast<OpId>(program.ops.size() - 1);
    return std::move(result_);
  }

 private:
  // Emits sums of squares of this rank's parts, gathered from all ranks: [ranks, units].
  Operand partials() {
    emitter_.scope("norm");
    const int ranks = job_.topology().ranks;
    Operand mine = step_.partials;
    if (!job_.strategy.update_in_backward) {
      mine = emitter_.tensor("partials", DType::F32, {columns_}, Role::Metrics);
      clear_partials(emitter_, mine);
    }
    for (int g = 0; g < job_.table.group_count(); g++) {
      for (const Layout::Run& run : job_.layout().segment(g, SegmentKind::Trained).runs) note_units(g, run);
      if (!job_.strategy.update_in_backward)
        emit_partials(job_, emitter_, g, step_.gradients[static_cast<size_t>(g)], mine, Lane::Compute);
    }
    emitter_.scope("norm");
    Operand all = mine;
    if (ranks > 1) {
      all = emitter_.tensor("all", DType::F32, {ranks * columns_}, Role::Metrics);
      emitter_.op("gather", AllGather{Ranks::Parts}, {read(mine), write(all)}, Lane::Gather);
    }
    all.shape = {ranks, columns_};
    all.row_stride = columns_;
    return all;
  }

  void note_units(int group, const Layout::Run& run) {
    const Span units = units_of(job_, group);
    const int64_t per_rank = units.count(), end = ceil_div(run.span.end, kUnit);
    for (int64_t unit = run.span.begin / kUnit; unit < end;) {
      const int64_t rank = unit / per_rank, next = std::min(end, (rank + 1) * per_rank);
      const int64_t shift = rank * columns_ + units.begin - rank * per_rank;
      result_.units.push_back({run.first, unit + shift, next + shift});
      unit = next;
    }
  }

  void clip_factor(const Operand& loss) {
    std::vector<int> groups;
    for (int g = 0; g < job_.table.group_count(); g++)
      if (units_of(job_, g).count() > 0) groups.push_back(g);
    const auto count = static_cast<int64_t>(groups.size());
    const Operand sums = emitter_.tensor("sums", DType::F32, {count}, Role::Metrics);
    for (int64_t i = 0; i < count; i++) {
      const int g = groups[static_cast<size_t>(i)];
      const Span units = units_of(job_, g);
      last_sum_ =
          emitter_.op("sum", TreeSum{job_.layout().segment(g, SegmentKind::Trained).used / kUnit},
                      {read(columns(result_.partials, units.begin, units.end)), write(elements(sums, i, i + 1))});
    }
    emitter_.scope("update");
    emitter_.op("clip", ClipFactor{job_.numerics.max_grad_norm}, {read(sums), read(loss), write(step_.scalars)});
  }

  const JobContext& job_;
  const StepBuffers& step_;
  Emitter emitter_;
  UpdateProgram result_;
  int64_t columns_;    // in a rank's row of partials
  OpId last_sum_ = 0;  // the last op that reads the partials
};

}  // namespace

int64_t norm_units(const JobContext& job) { return units_of(job, job.table.group_count() - 1).end; }

void allgather_updated(const JobContext& job, Emitter& emitter, int group) {
  const ShardedArray& weights = job.storage.values(group, SegmentKind::Trained);
  const Span& span = job.storage.updated(group).span;
  if (weights.span.count() == span.count()) return;
  emitter.scope(fmt::format("group.{}.update", group));
  emitter.op("gather", AllGather{Ranks::Replica},
             {read(slice(weights.values, weights.span.begin, span)), write(weights.values)}, Lane::Gather);
}

GroupUpdates::GroupUpdates(const JobContext& job, Emitter& emitter, const StepBuffers& step)
    : job_(job), emitter_(emitter), step_(step), queued_(static_cast<size_t>(job.table.group_count())) {
  for (int g = 0; g < job.table.group_count(); g++)
    if (job.updates_early(g) && !stays(g))
      for (const Stage stage : {Stage::Whole, Stage::Descend})
        remaining_ += std::ssize(tiles_of(g, Variant::Unclipped, Lane::Reduce, {}, stage));
}

bool GroupUpdates::stays(int group) const {
  const auto is_here = [&](const Operand& values) { return on_device(job_.set, values); };
  for (const ParamId id : matrices_of(group).first)
    for (const MatrixState& state : job_.storage.matrix_states(id))
      if (!is_here(state.values)) return false;
  return std::ranges::all_of(job_.storage.states(group),
                             [&](const Array& state) { return is_here(state.sharded.values); });
}

void GroupUpdates::update_through(int group) {
  for (; next_ <= group; next_++) {
    if (!updated(next_).exists() || job_.updates_early(next_)) continue;
    if (queued_[static_cast<size_t>(next_)])
      advance(std::ranges::count_if(waiting_, [this](const Tile& tile) { return tile.group <= next_; }));
    else
      emit_tiles(tiles_to_update(next_, Variant::Exact, Lane::Compute));
    allgather_updated(job_, emitter_, next_);
  }
}

// Leaves out groups for whose update gradients or directions are gathered: ranks gather together, at places that all of
// them know.
void GroupUpdates::enqueue() {
  for (int g = 0; g < job_.table.group_count(); g++) {
    if (!updated(g).exists() || job_.updates_early(g)) continue;
    if (updated(g).sharers || stays(g) || job_.storage.updates_matrices(g)) continue;
    std::ranges::move(tiles_of(g, Variant::Exact, Lane::Reduce, gradient_to_update(g)), std::back_inserter(waiting_));
    queued_[static_cast<size_t>(g)] = true;
  }
  remaining_ += waiting();
}

void GroupUpdates::prepare() {
  bool any = false;
  for (int g = 0; g < job_.table.group_count(); g++) any = any || job_.updates_early(g);
  if (!any) return;
  if (job_.strategy.update_in_backward) clear_partials(emitter_, step_.partials);
  emitter_.scope("update");
  unclipped_ = emitter_.tensor("unclipped", step_.scalars.dtype, step_.scalars.shape, Role::Metrics);
  emitter_.op("unclipped", RandomFill{Distribution::Constant, 1}, {write(unclipped_)});
}

// Uses the lane of sums for what is offloaded or comes from other ranks: on the compute lane, the next layer's backward
// would wait for it too.
void GroupUpdates::update_early(int group) {
  if (!job_.updates_early(group)) return;
  const Operand& gradient = step_.gradients[static_cast<size_t>(group)];
  const bool waits = job_.topology().ranks > 1 || !on_device(job_.set, gradient);
  const Variant variant = job_.storage.speculates(group) ? Variant::Speculative : Variant::Unclipped;
  if (variant == Variant::Unclipped)
    emit_partials(job_, emitter_, group, gradient, step_.partials, waits ? Lane::Reduce : Lane::Compute);
  const Lane lane = waits || !stays(group) ? Lane::Reduce : Lane::Compute;
  std::vector<Tile> tiles = tiles_to_update(group, variant, lane);
  if (!stays(group)) {
    std::ranges::move(tiles, std::back_inserter(waiting_));
    begun_.push_back(group);
    return;
  }
  emit_tiles(std::move(tiles));
  allgather_updated(job_, emitter_, group);
}

void GroupUpdates::finish() {
  advance(waiting());
  for (const int group : begun_) allgather_updated(job_, emitter_, group);
}

void GroupUpdates::reapply(int group) {
  if (!job_.storage.speculates(group)) return;
  emit_tiles(tiles_of(group, Variant::Reapply, Lane::Compute, gradient_to_update(group)));
  allgather_updated(job_, emitter_, group);
}

// Ranks have different tiles, so nothing here may be a collective.
void GroupUpdates::advance(int64_t tiles) {
  const auto end = waiting_.begin() + std::min(tiles, waiting());
  remaining_ -= end - waiting_.begin();
  emit_tiles({waiting_.begin(), end});
  waiting_.erase(waiting_.begin(), end);
}

// Returns the gradient of what this rank updates: of its part, or of its shard of all peers' parts, or of all.
Operand GroupUpdates::gradient_to_update(int group) {
  const Operand& part = step_.gradients[static_cast<size_t>(group)];
  const ShardedArray& sharded = updated(group);
  if (!sharded.sharers) return part;
  emitter_.scope(fmt::format("group.{}.update", group));
  const Operand mine = fetch(emitter_, "gradient", part, Role::Gradient);
  const Operand whole = emitter_.tensor("gradients", part.dtype, {sharded.span.count()}, Role::Gather);
  emitter_.op("gather", AllGather{*sharded.sharers}, {read(mine), write(whole)}, Lane::Gather);
  return whole;
}

// Returns the tiles of all that this rank updates of a group. Directions of matrices, and their means or momentum, are
// worked out before.
std::vector<GroupUpdates::Tile> GroupUpdates::tiles_to_update(int group, Variant variant, Lane lane) {
  const Operand gradient = gradient_to_update(group);
  std::vector<Tile> tiles = tiles_of(group, variant, lane, gradient);
  if (!job_.storage.updates_matrices(group)) return tiles;
  const Operand directions = job_.numerics.optimizer == Optimizer::Muon ? orthogonalized(group, variant, lane, gradient)
                                                                        : scaled(group, variant, gradient);
  std::ranges::move(tiles_of(group, variant, lane, slice(directions, 0, updated(group).span), Stage::Descend),
                    std::back_inserter(tiles));
  return tiles;
}

// Returns directions of the whole segment, of which those are right that this rank updates. They are sent in the
// gradient's dtype.
Operand GroupUpdates::orthogonalized(int group, Variant variant, Lane lane, const Operand& gradient) {
  const Layout::Segment& segment = job_.layout().segment(group, SegmentKind::Trained);
  const Span& mine = updated(group).span;
  const std::string scope = fmt::format("group.{}.update", group);
  emitter_.scope(scope);
  const Operand all = emitter_.tensor("directions", gradient.dtype, {segment.elements}, Role::Gather);
  const Operand part = slice(all, 0, mine);
  emitter_.op("clear", Fill{}, {write(part)});  // between runs, and what is no matrix
  std::vector<Tile> tiles = tiles_of(group, variant, lane, gradient, Stage::Momentum);
  for (Tile& tile : tiles) tile.direction = part;
  emit_tiles(std::move(tiles));
  emitter_.scope(scope);
  if (mine.count() < segment.elements)
    emitter_.op("gather", AllGather{Ranks::Replica}, {read(part), write(all)}, Lane::Gather);
  const auto [matrices, shapes] = matrices_of(group);
  Orthogonalizer orthogonalizer(emitter_, all.dtype, shapes);
  for (size_t i = 0; i < matrices.size(); i++) {
    if (intersection(job_.layout().span(matrices[i]), mine).count() == 0) continue;
    emitter_.scope("update." + job_.table[matrices[i]].name);
    const auto length = static_cast<double>(std::max(shapes[i].rows(), shapes[i].cols()));
    orthogonalizer.orthogonalize(job_.storage.view(all, matrices[i]), kShareOfAdamW * std::sqrt(length));
  }
  return all;
}

// Puts directions in the place of the whole segment's gradients, and returns them; of Adafactor, those that this rank
// needs.
Operand GroupUpdates::scaled(int group, Variant variant, const Operand& gradient) {
  const Operand whole = whole_gradient(group, gradient), scalars = scalars_of(variant);
  const auto [matrices, shapes] = matrices_of(group);
  std::optional<Adafactor> adafactor;
  std::optional<Apollo> apollo;
  if (job_.numerics.optimizer == Optimizer::Adafactor)
    adafactor.emplace(emitter_, shapes);
  else
    apollo.emplace(emitter_, job_.numerics, whole.dtype, shapes);
  for (const ParamId id : matrices) {
    emitter_.scope("update." + job_.table[id].name);
    const Operand matrix = job_.storage.view(whole, id);
    const std::vector<MatrixState>& states = job_.storage.matrix_states(id);
    std::vector<Operand> fetched, values;
    for (const MatrixState& state : states) {
      fetched.push_back(fetch(emitter_, state.name, state.values, Role::State));
      values.push_back(reshaped(elements(fetched.back(), 0, state.shape.count()), state.shape));
    }
    if (apollo) apollo->direct(matrix, id, {values[0], values[1], values[2]}, scalars);
    if (adafactor) adafactor->follow(matrix, values[0], values[1], scalars);
    if (adafactor && intersection(job_.layout().span(id), updated(group).span).count() > 0)
      adafactor->direct(matrix, values[0], values[1], scalars);
    for (size_t i = 0; i < states.size(); i++)
      if (fetched[i].buffer != states[i].values.buffer) store(emitter_, "back", fetched[i], states[i].values);
  }
  return whole;
}

// Returns a group's gradients on the device; what this rank updates of them is gathered from the others.
Operand GroupUpdates::whole_gradient(int group, const Operand& gradient) {
  const int64_t count = job_.layout().segment(group, SegmentKind::Trained).elements;
  emitter_.scope(fmt::format("group.{}.update", group));
  const Operand part = fetch(emitter_, "gradient", gradient, Role::Gradient);
  if (updated(group).span.count() == count) return part;
  const Operand all = emitter_.tensor("gradients", part.dtype, {count}, Role::Gather);
  emitter_.op("gather", AllGather{Ranks::Replica}, {read(part), write(all)}, Lane::Gather);
  return all;
}

// Returns what of a group is updated as matrices, and their shapes.
std::pair<std::vector<ParamId>, std::vector<Shape>> GroupUpdates::matrices_of(int group) const {
  std::vector<ParamId> matrices;
  std::vector<Shape> shapes;
  for (const Layout::Run& run : job_.layout().segment(group, SegmentKind::Trained).runs)
    for (ParamId id = run.first; id < run.first + run.count; id++)
      if (job_.storage.updated_as_matrix(id)) matrices.push_back(id), shapes.push_back(job_.table[id].shape);
  return {matrices, shapes};
}

std::vector<GroupUpdates::Tile> GroupUpdates::tiles_of(int group, Variant variant, Lane lane, const Operand& gradient,
                                                       Stage stage) const {
  std::vector<Tile> tiles;
  for (const Layout::Run& run : job_.layout().segment(group, SegmentKind::Trained).runs) {
    if (job_.storage.updated_as_matrix(run.first) == (stage == Stage::Whole)) continue;
    const Span mine = intersection(run.span, updated(group).span);
    for (int64_t begin = mine.begin; begin < mine.end; begin += kUpdateTile)
      tiles.push_back({group, variant, lane, &run, {begin, std::min(begin + kUpdateTile, mine.end)}, gradient, stage});
  }
  return tiles;
}

// Fetches one tile ahead. A lane works in issue order: a tile fetched after the one before it is written back would
// stand behind writes that wait for an update, and disk and processor would take turns.
void GroupUpdates::emit_tiles(std::vector<Tile> tiles) {
  for (size_t t = 0; t < tiles.size(); t++) {
    if (t == 0) fetch_tile(tiles[t]);
    if (t + 1 < tiles.size()) fetch_tile(tiles[t + 1]);
    update_tile(tiles[t]);
  }
}

// Fetches a tile. Offloaded tiles move in whole units, so that they start and end on the disk's boundaries.
void GroupUpdates::fetch_tile(Tile& tile) {
  emitter_.scope("update." + job_.table[tile.run->first].name);
  const Span whole{tile.span.begin, round_up(tile.span.end, kUnit)};
  const Operand gradient = slice(tile.gradient, updated(tile.group).span.begin, whole);
  tile.operands.push_back(read(elements(fetch(emitter_, "gradient", gradient, Role::Gradient), 0, tile.span.count())));
  auto add = [&](const Operand& value, const ShardedArray& target) {
    const Operand stored = slice(target, whole);
    if (value.buffer != stored.buffer) tile.writebacks.emplace_back(value, stored);
    tile.operands.push_back(update(elements(value, 0, ceil_div(tile.span.count(), target.block))));
  };
  if (tile.stage != Stage::Momentum)
    add(fetch_weights(tile, whole), job_.storage.values(tile.group, SegmentKind::Trained));
  const std::vector<Array>&states = job_.storage.states(tile.group), &next = job_.storage.next_states(tile.group);
  for (size_t i = 0; i < states.size(); i++)
    if (has_part(tile, states[i]))
      add(fetch(emitter_, states[i].name, slice(states[i].sharded, whole), Role::State), next[i].sharded);
  if (tile.stage == Stage::Momentum)
    tile.operands.push_back(write(slice(tile.direction, updated(tile.group).span.begin, tile.span)));
  tile.operands.push_back(read(scalars_of(tile.variant)));
}

const Operand& GroupUpdates::scalars_of(Variant variant) const {
  return variant == Variant::Speculative || variant == Variant::Unclipped ? unclipped_ : step_.scalars;
}

// Returns whether the tile's op reads or changes the state.
bool GroupUpdates::has_part(const Tile& tile, const Array& state) const {
  if (tile.stage == Stage::Whole) return state.sharded.of_run(tile.run->span);
  const bool completes_weights = job_.numerics.split_master() && &state == &job_.storage.states(tile.group).front();
  return completes_weights == (tile.stage == Stage::Descend) && !state.sharded.only;
}

// Returns the weights on the device, as they were before this step's update.
Operand GroupUpdates::fetch_weights(const Tile& tile, const Span& span) {
  const Operand stored = slice(job_.storage.values(tile.group, SegmentKind::Trained), span);
  if (tile.variant == Variant::Reapply) {
    const Operand value = allocate(emitter_, "weights", stored, Role::State);
    emitter_.op("replaced", Copy{}, {read(slice(step_.replaced[static_cast<size_t>(tile.group)], span)), write(value)},
                Lane::CopyIn);
    return value;
  }
  const Operand value = fetch(emitter_, "weights", stored, Role::State);
  if (tile.variant == Variant::Speculative)
    emitter_.op("replaced", Copy{}, {read(value), write(slice(step_.replaced[static_cast<size_t>(tile.group)], span))},
                Lane::CopyOut);
  return value;
}

void GroupUpdates::update_tile(const Tile& tile) {
  const Numerics& n = job_.numerics;
  const ParamSpec& param = job_.table[tile.run->first];
  emitter_.scope("update." + param.name);
  const double decay = param.decay ? n.weight_decay : 0.0;
  if (tile.stage == Stage::Momentum)
    emitter_.op("momentum", Momentum{}, tile.operands, tile.lane);
  else if (tile.stage == Stage::Descend)
    emitter_.op("descend", Descend{decay, n.split_master(), param.rate}, tile.operands, tile.lane);
  else
    update_whole(tile, decay);
  for (const auto& [value, stored] : tile.writebacks) store(emitter_, "back", value, stored);
}

void GroupUpdates::update_whole(const Tile& tile, double decay) {
  const Numerics& n = job_.numerics;
  const ParamSpec& param = job_.table[tile.run->first];
  switch (n.optimizer) {
    case Optimizer::AdamW:
    case Optimizer::Muon:
    case Optimizer::Adafactor:  // has no such tiles
    case Optimizer::Apollo:
      emitter_.op("adamw", adamw_of(tile), tile.operands, tile.lane);
      break;
    case Optimizer::Lion:
      emitter_.op("lion", Lion{n.beta1, n.beta2, decay, n.split_master(), param.rate}, tile.operands, tile.lane);
      break;
    case Optimizer::ScheduleFreeAdamW:
      emitter_.op("schedule_free_adamw",
                  ScheduleFreeAdamW{n.beta1, n.beta2, n.epsilon, decay, n.split_master(), param.rate}, tile.operands,
                  tile.lane);
      break;
  }
}

AdamW GroupUpdates::adamw_of(const Tile& tile) const {
  const Numerics& n = job_.numerics;
  const ParamSpec& param = job_.table[tile.run->first];
  AdamW adamw{n.beta1, n.beta2, n.epsilon, param.decay ? n.weight_decay : 0.0, n.split_master(), n.state};
  adamw.rate = param.rate;
  if (n.state != StateFormat::Fp32) {
    adamw.seed = n.seed;
    adamw.stream = static_cast<uint32_t>(tile.run->first);
    adamw.first = static_cast<uint64_t>(tile.span.begin - tile.run->span.begin);
  }
  return adamw;
}

UpdateProgram lower_update(const JobContext& job, ProgramId program, const StepBuffers& step) {
  return Update(job, program, step).emit();
}

void lower_flush(const JobContext& job, ProgramId program, const StepBuffers& step) {
  Emitter emitter(job.set, program, job.facts);
  GroupUpdates updates(job, emitter, step);
  updates.update_through(job.table.group_count() - 1);
  retire_later(emitter.program(), job.strategy.buffer_hold_ops);
}

void lower_reapply(const JobContext& job, ProgramId program, const StepBuffers& step) {
  Emitter emitter(job.set, program, job.facts);
  GroupUpdates updates(job, emitter, step);
  for (int g = 0; g < job.table.group_count(); g++) updates.reapply(g);
  retire_later(emitter.program(), job.strategy.buffer_hold_ops);
}

}  // namespace snug
