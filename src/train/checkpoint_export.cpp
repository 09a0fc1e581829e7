#include "train/checkpoint_export.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "backend/master.h"
#include "base/disk.h"
#include "base/error.h"
#include "format/load.h"
#include "format/peft_tensors.h"
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

// Returns the names of the arrays that are added up to what a trained parameter is worth.
std::vector<std::string> summands_of(const ParamTable& table, ParamId id) {
  std::vector<std::string> names{table[id].name};
  for (const LayerParams& layer : table.layers)
    for (const Linear* linear : layer.linears())
      if (const ParamId i = id - linear->lora.change;
          linear->lora.scales_rows() && i >= 0 && i < std::ssize(linear->lora.parts))
        names.push_back(table[linear->lora.initial_magnitude + i].name);
  return names;
}

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

// Copies bytes of a tensor as they lie in a list of files.
void copy_values(File& out, uint64_t offset, std::span<const std::filesystem::path> files, const TensorPlace& place,
                 uint64_t bytes, const Heartbeat& heartbeat) {
  const File file = File::open_read(files[static_cast<size_t>(place.file)], IoMode::Buffered);
  std::vector<std::byte> values(std::min<uint64_t>(bytes, kChunk));
  for (uint64_t done = 0; done < bytes; done += values.size()) {
    const auto some = std::span(values).first(std::min<uint64_t>(values.size(), bytes - done));
    file.read(place.offset + done, some);
    out.write(offset + done, some);
    call(heartbeat);
  }
}

// Returns what is taken off, by the half that is trained: A as it began, and -B.
std::map<ParamId, ParamId> initial_halves(const ParamTable& table) {
  std::map<ParamId, ParamId> began;
  for (const LayerParams& layer : table.layers)
    for (const Linear* linear : layer.linears())
      for (size_t i = 0; linear->lora.initial_b != kNoParam && i < linear->lora.parts.size(); i++) {
        began[linear->lora.a_of(i)] = linear->lora.a_of(i) + 1;
        began[linear->lora.parts[i].b] = linear->lora.initial_b + static_cast<ParamId>(i);
      }
  return began;
}

std::vector<float> stored_values(std::span<const std::filesystem::path> files, const TensorPlace& place,
                                 int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * element_bytes(place.dtype));
  File::open_read(files[static_cast<size_t>(place.file)], IoMode::Buffered).read(place.offset, bytes);
  std::vector<float> values(static_cast<size_t>(count));
  dispatch_float(place.dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(load<T>(bytes.data() + i * sizeof(T)));
  });
  return values;
}

// Returns the numbers that a file has of a parameter.
std::vector<float> stored_values(const WeightSources& sources, ParamId id, int64_t count) {
  return stored_values(sources.files, std::get<TensorPlace>(sources.params[static_cast<size_t>(id)]), count);
}

// Returns a half and what is taken off of it: one below the other, or row by row side by side.
std::vector<float> joined(const std::vector<float>& own, const std::vector<float>& other, const ParamSpec& param,
                          const Shape& shape) {
  const int64_t run = shape.rows() > param.shape.rows() ? param.shape.count() : param.shape.cols();
  std::vector<float> both;
  for (auto begin = static_cast<std::ptrdiff_t>(0); begin < std::ssize(own); begin += run) {
    both.insert(both.end(), own.begin() + begin, own.begin() + begin + run);
    both.insert(both.end(), other.begin() + begin, other.begin() + begin + run);
  }
  return both;
}

// Makes a file as long as its layout says, with its header.
File created(const std::filesystem::path& file, const SafetensorsLayout& layout) {
  require_room_in_memory(file.parent_path(), layout.file_bytes);
  File out = File::create(file, IoMode::Buffered);
  out.resize(layout.file_bytes);
  out.write(0, std::as_bytes(std::span(layout.header)));
  return out;
}

}  // namespace

