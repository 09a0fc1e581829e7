#include "plan/train_pass.h"

#include "plan/lower.h"
#include "plan/placement.h"
#include "plan/update.h"

namespace snug {
namespace {

bool sums_locally(const JobContext& job, const Cut& cut) {
  return job.numerics.reduce_every_step && job.topology().ranks > 1 && cut.passes > 1;
}

// One pass of the program.
struct Pass {
  PassPosition position;
  std::unique_ptr<Builder> builder;
  BatchBuffers batch;
  std::vector<DenseBlock> blocks;
  std::vector<std::vector<std::pair<Value, Operand>>> stashed;  // by block: forward values that wait elsewhere
  std::vector<Operand> gradients;  // by group: arrays over whole trained segments, where its backward writes
  Value x;                         // where it is: the residual stream, then its gradient
};

class TrainProgram {
 public:
  TrainProgram(const JobContext& job, ProgramId program, const Cut& cut, const std::vector<PassPosition>& positions,
               const StepBuffers& step, bool pending_update)
      : job_(job),
        cut_(cut),
        strategy_(job.strategy),
        step_(step),
        emitter_(job.set, program, job.facts),
        placement_(job, emitter_, &job.strategy),
        updates_(job, emitter_, step),
        pending_update_(pending_update),
        sums_(static_cast<size_t>(job.table.groups)) {
    for (const PassPosition position : positions) {
      emitter_.pass(passes_.size());
      Pass& pass = passes_.emplace_back();
      pass.position = position;
      pass.builder = std::make_unique<Builder>(emitter_, placement_, job.table, job.numerics.compute, cut.tokens(),
                                               job.numerics.seed);
      pass.batch = emit_batch(emitter_, cut, static_cast<int64_t>(passes_.size()) - 1);
    }
  }

  void emit() {
    const PassPosition last = passes_.back().position;
    if (last == PassPosition::Only || last == PassPosition::Last) updates_.prepare();
    forward();
    head();
    backward();
    for (const int group : complete_) reduce(passes_[0], group);
    emitter_.pass(passes_.size() - 1);
    updates_.finish();
    retire_later(emitter_.program(), strategy_.retire_lag);
  }

 private:
  int blocks() const { return static_cast<int>(job_.table.blocks.size()); }
  int group_of(int block) const {
    return job_.table[job_.table.blocks[static_cast<size_t>(block)].attention_norm].group;
  }
  int64_t trained(int group) const { return job_.layout().segment(group, SegmentKind::Trained).elements; }

  // What follows is emitted for this pass.
  Builder& enter(Pass& pass, int block, std::string_view site) {
    const auto number = static_cast<size_t>(&pass - passes_.data());
    emitter_.pass(number);
    placement_.gradients = &pass.gradients;
    pass.builder->begin_block(block, passes_.size() == 1 ? std::string(site) : fmt::format("{}.pass.{}", site, number));
    return *pass.builder;
  }

  // ---- Where gradients go ----

  // Whether passes are summed on each rank before ranks are.
  bool local_sums() const { return sums_locally(job_, cut_); }

  // Whether the backward of this pass writes a group's gradient where the update, or the next pass, finds it.
  bool direct(const Pass& pass, int group) const {
    const bool alone = pass.position == PassPosition::Only ||
                       (pass.position == PassPosition::First && job_.numerics.accumulator == job_.numerics.gradient());
    return alone && (job_.topology().ranks == 1 || local_sums()) &&
           strategy_.groups[static_cast<size_t>(group)].gradients == Space::Device;
  }

