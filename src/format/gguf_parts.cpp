// Finds the parts of models that are split into several GGUF files.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "format/gguf.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kCount = "split.count", kNumber = "split.no", kTensors = "split.tensors.count";
constexpr int64_t kMaxParts = 99999;  // names have five digits

struct PartName {
  std::string model;
  int64_t number = 0, count = 0;  // 1 of 3
};

// Reads "MODEL-00001-of-00003.gguf"; nothing for other names.
std::optional<PartName> part_name(const std::string& name) {
  constexpr std::string_view kTail = "-00001-of-00003.gguf";
  if (name.size() < kTail.size()) return std::nullopt;
  const std::string_view tail = std::string_view(name).substr(name.size() - kTail.size());
  PartName part{.model = name.substr(0, name.size() - kTail.size())};
  const auto digits = [](std::string_view text, int64_t& out) {
    return std::from_chars(text.data(), text.data() + text.size(), out).ptr == text.data() + text.size() && out > 0;
  };
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !tail.ends_with(".gguf") ||
      !digits(tail.substr(1, 5), part.number) || !digits(tail.substr(10, 5), part.count) || part.number > part.count)
    return std::nullopt;
  return part;
}

int64_t part_count(const GgufHeader& header) { return std::max<int64_t>(1, header.integer(kCount, 0, kMaxParts, 1)); }

}  // namespace

GgufHeader join_gguf_parts(std::vector<GgufHeader> parts) {
  check(!parts.empty(), "no parts to join");
  const int64_t count = part_count(parts[0]);
  if (count != static_cast<int64_t>(parts.size()))
    parts[0].fail(kCount,
                  fmt::format("{}: the files of a split model are found by their names, MODEL-00001-of-{:05}.gguf"
                              " and so on",
                              parts.size(), count));
  if (count == 1) return std::move(parts[0]);
  GgufHeader whole = parts[0];
  for (size_t i = 0; i < parts.size(); ++i) {
    GgufHeader& part = parts[i];
    if (part_count(part) != count) part.fail(kCount, fmt::format("{}, as in {}", count, whole.source()));
    if (part.integer(kNumber, 0, kMaxParts) != static_cast<int64_t>(i))
      part.fail(kNumber, fmt::format("{}, counted from 0", i));
    for (const auto& [key, value] : part.values_) {
      if (i == 0 || key == kNumber || key == "general.alignment") continue;
      const auto first = whole.values_.find(key);
      if (first == whole.values_.end() || first->second != value)
        part.fail(key, "what the first file says, which holds the model's metadata");
    }
    for (GgufTensor& tensor : part.tensors_) {
      tensor.file = i;
      if (i > 0) whole.tensors_.push_back(std::move(tensor));
    }
  }
  std::ranges::sort(whole.tensors_, {}, &GgufTensor::name);
  const auto twin = std::ranges::adjacent_find(whole.tensors_, {}, &GgufTensor::name);
  if (twin != whole.tensors_.end())
    user_error("{}: found tensor '{}' in two of the files, expected it once", whole.source(), twin->name);
  const auto tensors = static_cast<int64_t>(whole.tensors_.size());
  if (whole.integer(kTensors, 0, INT64_MAX, tensors) != tensors)
    whole.fail(kTensors, fmt::format("{}, as many as the files hold", tensors));
  return whole;
}

std::vector<fs::path> gguf_files(const fs::path& file) {
  const auto part = part_name(file.filename().string());
  if (!part) return {file};
  std::vector<fs::path> files;
  for (int64_t number = 1; number <= part->count; ++number) {
    files.push_back(file);
    files.back().replace_filename(fmt::format("{}-{:05}-of-{:05}.gguf", part->model, number, part->count));
    if (!is_file(files.back()))
      user_error("{}: is not there, expected all {} files of the model beside {}", files.back().string(), part->count,
                 file.filename().string());
  }
  return files;
}

GgufHeader read_gguf(const std::vector<fs::path>& files) {
  std::vector<GgufHeader> parts;
  for (const fs::path& path : files) {
    const File file = File::open_read(path, IoMode::Buffered);
    parts.push_back(parse_gguf([&](uint64_t offset, std::span<std::byte> out) { file.read(offset, out); }, file.size(),
                               path.string()));
  }
  return join_gguf_parts(std::move(parts));
}

}  // namespace snug
