// Sessions on the tiny models of tests/fixtures/models, fed with their stored samples.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/image_layout.h"
#include "format/peft.h"
#include "model/model_config.h"
#include "tensor/batch.h"
#include "train/session.h"
#ifdef SNUG_TESTS_ON_CUDA
#include "backend/cuda/backend.h"
#include "backend/cuda/facts.h"
#else
#include "backend/cpu/facts.h"
#include "base/parallel.h"
#endif

namespace snug {

// On the backend that the tests are built for.
class TinySession : public Session {
 public:
  TinySession(const JobSpec& spec, int threads) : Session(spec, compiled_for(spec, threads), means(threads)) {}

 private:
#ifdef SNUG_TESTS_ON_CUDA
  static Compiled compiled_for(const JobSpec& spec, int) { return compile(spec, CudaFacts()); }
  static Resources means(int threads) {
    Resources means;
    means.threads = threads;
    means.backend = [] { return std::make_unique<CudaBackend>(0); };
    return means;
  }
#else
  static Compiled compiled_for(const JobSpec& spec, int threads) {
    set_threads(threads);  // products' scratch depends on the team
    return compile(spec, CpuFacts());
  }
  static Resources means(int threads) {
    Resources means;
    means.threads = threads;
    return means;
  }
#endif
};

// Puts the logits that a session hands out into a vector, each time in place of those before.
inline void take_logits(Session& session, std::vector<float>& logits) {
  session.on(HostJob::TakeLogits, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    logits.assign(views[0].as<float>(), views[0].as<float>() + views[0].count());
  });
}

inline std::filesystem::path models() { return std::filesystem::path(SNUG_FIXTURES) / "models"; }

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

// The fp32 tensors of a file, by name.
inline std::map<std::string, std::vector<float>> read_tensors(const std::filesystem::path& path) {
  const auto index = SafetensorsIndex::open_file(path);
  const File file = File::open_read(path, IoMode::Buffered);
  std::map<std::string, std::vector<float>> tensors;
  for (const SafetensorsEntry& entry : index.entries()) {
    std::vector<float>& values = tensors[entry.name];
    values.resize(entry.bytes / sizeof(float));
    file.read(entry.offset, std::as_writable_bytes(std::span(values)));
  }
  return tensors;
}

struct TinySample {
  std::vector<int32_t> ids, labels;
  std::vector<ImageTokens> images{};  // rows of a tower among the tokens
  std::vector<float> pixels{};        // of all images' patches
  int64_t image_tokens = 0;           // of every image; 0: as many as its rows and columns say

  int64_t tokens_of(const ImageTokens& image) const {
    return image_tokens > 0 ? image_tokens : image.rows * image.columns;
  }
};

inline std::filesystem::path vision() { return std::filesystem::path(SNUG_FIXTURES) / "vision"; }

// Samples of texts with images for the models of tests/fixtures/vision, `merge` patches a side of a row.
inline std::vector<TinySample> vision_samples(const std::string& model, int64_t merge = 2) {
  const auto tensors = read_tensors(vision() / model / "reference.safetensors");
  std::vector<TinySample> samples;
  const int64_t queries = model == "minicpmv" ? 5 : model == "omnilmm" ? 4 : 0;
  const bool queried = queries > 0;
  if (queried) merge = 1;
  for (const auto& json : read_json(queried ? vision() / model / "samples.json" : vision() / "samples.json")) {
    TinySample sample{json["input_ids"].get<std::vector<int32_t>>(), json["labels"].get<std::vector<int32_t>>()};
    for (const auto& image : json["images"])
      sample.images.push_back({image["begin"].get<int64_t>(), image["rows"].get<int64_t>() / merge,
                               image["columns"].get<int64_t>() / merge});
    sample.image_tokens = queries;
    if (!sample.images.empty()) sample.pixels = tensors.at(fmt::format("pixels.{}", samples.size()));
    samples.push_back(std::move(sample));
  }
  return samples;
}

