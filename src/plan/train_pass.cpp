#include "plan/train_pass.h"

#include "plan/lower.h"
#include "plan/placement.h"

namespace snug {
namespace {

class TrainPass {
 public:
  TrainPass(const JobContext& job, ProgramId program, const Cut& cut, PassPosition position, const StepBuffers& step)
      : job_(job),
        cut_(cut),
        strategy_(job.strategy),
        position_(position),
        step_(step),
        emitter_(job.set, program, job.facts),
        placement_(job, emitter_, &job.strategy),
        builder_(emitter_, placement_, job.table, job.numerics.compute, cut.tokens(), job.numerics.seed),
        batch_(emit_batch(emitter_, cut)) {}

  void emit() {
    make_gradients();
    const Value x = forward();
    builder_.begin_block(-1, "head");
    builder_.begin_backward();
    const bool accumulate = position_ == PassPosition::Middle || position_ == PassPosition::Last;
    const Value dx = head_loss_and_gradient(builder_, x, head_params(job_), batch_, step_.loss, accumulate);
    finish_group(job_.table.groups - 1);
    backward(dx);
    if (!strategy_.reduce_at_once)
      for (const int group : complete_) reduce(group);
    retire_later(emitter_.program(), strategy_.retire_lag);
  }

 private:
  int blocks() const { return static_cast<int>(job_.table.blocks.size()); }
  int group_of(int block) const {
    return job_.table[job_.table.blocks[static_cast<size_t>(block)].attention_norm].group;
  }
  int64_t trained(int group) const { return job_.layout().segment(group, SegmentKind::Trained).elements; }

  // Whether the backward writes this group's gradient where the update, or the next pass, finds it.
  bool direct(int group) const {
    const bool alone = position_ == PassPosition::Only ||
                       (position_ == PassPosition::First && job_.numerics.accumulator == job_.numerics.gradient());
    return alone && job_.topology().ranks == 1 &&
           strategy_.groups[static_cast<size_t>(group)].gradients == Space::Device;
  }

  void make_gradients() {
    emitter_.scope("pass_gradients");
    for (int g = 0; g < job_.table.groups; g++) {
      const auto i = static_cast<size_t>(g);
      if (trained(g) == 0)
        placement_.gradients.emplace_back();
      else if (direct(g))
        placement_.gradients.push_back(position_ == PassPosition::Only ? step_.gradients[i] : step_.accumulators[i]);
      else
        placement_.gradients.push_back(
            emitter_.tensor(fmt::format("{}", g), job_.numerics.gradient(), {trained(g)}, Role::Gradient));
    }
  }

  Value forward() {
    builder_.begin_block(-1, "embedding");
    bring_ahead(-1, 1);
    Value x = builder_.embedding(batch_.ids, job_.table.embedding);
    placement_.release(0);
    for (int i = 0; i < blocks(); i++) {
      if (i < strategy_.offloaded_blocks) stash(i, x);
      bring_ahead(i, 1);
      builder_.begin_block(i, fmt::format("block.{}.fwd", i));
      blocks_.emplace_back(job_.table.blocks[static_cast<size_t>(i)], block_context(job_, cut_, batch_));
      x = blocks_.back().forward(builder_, x);
      if (i + 1 < blocks()) placement_.release(group_of(i));
    }
    return x;
  }

  // Groups follow the blocks: a block's weights, and those of the next ones in the direction of the walk.
  void bring_ahead(int block, int direction) {
    for (int64_t ahead = 0; ahead <= strategy_.gather_ahead; ahead++)
      placement_.bring(block + 1 + direction * static_cast<int>(ahead));
  }

  void stash(int block, Value x) {
    emitter_.scope(fmt::format("block.{}.stash", block));
    const Operand bytes = builder_.use(x);
    stashed_.push_back(emitter_.tensor("input", bytes.dtype, bytes.shape, Role::Offload, strategy_.offloaded_to));
    store(emitter_, "input", bytes, stashed_.back());
  }

  void fetch_input(int block) {
    if (block < 0 || block >= static_cast<int>(stashed_.size())) return;
    emitter_.scope(fmt::format("block.{}.fetch", block));
    builder_.restore(blocks_[static_cast<size_t>(block)].input(),
                     fetch(emitter_, "input", stashed_[static_cast<size_t>(block)], Role::Activation));
  }