void write_trained(const std::filesystem::path& checkpoint, const ParamTable& table,
                   const std::function<DType(ParamId)>& dtype, const std::filesystem::path& file,
                   const WeightSources* base, const Heartbeat& heartbeat) {
  const TrainedValues source(checkpoint, heartbeat);
  std::vector<ParamId> ids;
  std::vector<SafetensorsTensor> tensors;
  const bool adapter = std::ranges::any_of(table.params, &ParamSpec::adapter);
  const std::map<ParamId, ParamId> began = initial_halves(table);
  for (size_t i = 0; i < table.params.size(); i++) {
    const ParamSpec& param = table.params[i];
    if (!param.trainable && !param.saved && (!base || adapter)) continue;
    if (!param.trainable && !std::holds_alternative<TensorPlace>(base->params[i]))
      user_error(
          "{}: '{}' is not trained, and no file holds it as numbers: the run's result has it, its checkpoints not",
          checkpoint.string(), param.name);
    const auto id = static_cast<ParamId>(i);
    const bool whole = stored_shape(param).count() == param.shape.count();
    Shape shape = shape_in_adapter(param);
    if (began.contains(id)) shape.dims[param.name.ends_with(".lora_A.weight") ? 0 : 1] *= 2;
    for (std::string& name :
         adapter ? names_in_adapter(table, id) : std::vector{whole ? param.stored.tensor : param.name}) {
      ids.push_back(id);
      tensors.push_back({std::move(name), dtype(id), shape});
    }
  }
  std::vector<TensorPlace> copied;
  if (base && !adapter)
    for (const WeightSources::Extra& extra : base->extras) {
      if (extra.same_as != kNoParam) continue;  // the embedding's values, which are trained
      tensors.push_back({extra.name, extra.place.dtype, extra.shape});
      copied.push_back(extra.place);
    }
  const SafetensorsLayout layout = layout_safetensors(tensors);
  File out = created(file, layout);
  for (size_t i = 0; i < ids.size(); i++) {
    const int64_t count = table[ids[i]].shape.count();
    if (table[ids[i]].saved) {
      write_as<float>(out, layout.offset[i], stored_values(*base, ids[i], count), tensors[i].name);
      continue;
    }
    if (!table[ids[i]].trainable) {
      const uint64_t bytes = static_cast<uint64_t>(count) * element_bytes(tensors[i].dtype);
      const auto& place = std::get<TensorPlace>(base->params[static_cast<size_t>(ids[i])]);
      copy_values(out, layout.offset[i], base->files, place, bytes, heartbeat);
      continue;
    }
    if (const auto initial = began.find(ids[i]); initial != began.end()) {
      const std::vector<float> own = source.read(table[ids[i]].name, {0, count}),
                               other = stored_values(*base, initial->second, count);
      write_as<float>(out, layout.offset[i], joined(own, other, table[ids[i]], tensors[i].shape), tensors[i].name);
      call(heartbeat);
      continue;
    }
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const Span span{begin, std::min(begin + kChunk, count)};
      std::vector<float> values(static_cast<size_t>(span.count()));
      for (const std::string& name : summands_of(table, ids[i])) {
        const std::vector<float> some = source.read(name, span);
        std::ranges::transform(values, some, values.begin(), std::plus<>());
      }
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
    const uint64_t bytes = static_cast<uint64_t>(tensor.shape.count()) * element_bytes(tensor.dtype);
    copy_values(out, layout.offset[ids.size() + i], base->files, copied[i], bytes, heartbeat);
  }
  out.sync();
}

void require_halves(const AdapterFiles& adapter, const ParamTable& table) {
  for (const auto& [half, initial] : initial_halves(table)) {
    const auto tensor = adapter.tensors.find(table[half].name);
    adapter.index.require(tensor == adapter.tensors.end() ? table[half].name : tensor->second, table[half].shape,
                          "adapter_config.json, 'r'");
  }
}

void write_plain_adapter(const AdapterFiles& adapter, const ParamTable& table, const WeightSources& base,
                         const std::filesystem::path& file) {
  require_halves(adapter, table);
  const std::map<ParamId, ParamId> began = initial_halves(table);
  std::map<std::string, ParamId> halves;  // by name in the table
  for (const auto& [half, initial] : began) halves[table[half].name] = half;
  struct Piece {
    const SafetensorsEntry* entry;
    ParamId half;
  };
  std::vector<Piece> pieces;
  std::vector<SafetensorsTensor> tensors;
  for (const SafetensorsEntry& entry : adapter.index.entries()) {
    const std::string param = parse_peft_tensor(entry.name, adapter.spelling).param;
    const auto half = halves.find(param);
    if (half == halves.end()) {
      if (!entry.dtype || entry.shape.size() > 2)
        user_error("{}: found a tensor that is neither a matrix nor a vector of numbers", adapter.where(entry.name));
      const Shape shape = entry.shape.size() == 2 ? Shape{entry.shape[0], entry.shape[1]}
                          : entry.shape.empty()   ? Shape{}
                                                  : Shape{entry.shape[0]};
      pieces.push_back({&entry, kNoParam});
      tensors.push_back({entry.name, *entry.dtype, shape});
    } else if (adapter.tensors.at(param) == entry.name) {  // another name of the same is left out
      Shape shape = table[half->second].shape;
      shape.dims[param.ends_with(".lora_A.weight") ? 0 : 1] *= 2;
      pieces.push_back({&entry, half->second});
      tensors.push_back({entry.name, DType::F32, shape});
    }
  }
  const SafetensorsLayout layout = layout_safetensors(tensors);
  File out = created(file, layout);
  for (size_t i = 0; i < pieces.size(); i++) {
    const auto [entry, half] = pieces[i];
    const TensorPlace place{entry->file, entry->offset, *entry->dtype};
    if (half == kNoParam) {
      copy_values(out, layout.offset[i], adapter.index.files(), place, entry->bytes, {});
      continue;
    }
    const int64_t count = table[half].shape.count();
    const std::vector<float> own = stored_values(adapter.index.files(), place, count),
                             other = stored_values(base, began.at(half), count);
    write_as<float>(out, layout.offset[i], joined(own, other, table[half], tensors[i].shape), entry->name);
  }
  out.sync();
}

}  // namespace snug
