// Data files of every kind of text, compressed or not: anything but a UserError or samples that hold together is a
// fault. The first byte chooses the kind; a fake tokenizer takes bytes as ids.
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "../byte_encoder.h"
#include "base/error.h"
#include "base/parallel.h"
#include "data/dataset.h"

namespace {

// A template that renders all that a conversation may have.
constexpr const char* kTools =
    "{{ tools | tojson if tools else '' }}{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<end>{% endfor %}";

// The chat template too is a foreign text: the file's bytes stand in for it.
snug::DataOptions options_for(uint8_t kind, const std::filesystem::path& file, const std::string& bytes) {
  snug::DataOptions options;
  options.files = {file};
  options.vocabulary = 259;
  try {
    const snug::SpecialTexts special = snug::byte_encoder().special;
    options.prompt_format.chat =
        snug::ChatTemplate::choose(kind & 4 ? "chatml" : "auto", kind & 128 ? kTools : bytes, special);
  } catch (const snug::UserError& error) {
    options.prompt_format.refusal = error.what();
  }
  if (kind & 8) options.shape.prompt = "{instruction}: ";
  if (kind & 16) options.train_on = snug::TrainOn::All;
  if (kind & 128 && !(kind & 16)) options.thinking = snug::Thinking::Last;
  options.text_split = static_cast<snug::TextSplit>(kind % 3);
  options.empty_records = static_cast<snug::EmptyRecords>(kind % 2);
  if (!(kind & 16)) options.shape.samples = static_cast<snug::Samples>(bytes.size() % 4);
  if (bytes.size() & 4) {
    // Bytes that texts hardly have are the marks of images.
    options.images.emplace(snug::ImageInput{.processor = {.merge = 2}, .markup = {}, .pad_token = 1});
    options.images->markup.pad = "\x01";
    options.images->markup.begin = "\x02";
    options.images->markup.end = "\x03";
    options.images->markup.around_named = "\n";
    if (bytes.size() & 8) {
      options.images->processor = snug::minicpm_processor(9, 2);
      options.images->markup.slices_begin = "\x04";
      options.images->markup.slices_end = "\x05";
    }
    options.image_dir = file.parent_path() / "none";
  }
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const char* endings[] = {".jsonl", ".json", ".txt", ".csv"};
  const char* compressions[] = {".gz", ".zst", "", ""};
  const auto file = folder / ("snug-dataset-fuzz-" + std::to_string(getpid()) + endings[data[0] & 3] +
                              compressions[data[0] >> 5 & 3]);
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::ofstream(file, std::ios::binary) << bytes;
  snug::set_threads(1);
  const snug::TextEncoder encoder = snug::byte_encoder();
  try {
    const snug::Dataset dataset = snug::load_dataset(options_for(data[0], file, bytes), &encoder);
    for (int64_t s = 0; s < dataset.samples(); ++s) {
      if (dataset.has_pairs() && (dataset.second(s) < 1 || dataset.second(s) >= dataset.length(s))) abort();
      if (dataset.length(s) < 1 || dataset.loss_tokens(s, 0, dataset.length(s)) >= dataset.length(s)) abort();
      for (const snug::DatasetImage& image : dataset.images(s))
        if (image.begin >= image.end || image.end > dataset.length(s)) abort();
      for (const snug::DatasetView& view : dataset.views(s))
        for (uint32_t i = 0; i < view.tokens; ++i)
          if (dataset.ids(s)[view.begin + i] != 1) abort();
    }
  } catch (const snug::UserError&) {
  }
  return 0;
}
