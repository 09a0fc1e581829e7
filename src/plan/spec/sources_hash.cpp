// Defines the hashes that tell one model or adapter from another.
#include <map>

#include "base/file.h"
#include "base/hash.h"
#include "plan/spec/sources.h"

namespace snug {
namespace {

// Returns where files hold a parameter; nothing for one that is drawn.
std::vector<TensorPlace> places_of(const ParamSource& source) {
  if (const auto* const place = std::get_if<TensorPlace>(&source)) return {*place};
  if (const auto* const pieces = std::get_if<RangedSource>(&source)) {
    std::vector<TensorPlace> places;
    for (const SourceRange& piece : *pieces) places.push_back(piece.place);
    return places;
  }
  const auto* const quantized = std::get_if<QuantizedSource>(&source);
  if (!quantized) return {};
  std::vector<TensorPlace> places{quantized->codes, quantized->scales};
  if (quantized->block_scales) places.push_back(*quantized->block_scales);
  return places;
}

}  // namespace

uint64_t hash_of_files(const WeightSources& sources, const Heartbeat& heartbeat,
                       const std::function<bool(size_t)>& counts) {
  constexpr uint64_t kSeen = 4096;
  std::map<int64_t, File> files;
  std::vector<std::byte> bytes(kSeen);
  uint64_t hash = 0;
  const auto look = [&](const File& file, uint64_t offset) {
    call(heartbeat);
    const uint64_t seen = file.read_to_end(offset, bytes);
    hash = hash_of(std::span<const std::byte>(bytes).first(seen), hash);
  };
  for (size_t i = 0; i < sources.params.size(); i++) {
    if (!counts(i)) continue;
    for (const TensorPlace& place : places_of(sources.params[i])) {
      if (sources.rows_file && place.file == static_cast<int64_t>(*sources.rows_file)) continue;
      auto file = files.find(place.file);
      if (file == files.end()) {
        file =
            files.emplace(place.file, File::open_read(sources.files[static_cast<size_t>(place.file)], IoMode::Buffered))
                .first;
        const uint64_t size = file->second.size();
        hash = hash_of(std::span(&size, 1), hash);
        look(file->second, size - std::min(size, kSeen));
      }
      look(file->second, place.offset);
    }
  }
  return hash;
}

std::optional<uint64_t> hash_of_base(const ParamTable& table, const WeightSources& sources, const PeftConfig& adapter) {
  if (sources.assumed) return std::nullopt;
  const auto of_base = [&](size_t i) {
    return !table.params[i].adapter && !saves_whole(adapter, table.params[i].name);
  };
  for (size_t i = 0; i < table.params.size(); i++)
    if (of_base(i) && std::holds_alternative<RandomFill>(sources.params[i])) return std::nullopt;
  return hash_of_files(sources, {}, of_base);
}

}  // namespace snug
