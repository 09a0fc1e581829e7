#include "cli/corpus.h"

#include "base/hash.h"

namespace snug {
std::optional<double> validation_fraction(const Options& options) {
  if (options.validation.size() != 1) return std::nullopt;
  const std::string& text = options.validation[0];
  char* end = nullptr;
  const double fraction = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return fraction;
}

Dataset read_data(const Options& options, const std::vector<std::string>& files, std::vector<std::string>& notes,
                  const Alive& alive) {
  if (files.empty()) user_error("--data is required: files of samples (.json, .jsonl, .txt)");
  const HfConfig config = config_of(options);
  DataOptions data =
      data_options(options, files, config.vocabulary, [&](const std::string& line) { notes.push_back(line); });
  data.alive = alive;
  if (data.format == DataFormat::Tokens || !is_file(std::filesystem::path(options.model) / "tokenizer.json"))
    return load_dataset(data, nullptr);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  const TextEncoder encoder = encoder_of(tokenizer);
  return load_dataset(data, &encoder);
}

Corpus read_corpus(const Options& options, const Alive& alive) {
  Corpus corpus;
  corpus.training = read_data(options, options.data, corpus.notes, alive);
  corpus.training_samples = all_samples(corpus.training.samples());
  if (options.validation.empty()) return corpus;
  if (const auto fraction = validation_fraction(options)) {
    HoldOut split = hold_out(corpus.training.samples(), *fraction, options.seed);
    corpus.training_samples = std::move(split.training);
    corpus.validation_samples = std::move(split.validation);
  } else {
    corpus.held_out_files = read_data(options, options.validation, corpus.notes, alive);
    corpus.validation_samples = all_samples(corpus.held_out_files.samples());
  }
  return corpus;
}

PackingOptions packing_options(const Options& options, const Alive& alive) {
  return {options.sequence_length, options.packing, long_samples_from_name(options.long_samples),
          options.shuffle,         options.seed,    alive};
}

RunLength run_length(const Options& options) {
  RunLength length{options.max_steps, options.epochs};
  if (!length.max_steps && !length.epochs) length.epochs = 1;
  return length;
}

DataSummary summarise(const BlockStream& stream) {
  return {stream.report().samples, stream.blocks_per_epoch(),   stream.steps_per_epoch(),
          stream.report().tokens,  stream.report().loss_tokens, stream.steps()};
}

uint64_t data_order_hash(const Corpus& corpus, const Options& options, const Alive& alive) {
  const std::string text = fmt::format("{} {} {} {} {} {}", options.seed, options.shuffle, options.packing,
                                       options.long_samples, options.sequence_length, options.batch_size);
  uint64_t hash = hash_of(text);
  std::vector<int32_t> labels;
  for (const uint32_t sample : corpus.training_samples) {
    const std::span<const int32_t> ids = corpus.training.ids(sample);
    hash = hash_of(ids, hash);
    labels.resize(ids.size());
    corpus.training.labels(sample, 0, labels);
    hash = hash_of(std::span<const int32_t>(labels), hash);
    call(alive);
  }
  return hash;
}

namespace {

StreamSource in_file_order(const Dataset& dataset, const std::vector<uint32_t>& samples, PackingOptions packing,
                           const StepShape& shape, int rank) {
  packing.shuffle = false;
  return StreamSource(dataset, samples, packing, shape, {std::nullopt, 1}, rank);
}

}  // namespace

StreamSource evaluation_source(const Corpus& corpus, const Options& options, int64_t micro_batch, int ranks, int rank,
                               const Alive& alive) {
  return in_file_order(corpus.training, corpus.training_samples, packing_options(options, alive),
                       {1, ranks, micro_batch}, rank);
}

StreamSource validation_source(const Corpus& corpus, const Options& options, int64_t micro_batch, int ranks, int rank,
                               const Alive& alive) {
  PackingOptions packing = packing_options(options, alive);
  packing.name = "validation";
  return in_file_order(corpus.validation(), corpus.validation_samples, packing, {1, ranks, micro_batch}, rank);
}

}  // namespace snug