  // Where the passes' sum of a group is kept between them: step_ says, or this program where it has all the passes.
  Operand sum_of(const Pass& pass, int group) {
    const auto g = static_cast<size_t>(group);
    const Operand& gradient = step_.gradients[g];
    if (pass.position == PassPosition::Only) return gradient;
    if (!step_.accumulators.empty()) return step_.accumulators[g];
    if (!sums_[g]) {
      const bool in_place =
          job_.numerics.accumulator == gradient.dtype && on_device(job_.set, gradient) && !local_sums();
      emitter_.scope(fmt::format("group.{}", group));
      sums_[g] = in_place ? gradient
                          : emitter_.tensor("sum", job_.numerics.accumulator,
                                            {local_sums() ? trained(group) : gradient.shape.count()}, Role::Gradient);
    }
    return *sums_[g];
  }

  void make_gradients(Pass& pass) {
    for (int g = 0; g < job_.table.groups; g++) {
      if (trained(g) == 0) {
        pass.gradients.emplace_back();
      } else if (direct(pass, g)) {
        pass.gradients.push_back(sum_of(pass, g));
      } else {
        emitter_.scope("pass_gradients");
        pass.gradients.push_back(
            emitter_.tensor(fmt::format("{}", g), job_.numerics.gradient(), {trained(g)}, Role::Gradient));
      }
    }
  }

  // ---- The walk ----

  void forward() {
    for (Pass& pass : passes_) make_gradients(pass);
    if (pending_update_) updates_.queue();
    bring_ahead(-1, 1);
    for (Pass& pass : passes_) pass.x = enter(pass, -1, "embedding").embedding(pass.batch.ids, job_.table.embedding);
    placement_.release(0);
    for (int i = 0; i < blocks(); i++) {
      size_t begin = 0;
      for (Pass& pass : passes_) {
        pass.stashed.emplace_back();
        const Fates& fates = strategy_.fates[static_cast<size_t>(i)];
        if (fates.input == Fate::Offload) stash(pass, i, pass.x);
        if (&pass == passes_.data()) {
          bring_ahead(i, 1);
          begin = emitter_.program().ops.size();
        }
        Builder& builder = enter(pass, i, fmt::format("block.{}.fwd", i));
        pass.blocks.emplace_back(job_.table.blocks[static_cast<size_t>(i)], block_context(job_, cut_, pass.batch));
        pass.x = pass.blocks.back().forward(builder, pass.x);
        for (const Keep keep : {Keep::Attention, Keep::Residual, Keep::Mlp, Keep::Adapter})
          if (fate_of(fates, keep) == Fate::Offload)
            for (const Value value : builder.made(i, keep)) stash(pass, i, value);
      }
      if (pending_update_) update_beside(begin, updates_.waiting(), passes_.size(), blocks() - i);
      if (i + 1 < blocks()) placement_.release(group_of(i));
    }
    bring_up_to_date(job_.table.groups - 1);
  }

  // Groups follow the blocks: a block's weights, and those of the next ones in the direction of the walk.
  void bring_ahead(int block, int direction) {
    for (int64_t ahead = 0; ahead <= strategy_.gather_ahead; ahead++) {
      const int group = block + 1 + direction * static_cast<int>(ahead);
      if (direction > 0) bring_up_to_date(group);
      if (direction > 0 || group > 0) placement_.bring(group);  // the embedding's backward needs no weights
    }
  }

  // Updates the groups up to this one that are not yet.
  void bring_up_to_date(int group) {
    if (!pending_update_) return;
    emitter_.pass(passes_.size());
    updates_.up_to(std::min(group, job_.table.groups - 1));
  }

  void stash(Pass& pass, int block, Value value) {
    const Operand bytes = enter(pass, block, fmt::format("block.{}.stash", block)).use(value);
    const Operand place = emitter_.tensor("value", bytes.dtype, bytes.shape, Role::Offload, strategy_.offloaded_to);
    store(emitter_, "value", bytes, place);
    pass.stashed.back().emplace_back(value, place);
  }

  // Brings back what pass number `number` stashed of a block; numbers beyond the last are the block's before.
  void fetch_values(int block, size_t number) {
    block -= static_cast<int>(number / passes_.size());
    if (block < 0) return;
    Pass& pass = passes_[number % passes_.size()];
    for (const auto& [value, place] : pass.stashed[static_cast<size_t>(block)])
      enter(pass, block, fmt::format("block.{}.fetch", block))
          .restore(value, fetch(emitter_, "value", place, Role::Activation));
  }

