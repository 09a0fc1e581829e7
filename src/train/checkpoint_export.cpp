#include "train/checkpoint_export.h"

#include <algorithm>
#include <cmath>

#include "backend/master.h"
#include "base/disk.h"
#include "base/error.h"
#include "plan/lowering/persist.h"
#include "train/checksum.h"

namespace snug {
namespace {

constexpr int64_t kChunk = 1 << 20;  // values in memory at a time

class TrainedValues {
 public:
  TrainedValues(const std::filesystem::path& checkpoint, const Heartbeat& heartbeat)
      : saved_(find_saved_state(checkpoint)) {
    for (const auto& path : saved_.files) {
      require_checksum(path, heartbeat);
      files_.push_back(File::open_read(path, IoMode::Buffered));
    }
  }

  // Returns some values of a trained parameter.
  std::vector<float> read(const std::string& name, const Span& wanted) const {
    if (dtype_in(name + ".value") == DType::F32) return array<float>(name + ".value", wanted);
    const std::vector<BFloat16> high = array<BFloat16>(name + ".value", wanted);
    std::vector<float> values(high.begin(), high.end());
    if (!saved_.arrays.contains(name + ".low")) return values;
    const std::vector<int16_t> low = array<int16_t>(name + ".low", wanted);
    for (size_t i = 0; i < values.size(); i++) values[i] = join(high[i], low[i]);
    return values;
  }

 private:
  DType dtype_in(const std::string& name) const {
    const auto found = saved_.arrays.find(name);
    if (found == saved_.arrays.end())
      user_error("{}: found no array '{}', expected what the run trained", saved_.files[0].string(), name);
    return found->second.front().place.dtype;
  }

  // Returns values of an array that has one value for each element.
  template <class T>
  std::vector<T> array(const std::string& name, const Span& wanted) const {
    std::vector<T> values(static_cast<size_t>(wanted.count()));
    int64_t next = wanted.begin;
    for (const auto& [stretch, place] : saved_.arrays.at(name)) {
      const Span part = intersection(stretch, {next, wanted.end});
      if (part.count() == 0 || part.begin != next || place.dtype != dtype_of<T>()) continue;
      const auto out =
          std::span(values).subspan(static_cast<size_t>(next - wanted.begin), static_cast<size_t>(part.count()));
      const uint64_t offset = place.offset + static_cast<uint64_t>(part.begin - stretch.begin) * sizeof(T);
      files_[static_cast<size_t>(place.file)].read(offset, std::as_writable_bytes(out));
      next = part.end;
    }
    if (next != wanted.end)
      user_error("{}: found '{}' up to element {}, expected {}", saved_.files[0].parent_path().string(), name, next,
                 wanted.end);
    return values;
  }

  SavedState saved_;
  std::vector<File> files_;
};

template <class T>
void write_as(File& file, uint64_t offset, const std::vector<float>& values, const std::string& tensor) {
  std::vector<T> rounded;
  for (const float value : values) {
    rounded.push_back(T(value));
    if (std::isfinite(value) && !std::isfinite(static_cast<float>(rounded.back())))
      user_error("{}: tensor '{}' has a value of {}, beyond the type in which its base is stored", file.path().string(),
                 tensor, value);
  }
  file.write(offset, std::as_bytes(std::span<const T>(rounded)));
}

}  // namespace

void write_trained(const std::filesystem::path& checkpoint, const ParamTable& table,
                   const std::function<DType(ParamId)>& dtype, const std::filesystem::path& file,
                   const WeightSources& base, const Heartbeat& heartbeat) {
  const TrainedValues source(checkpoint, heartbeat);
  std::vector<ParamId> ids;
  std::vector<SafetensorsTensor> tensors;
  for (size_t i = 0; i < table.params.size(); i++) {
    const ParamSpec& param = table.params[i];
    if (!param.trainable) continue;
    ids.push_back(static_cast<ParamId>(i));
    const bool whole = param.shape.rank > 0 && param.stored.rows == param.shape[0];
    tensors.push_back({whole ? param.stored.tensor : param.name, dtype(ids.back()), param.shape});
  }
  std::vector<TensorPlace> copied;
  for (const WeightSources::Extra& extra : base.extras) {
    if (extra.same_as != kNoParam) continue;  // the embedding's values, which are trained
    tensors.push_back({extra.name, extra.place.dtype, extra.shape});
    copied.push_back(extra.place);
  }
  const SafetensorsLayout layout = layout_safetensors(tensors);
  require_room_in_memory(file.parent_path(), layout.file_bytes);
  File out = File::create(file, IoMode::Buffered);
  out.resize(layout.file_bytes);
  out.write(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < ids.size(); i++) {
    const int64_t count = table[ids[i]].shape.count();
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const std::vector<float> values = source.read(table[ids[i]].name, {begin, std::min(begin + kChunk, count)});
      const uint64_t offset = layout.offset[i] + static_cast<uint64_t>(begin) * element_bytes(tensors[i].dtype);
      if (tensors[i].dtype == DType::BF16)
        write_as<BFloat16>(out, offset, values, tensors[i].name);
      else if (tensors[i].dtype == DType::F16)
        write_as<Float16>(out, offset, values, tensors[i].name);
      else
        write_as<float>(out, offset, values, tensors[i].name);
      call(heartbeat);
    }
  }
  for (size_t i = 0; i < copied.size(); i++) {
    const SafetensorsTensor& tensor = tensors[ids.size() + i];
    const File in = File::open_read(base.files[static_cast<size_t>(copied[i].file)], IoMode::Buffered);
    const uint64_t bytes = static_cast<uint64_t>(tensor.shape.count()) * element_bytes(tensor.dtype);
    std::vector<std::byte> chunk;
    for (uint64_t begin = 0; begin < bytes; begin += chunk.size()) {
      chunk.resize(std::min(static_cast<uint64_t>(kChunk), bytes - begin));
      in.read(copied[i].offset + begin, chunk);
      out.write(layout.offset[ids.size() + i] + begin, chunk);
      call(heartbeat);
    }
  }
  out.sync();
}

}  // namespace snug
