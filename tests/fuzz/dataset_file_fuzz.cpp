// Data sets as files: anything but a UserError, nothing, or samples that hold together is a fault. Where the first byte
// is odd the file gets the checksum that it should have, so that what lies behind that check is reached too.
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "data/dataset_file.h"
#include "image/image_queue.h"

namespace {

constexpr int64_t kVocabulary = 10;

void check_samples(const snug::Dataset& dataset) {
  if (dataset.samples() < 1) abort();
  std::vector<int32_t> labels;
  for (int64_t s = 0; s < dataset.samples(); ++s) {
    const int64_t length = dataset.length(s);
    if (length < 1 || dataset.loss_tokens(s, 0, length) >= length) abort();
    labels.resize(static_cast<size_t>(length));
    dataset.labels(s, 0, labels);
    int64_t with_loss = 0;
    for (const int32_t label : labels) {
      if (label != snug::kNoLabel && (label < 0 || label >= kVocabulary)) abort();
      with_loss += label != snug::kNoLabel;
    }
    if (with_loss != dataset.loss_tokens(s, 0, length)) abort();
    for (const int32_t id : dataset.ids(s))
      if (id < 0 || id >= kVocabulary) abort();
    for (const snug::DatasetImage& image : dataset.images(s)) {
      if (image.begin >= image.end || image.end > length) abort();
      const snug::ImageTask task = dataset.all_images().task(image);
      if (task.pictures.at(0).path.empty() == task.pictures.at(0).bytes.empty()) abort();
    }
    for (const snug::DatasetView& view : dataset.views(s))
      if (view.image >= dataset.images(s).size() || view.begin + int64_t{view.tokens} > length || view.patches() < 1)
        abort();
    if (dataset.end_before_image(s, length / 2) > length / 2 || dataset.patches(s, 0, length) < 0) abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const auto file = folder / ("snug-dataset-file-fuzz-" + std::to_string(getpid()));
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (uint64_t sum = 0; data[0] & 1 && bytes.size() > sizeof(sum)) {
    sum = snug::hash_of(std::string_view(bytes).substr(0, bytes.size() - sizeof(sum)));
    std::memcpy(bytes.data() + bytes.size() - sizeof(sum), &sum, sizeof(sum));
  }
  std::ofstream(file, std::ios::binary) << bytes;
  snug::DataOptions options;
  options.files = {"a"};
  options.vocabulary = kVocabulary;
  options.take = [&](uint64_t taken) {
    if (taken > 2 * bytes.size() + 64) abort();
  };
  try {
    if (const auto found = snug::DatasetFile::read(file, "k", options)) {
      check_samples(found->dataset);
      for (const snug::DatasetNote& note : found->notes)
        if (note.file < -1 || note.file > 0) abort();
    }
  } catch (const snug::UserError&) {
  }
  return 0;
}
