#include "plan/lower.h"

#include <algorithm>

#include "model/dense_block.h"

namespace snug {
namespace {

constexpr int64_t kArrayAlignment = 256;  // bytes, of each array of a batch

HeadShape head_shape(const HfConfig& config) { return {config.heads, config.kv_heads, config.head_dim}; }

// Arrays of int32 that the host fills, as one run of bytes so that one copy brings them to the device.
class HostArrays {
 public:
  explicit HostArrays(std::span<const int64_t> counts) {
    for (const int64_t count : counts) {
      offsets_.push_back(bytes_);
      counts_.push_back(count);
      bytes_ += (count * 4 + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
    }
  }

  // Emits the filling and the copy; returns the arrays on the device.
  std::vector<Operand> emit(Emitter& e, HostJob job) const {
    const Operand host = e.tensor("batch.host", DType::U8, {bytes_}, Role::Batch, Space::Host);
    const Operand device = e.tensor("batch", DType::U8, {bytes_}, Role::Batch);
    std::vector<Operand> filled = views(host);
    filled.push_back(write(host));  // all of it, for what lies between the arrays is copied too
    e.op("fill", HostTask{job}, std::move(filled), Lane::Host);
    e.op("copy", Copy{}, {read(host), write(device)}, Lane::CopyIn);
    return views(device);
  }

 private:
  std::vector<Operand> views(const Operand& block) const {
    std::vector<Operand> arrays;
    for (size_t i = 0; i < counts_.size(); i++)
      arrays.push_back(
          {block.buffer, Access::Write, DType::I32, {counts_[i]}, static_cast<uint64_t>(offsets_[i]), counts_[i]});
    return arrays;
  }

  std::vector<int64_t> counts_, offsets_;
  int64_t bytes_ = 0;
};

BatchBuffers emit_batch(Emitter& e, const Cut& cut) {
  const int64_t t = cut.tokens();
  e.scope("batch");
  const auto a = HostArrays(std::array{t, t, max_documents(cut) + 1, t, t, t, t + 1, t}).emit(e, HostJob::FillBatch);
  return {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]};
}

// Answers the builder for one program.
class PassPlacement : public Placement {
 public:
  PassPlacement(const JobContext& job, Emitter& emitter, const Strategy* strategy)
      : job_(job), emitter_(emitter), strategy_(strategy) {}

  Operand weight(ParamId first, int count) override {
    const Operand stored = job_.storage.weight(first, count);
    if (stored.dtype == job_.numerics.compute) return stored;
    const Operand converted = emitter_.tensor("weight", job_.numerics.compute, stored.shape, Role::Weight);
    emitter_.op("weight", Cast{}, {read(stored), write(converted)});
    return converted;
  }

  Operand stored(ParamId param) override { return job_.storage.weight(param); }

  Operand gradient(ParamId first, int count) override {
    return job_.storage.part(gradients[static_cast<size_t>(job_.table[first].group)], first, count);
  }

  bool keeps(int block, Keep keep) override {
    if (keep == Keep::Input || block < 0) return true;
    if (keep == Keep::Cheap || !strategy_) return false;
    switch (strategy_->recompute[static_cast<size_t>(block)]) {
      case Recompute::None:
        return true;
      case Recompute::Mlp:
        return keep != Keep::Mlp;
      case Recompute::Attention:
        return keep != Keep::Attention;
      case Recompute::Block:
        return false;
    }
    return true;
  }

  std::vector<Operand> gradients;  // by group: where this pass writes

 private:
  const JobContext& job_;
  Emitter& emitter_;
  const Strategy* strategy_;
};

HeadParams head_params(const JobContext& job) {
  return {job.table.final_norm, job.table.head, job.config.rms_norm_eps, job.numerics.head_rows};
}

// Emits one train pass; the steps of lower_train_pass().
class TrainPass {
 public:
  TrainPass(const JobContext& job, ProgramId program, const Cut& cut, const Strategy& strategy, PassPosition position,
            const StepBuffers& step)
      : job_(job),
        cut_(cut),
        strategy_(strategy),
        position_(position),
        step_(step),
        emitter_(job.set, program, job.facts),
        placement_(job, emitter_, &strategy),
        builder_(emitter_, placement_, job.table, job.numerics.compute, cut.tokens()),
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
    retire_later(emitter_.program(), strategy_.retire_lag);
  }

 private:
  int blocks() const { return static_cast<int>(job_.table.blocks.size()); }
  int group_of(int block) const {
    return job_.table[job_.table.blocks[static_cast<size_t>(block)].attention_norm].group;
  }