inline std::vector<TinySample> tiny_samples() {
  std::vector<TinySample> samples;
  std::ifstream in(models() / "data.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    samples.push_back({json["input_ids"].get<std::vector<int32_t>>(), json["labels"].get<std::vector<int32_t>>()});
  }
  return samples;
}

// Lays samples into the arrays of a batch, each in a block of its own, or all one after another where `packed`.
inline void fill_batch(const std::vector<TinySample>& samples, int64_t sequence_length, bool packed,
                       std::span<const TensorView> views, RuntimeScalars& runtime) {
  const auto& [ids, positions, documents, rows, targets, weights, order, starts, segment_ids] = batch_views(views);
  for (const auto& all : {ids, positions, documents, targets, order, starts, segment_ids}) std::ranges::fill(all, 0);
  std::ranges::fill(rows, -1);
  std::ranges::fill(weights, 1.0f);
  runtime.documents = runtime.loss_rows = runtime.segments = 0;
  std::map<int32_t, std::vector<int32_t>> tokens_of;
  int64_t at = 0;
  for (size_t s = 0; s < samples.size(); s++) {
    if (!packed) at = static_cast<int64_t>(s) * sequence_length;
    documents[static_cast<size_t>(runtime.documents++)] = static_cast<int32_t>(at);
    if (positions.size() > ids.size())
      write_positions(positions, std::ssize(ids), at, std::ssize(samples[s].ids), samples[s].images);
    for (size_t i = 0; i < samples[s].ids.size(); i++, at++) {
      const auto t = static_cast<size_t>(at);
      ids[t] = samples[s].ids[i];
      if (positions.size() == ids.size()) positions[t] = static_cast<int32_t>(i);
      const bool replaced = std::ranges::any_of(samples[s].images, [&](const ImageTokens& image) {
        const auto begin = static_cast<size_t>(image.begin);
        return begin <= i && i < begin + static_cast<size_t>(samples[s].tokens_of(image));
      });
      if (!replaced) tokens_of[ids[t]].push_back(static_cast<int32_t>(at));
      if (i + 1 < samples[s].ids.size() && samples[s].labels[i + 1] >= 0) {
        rows[static_cast<size_t>(runtime.loss_rows)] = static_cast<int32_t>(at);
        targets[static_cast<size_t>(runtime.loss_rows++)] = samples[s].labels[i + 1];
      }
    }
    // A document ends where the next begins: the padding between two is one of its own, without loss.
    if (!packed && s + 1 < samples.size() && at < static_cast<int64_t>(s + 1) * sequence_length)
      documents[static_cast<size_t>(runtime.documents++)] = static_cast<int32_t>(at);
  }
  documents[static_cast<size_t>(runtime.documents)] = static_cast<int32_t>(at);
  size_t next = 0;
  for (const auto& [id, tokens] : tokens_of) {
    starts[static_cast<size_t>(runtime.segments)] = static_cast<int32_t>(next);
    segment_ids[static_cast<size_t>(runtime.segments++)] = id;
    for (const int32_t token : tokens) order[next++] = token;
  }
  starts[static_cast<size_t>(runtime.segments)] = static_cast<int32_t>(next);
}

// The samples of a job's model.
inline std::vector<TinySample> samples_of(const JobSpec& spec) {
  if (!spec.model.tower) return tiny_samples();
  if (spec.model.architecture == "MiniCPMV") return vision_samples("minicpmv");
  if (spec.model.architecture == "OmniLMMForCausalLM") return vision_samples("omnilmm");
  return vision_samples(spec.model.architecture == "Qwen2VLForConditionalGeneration" ? "qwen2_vl" : "qwen2_5_vl");
}

inline int64_t patches_of(const std::vector<TinySample>& samples, int64_t merge) {
  int64_t patches = 0;
  for (const TinySample& sample : samples)
    for (const ImageTokens& image : sample.images) patches += image.rows * image.columns * merge * merge;
  return patches;
}