  void head() {
    for (Pass& pass : passes_) {
      Builder& builder = enter(pass, -1, "head");
      builder.begin_backward();
      const bool accumulate = pass.position == PassPosition::Middle || pass.position == PassPosition::Last;
      pass.x = head_loss_and_gradient(builder, pass.x, head_params(job_), pass.batch, step_.loss, accumulate);
      finish_group(pass, job_.table.groups - 1);
    }
    placement_.release(job_.table.groups - 1);
    if (job_.table.head == job_.table.embedding) placement_.release(0);
  }

  void backward() {
    fetch_values(blocks() - 1, 0);
    for (int i = blocks() - 1; i >= 0; i--) {
      const auto begin = emitter_.program().ops.size();
      const int64_t waiting = updates_.waiting();
      const bool wanted = trained_before(group_of(i));
      for (Pass& pass : passes_) {
        fetch_values(i, static_cast<size_t>(&pass - passes_.data()) + 1);  // one ahead
        if (wanted && &pass == passes_.data()) bring_ahead(i, -1);
        Builder& builder = enter(pass, i, fmt::format("block.{}.bwd", i));
        pass.blocks[static_cast<size_t>(i)].backward(builder, pass.x, wanted);
        if (&pass == &passes_.back()) placement_.release(group_of(i));
        finish_group(pass, group_of(i));
      }
      update_beside(begin, waiting, passes_.size() - 1, i + 1);
      if (!wanted) return;
    }
    const bool tied = job_.table.head == job_.table.embedding;
    for (Pass& pass : passes_) {
      enter(pass, -1, "embedding").embedding_backward(pass.x, pass.batch, job_.table.embedding, tied);
      finish_group(pass, job_.table[job_.table.embedding].group);
    }
  }

