#include "plan/lowering/lower.h"

#include "base/limits.h"
#include "base/rounding.h"
#include "plan/lowering/placement.h"

namespace snug {
namespace {

constexpr int64_t kArrayAlignment = 256;  // bytes, of each array of a batch

// Holds arrays that the host fills, as one run of bytes so that one copy brings them to the device.
class HostArrays {
 public:
  HostArrays(std::string_view name, std::span<const ArrayField> fields)
      : name_(name), fields_(fields.begin(), fields.end()) {
    for (const ArrayField& field : fields_) {
      offsets_.push_back(bytes_);
      const int64_t bytes = field.shape.count() * static_cast<int64_t>(element_bytes(field.dtype));
      bytes_ += round_up(bytes, kArrayAlignment);
    }
  }

  // Emits the filling, by a task that reads `given` first, and the copy; returns the arrays on the device.
  std::vector<Operand> emit(Emitter& e, const HostTask& task, std::vector<Operand> given = {}) const {
    const Operand host = e.tensor(fmt::format("{}.host", name_), DType::U8, {bytes_}, Role::Batch, Space::Host);
    const Operand device = e.tensor(name_, DType::U8, {bytes_}, Role::Batch);
    std::vector<Operand> operands = std::move(given);
    std::ranges::copy(views(host), std::back_inserter(operands));
    operands.push_back(write(host));  // all of it, as the gaps between the arrays are copied too
    e.op("fill", task, std::move(operands), Lane::Host);
    e.op("copy", Copy{}, {read(host), write(device)}, Lane::CopyIn);
    return views(device);
  }

 private:
  std::vector<Operand> views(const Operand& block) const {
    std::vector<Operand> arrays;
    for (size_t i = 0; i < fields_.size(); i++)
      arrays.push_back({block.buffer, Access::Write, fields_[i].dtype, fields_[i].shape,
                        static_cast<uint64_t>(offsets_[i]), fields_[i].shape.cols()});
    return arrays;
  }