// Lays their images into the arrays of a tower, for samples laid out as by fill_batch().
inline ImageCounts fill_images(const std::vector<TinySample>& samples, int64_t sequence_length, bool packed,
                               const ModelSpec& model, const ImageViews& arrays, RuntimeScalars& runtime) {
  const TowerSpec& tower = model.tower;
  ImageLayout layout({.merge = tower.merge,
                      .window = tower.window,
                      .queries = model.projector().queries,
                      .position_side = tower.position_side,
                      .image_side = tower.image_side,
                      .class_rows = !tower.class_row.empty()},
                     arrays);
  const int64_t numbers = arrays.pixels.cols();
  int64_t at = 0, patch = 0;
  for (size_t s = 0; s < samples.size(); s++) {
    if (!packed) at = static_cast<int64_t>(s) * sequence_length;
    const float* source = samples[s].pixels.data();
    for (const ImageTokens& image : samples[s].images) {
      for (const int32_t row : layout.add(image.rows * tower.merge, image.columns * tower.merge, at + image.begin)) {
        for (int64_t i = 0; i < numbers; i++) {
          const float number = source[row * numbers + i];
          if (arrays.pixels.dtype == DType::F32)
            arrays.pixels.as<float>()[patch * numbers + i] = number;
          else
            arrays.pixels.as<BFloat16>()[patch * numbers + i] = BFloat16(number);
        }
        patch++;
      }
      source += image.rows * image.columns * tower.merge * tower.merge * numbers;
    }
    at += std::ssize(samples[s].ids);
  }
  const ImageCounts counts = layout.finish();
  runtime.images = counts.images;
  runtime.image_windows = counts.windows;
  runtime.patch_segments = counts.segments;
  return counts;
}

inline int64_t loss_tokens(const std::vector<TinySample>& samples) {
  int64_t count = 0;
  for (const TinySample& sample : samples)
    for (size_t i = 1; i < sample.ids.size(); i++) count += sample.labels[i] >= 0;
  return count;
}

inline JobSpec tiny_job(const std::string& family, const std::optional<std::string>& adapter, DType compute) {
  JobSpec spec;
  spec.model = read_model_config(models() / family).spec;
  spec.numerics.compute = spec.numerics.base = compute;
  spec.numerics.logits_chunk_rows = 32;
  SourceRequest request{models() / family, false, 1, std::nullopt};
  if (adapter) {
    const PeftConfig peft = read_peft_config(models() / family / *adapter);
    spec.table = lora_parameters(spec.model, peft, true);
    spec.rules.adapter = peft;
    request.adapter = models() / family / *adapter;
  } else {
    spec.table = full_parameters(spec.model, true);
    spec.numerics.weight_decay = 0.1;
  }
  store_as_files_do(spec.table, request.model);
  spec.sources = find_sources(spec.table, request);
  spec.cut.sequence_length = 40;
  spec.strategy = plain_strategy(spec.table);
  return spec;
}

// Returns a job of fresh adapters of a tiny model: A drawn, B zero.
inline JobSpec tiny_adapter_job(const std::string& family, const PeftConfig& adapter, DType compute) {
  JobSpec spec = tiny_job(family, std::nullopt, compute);
  spec.numerics.weight_decay = Numerics().weight_decay;
  spec.rules.adapter = adapter;
  spec.table = lora_parameters(spec.model, adapter, true);
  const std::filesystem::path model = models() / family;
  store_as_files_do(spec.table, model);
  spec.sources = find_sources(spec.table, {model, false, 1, std::nullopt});
  spec.strategy = plain_strategy(spec.table);
  return spec;
}

struct StepResult {
  double loss = 0, norm = 0;
  bool operator==(const StepResult&) const = default;
};

// Rows that a tower makes of a sample's images, by the token whose place each takes.
using TinyEmbeddings = std::map<int32_t, std::vector<std::byte>>;

