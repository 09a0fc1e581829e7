#include "plan/lowering/train_pass.h"

#include "base/rounding.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/placement.h"
#include "plan/lowering/update.h"
#include "tensor/step_scalars.h"

namespace snug {
namespace {

bool sums_locally(const JobContext& job, const Cut& cut) {
  return job.numerics.reduce_once_per_step && job.topology().ranks > 1 && cut.passes > 1;
}

// Returns whether the backward of each pass writes or adds its gradients in the place of the passes' sum. That needs no
// room for the gradients of a pass, and saves writing and reading them once more. It does not serve adapters, whose
// gradients are few and added together sooner than one by one; nor products in fp8, which write only bf16.
bool sums_in_place(const JobContext& job, const Cut& cut) {
  const Numerics& n = job.numerics;
  if (job.topology().ranks > 1 && !sums_locally(job, cut)) return false;
  if (cut.passes == 1) return true;
  return (n.accumulator == n.gradient() || !n.fp8_products) &&
         !std::ranges::any_of(job.table.params, &ParamSpec::adapter);
}

// Holds one pass of the program.
struct Pass {
  size_t number = 0;  // within the program
  PassPosition position = PassPosition::Only;
  bool first() const { return position == PassPosition::Only || position == PassPosition::First; }
  bool last() const { return position == PassPosition::Only || position == PassPosition::Last; }
  std::unique_ptr<Builder> builder;
  BatchBuffers batch;
  std::unique_ptr<Builder> tower;  // of passes with images, unless embeddings are given
  ImageBuffers images;
  Value rows{};                                                   // of the tower's projector
  std::optional<EmbeddingBuffers> embeddings;                     // of passes that are given these rows
  std::vector<std::vector<std::pair<Value, Operand>>> offloaded;  // by layer: forward values that are offloaded
  std::vector<std::optional<Operand>> gradients;  // by group: arrays over whole trained segments, for its backward
  std::vector<Value> inputs;                      // by layer: the residual stream that enters it
  Value x;                                        //   the residual stream where the forward stands
  std::optional<Operand> distances{};             // of a model that learns from a teacher, on the host
};

class TrainProgram {
 public:
  TrainProgram(const JobContext& job, ProgramId program, const Cut& cut, int shape,
               const std::vector<PassPosition>& positions, const StepBuffers& step, bool pending_update)
      : job_(job),
        cut_(cut),
        strategy_(job.strategy),
        step_(step),
        emitter_(job.set, program, job.facts),
        placement_(job, emitter_, &job.strategy),
        updates_(job, emitter_, step),
        in_place_(sums_in_place(job, cut)),
        pending_update_(pending_update),
        first_layer_(job.table.first_layer_of_backward()),
        sums_(static_cast<size_t>(job.table.group_count())) {
    check(job.table.first_trained_group() >= embedding_group() || cut.patches_of(shape) > 0,
          "a tower is trained by a pass without it");
    for (const PassPosition position : positions) {
      emitter_.pass(passes_.size());
      Pass& pass = passes_.emplace_back();
      pass.number = passes_.size() - 1;
      pass.position = position;
      pass.gradients.resize(static_cast<size_t>(job.table.group_count()));
      pass.builder = std::make_unique<Builder>(emitter_, placement_, job.table, job.numerics.compute,
                                               cut.tokens_of(shape), job.numerics.seed);
      pass.batch = emit_batch(job, emitter_, cut, shape, static_cast<int64_t>(pass.number));
      pass.offloaded.resize(job.table.layers.size());
      pass.inputs.resize(job.table.layers.size());
      const int64_t patches = cut.patches_of(shape);
      if (patches > 0 && job.given_embeddings) {
        pass.embeddings = emit_embeddings(job, emitter_, patches, static_cast<int64_t>(pass.number));
      } else if (patches > 0) {
        pass.images = emit_images(job, emitter_, patches, static_cast<int64_t>(pass.number));
        pass.tower = std::make_unique<Builder>(emitter_, placement_, job.table, job.numerics.compute,
                                               job.model.stream_rows(patches), job.numerics.seed);
      }
    }
  }