  void backward(Value dx) {
    placement_.release(job_.table.groups - 1);
    if (job_.table.head == job_.table.embedding) placement_.release(0);
    fetch_input(blocks() - 1);
    for (int i = blocks() - 1; i >= 0; i--) {
      fetch_input(i - 1);  // one block ahead
      const bool wanted = trained_before(group_of(i));
      if (wanted) bring_ahead(i, -1);
      builder_.begin_block(i, fmt::format("block.{}.bwd", i));
      blocks_[static_cast<size_t>(i)].backward(builder_, dx, wanted);
      placement_.release(group_of(i));
      finish_group(group_of(i));
      if (!wanted) return;
    }
    builder_.begin_block(-1, "embedding");
    builder_.embedding_backward(dx, batch_, job_.table.embedding, job_.table.head == job_.table.embedding);
    finish_group(job_.table[job_.table.embedding].group);
  }

  bool trained_before(int group) const {
    for (int g = 0; g < group; g++)
      if (trained(g) > 0) return true;
    return false;
  }

  void finish_group(int group) {
    if (trained(group) == 0 || direct(group)) return;
    if (strategy_.reduce_at_once)
      reduce(group);
    else
      complete_.push_back(group);
  }

  // S, the sum of the pass over ranks, is added in fp32 to what the passes before it left: A = S_1, then A = A + S_p;
  // the finished A is rounded once. Each rank has its part of A.
  void reduce(int group) {
    const auto g = static_cast<size_t>(group);
    emitter_.scope(fmt::format("group.{}.reduce", group));
    const Operand parts = exchanged(group);
    const bool last = position_ == PassPosition::Only || position_ == PassPosition::Last;
    const bool before = position_ == PassPosition::Middle || position_ == PassPosition::Last;
    const Operand& place = position_ == PassPosition::Only ? step_.gradients[g] : step_.accumulators[g];
    const Operand sum = before ? fetch(emitter_, "sum", place, Role::Gradient) : beside_or_in(place);
    emitter_.op("sum", SumRanks{before}, {read(parts), before ? update(sum) : write(sum)});
    if (!last || place.buffer == step_.gradients[g].buffer) return store(emitter_, "sum", sum, place);
    const Operand& rounded = step_.gradients[g];
    const Operand value = beside_or_in(rounded);
    emitter_.op("round", Cast{}, {read(sum), write(value)});
    store(emitter_, "gradient", value, rounded);
  }

  // The array itself if it is on the device, else room for its values there.
  Operand beside_or_in(const Operand& stored) {
    if (job_.set.buffers[stored.buffer].space == Space::Device) return stored;
    return emitter_.tensor("value", stored.dtype, stored.shape, Role::Gradient);
  }

  // [ranks, part]: this rank's part of the group's gradient, by the rank it came from.
  Operand exchanged(int group) {
    Operand whole = placement_.gradients[static_cast<size_t>(group)];
    clear_gaps(group, whole);
    const int ranks = job_.topology().ranks;
    const int64_t part = trained(group) / ranks;
    whole.shape = {ranks, part};
    whole.row_stride = part;
    if (ranks == 1) return whole;
    const Operand parts = emitter_.tensor("parts", whole.dtype, {ranks, part}, Role::Gather);
    emitter_.op("exchange", Exchange{}, {read(whole), write(parts)}, Lane::Reduce);
    return parts;
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
  PassPosition position_;
  const StepBuffers& step_;
  Emitter emitter_;
  PassPlacement placement_;
  Builder builder_;
  BatchBuffers batch_;
  std::vector<DenseBlock> blocks_;
  std::vector<Operand> stashed_;
  std::vector<int> complete_;  // groups whose gradients wait for the end of the pass
};

}  // namespace

StepBuffers make_step_buffers(const JobContext& job, bool several_passes) {
  StepBuffers step;
  step.loss = new_tensor(job.set, "step.loss", DType::F32, {1}, Role::Metrics, Space::Device, Life::Carried);
  const DType gradient = job.numerics.gradient(), accumulator = job.numerics.accumulator;
  for (int g = 0; g < job.table.groups; g++) {
    const int64_t part = job.layout().segment(g, SegmentKind::Trained).elements / job.topology().ranks;
    auto make = [&](std::string_view what, DType dtype) {
      if (part == 0) return Operand{};
      return new_tensor(job.set, fmt::format("group.{}.{}", g, what), dtype, {part}, Role::Gradient,
                        job.strategy.groups[static_cast<size_t>(g)].gradients, Life::Carried);
    };
    step.gradients.push_back(make("gradients", gradient));
    if (several_passes)
      step.accumulators.push_back(accumulator == gradient ? step.gradients.back() : make("accumulators", accumulator));
  }
  return step;
}

void lower_train_pass(const JobContext& job, ProgramId program, const Cut& cut, PassPosition position,
                      const StepBuffers& step) {
  TrainPass(job, program, cut, position, step).emit();
}

}  // namespace snug