  std::string name_;
  std::vector<ArrayField> fields_;
  std::vector<int64_t> offsets_;
  int64_t bytes_ = 0;
};

}  // namespace

BatchBuffers emit_batch(const JobContext& job, Emitter& e, const Cut& cut, int shape, int64_t pass) {
  e.scope("batch");
  const auto fields = batch_fields(cut.tokens_of(shape), max_documents(cut.micro_batch, cut.sequence_length),
                                   job.model.rope_axes.count())
                          .in_order();
  return BatchBuffers::of(HostArrays("batch", fields).emit(e, HostTask{HostJob::FillBatch, pass}));
}

ImageBuffers emit_images(const JobContext& job, Emitter& e, int64_t patches, int64_t pass) {
  e.scope("images");
  const ImageRoom room{patches,
                       job.model.tower.patch_numbers(),
                       job.model.most_images(patches),
                       job.model.tower_rows(patches),
                       job.model.tower.position_side > 0,
                       job.model.projector().queries > 0,
                       !job.model.tower.class_row.empty()};
  const auto fields = image_fields(job.numerics.compute, room);
  return ImageBuffers::of(HostArrays("images", fields).emit(e, HostTask{HostJob::FillImages, pass}));
}

EmbeddingBuffers emit_embeddings(const JobContext& job, Emitter& e, int64_t patches, int64_t pass) {
  e.scope("embeddings");
  const auto fields = embedding_fields(job.numerics.compute, job.model.tower_rows(patches),
                                       job.table[job.table.embedding].shape.cols());
  return EmbeddingBuffers::of(HostArrays("embeddings", fields).emit(e, HostTask{HostJob::FillEmbeddings, pass}));
}

void splice_given(Builder& b, Value x, const EmbeddingBuffers& embeddings) {
  b.splice(x, b, b.given("image_embeddings", embeddings.rows), embeddings.places);
}

TeacherRows emit_teacher(const JobContext& job, Emitter& e, int64_t tokens, int64_t pass) {
  const auto fields = teacher_fields(tokens, job.objective.teacher_top_k);
  const std::vector<Operand> arrays = HostArrays("teacher", fields).emit(e, HostTask{HostJob::FillTeacher, pass});
  return {read(arrays[0]), read(arrays[1])};
}

namespace {

// Returns patches' rows where images are of one size: with the class row before those of each, and their places.
Value rows_of_one_size(const TowerSpec& spec, Builder& tower, const ParamTable& table, const ImageBuffers& images) {
  Value rows = tower.linear(tower.given("pixels", images.pixels), table.patches, ActivationClass::AlwaysRecompute);
  const bool class_row = table.class_row != kNoParam;
  if (class_row) rows = tower.with_first_rows(rows, images.images.shape.count() - 1);
  const ResizeRows resize{.from = side_of_square(spec.position_count - class_row),
                          .to = spec.image_side,
                          .kept = class_row,
                          .antialias = true};
  return tower.with_repeated(rows, tower.resized_rows(table.position_rows, resize, table.class_row),
                             ActivationClass::LayerBoundary);
}

}  // namespace

Value patch_rows(const TowerSpec& spec, Builder& tower, const ParamTable& table, const ImageBuffers& images) {
  if (spec.image_side > 0) return rows_of_one_size(spec, tower, table, images);
  std::optional<Value> positions;
  if (table.position_rows != kNoParam) positions = tower.position_rows(images, table.position_rows);
  return tower.linear(tower.given("pixels", images.pixels), table.patches, ActivationClass::LayerBoundary, positions);
}

LayerContext tower_context(const JobContext& job, const ImageBuffers& images, int64_t blocks, size_t layer) {
  const LayerSpec& spec = job.model.layers[layer];
  const TowerSpec& tower = job.model.tower;
  const bool windows = spec.documents == Documents::ImageWindows;
  // An image has as many patches as its size asks for: those of a block. Those of slices are as good as square.
  const int64_t of_block = ceil_div(images.pixels.shape.rows(), blocks);
  const int64_t most = windows                ? tower.window * tower.window
                       : tower.image_side > 0 ? tower.image_patches()
                                              : tower.square_patches;
  LayerContext context{.positions = images.positions,
                       .rope_table = job.tower_rope_table.value_or(Operand{}),
                       .documents = windows ? images.windows : images.images,
                       .longest_document = most > 0 ? std::min(most, of_block) : of_block,
                       .rope_axes = tower.rope_axes,
                       .image_side = tower.image_side};
  if (spec.queries > 0) context.image_rows = images.image_rows, context.queries = images.queries;
  if (tower.class_row.empty()) return context;
  if (spec.queries > 0) {
    context.class_rows = images.images.shape.count() - 1;
  } else {
    context.documents = images.stream;
    context.longest_document++;
  }
  return context;
}

HeadParams head_params(const JobContext& job) {
  // Log-probabilities are summed over replies, and taken from one another or from a teacher's: what bf16 rounds off
  // would be most of that.
  return {job.table.final_norm,
          job.table.head,
          static_cast<float>(job.model.logits_factor),
          static_cast<float>(job.model.logits_cap),
          job.objective.has_metrics(),
          job.numerics.logits_chunk_rows,
          job.model.scores,
          job.objective.smooths_rows() ? static_cast<float>(job.objective.label_smoothing) : 0,
          static_cast<float>(job.objective.z_loss),
          {.temperature = static_cast<float>(job.objective.distill_temperature),
           .beta = static_cast<float>(job.objective.distill_beta),
           .share = static_cast<float>(job.objective.distill_weight)}};
}

LayerContext layer_context(const JobContext& job, const Cut& cut, const BatchBuffers& batch, size_t layer) {
  return {batch.positions, job.rope_table_of(layer), batch.documents,    cut.sequence_length,
          std::nullopt,    job.query_rope_table,     job.model.rope_axes};
}

namespace {

// Returns a vector of fp32 of every rank, by rank: [ranks, n]; with one rank, the vector itself.
Operand of_all_ranks(const JobContext& job, Emitter& e, std::string_view what, const Operand& value) {
  const int ranks = job.topology().ranks;
  if (ranks == 1) return value;
  const Operand all = e.tensor(fmt::format("{}.all", what), DType::F32, {ranks, value.shape.count()}, Role::Metrics);
  e.op(fmt::format("{}.gather", what), AllGather{Ranks::Everyone}, {read(value), write(flat(all))}, Lane::Gather);
  return all;
}

}  // namespace

Operand sum_over_ranks(const JobContext& job, Emitter& e, std::string_view what, const Operand& value) {
  const Operand all = of_all_ranks(job, e, what, value);
  if (all.buffer == value.buffer) return value;
  const Operand sum = e.tensor(fmt::format("{}.sum", what), DType::F32, {1}, Role::Metrics);
  e.op(fmt::format("{}.sum", what), SumRanks{}, {read(all), write(sum)});
  return sum;
}

namespace {

// Emits forwards without gradients, group by group.
class Forward {
 public:
  Forward(const JobContext& job, ProgramPlacement& placement) : job_(job), placement_(placement) {}