  void emit() {
    if (passes_.back().last()) updates_.prepare();
    forward();
    head();
    backward();
    for (const int group : unreduced_) reduce(passes_[0], group);
    take_distances();
    emitter_.pass(passes_.size() - 1);
    updates_.finish();
    retire_later(emitter_.program(), strategy_.buffer_hold_ops);
  }

 private:
  int layers() const { return static_cast<int>(job_.table.layers.size()); }
  // Return the groups in the order of the forward: the embedding's, one for each layer, the head's.
  int group_of(int layer) const { return job_.table.layers[static_cast<size_t>(layer)].group; }
  int embedding_group() const { return job_.table.group_of(job_.table.embedding); }
  int tower_layers() const { return static_cast<int>(job_.model.tower_layers()); }
  int patches_group() const { return job_.table.group_of(job_.table.patches.weight); }
  bool has_tower() const { return passes_.front().tower != nullptr; }
  // Returns the group that the backward reaches after this layer's.
  int group_before(int layer) const {
    if (layer == tower_layers()) return embedding_group();
    return layer == 0 ? patches_group() : group_of(layer - 1);
  }
  // Returns whether the backward reaches a layer, as it does if there is something to train in it or before it.
  bool reaches(int layer) const { return layer >= first_layer_; }
  int64_t trained(int group) const { return job_.layout().segment(group, SegmentKind::Trained).elements; }

  // Emits what follows for this pass.
  Builder& enter(Pass& pass, int layer, std::string_view site) {
    return enter(pass, layer != kNoLayer && layer < tower_layers() ? *pass.tower : *pass.builder, layer, site);
  }
  Builder& enter(Pass& pass, Builder& builder, int layer, std::string_view site) {
    emitter_.pass(pass.number);
    placement_.gradients = &pass.gradients;
    builder.enter(layer, passes_.size() == 1 ? std::string(site) : fmt::format("{}.pass.{}", site, pass.number));
    return builder;
  }
  Builder& enter_patches(Pass& pass) { return enter(pass, *pass.tower, kNoLayer, "patches"); }

  // ---- Where gradients go ----

  // Returns whether each rank sums its passes before ranks are summed.
  bool local_sums() const { return sums_locally(job_, cut_); }

  // Returns whether a group's gradient is summed in place. It is not where head and embedding are one, as the two would
  // then add to it in the order of the walk.
  bool in_place(int group) const {
    return in_place_ && !(job_.table.tied() && group == embedding_group() && cut_.passes > 1);
  }

  // Returns where the passes' sum of a group is kept between them: in `step_`, or in this program where it has all
  // passes.
  Operand sum_of(const Pass& pass, int group) {
    const auto g = static_cast<size_t>(group);
    const Operand& gradient = step_.gradients[g];
    if (pass.position == PassPosition::Only) return gradient;
    if (!step_.accumulators.empty()) return step_.accumulators[g];
    if (!sums_[g]) {
      const bool finished =
          job_.numerics.accumulator == gradient.dtype && on_device(job_.set, gradient) && !local_sums();
      emitter_.scope(fmt::format("group.{}", group));
      sums_[g] = finished ? gradient
                          : emitter_.tensor("sum", job_.numerics.accumulator,
                                            {local_sums() ? trained(group) : gradient.shape.count()}, Role::Gradient);
    }
    return *sums_[g];
  }

  // Returns the sum on the device: fetched, for a pass to add to, or room for what the first pass writes.
  Operand sum_here(const Pass& pass, const Operand& place) {
    return pass.first() ? write(allocate(emitter_, "sum", place, Role::Gradient))
                        : update(fetch(emitter_, "sum", place, Role::Gradient));
  }

  // Prepares what the backward of a group writes or adds to, before its first op, so that offloaded sums arrive in
  // time.
  void prepare_gradient(Pass& pass, int group) {
    if (trained(group) == 0) return;
    std::optional<Operand>& gradient = pass.gradients[static_cast<size_t>(group)];
    if (gradient) return;
    emitter_.pass(pass.number);
    const std::string scope = fmt::format("group.{}.gradient", group);
    if (in_place(group)) {
      const Operand place = sum_of(pass, group);
      emitter_.scope(scope);
      gradient = sum_here(pass, place);
    } else {
      emitter_.scope(scope);
      gradient = write(emitter_.tensor("pass", job_.numerics.gradient(), {trained(group)}, Role::Gradient));
    }
  }