  bool direct() const {
    return position_ == PassPosition::Only ||
           (position_ == PassPosition::First && job_.numerics.accumulator == job_.numerics.gradient());
  }

  void make_gradients() {
    emitter_.scope("pass_gradients");
    for (int g = 0; g < job_.table.groups; g++) {
      const auto i = static_cast<size_t>(g);
      if (job_.storage.trainable_elements(g) == 0) {
        placement_.gradients.emplace_back();
      } else if (direct()) {
        placement_.gradients.push_back(position_ == PassPosition::Only ? step_.gradients[i] : step_.accumulators[i]);
      } else {
        placement_.gradients.push_back(emitter_.tensor(fmt::format("{}", g), job_.numerics.gradient(),
                                                       {job_.storage.trainable_elements(g)}, Role::Gradient));
      }
    }
  }

  // A = S_1, then A = A + S_p; the finished A is rounded once (DESIGN: sums across passes).
  void finish_group(int group) {
    const auto g = static_cast<size_t>(group);
    if (direct() || job_.storage.trainable_elements(group) == 0) return;
    for (size_t i = 0; i < job_.table.params.size(); i++) {
      const ParamSpec& param = job_.table.params[i];
      if (param.group != group || !param.trainable) continue;
      auto part = [&](const Operand& whole) { return job_.storage.part(whole, static_cast<ParamId>(i)); };
      emitter_.scope(param.name);
      const Operand pass = read(part(placement_.gradients[g])), sum = part(step_.accumulators[g]);
      if (position_ == PassPosition::First) {
        emitter_.op("accumulate.start", Cast{}, {pass, write(sum)});
        continue;
      }
      emitter_.op("accumulate", Accumulate{}, {pass, update(sum)});
      if (position_ == PassPosition::Last && sum.buffer != step_.gradients[g].buffer)
        emitter_.op("accumulate.round", Cast{}, {read(sum), write(part(step_.gradients[g]))});
    }
  }

  Value forward() {
    builder_.begin_block(-1, "embedding");
    Value x = builder_.embedding(batch_.ids, job_.table.embedding);
    for (int i = 0; i < blocks(); i++) {
      if (i < strategy_.offloaded_blocks) stash(i, x);
      builder_.begin_block(i, fmt::format("block.{}.fwd", i));
      blocks_.emplace_back(job_.table.blocks[static_cast<size_t>(i)],
                           BlockContext{head_shape(job_.config), job_.config.rms_norm_eps, batch_.positions,
                                        job_.rope_table, batch_.documents, cut_.sequence_length, std::nullopt});
      x = blocks_.back().forward(builder_, x);
    }
    return x;
  }

  void stash(int block, Value x) {
    emitter_.scope(fmt::format("block.{}.stash", block));
    const Operand bytes = builder_.use(x);
    stashed_.push_back(emitter_.tensor("input", bytes.dtype, bytes.shape, Role::Offload, Space::Host));
    emitter_.op("copy", Copy{}, {read(bytes), write(stashed_.back())}, Lane::CopyOut);
  }

  void fetch(int block) {
    if (block < 0 || block >= static_cast<int>(stashed_.size())) return;
    emitter_.scope(fmt::format("block.{}.fetch", block));
    const Operand& bytes = stashed_[static_cast<size_t>(block)];
    const Operand fetched = emitter_.tensor("input", bytes.dtype, bytes.shape);
    emitter_.op("copy", Copy{}, {read(bytes), write(fetched)}, Lane::CopyIn);
    builder_.restore(blocks_[static_cast<size_t>(block)].input(), fetched);
  }

  void backward(Value dx) {
    fetch(blocks() - 1);
    for (int i = blocks() - 1; i >= 0; i--) {
      fetch(i - 1);  // one block ahead
      const bool wanted = trained_before(group_of(i));
      builder_.begin_block(i, fmt::format("block.{}.bwd", i));
      blocks_[static_cast<size_t>(i)].backward(builder_, dx, wanted);
      finish_group(group_of(i));
      if (!wanted) return;
    }
    builder_.begin_block(-1, "embedding");
    builder_.embedding_backward(dx, batch_, job_.table.embedding, job_.table.head == job_.table.embedding);
    finish_group(job_.table[job_.table.embedding].group);
  }