// They are made by a job of their own, whose passes have other patches than those of the job that they are for.
inline TinyEmbeddings embedded(const JobSpec& of, const TinySample& sample) {
  JobSpec spec;
  spec.purpose = Purpose::Embed;
  spec.model = of.model;
  spec.numerics = of.numerics;
  spec.table = full_parameters(of.model, false);
  const auto& patches = std::get<TensorPlace>(of.sources.params[static_cast<size_t>(of.table.patches.weight)]);
  const std::filesystem::path folder = of.sources.files[static_cast<size_t>(patches.file)].parent_path();
  store_as_files_do(spec.table, folder);
  spec.sources = find_sources(spec.table, {folder, false, 1, std::nullopt});
  spec.strategy = plain_strategy(spec.table);
  spec.cut = {.sequence_length = std::ssize(sample.ids), .patches = of.cut.patches};
  Session session(spec, 1);
  session.load();
  std::vector<int32_t> places;
  TinyEmbeddings rows;
  session.on(HostJob::FillImages, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars& runtime) {
    const ImageViews arrays = image_views(views);
    fill_images({sample}, std::ssize(sample.ids), true, spec.model, arrays, runtime);
    places.assign(arrays.places.begin(), arrays.places.end());
  });
  session.on(HostJob::TakeEmbeddings, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    const size_t bytes = static_cast<size_t>(views[0].cols()) * element_bytes(views[0].dtype);
    for (size_t r = 0; r < places.size(); r++)
      if (places[r] >= 0) rows[places[r]].assign(views[0].data + r * bytes, views[0].data + (r + 1) * bytes);
  });
  session.run(Task::Embed);
  return rows;
}

// Steps of a session over given samples.
class TinyTrainer {
 public:
  explicit TinyTrainer(Session& session) : session_(session) {
    session.on(HostJob::FillBatch,
               [this](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& runtime) {
                 const Cut& cut = session_.spec().cut;
                 const int64_t pass = first_pass_ + task.index;
                 runtime.first_token = (pass * cut.ranks + session_.rank()) * cut.tokens();
                 fill_batch(batches_[static_cast<size_t>(pass)], cut.sequence_length, packed_, views, runtime);
               });
    session.on(
        HostJob::FillImages, [this](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& runtime) {
          fill_images(batches_[static_cast<size_t>(first_pass_ + task.index)], session_.spec().cut.sequence_length,
                      packed_, session_.spec().model, image_views(views), runtime);
        });
    session.on(HostJob::FillEmbeddings,
               [this](const HostTask& task, std::span<const TensorView> views, RuntimeScalars&) {
                 fill_embeddings(batches_[static_cast<size_t>(first_pass_ + task.index)], embedding_views(views));
               });
    session.on(HostJob::TakeMetrics, [this](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
      result_ = {views[0].as<float>()[0], views[1].as<float>()[0]};
    });
    session.on(HostJob::TakeLoss, [this](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
      const float* by_rank = views[0].as<float>();
      result_.loss = std::accumulate(by_rank, by_rank + views[0].count(), 0.0);
    });
  }

  // One step over the samples, cut into the session's passes; the loss is per loss token.
  StepResult step(const std::vector<TinySample>& samples, int64_t number, double learning_rate) {
    passes(samples, number, learning_rate);
    session_.run(Task::Update, facts_);
    result_.loss *= static_cast<double>(facts_.loss_scale);
    return result_;
  }