  // Updates of what waits elsewhere: of the tiles that waited when the program had `begin` ops, as many as each of the
  // so many blocks to come has to do. They are dealt out among the ops since then: in one lump they would hold the
  // lanes' buffers for the time of all of them, and the walk with that. Their facts are of this pass.
  void update_beside(size_t begin, int64_t waiting, size_t pass, int64_t blocks) {
    const int64_t tiles = std::min(waiting, (updates_.left() + blocks - 1) / blocks);
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

  bool trained_before(int group) const {
    for (int g = 0; g < group; g++)
      if (trained(g) > 0) return true;
    return false;
  }

  // ---- What becomes of gradients ----

  void finish_group(Pass& pass, int group) {
    if (trained(group) == 0) return;
    if (direct(pass, group)) {
      if (local_sums()) clear_gaps(group, pass.gradients[static_cast<size_t>(group)]);
    } else if (strategy_.reduce_at_once || passes_.size() > 1) {
      reduce(pass, group);
    } else {
      return complete_.push_back(group);  // too late to be updated here
    }
    if (pass.position == PassPosition::Only || pass.position == PassPosition::Last) updates_.early(group);
  }

  // S, the sum of the pass over ranks, is added in fp32 to what the passes before it left: A = S_1, then A = A + S_p;
  // the finished A is rounded once. Each rank has its part of A. With local sums S is this rank's gradient alone, and
  // the sum over ranks is of the finished A. What an exchange brings is added on its own lane: on that of the backward
  // the sum would hold up the next block's until the exchange is done.
  void reduce(Pass& pass, int group) {
    emitter_.pass(static_cast<size_t>(&pass - passes_.data()));
    const Operand place = sum_of(pass, group);
    emitter_.scope(fmt::format("group.{}.reduce", group));
    const Operand whole = pass.gradients[static_cast<size_t>(group)];
    clear_gaps(group, whole);
    const Operand parts = local_sums() ? by_rank(whole, 1) : exchanged(whole);
    const bool last = pass.position == PassPosition::Only || pass.position == PassPosition::Last;
    const bool before = pass.position == PassPosition::Middle || pass.position == PassPosition::Last;
    const Operand sum =
        before ? fetch(emitter_, "sum", place, Role::Gradient) : room_for(emitter_, "value", place, Role::Gradient);
    const Lane lane = parts.buffer == whole.buffer ? Lane::Compute : Lane::Reduce;
    emitter_.op("sum", SumRanks{before}, {read(parts), before ? update(sum) : write(sum)}, lane);
    const Operand& gradient = step_.gradients[static_cast<size_t>(group)];
    if (!last || place.buffer == gradient.buffer) return store(emitter_, "sum", sum, place);
    Operand rounded = sum;
    if (local_sums()) {
      rounded = room_for(emitter_, "value", gradient, Role::Gradient);
      emitter_.op("sum_ranks", SumRanks{}, {read(exchanged(sum)), write(rounded)}, Lane::Reduce);
    } else if (sum.dtype != gradient.dtype) {
      rounded = room_for(emitter_, "value", gradient, Role::Gradient);
      emitter_.op("round", Cast{}, {read(sum), write(rounded)}, lane);
    }
    store(emitter_, "gradient", rounded, gradient);
  }

  // [ranks, part]: this rank's part of arrays over whole segments, by the rank it came from.
  Operand exchanged(const Operand& whole) {
    const int ranks = job_.topology().ranks;
    const Operand mine = by_rank(whole, ranks);
    if (ranks == 1) return mine;
    const Operand parts = emitter_.tensor("parts", whole.dtype, mine.shape, Role::Gather);
    emitter_.op("exchange", Exchange{}, {read(mine), write(parts)}, Lane::Reduce);
    return parts;
  }

  static Operand by_rank(Operand whole, int64_t ranks) {
    whole.shape = {ranks, whole.shape.count() / ranks};
    whole.row_stride = whole.shape.cols();
    return whole;
  }

  // What lies between parameters travels with them, and nobody has written it.
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
  PassPlacement placement_;
  GroupUpdates updates_;
  bool pending_update_;
  std::vector<Pass> passes_;
  std::vector<std::optional<Operand>> sums_;  // by group, where this program has all passes
  std::vector<int> complete_;                 // groups whose gradients wait for the end of the pass
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
  step.clip = new_tensor(job.set, "step.clip", DType::F32, {3}, Role::Metrics, Space::Device, Life::Carried);
  if (job.strategy.update_in_backward)
    step.partials = new_tensor(job.set, "step.partials", DType::F32, {norm_units(job)}, Role::Metrics, Space::Device,
                               Life::Carried);
  const DType gradient = job.numerics.gradient(), accumulator = job.numerics.accumulator;
  for (int g = 0; g < job.table.groups; g++) {
    const int64_t part = job.layout().segment(g, SegmentKind::Trained).elements / job.topology().ranks;
    auto make = [&](std::string_view what, DType dtype, int64_t count) {
      if (part == 0) return Operand{};
      return new_tensor(job.set, fmt::format("group.{}.{}", g, what), dtype, {count}, Role::Gradient,
                        job.strategy.groups[static_cast<size_t>(g)].gradients, Life::Carried);
    };
    step.gradients.push_back(make("gradients", gradient, part));
    if (job.storage.speculates(g)) {
      const Held& weights = job.storage.values(g, SegmentKind::Trained);
      Held& replaced = step.replaced.emplace_back(job.storage.states(g).back().held);
      replaced.granule = 1;
      replaced.array = new_tensor(job.set, fmt::format("group.{}.replaced", g), weights.array.dtype,
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

void lower_passes(const JobContext& job, ProgramId program, const Cut& cut, const std::vector<PassPosition>& positions,
                  const StepBuffers& step, bool pending_update) {
  TrainProgram(job, program, cut, positions, step, pending_update).emit();
}

}  // namespace snug