  bool trained_before(int group) const {
    for (int g = 0; g < group; g++)
      if (job_.storage.trainable_elements(g) > 0) return true;
    return false;
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
};

}  // namespace

ProgramId add_program(ProgramSet& set, std::string name) {
  set.programs.push_back({std::move(name), {}, {}});
  return static_cast<ProgramId>(set.programs.size() - 1);
}

int64_t max_documents(const Cut& cut) { return cut.micro_batch * std::max<int64_t>(64, cut.sequence_length / 32); }

StepBuffers make_step_buffers(const JobContext& job, bool several_passes) {
  StepBuffers step;
  step.loss = new_tensor(job.set, "step.loss", DType::F32, {1}, Role::Metrics, Space::Device, Life::Carried);
  const DType gradient = job.numerics.gradient(), accumulator = job.numerics.accumulator;
  for (int g = 0; g < job.table.groups; g++) {
    const bool trained = job.storage.trainable_elements(g) > 0;
    auto make = [&](std::string_view what, DType dtype) {
      return trained ? job.storage.group_tensor(job.set, fmt::format("group.{}.{}", g, what), g, dtype, Role::Gradient,
                                                Life::Carried)
                     : Operand{};
    };
    step.gradients.push_back(make("gradients", gradient));
    if (several_passes)
      step.accumulators.push_back(accumulator == gradient ? step.gradients.back() : make("accumulators", accumulator));
  }
  return step;
}

void lower_train_pass(const JobContext& job, ProgramId program, const Cut& cut, const Strategy& strategy,
                      PassPosition position, const StepBuffers& step) {
  TrainPass(job, program, cut, strategy, position, step).emit();
}

void lower_evaluation(const JobContext& job, ProgramId program, const Cut& cut) {
  Emitter e(job.set, program, job.facts);
  PassPlacement placement(job, e, nullptr);
  Builder b(e, placement, job.table, job.numerics.compute, cut.tokens());
  const BatchBuffers batch = emit_batch(e, cut);
  b.begin_block(-1, "embedding");
  Value x = b.embedding(batch.ids, job.table.embedding);
  for (size_t i = 0; i < job.table.blocks.size(); i++) {
    b.begin_block(static_cast<int>(i), fmt::format("block.{}", i));
    x = DenseBlock(job.table.blocks[i], {head_shape(job.config), job.config.rms_norm_eps, batch.positions,
                                         job.rope_table, batch.documents, cut.sequence_length, std::nullopt})
            .forward(b, x);
  }
  b.begin_block(-1, "head");
  const Operand loss = e.tensor("loss", DType::F32, {1}, Role::Metrics);
  head_loss(b, x, head_params(job), batch, loss, false);
  e.op("take", HostTask{HostJob::TakeLoss}, {read(copy_to_host(e, "loss.host", loss))}, Lane::Host);
}

std::vector<Operand> make_caches(const JobContext& job, int64_t positions) {
  std::vector<Operand> caches;
  for (size_t i = 0; i < job.table.blocks.size(); i++)
    caches.push_back(new_tensor(job.set, fmt::format("block.{}.cache", i), job.numerics.compute,
                                {positions, 2 * job.config.kv_heads * job.config.head_dim}, Role::Cache, Space::Device,
                                Life::Persistent));
  return caches;
}

void lower_generation(const JobContext& job, ProgramId program, int64_t tokens, std::span<const Operand> caches) {
  Emitter e(job.set, program, job.facts);
  PassPlacement placement(job, e, nullptr);
  Builder b(e, placement, job.table, job.numerics.compute, tokens);
  e.scope("tokens");
  const auto arrays = HostArrays(std::array{tokens, tokens}).emit(e, HostJob::FillTokens);
  b.begin_block(-1, "embedding");
  Value x = b.embedding(arrays[0], job.table.embedding);
  for (size_t i = 0; i < job.table.blocks.size(); i++) {
    b.begin_block(static_cast<int>(i), fmt::format("block.{}", i));
    x = DenseBlock(job.table.blocks[i],
                   {head_shape(job.config), job.config.rms_norm_eps, arrays[1], job.rope_table, {}, 0, caches[i]})
            .forward(b, x);
  }
  b.begin_block(-1, "head");
  const Operand logits = head_logits(b, x, head_params(job));
  e.op("take", HostTask{HostJob::TakeLogits}, {read(copy_to_host(e, "logits.host", logits))}, Lane::Host);
}

Operand copy_to_host(Emitter& e, std::string_view what, const Operand& operand) {
  const Operand host = e.tensor(what, operand.dtype, operand.shape, Role::Metrics, Space::Host);
  e.op(what, Copy{}, {read(operand), write(host)}, Lane::CopyOut);
  return host;
}

void retire_later(Program& program, int64_t lag) {
  const auto end = static_cast<int64_t>(program.ops.size()) - 1;
  for (int64_t i = 0; i <= end; i++)
    if (program.ops[static_cast<size_t>(i)].lane != Lane::Compute)
      program.ops[static_cast<size_t>(i)].retire = static_cast<OpId>(std::min(i + lag, end));
}

}  // namespace snug