  // Forward and backward alone.
  void passes(const std::vector<TinySample>& samples, int64_t number, double learning_rate) {
    const Cut& cut = session_.spec().cut;
    facts_.loss_scale = static_cast<float>(loss_factor_ / static_cast<double>(loss_tokens(samples)));
    facts_.step = number;
    facts_.learning_rate = learning_rate;
    facts_.average_share = 1 / static_cast<double>(number);  // at a constant rate
    // Blocks go to passes, and within a pass to ranks.
    const auto share = static_cast<int64_t>(samples.size()) / cut.passes / cut.ranks;
    batches_.clear();
    for (int64_t pass = 0; pass < cut.passes; pass++) {
      const auto first = samples.begin() + (pass * cut.ranks + session_.rank()) * share;
      batches_.emplace_back(first, first + share);
    }
    first_pass_ = 0;
    for (const Task task : session_.compiled().passes) {
      session_.run(task, facts_, shape_of_passes());
      first_pass_++;
    }
  }

  // Summed loss of the samples.
  double evaluate(const std::vector<TinySample>& samples) {
    batches_ = {samples};
    first_pass_ = 0;
    session_.run(Task::Evaluate, facts_, shape_of_passes());
    return result_.loss;
  }

  void pack_samples(bool packed) { packed_ = packed; }
  // Of the step begun last, with one rank: the one that holds every pass, if samples lie end to end.
  int shape_of_passes() const {
    int64_t most = 0, patches = 0;
    for (const std::vector<TinySample>& batch : batches_) {
      int64_t tokens = 0;
      for (const TinySample& sample : batch) tokens += std::ssize(sample.ids);
      most = std::max(most, tokens);
      patches = std::max(patches, patches_of(batch, session_.spec().model.tower.merge));
    }
    const Cut& cut = session_.spec().cut;
    return cut.shape_for(packed_ ? most : cut.tokens(), patches);
  }
  // Of losses and gradients.
  void scale(double factor) { loss_factor_ = factor; }

 private:
  void fill_embeddings(const std::vector<TinySample>& samples, const EmbeddingViews& views) {
    std::ranges::fill(views.places, -1);
    size_t row = 0;
    int64_t at = 0;
    for (size_t s = 0; s < samples.size(); s++) {
      if (!packed_) at = static_cast<int64_t>(s) * session_.spec().cut.sequence_length;
      if (!samples[s].images.empty() && !embedded_.contains(samples[s].ids))
        embedded_[samples[s].ids] = embedded(session_.spec(), samples[s]);
      for (const auto& [token, bytes] : embedded_[samples[s].ids]) {
        std::ranges::copy(bytes, views.rows.data + row * bytes.size());
        views.places[row++] = static_cast<int32_t>(at + token);
      }
      at += std::ssize(samples[s].ids);
    }
  }

  Session& session_;
  std::map<std::vector<int32_t>, TinyEmbeddings> embedded_;  // by the ids of a sample
  bool packed_ = false;
  std::vector<std::vector<TinySample>> batches_;  // by pass of the step
  int64_t first_pass_ = 0;                        // of the program that runs
  double loss_factor_ = 1;
  RuntimeScalars facts_;
  StepResult result_;
};

// The samples of step `number` (from 1): the next `count`, round and round.
inline std::vector<TinySample> step_samples(const std::vector<TinySample>& all, int64_t number, size_t count) {
  std::vector<TinySample> samples;
  for (size_t i = 0; i < count; i++) samples.push_back(all[(static_cast<size_t>(number - 1) * count + i) % all.size()]);
  return samples;
}

// fp32 or bf16 values of an operand.
inline std::vector<float> values(Session& session, const Operand& operand) {
  std::vector<std::byte> bytes;
  const TensorView view = session.view(operand, bytes);
  std::vector<float> result;
  for (int64_t r = 0; r < view.rows(); r++)
    for (int64_t c = 0; c < view.cols(); c++)
      result.push_back(view.dtype == DType::F32 ? view.as<float>()[r * view.row_stride + c]
                                                : static_cast<float>(view.as<BFloat16>()[r * view.row_stride + c]));
  return result;
}

// |a - b| / |b| in the 2-norm; NaN if any element is.
// Numbers of b that are not a number are not compared: their reference is noise.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); i++) {
    if (std::isnan(b[i])) continue;
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / std::max(norm, 1e-60));
}

}  // namespace snug