  // ---- The walk ----

  void forward() {
    for (Pass& pass : passes_)  // in the order of groups: preparing each when its turn comes packs worse
      for (int g = 0; g < job_.table.group_count(); g++)
        if (!in_place(g)) prepare_gradient(pass, g);
    if (pending_update_) updates_.enqueue();
    if (has_tower()) {
      prefetch_ahead(patches_group(), 1);
      for (Pass& pass : passes_) {
        Builder& builder = enter_patches(pass);
        pass.x = patch_rows(job_.model.tower, builder, job_.table, pass.images);
        builder.forward();
      }
      placement_.release(patches_group());
      forward_layers(0, tower_layers());
      for (Pass& pass : passes_) pass.rows = pass.x;
    }
    prefetch_ahead(embedding_group(), 1);
    for (Pass& pass : passes_) {
      Builder& builder = enter(pass, kNoLayer, "embedding");
      pass.x = builder.embedding(pass.batch.ids, job_.table.embedding, job_.model.embedding_factor, &pass.batch);
      if (job_.numerics.neftune_alpha > 0)
        builder.embedding_noise(pass.x, pass.batch, {job_.numerics.neftune_alpha, job_.numerics.seed});
      if (pass.tower) builder.splice(pass.x, *pass.tower, pass.rows, pass.images.places);
      if (pass.embeddings) splice_given(builder, pass.x, *pass.embeddings);
      builder.forward();
    }
    placement_.release(embedding_group());
    forward_layers(tower_layers(), layers());
    update_up_to(job_.table.head_group());
  }

  // Emits the forward of layers [first, last).
  void forward_layers(int first, int last) {
    for (int i = first; i < last; i++) {
      size_t begin = 0;
      for (Pass& pass : passes_) {
        const ActivationPolicy& policy = strategy_.activations[static_cast<size_t>(i)];
        if (policy[ActivationClass::LayerBoundary] == Retention::Offload && reaches(i)) offload(pass, i, pass.x);
        if (pass.number == 0) {
          prefetch_ahead(group_of(i), 1);
          begin = emitter_.program().ops.size();
        }
        Builder& builder = enter(pass, i, fmt::format("layer.{}.fwd", i));
        const auto layer = static_cast<size_t>(i);
        pass.inputs[layer] = pass.x;
        pass.x = decoder_layer(builder, job_.model.layers[layer], job_.table.layers[layer],
                               i < tower_layers() ? tower_context(job_, pass.images, cut_.micro_batch, layer)
                                                  : layer_context(job_, cut_, pass.batch, layer),
                               pass.x);
        builder.forward();
        for (const ActivationClass kind : kPlannedClasses)
          if (kind != ActivationClass::LayerBoundary && policy[kind] == Retention::Offload && reaches(i))
            for (const Value value : builder.values_of(i, kind)) offload(pass, i, value);
      }
      if (pending_update_) interleave_update(begin, updates_.waiting(), passes_.size(), layers() - i);
      if (i + 1 < layers()) placement_.release(group_of(i));
    }
  }

  // Fetches a group's weights, and those of the next groups in the direction of the walk.
  void prefetch_ahead(int group, int direction) {
    for (int64_t ahead = 0; ahead <= strategy_.gather_ahead; ahead++, group += direction) {
      if (direction > 0) update_up_to(group);
      if (direction > 0 || has_weights_in_backward(group)) placement_.prefetch(group);
    }
  }

  // The embedding's backward and that of patches need no weights.
  bool has_weights_in_backward(int group) const {
    return group > embedding_group() || (group < embedding_group() && tower_reached() && group > patches_group());
  }

  // Makes the pending updates of the groups up to this one.
  void update_up_to(int group) {
    if (!pending_update_) return;
    emitter_.pass(passes_.size());
    updates_.update_through(std::min(group, job_.table.head_group()));
  }