  // Emits what `record` records on the builder, with the weights of a group.
  template <class Record>
  Value group(Builder& b, int layer, std::string_view site, int group, const Record& record) {
    b.enter(layer, site);
    for (int64_t ahead = 0; ahead <= job_.strategy.gather_ahead; ahead++)
      placement_.prefetch(group + static_cast<int>(ahead));
    const Value x = record();
    b.forward();
    placement_.release(group);
    return x;
  }

  // Emits layers [begin, end); `context` returns what a layer needs.
  Value layers(Builder& b, size_t begin, size_t end, Value x,
               const std::function<LayerContext(size_t layer)>& context) {
    for (size_t i = begin; i < end; i++) {
      const LayerParams& params = job_.table.layers[i];
      x = group(b, static_cast<int>(i), fmt::format("layer.{}", i), params.group,
                [&] { return decoder_layer(b, job_.model.layers[i], params, context(i), x); });
    }
    return x;
  }

  // Emits a tower for the images of so many blocks, and returns the rows that its projector makes.
  Value tower(Builder& b, const ImageBuffers& images, int64_t blocks) {
    const Value x = group(b, kNoLayer, "patches", job_.table.group_of(job_.table.patches.weight),
                          [&] { return patch_rows(job_.model.tower, b, job_.table, images); });
    return layers(b, 0, job_.model.tower_layers(), x,
                  [&](size_t layer) { return tower_context(job_, images, blocks, layer); });
  }

  // Emits embedding and layers; `splice` records what is done to the embedding's rows.
  Value text(Builder& b, const Operand& ids, const std::function<LayerContext(size_t layer)>& context,
             const std::function<void(Value)>& splice = {}) {
    Value x = group(b, kNoLayer, "embedding", job_.table.group_of(job_.table.embedding), [&] {
      const Value rows = b.embedding(ids, job_.table.embedding, job_.model.embedding_factor);
      if (splice) splice(rows);
      return rows;
    });
    x = layers(b, job_.model.tower_layers(), job_.table.layers.size(), x, context);
    b.enter(kNoLayer, "head");
    return x;
  }

