#include "api/corpus.h"

#include <algorithm>
#include <numeric>

#include "api/image_job.h"
#include "api/images.h"
#include "api/job.h"
#include "api/no_effect.h"
#include "api/objective.h"
#include "api/token_cache.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option_name.h"
#include "data/data_files.h"
#include "data/dataset_key.h"
#include "data/image_embeddings.h"
#include "data/packing_fields.h"
#include "train/checkpoint.h"

namespace snug {
std::optional<double> validation_fraction(const JobConfig& options) {
  if (options.validation.size() != 1) return std::nullopt;
  const std::string& text = options.validation[0];
  char* end = nullptr;
  const double fraction = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return fraction;
}

namespace {

// Throws CapacityError if memory does not hold the samples, as a process that reads on would be killed.
void require_memory_for_data(uint64_t bytes) {
  constexpr uint64_t kSmall = 1 << 20, kLeft = 8 << 20;  // for what is read and encoded at a time
  if (bytes < kSmall) return;
  if (const uint64_t left = free_memory(); left < bytes + kLeft)
    throw CapacityError(
        fmt::format("data: the samples take {} MiB more, and {} MiB of memory are left; {} takes fewer of each file",
                    (bytes + kLeft) >> 20, left >> 20, option_name("max_samples")));
}

std::optional<Tokenizer> tokenizer_of(const JobConfig& options) {
  const std::filesystem::path directory = tokenizer_directory(options);
  if (options.data_format == "tokens" || !has_tokenizer(directory)) return std::nullopt;
  try {
    return load_tokenizer(options);
  } catch (const UserError& error) {
    user_error("{}; data that holds token ids needs no tokenizer ({} tokens)", error.what(),
               option_name("data_format"));
  }
}

// Sets each reply that is judged against another one, of those that train or of those that are held out.
void add_other_replies(Corpus& corpus) {
  const auto serve = [&](const Dataset& judged, std::vector<uint32_t>& selection, std::string_view which) {
    require_memory_for_data(2 * static_cast<uint64_t>(judged.tokens()) * sizeof(int32_t));
    Dataset both = with_other_replies(judged, selection);
    selection = all_samples(both.samples());
    const auto desirable = std::ranges::count_if(selection, [&](uint32_t i) { return both.value(i) > 0; });
    if (!both.has_pairs())
      corpus.notes.push_back(
          fmt::format("{}: all prompts are one: how far the model is from its reference is not estimated, and taken as "
                      "0 (kl)",
                      which));
    if (desirable == 0 || desirable == std::ssize(selection))
      corpus.notes.push_back(fmt::format("{}: all replies are {}: nothing says what they are better or worse than",
                                         which, desirable == 0 ? "undesirable" : "desirable"));
    return both;
  };
  std::optional<Dataset> held_out;
  if (corpus.validates()) held_out = serve(corpus.validation(), corpus.validation_samples, "validation");
  corpus.training = serve(corpus.training, corpus.training_samples, "data");
  if (held_out) corpus.held_out_files = std::move(*held_out);
}

// Returns a data file's name without its endings.
std::string stem_of(const std::string& path) {
  std::filesystem::path name = last_name(path);
  if (const auto type = find_data_file_type(name)) {
    if (type->compression != Compression::None) name = name.stem();
    name = name.stem();
  }
  return name.string();
}

// Returns the samples of each of several files or directories; nothing for one.
std::vector<NamedSamples> parts_of(const std::vector<std::string>& paths, const Dataset& dataset) {
  std::vector<NamedSamples> parts;
  if (paths.size() < 2) return parts;
  size_t files = 0;
  uint32_t begin = 0;
  for (const std::string& path : paths) {
    files += find_data_files({path}).files.size();
    const auto end = static_cast<uint32_t>(dataset.file_ends().at(files - 1));
    const auto alike = [&](const std::string& other) { return stem_of(other) == stem_of(path); };
    parts.push_back({std::ranges::count_if(paths, alike) > 1 ? path : stem_of(path), begin, end});
    begin = end;
  }
  return parts;
}

}  // namespace

Corpus read_corpus(const JobConfig& options, const Heartbeat& heartbeat) {
  if (options.data.empty())
    user_error("{} is required: files of samples, or directories of them (.json, .jsonl, .csv, .parquet, .txt)",
               option_name("data"));
  const ObjectiveOptions objective = objective_of(options);  // refuses before files are read
  Corpus corpus;
  const ModelTokens model = model_tokens(options);
  const std::optional<Tokenizer> tokenizer = tokenizer_of(options);
  std::optional<TextEncoder> encoder;
  if (tokenizer) {
    encoder = encoder_of(*tokenizer);
    corpus.prompt_format = prompt_format_of(options, model, &*tokenizer);
    corpus.images = image_input(options, *tokenizer);
  }
  const auto note = [&](const std::string& line) { corpus.notes.push_back(line); };
  const auto read = [&](const std::vector<std::string>& files) {
    DataOptions data = data_options(options, files, model.vocabulary, corpus.prompt_format, note);
    data.images = corpus.images;
    data.image_dir = options.image_dir;
    data.heartbeat = heartbeat;
    data.take = require_memory_for_data;
    CachedDataset loaded =
        load_dataset_cached(options, data, encoder ? &*encoder : nullptr, tokenizer_directory(options));
    corpus.cache_bytes = std::max(corpus.cache_bytes, loaded.cache_bytes);
    return std::move(loaded.dataset);
  };
  corpus.training = read(options.data);
  const RecordKinds& kinds = corpus.training.kinds();
  if (kinds.conversations || kinds.texts) std::ranges::for_each(corpus.prompt_format.notes, note);
  std::ranges::for_each(options_without_effect(options, {.kinds = kinds}), note);
  const auto note_images = [&](bool found) {
    std::ranges::for_each(image_options_without_effect(options, corpus.images, found), note);
    if (found && corpus.images) std::ranges::for_each(corpus.images->notes, note);
  };
  corpus.training_samples = all_samples(corpus.training.samples());
  corpus.training_parts = parts_of(options.data, corpus.training);
  if (options.validation.empty()) {
    note_images(corpus.training.has_images());
    if (objective.scores_others()) add_other_replies(corpus);
    return corpus;
  }
  if (const auto fraction = validation_fraction(options)) {
    HoldOut split = hold_out(corpus.training.samples(), *fraction, options.seed);
    corpus.training_samples = std::move(split.training);
    corpus.validation_samples = std::move(split.validation);
  } else {
    corpus.held_out_files = read(options.validation);
    corpus.validation_samples = all_samples(corpus.held_out_files.samples());
    corpus.validation_parts = parts_of(options.validation, corpus.held_out_files);
  }
  note_images(corpus.training.has_images() || corpus.held_out_files.has_images());
  if (objective.scores_others()) add_other_replies(corpus);
  return corpus;
}

std::vector<std::string> places_of(const Corpus& corpus, const JobConfig& options, std::span<const uint32_t> samples,
                                   const Heartbeat& heartbeat) {
  DataOptions data = data_options(options, options.data, 0, corpus.prompt_format, [](const std::string&) {});
  data.heartbeat = heartbeat;
  return places_of(corpus.training, data, samples);
}

PackingOptions packing_options(const JobConfig& options, const Heartbeat& heartbeat) {
  return {.sequence_length = options.sequence_length,
          .packing = options.packing,
          .long_samples = long_samples_from_name(options.long_samples),
          .shuffle = options.shuffle,
          .apart = ObjectiveOptions{.kind = objective_from_name(options.objective)}.scores_others(),
          .pools = ObjectiveOptions{.kind = objective_from_name(options.objective)}.scores(),
          .patches = options.found.block_patches,
          .seed = options.seed,
          .heartbeat = heartbeat};
}

RunLength run_length(const JobConfig& options) {
  RunLength length{options.max_steps, options.epochs};
  if (!length.max_steps && !length.epochs) length.epochs = 1;
  return length;
}

DataSummary summarise(const BlockStream& stream) {
  return {stream.report().samples, stream.blocks_per_epoch(),   stream.steps_per_epoch(),
          stream.report().tokens,  stream.report().loss_tokens, stream.steps()};
}

namespace {

// Adds what some samples of a data set hold, in tokens and labels.
void add_content(Fields& fields, std::string_view group, const Dataset& data, const std::vector<uint32_t>& samples,
                 const Heartbeat& heartbeat) {
  int64_t tokens = 0, loss_tokens = 0;
  uint64_t hash = 0;
  std::vector<int32_t> labels;
  std::vector<float> weights;
  for (const uint32_t sample : samples) {
    const std::span<const int32_t> ids = data.ids(sample);
    labels.resize(ids.size());
    data.labels(sample, 0, labels);
    hash = hash_of(std::span<const int32_t>(labels), hash_of(ids, hash));
    if (data.has_weights()) {
      weights.resize(ids.size());
      data.weights(sample, 0, weights);
      hash = hash_of(std::span<const float>(weights), hash);
    }
    tokens += static_cast<int64_t>(ids.size());
    loss_tokens += data.loss_tokens(sample, 0, static_cast<int64_t>(ids.size()));
    for (const DatasetImage& image : data.images(sample)) {
      const std::array<uint64_t, 3> size{image.width, image.height, data.all_images().stored_bytes(image)};
      hash = hash_of(std::span<const uint64_t>(size), hash);
    }
    call(heartbeat);
  }
  const auto add = [&](std::string name, std::string value) {
    fields.push_back({std::string(group), std::move(name), std::move(value)});
  };
  add("samples", fmt::format("{}", samples.size()));
  add("tokens", fmt::format("{}", tokens));
  add("tokens with loss", fmt::format("{}", loss_tokens));
  add("hash", hex(hash));
}

// Returns absolute paths, so that files are recognised in whichever directory a run is resumed.
std::vector<std::string> absolute(std::vector<std::string> files) {
  for (std::string& file : files) file = std::filesystem::absolute(file).string();
  return files;
}

}  // namespace

Fields data_fields(const Corpus& corpus, const JobConfig& options, const Heartbeat& heartbeat) {
  constexpr size_t kMostText = 1000;  // bytes of an option's value
  Fields fields{{std::string(kBlockFields), "batch_size", fmt::format("{}", options.batch_size)}};
  add_fields(fields, kBlockFields, packing_options(options));
  add_content(fields, kContentFields, corpus.training, corpus.training_samples, heartbeat);
  if (corpus.validates())
    add_content(fields, kValidationFields, corpus.validation(), corpus.validation_samples, heartbeat);
  if (corpus.images)
    fields.push_back(
        {std::string(kContentFields), "image processor", hex(hash_of(processor_key(corpus.images->processor)))});
  JobConfig named = options;
  named.data = absolute(named.data);
  if (!validation_fraction(options)) named.validation = absolute(named.validation);
  if (!named.image_dir.empty()) named.image_dir = std::filesystem::absolute(named.image_dir).string();
  for (const char* key : {"objective", "data", "validation", "data_format", "columns", "roles", "prompt", "max_samples",
                          "empty_records", "text_split", "template", "train_on", "thinking", "image_dir",
                          "image_min_pixels", "image_max_pixels", "max_slices", "add_tokens", "add_special_tokens"}) {
    const OptionSpec& spec = find_option(key, "data");
    std::string value = spec.get(named);
    if (value.size() > kMostText) value = fmt::format("{}... {}", value.substr(0, kMostText), hex(hash_of(value)));
    fields.push_back({std::string(kDataOptionFields), key, std::move(value), spec.get(JobConfig())});
  }
  return fields;
}

Fields image_fields(const Corpus& corpus, const Heartbeat& heartbeat) {
  Fields fields;
  const auto add = [&](std::string_view group, const Dataset& data, const std::vector<uint32_t>& samples) {
    if (!data.has_images()) return;
    uint64_t hash = 0;
    for (const uint32_t sample : samples)
      for (const DatasetImage& image : data.images(sample)) {
        const uint64_t content = content_hash(task_in_memory(data, image));
        hash = hash_of(std::span<const uint64_t>(&content, 1), hash);
        call(heartbeat);
      }
    fields.push_back({std::string(group), std::string(kImagesField), hex(hash)});
  };
  add(kContentFields, corpus.training, corpus.training_samples);
  if (corpus.validates()) add(kValidationFields, corpus.validation(), corpus.validation_samples);
  return fields;
}

uint64_t teacher_bytes(const Corpus& corpus, const JobConfig& options) {
  if (!ObjectiveOptions{.kind = objective_from_name(options.objective)}.has_teacher()) return 0;
  PackingReport all;
  const auto add = [&](const Dataset& dataset, const std::vector<uint32_t>& samples) {
    if (samples.empty()) return;
    if (dataset.has_images())
      user_error(
          "objective: found distill and data with images, expected data without them: a teacher is not asked of "
          "images yet");
    const Packer packer(dataset, samples, packing_options(options));
    all.documents += packer.report().documents;
    all.loss_tokens += packer.report().loss_tokens;
  };
  add(corpus.training, corpus.training_samples);
  if (corpus.validates()) add(corpus.validation(), corpus.validation_samples);
  return teacher_file_bytes(all.documents, all.loss_tokens, options.teacher_top_k);
}

double filled_share(const Corpus& corpus, const JobConfig& options, const Heartbeat& heartbeat) {
  Packer packer(corpus.training, corpus.training_samples, packing_options(options, heartbeat));
  DataSummary data;
  data.blocks_per_epoch = packer.count(0);
  data.tokens_per_epoch = packer.report().tokens;
  return data.filled(options.sequence_length);
}

std::vector<int> short_passes(double filled) {
  if (filled > 0.75) return {};
  return filled > 0.5 ? std::vector{4, 6} : std::vector{1, 2, 4};
}

namespace {

StreamSource in_file_order(const Dataset& dataset, const std::vector<uint32_t>& samples, PackingOptions packing,
                           const StepShape& shape, int rank, const std::optional<ImageBatches>& images) {
  packing.shuffle = false;
  return StreamSource(dataset, samples, packing, shape, {std::nullopt, 1}, rank, images);
}

}  // namespace

StreamSource evaluation_source(const Corpus& corpus, const JobConfig& options, int64_t micro_batch, int ranks, int rank,
                               const Heartbeat& heartbeat) {
  return in_file_order(corpus.training, corpus.training_samples, packing_options(options, heartbeat),
                       {1, ranks, micro_batch}, rank, image_batches(corpus, options));
}

StreamSource validation_source(const Corpus& corpus, const JobConfig& options, int64_t micro_batch, int ranks, int rank,
                               const Heartbeat& heartbeat) {
  PackingOptions packing = packing_options(options, heartbeat);
  packing.name = "validation";
  return in_file_order(corpus.validation(), corpus.validation_samples, packing, {1, ranks, micro_batch}, rank,
                       image_batches(corpus, options));
}

namespace {

std::list<StreamSource> by_part(const Dataset& dataset, const std::vector<NamedSamples>& parts, PackingOptions packing,
                                const StepShape& shape, int rank, const std::optional<ImageBatches>& images) {
  packing.shuffle = false;
  std::list<StreamSource> sources;
  for (const NamedSamples& part : parts) {
    packing.name = part.name;
    std::vector<uint32_t> samples(part.end - part.begin);
    std::iota(samples.begin(), samples.end(), part.begin);
    sources.emplace_back(dataset, std::move(samples), packing, shape, RunLength{std::nullopt, 1}, rank, images);
  }
  return sources;
}

}  // namespace

std::list<StreamSource> evaluation_sources(const Corpus& corpus, const JobConfig& options, int64_t micro_batch,
                                           int ranks, int rank, const Heartbeat& heartbeat) {
  return by_part(corpus.training, corpus.training_parts, packing_options(options, heartbeat), {1, ranks, micro_batch},
                 rank, image_batches(corpus, options));
}

std::list<StreamSource> validation_sources(const Corpus& corpus, const JobConfig& options, int64_t micro_batch,
                                           int ranks, int rank, const Heartbeat& heartbeat) {
  return by_part(corpus.validation(), corpus.validation_parts, packing_options(options, heartbeat),
                 {1, ranks, micro_batch}, rank, image_batches(corpus, options));
}

}  // namespace snug