  void offload(Pass& pass, int layer, Value value) {
    const Operand bytes = enter(pass, layer, fmt::format("layer.{}.offload", layer)).use(value);
    const Operand place = emitter_.tensor("value", bytes.dtype, bytes.shape, Role::Offload, strategy_.offloaded_to);
    store(emitter_, "value", bytes, place);
    pass.offloaded[static_cast<size_t>(layer)].emplace_back(value, place);
  }

  // Fetches what pass number `number` offloaded of a layer; numbers beyond the last pass count into the layer before.
  void fetch_values(int layer, size_t number) {
    layer -= static_cast<int>(number / passes_.size());
    if (layer < 0) return;
    Pass& pass = passes_[number % passes_.size()];
    for (const auto& [value, place] : pass.offloaded[static_cast<size_t>(layer)])
      enter(pass, layer, fmt::format("layer.{}.fetch", layer))
          .set_current(value, fetch(emitter_, "value", place, Role::Activation));
  }

  void head() {
    for (Pass& pass : passes_) {
      prepare_gradient(pass, job_.table.head_group());
      if (job_.table.tied()) prepare_gradient(pass, embedding_group());
      Builder& builder = enter(pass, kNoLayer, "head");
      builder.begin_backward();
      if (pass.tower) pass.tower->begin_backward();
      const auto weigh = [&](const Operand& losses) {
        return emit_weighing(job_, emitter_, losses, static_cast<int64_t>(pass.number));
      };
      const HeadParams head = head_params(job_);
      if (job_.objective.distills()) {
        const TeacherRows teacher = emit_teacher(job_, emitter_, builder.tokens(), static_cast<int64_t>(pass.number));
        const Operand rows =
            head_distances_and_gradient(builder, pass.x, head, pass.batch, teacher, step_.loss, !pass.first());
        pass.distances = rows_on_host(job_, emitter_, rows);
      } else {
        head_loss_and_gradient(builder, pass.x, head, pass.batch, step_.loss, !pass.first(),
                               job_.objective.weighs_rows() ? weigh : std::function<RowWeights(const Operand&)>());
      }
      finish_group(pass, job_.table.head_group());
      prepare_gradient(pass, group_before(layers()));
    }
    placement_.release(job_.table.head_group());
    if (job_.table.tied()) placement_.release(embedding_group());
  }

  // Hands over what was copied to the host: at the end, so that the host waits for nothing that is still to be issued.
  void take_distances() {
    for (const Pass& pass : passes_) {
      if (!pass.distances) continue;
      emitter_.pass(pass.number);
      emitter_.scope("distances");
      const HostTask take{HostJob::TakeScores, static_cast<int64_t>(pass.number)};
      emitter_.op("take", take, {*pass.distances}, Lane::Host);
    }
  }

  void backward() {
    if (!passes_.front().builder->wants_gradient(passes_.front().x)) return;  // the head alone is trained
    fetch_values(layers() - 1, 0);
    if (!backward_layers(tower_layers(), layers())) return;
    for (Pass& pass : passes_) {
      if (tower_reached()) prepare_gradient(pass, group_of(tower_layers() - 1));
      enter(pass, kNoLayer, "embedding").backward();
      finish_group(pass, embedding_group());
    }
    if (!tower_reached() || !backward_layers(0, tower_layers())) return;
    for (Pass& pass : passes_) {
      enter_patches(pass).backward();
      finish_group(pass, patches_group());
    }
  }

  // Returns whether the backward goes on through the tower.
  bool tower_reached() const { return has_tower() && passes_.front().tower->wants_gradient(passes_.front().rows); }

  // Emits the backward of layers [first, last); returns whether what comes before them wants a gradient.
  bool backward_layers(int first, int last) {
    for (int i = last - 1; i >= first; i--) {
      const auto begin = emitter_.program().ops.size();
      const int64_t waiting = updates_.waiting();
      const Pass& pass = passes_.front();
      const Builder& of_layer = i < tower_layers() ? *pass.tower : *pass.builder;
      const bool wanted = of_layer.wants_gradient(pass.inputs[static_cast<size_t>(i)]);
      for (Pass& pass : passes_) {
        fetch_values(i, pass.number + 1);  // one pass ahead
        if (wanted && pass.number == 0) prefetch_ahead(group_of(i), -1);
        prepare_gradient(pass, group_before(i));
        Builder& builder = enter(pass, i, fmt::format("layer.{}.bwd", i));
        builder.backward();
        if (pass.number + 1 == passes_.size()) placement_.release(group_of(i));
        finish_group(pass, group_of(i));
      }
      interleave_update(begin, waiting, passes_.size() - 1, i + 1);
      if (!wanted) return false;
    }
    return true;
  }