 private:
  const JobContext& job_;
  ProgramPlacement& placement_;
};

}  // namespace

namespace {

// Emits a pass without gradients; `take(e, b, x, batch)` emits what becomes of the residual stream that leaves the
// layers.
template <class Take>
void lower_forward(const JobContext& job, ProgramId program, const Cut& cut, int shape, bool adapters,
                   const Take& take) {
  Emitter e(job.set, program, job.facts);
  ProgramPlacement placement(job, e, nullptr);
  Builder b(e, placement, job.table, job.numerics.compute, cut.tokens_of(shape));
  if (!adapters) b.leave_out_adapters();
  const BatchBuffers batch = emit_batch(job, e, cut, shape);
  Forward forward(job, placement);
  const int64_t patches = cut.patches_of(shape);
  Builder tower(e, placement, job.table, job.numerics.compute, job.model.stream_rows(patches));
  std::function<void(Value)> splice;
  if (patches > 0 && job.given_embeddings) {
    splice = [&b, given = emit_embeddings(job, e, patches)](Value x) { splice_given(b, x, given); };
  } else if (patches > 0) {
    const ImageBuffers images = emit_images(job, e, patches);
    const Value rows = forward.tower(tower, images, cut.micro_batch);
    splice = [&b, &tower, rows, places = images.places](Value x) { b.splice(x, tower, rows, places); };
  }
  const Value x = forward.text(
      b, batch.ids, [&](size_t layer) { return layer_context(job, cut, batch, layer); }, splice);
  take(e, b, x, batch);
  retire_later(e.program(), job.strategy.buffer_hold_ops);
}

void take_loss(const JobContext& job, Emitter& e, Builder& b, Value x, const BatchBuffers& batch) {
  const Operand loss = e.tensor("loss", DType::F32, {1}, Role::Metrics);
  const Operand losses = head_losses(b, x, head_params(job), batch);
  e.op("loss", LossSum{}, {read(losses), write(loss)});
  const Operand all = of_all_ranks(job, e, "loss", loss);
  e.op("take", HostTask{HostJob::TakeLoss}, {read(copy_to_host(e, "loss.host", all))}, Lane::Host);
}

void take_distances(const JobContext& job, Emitter& e, Builder& b, Value x, const BatchBuffers& batch) {
  const TeacherRows teacher = emit_teacher(job, e, b.tokens());
  const Operand rows = head_distances(b, x, head_params(job), batch, teacher);
  e.op("take", HostTask{HostJob::TakeScores}, {rows_on_host(job, e, rows)}, Lane::Host);
}

// Emits what a teacher says of each row.
void keep_teacher(const JobContext& job, Emitter& e, Builder& b, Value x, const BatchBuffers& batch) {
  const TeacherRows top = head_top_tokens(b, x, head_params(job), batch, job.objective.teacher_top_k);
  const Operand ids = copy_to_host(e, "ids.host", top.ids),
                log_probs = copy_to_host(e, "log_probs.host", top.log_probs);
  e.op("keep", HostTask{HostJob::KeepTeacher}, {read(ids), read(log_probs)}, Lane::Host);
}

void take_scores(const JobContext& job, Emitter& e, Builder& b, Value x, const BatchBuffers& batch) {
  const Operand losses = head_losses(b, x, head_params(job), batch);
  e.op("take", HostTask{HostJob::TakeScores}, {rows_on_host(job, e, losses)}, Lane::Host);
}

}  // namespace

Operand rows_on_host(const JobContext& job, Emitter& e, const Operand& rows) {
  return read(copy_to_host(e, "losses.host", of_all_ranks(job, e, "losses", flat(rows))));
}

void lower_evaluation(const JobContext& job, ProgramId program, const Cut& cut, int shape) {
  lower_forward(job, program, cut, shape, true, [&](Emitter& e, Builder& b, Value x, const BatchBuffers& batch) {
    job.objective.distills()      ? take_distances(job, e, b, x, batch)
    : job.objective.weighs_rows() ? take_scores(job, e, b, x, batch)
                                  : take_loss(job, e, b, x, batch);
  });
}

// A new adapter stays in its place: it changes nothing, and the first step is scored by the very products that train
// it, where a linear without an adapter may round a sum with the residual stream once that one with an adapter rounds
// twice.
void lower_scoring(const JobContext& job, ProgramId program, const Cut& cut, int shape) {
  lower_forward(job, program, cut, shape, job.new_adapter || job.objective.reference == Reference::Adapter,
                [&](Emitter& e, Builder& b, Value x, const BatchBuffers& batch) {
                  job.objective.has_teacher() ? keep_teacher(job, e, b, x, batch) : take_scores(job, e, b, x, batch);
                });
}

RowWeights emit_weighing(const JobContext& job, Emitter& e, const Operand& losses, int64_t pass) {
  const Operand scores = rows_on_host(job, e, losses);
  const HostArrays arrays("weights",
                          std::array{ArrayField{DType::F32, losses.shape}, ArrayField{DType::F32, losses.shape}});
  const std::vector<Operand> weighed = arrays.emit(e, HostTask{HostJob::WeighRows, pass}, {scores});
  return {weighed[0], weighed[1]};
}

std::vector<Operand> make_caches(const JobContext& job, int64_t positions) {
  std::vector<Operand> caches;
  for (size_t i = job.model.tower_layers(); i < job.table.layers.size(); i++) {
    const HeadShape& heads = job.model.layers[i].heads;
    caches.push_back(new_tensor(job.set, fmt::format("layer.{}.cache", i), job.numerics.compute,
                                {positions, 2 * heads.key_columns()}, Role::Cache, Space::Device, Life::Persistent));
  }
  return caches;
}

Operand lower_looking(const JobContext& job, ProgramId program, int64_t patches) {
  Emitter e(job.set, program, job.facts);
  ProgramPlacement placement(job, e, nullptr);
  Builder tower(e, placement, job.table, job.numerics.compute, job.model.stream_rows(patches));
  const Value rows = Forward(job, placement).tower(tower, emit_images(job, e, patches), 1);
  const Operand kept = new_tensor(job.set, "tower_rows", job.numerics.compute, tower.shape(rows), Role::Cache,
                                  Space::Device, Life::Persistent);
  e.op("keep", Copy{}, {read(tower.use(rows)), write(kept)});
  retire_later(e.program(), job.strategy.buffer_hold_ops);
  return kept;
}

void lower_embedding(const JobContext& job, ProgramId program, const Cut& cut) {
  Emitter e(job.set, program, job.facts);
  ProgramPlacement placement(job, e, nullptr);
  const int64_t patches = cut.patches_of(0);
  Builder tower(e, placement, job.table, job.numerics.compute, job.model.stream_rows(patches));
  const Value rows = Forward(job, placement).tower(tower, emit_images(job, e, patches), cut.micro_batch);
  e.op("take", HostTask{HostJob::TakeEmbeddings}, {read(copy_to_host(e, "rows.host", tower.use(rows)))}, Lane::Host);
  retire_later(e.program(), job.strategy.buffer_hold_ops);
}

void lower_generation(const JobContext& job, ProgramId program, int64_t tokens, std::span<const Operand> caches,
                      const std::optional<Operand>& tower_rows) {
  Emitter e(job.set, program, job.facts);
  ProgramPlacement placement(job, e, nullptr);
  Builder b(e, placement, job.table, job.numerics.compute, tokens);
  e.scope("tokens");
  const int64_t rows = tower_rows ? tower_rows->shape.rows() : 0;
  const auto arrays =
      TokenArrays<Operand>::of(HostArrays("batch", token_fields(tokens, job.model.rope_axes.count(), rows))
                                   .emit(e, HostTask{HostJob::FillTokens}),
                               tower_rows.has_value());
  const auto context = [&](size_t layer) -> LayerContext {
    return {arrays.positions,     job.rope_table_of(layer), {}, 0, caches[layer - job.model.tower_layers()],
            job.query_rope_table, job.model.rope_axes};
  };
  std::function<void(Value)> splice;
  if (tower_rows) splice = [&](Value x) { b.splice(x, b, b.given("tower_rows", *tower_rows), arrays.places); };
  const Value x = Forward(job, placement).text(b, arrays.ids, context, splice);
  const Operand logits = head_logits(b, x, head_params(job), arrays.row);
  e.op("take", HostTask{HostJob::TakeLogits}, {read(copy_to_host(e, "logits.host", logits))}, Lane::Host);
  retire_later(e.program(), job.strategy.buffer_hold_ops);
}

Operand copy_to_host(Emitter& e, std::string_view what, const Operand& operand) {
  const Operand host = e.tensor(what, operand.dtype, operand.shape, Role::Metrics, Space::Host);
  e.op(what, Copy{}, {read(operand), write(host)}, Lane::CopyOut);
  return host;
}

}  // namespace snug