  // Emits updates of offloaded state: of the tiles that waited when the program had `begin` ops, the share of each of
  // the `layers` layers to come. They are dealt out among the ops since then: emitted together they would hold the
  // lanes' buffers for the time of all of them, and delay the walk. Their scalars are those of this pass.
  void interleave_update(size_t begin, int64_t waiting, size_t pass, int64_t layers) {
    const int64_t tiles = std::min(waiting, ceil_div(updates_.remaining(), layers));
    if (tiles == 0) return;
    std::vector<Op>& ops = emitter_.program().ops;
    const size_t middle = ops.size();
    emitter_.pass(pass);
    updates_.advance(tiles);
    const size_t here = middle - begin, updates = ops.size() - middle;
    std::vector<Op> dealt;
    for (size_t i = 0, u = 0; i < here; i++) {
      dealt.push_back(std::move(ops[begin + i]));
      while (u * here < (i + 1) * updates) dealt.push_back(std::move(ops[middle + u++]));
    }
    std::ranges::move(dealt, ops.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  // ---- What becomes of gradients ----

  void finish_group(Pass& pass, int group) {
    if (trained(group) == 0) return;
    if (!in_place(group) && !strategy_.reduce_in_backward && passes_.size() == 1)
      return unreduced_.push_back(group);  // too late for an update here
    reduce(pass, group);
    if (pass.last()) updates_.update_early(group);
  }

  // Reduces a group's gradient. S, the sum of the pass over ranks, is added in fp32 to what the passes before it left:
  // A = S_1, then A = A + S_p; the finished A is rounded once. Each rank has its part of A. With local sums S is this
  // rank's gradient alone, and the finished A is summed over ranks. If the gradient is summed in place, the backward
  // has added S already, without rounding it before.
  void reduce(Pass& pass, int group) {
    emitter_.pass(pass.number);
    const Operand place = sum_of(pass, group);
    emitter_.scope(fmt::format("group.{}.reduce", group));
    const Operand whole = pass.gradients[static_cast<size_t>(group)].value();
    const Operand& gradient = step_.gradients[static_cast<size_t>(group)];
    if (whole.buffer != gradient.buffer && (pass.first() || !in_place(group))) clear_gaps(group, whole);
    const Operand sum = in_place(group) ? whole : added_up(pass, whole, place);
    if (!pass.last() || place.buffer == gradient.buffer) return store(emitter_, "sum", sum, place);
    Operand rounded = sum;
    if (local_sums()) {
      rounded = allocate(emitter_, "value", gradient, Role::Gradient);
      emitter_.op("sum_ranks", SumRanks{}, {read(exchanged(sum)), write(rounded)}, Lane::Reduce);
    } else if (sum.dtype != gradient.dtype) {
      rounded = allocate(emitter_, "value", gradient, Role::Gradient);
      emitter_.op("round", Cast{}, {read(sum), write(rounded)}, lane_of_sums());
    }
    store(emitter_, "gradient", rounded, gradient);
  }

  // Returns the lane that adds what an exchange brings: its own lane, as on the compute lane the sum would hold up the
  // next layer's backward until the exchange is done.
  Lane lane_of_sums() const { return job_.topology().ranks > 1 && !local_sums() ? Lane::Reduce : Lane::Compute; }

  Operand added_up(const Pass& pass, const Operand& whole, const Operand& place) {
    const Operand parts = local_sums() ? in_rows(whole, 1) : exchanged(whole);
    const Operand sum = sum_here(pass, place);
    emitter_.op("sum", SumRanks{!pass.first()}, {read(parts), sum}, lane_of_sums());
    return sum;
  }

  // Returns this rank's part of arrays over whole segments, by the rank that it came from: [ranks, part].
  Operand exchanged(const Operand& whole) {
    const int ranks = job_.topology().ranks;
    const Operand mine = in_rows(whole, ranks);
    if (ranks == 1) return mine;
    const Operand parts = emitter_.tensor("parts", whole.dtype, mine.shape, Role::Gather);
    emitter_.op("exchange", Exchange{}, {read(mine), write(parts)}, Lane::Reduce);
    return parts;
  }

  // Clears the gaps between parameters, which are exchanged with them and which no op writes.
  void clear_gaps(int group, const Operand& whole) {
    const Layout::Segment& segment = job_.layout().segment(group, SegmentKind::Trained);
    int64_t end = 0;
    auto clear = [&](int64_t begin) {
      if (begin > end) emitter_.op("clear", Fill{}, {write(elements(whole, end, begin))});
    };
    for (const Layout::Run& run : segment.runs) {
      clear(run.span.begin);
      end = run.span.end;
    }
    clear(segment.elements);
  }

  const JobContext& job_;
  const Cut& cut_;
  const Strategy& strategy_;
  const StepBuffers& step_;
  Emitter emitter_;
  ProgramPlacement placement_;
  GroupUpdates updates_;
  bool in_place_, pending_update_;
  int first_layer_;  // that the backward reaches
  std::vector<Pass> passes_;
  std::vector<std::optional<Operand>> sums_;  // by group, where this program has all passes
  std::vector<int> unreduced_;                // groups whose gradients are reduced at the end of the pass
};

}  // namespace

PassPosition position_of(int64_t pass, int64_t passes) {
  if (passes == 1) return PassPosition::Only;
  if (pass == 0) return PassPosition::First;
  return pass == passes - 1 ? PassPosition::Last : PassPosition::Middle;
}

StepBuffers make_step_buffers(const JobContext& job, const Cut& cut) {
  StepBuffers step;
  step.loss = new_tensor(job.set, "step.loss", DType::F32, {1}, Role::Metrics, Space::Device, Life::Carried);
  step.scalars =
      new_tensor(job.set, "step.scalars", DType::F32, {kStepScalars}, Role::Metrics, Space::Device, Life::Carried);
  if (job.strategy.update_in_backward)
    step.partials = new_tensor(job.set, "step.partials", DType::F32, {norm_units(job)}, Role::Metrics, Space::Device,
                               Life::Carried);
  const DType gradient = job.numerics.gradient(), accumulator = job.numerics.accumulator;
  for (int g = 0; g < job.table.group_count(); g++) {
    const int64_t part = job.layout().segment(g, SegmentKind::Trained).elements / job.topology().ranks;
    auto make = [&](std::string_view what, DType dtype, int64_t count) {
      if (part == 0) return Operand{};
      return new_tensor(job.set, fmt::format("group.{}.{}", g, what), dtype, {count}, Role::Gradient,
                        job.strategy.groups[static_cast<size_t>(g)].gradients, Life::Carried);
    };
    step.gradients.push_back(make("gradients", gradient, part));
    if (job.storage.speculates(g)) {
      const ShardedArray& weights = job.storage.values(g, SegmentKind::Trained);
      ShardedArray& replaced = step.replaced.emplace_back(job.storage.updated(g));
      replaced.block = 1;
      replaced.values = new_tensor(job.set, fmt::format("group.{}.replaced", g), weights.values.dtype,
                                   {replaced.span.count()}, Role::State, Space::Host, Life::Carried);
    } else {
      step.replaced.emplace_back();
    }
    if (cut.passes == 1 || job.strategy.layer_major) continue;
    const bool locally = sums_locally(job, cut);
    step.accumulators.push_back(accumulator == gradient && !locally
                                    ? step.gradients.back()
                                    : make("accumulators", accumulator, locally ? part * job.topology().ranks : part));
  }
  return step;
}

void lower_passes(const JobContext& job, ProgramId program, const Cut& cut, int shape,
                  const std::vector<PassPosition>& positions, const StepBuffers& step, bool pending_update) {
  TrainProgram(job, program, cut, shape, positions, step, pending_update).emit();
}

}  // namespace snug
