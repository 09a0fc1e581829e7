#include "plan/persist.h"

#include <algorithm>
#include <charconv>

#include "plan/placement.h"

namespace snug {
namespace {

constexpr int64_t kTile = 4 << 20;  // elements drawn or cleared at a time, where they do not stay on the device

// Of so many elements.
std::vector<Span> tiles(int64_t count, int64_t most) {
  std::vector<Span> spans;
  for (int64_t begin = 0; begin < count; begin += most) spans.push_back({begin, std::min(begin + most, count)});
  return spans;
}

bool on_device(const Emitter& e, const Operand& stored) {
  return e.set().buffers[stored.buffer].space == Space::Device;
}

Operand room(Emitter& e, std::string_view what, const Operand& stored) {
  return on_device(e, stored) ? stored : e.tensor(what, stored.dtype, stored.shape, Role::Staging);
}

// The elements of a parameter that this rank owns, in its segment.
Span owned(const JobContext& job, ParamId id) {
  const ParamSpec& param = job.table[id];
  return intersection(job.layout().span(id),
                      job.layout().part(job.layout().segment(param.group, param.trainable).elements));
}

// A parameter's weight as it is stored on this rank, with what completes it.
Stored stored_weight(const JobContext& job, ParamId id, const Span& span) {
  const ParamSpec& param = job.table[id];
  Stored stored{slice(job.storage.weights(param.group, param.trainable), span)};
  if (job.storage.split(id)) stored.low = slice(job.storage.low(param.group), span);
  return stored;
}

// The first value of elements that no file holds. Split parameters are drawn in fp32, tile by tile.
void emit_random(Emitter& e, const Stored& stored, RandomFill fill, uint64_t first) {
  const int64_t count = stored.values.shape.count();
  const bool at_once = on_device(e, stored.values) && !stored.low;
  for (const auto& [begin, end] : tiles(count, at_once ? count : kTile)) {
    const Operand target = elements(stored.values, begin, end), values = room(e, "values", target);
    fill.first = first + static_cast<uint64_t>(begin);
    if (stored.low) {
      const Operand low_target = elements(*stored.low, begin, end), low = room(e, "low", low_target);
      const Operand drawn = e.tensor("drawn", DType::F32, {end - begin}, Role::Staging);
      e.op("random", fill, {write(drawn)});
      e.op("split", SplitMaster{}, {read(drawn), write(values), write(low)});
      store(e, "low", low, low_target);
    } else {
      e.op("random", fill, {write(values)});
    }
    store(e, "values", values, target);
  }
}

void clear(Emitter& e, const Operand& stored) {
  const int64_t count = stored.shape.count();
  for (const auto& [begin, end] : tiles(count, on_device(e, stored) ? count : kTile)) {
    const Operand target = elements(stored, begin, end), zero = room(e, "zero", target);
    e.op("clear", Fill{}, {write(zero)});
    store(e, "zero", zero, target);
  }
}

// After every sharer has its part of an array in place: all of them have all of it.
void share(const JobContext& job, Emitter& e, const Held& held, int64_t elements) {
  if (!held.sharers) return;
  const Operand part = slice(held, job.layout().part(elements));
  const Operand mine = fetch(e, "part", part, Role::Staging), whole = room(e, "whole", held.array);
  e.op("gather", AllGather{*held.sharers}, {read(mine), write(whole)}, Lane::Gather);
  store(e, "whole", whole, held.array);
}

void share_all(const JobContext& job, Emitter& e, bool frozen_too, bool states_too) {
  for (int g = 0; g < job.table.groups; g++) {
    e.scope(fmt::format("group.{}.share", g));
    const int64_t frozen = job.layout().segment(g, false).elements, trained = job.layout().segment(g, true).elements;
    if (frozen > 0 && frozen_too) share(job, e, job.storage.weights(g, false), frozen);
    if (trained == 0) continue;
    share(job, e, job.storage.weights(g, true), trained);
    for (const Storage::State& state : job.storage.states(g))
      if (states_too || state.name == "low") share(job, e, state.held, trained);
  }
}

RopeTable rope_of(const HfConfig& config) {
  RopeTable rope{.theta = config.rope_theta};
  if (const auto& scaling = config.rope_scaling) {
    rope.factor = scaling->factor;
    rope.low_frequency_factor = scaling->low_freq_factor;
    rope.high_frequency_factor = scaling->high_freq_factor;
    rope.original_length = static_cast<double>(scaling->original_max_position);
  }
  return rope;
}

// Tensors of one file and the transfers that fill it.
Output one_file(std::string name, const std::vector<SafetensorsTensor>& tensors, std::vector<Transfer> transfers) {
  Output output;
  output.files.names = {std::move(name)};
  output.files.layouts = {layout_safetensors(tensors)};
  for (size_t i = 0; i < tensors.size(); i++) transfers[i].place.offset = output.files.layouts[0].offset[i];
  output.transfers = std::move(transfers);
  return output;
}

// Stands for all elements of a parameter, wherever they are: lower_export() finds them.
Transfer whole_param(const JobContext& job, size_t i, int64_t file, uint64_t offset, DType dtype) {
  Operand values;
  values.shape = {job.table.params[i].shape.count()};
  return {{values}, {file, offset, dtype}, static_cast<ParamId>(i)};
}

// A stretch of elements of one array of a run, which a checkpoint keeps.
struct Kept {
  std::string name;  // "<first parameter of the run>.<array>"
  const Held* held;
  Span span;      // of the segment: what this rank owns
  int64_t start;  // of the run
};

std::vector<Kept> kept_arrays(const JobContext& job) {
  std::vector<Kept> all;
  for (int g = 0; g < job.table.groups; g++) {
    const Layout::Segment& segment = job.layout().segment(g, true);
    for (const Layout::Run& run : segment.runs) {
      const Span span = intersection(run.span, job.layout().part(segment.elements));
      if (span.count() == 0) continue;
      const std::string& name = job.table[run.first].name;
      all.push_back({name + ".value", &job.storage.weights(g, true), span, run.span.begin});
      for (const Storage::State& state : job.storage.states(g))
        all.push_back({fmt::format("{}.{}", name, state.name), &state.held, span, run.span.begin});
    }
  }
  return all;
}

// Of the values that a stretch of elements has in an array: which ones of the run's.
Span values_of(const Kept& kept) {
  const int64_t begin = (kept.span.begin - kept.start) / kept.held->granule;
  return {begin, begin + slice(*kept.held, kept.span).shape.count()};
}

std::optional<DType> saved_dtype(const std::string& name) {
  if (name == "F32") return DType::F32;
  if (name == "BF16") return DType::BF16;
  if (name == "I16") return DType::I16;
  if (name == "U8") return DType::U8;
  return std::nullopt;
}

std::string state_file_name(int rank, int ranks) {
  return fmt::format("state-{:05}-of-{:05}.safetensors", rank + 1, ranks);
}

}  // namespace

void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes) {
  Emitter e(job.set, program, job.facts);
  e.op("rope_table", rope_of(job.config), {write(job.rope_table)});
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const auto id = static_cast<ParamId>(i);
    const Span span = owned(job, id);
    if (span.count() == 0) continue;
    const auto first = static_cast<uint64_t>(span.begin - job.layout().span(id).begin);
    e.scope(job.table[id].name);
    if (const auto* fill = std::get_if<RandomFill>(&sources[i])) {
      emit_random(e, stored_weight(job, id, span), *fill, first);
      continue;
    }
    TensorPlace place = std::get<TensorPlace>(sources[i]);
    place.offset += first * element_bytes(place.dtype);
    transfers.push_back({stored_weight(job, id, span), place, id});
  }
  e.scope("files");
  lower_reads(e, std::move(transfers), file_bytes);
  share_all(job, e, true, false);
  for (int g = 0; g < job.table.groups; g++) {
    if (job.layout().segment(g, true).elements == 0) continue;
    e.scope(fmt::format("group.{}", g));
    for (const Storage::State& state : job.storage.states(g))
      if (state.name != "low") clear(e, state.held.array);
  }
}

Output state_output(const JobContext& job) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Transfer> transfers;
  for (const Kept& kept : kept_arrays(job)) {
    const Operand stored = slice(*kept.held, kept.span);
    tensors.push_back({fmt::format("{}@{}", kept.name, values_of(kept).begin), stored.dtype, stored.shape});
    transfers.push_back({{stored}, {0, 0, stored.dtype}});
  }
  return one_file(state_file_name(job.topology().rank, job.topology().ranks), tensors, std::move(transfers));
}

SavedState assumed_saved_state(const JobContext& job) {
  const Output output = state_output(job);
  SavedState saved;
  saved.files = {output.files.names[0]};
  saved.file_bytes = {output.files.layouts[0].file_bytes};
  size_t next = 0;
  for (const Kept& kept : kept_arrays(job))
    saved.arrays[kept.name].push_back({values_of(kept), output.transfers[next++].place});
  return saved;
}

SavedState find_saved_state(const std::filesystem::path& directory) {
  SavedState saved;
  int ranks = 1;
  for (int rank = 0; rank < ranks; rank++) {
    std::filesystem::path path;
    if (rank == 0) {
      std::error_code error;
      for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        int found = 0;
        if (!name.starts_with("state-00001-of-") || name.size() != state_file_name(0, 1).size()) continue;
        const auto [end, bad] = std::from_chars(name.data() + 15, name.data() + 20, found);
        if (bad == std::errc() && end == name.data() + 20 && found > 0) ranks = found;
      }
    }
    path = directory / state_file_name(rank, ranks);
    const SafetensorsIndex index = SafetensorsIndex::open_file(path);
    const auto file = static_cast<int64_t>(saved.files.size());
    saved.files.push_back(path);
    saved.file_bytes.push_back(std::filesystem::file_size(path));
    for (const SafetensorsEntry& entry : index.entries()) {
      const size_t at = entry.name.rfind('@');
      const auto dtype = saved_dtype(entry.dtype_name);
      int64_t begin = -1;
      if (at != std::string::npos)
        std::from_chars(entry.name.data() + at + 1, entry.name.data() + entry.name.size(), begin);
      if (begin < 0 || !dtype || entry.shape.size() != 1)
        user_error("{}: tensor '{}' of {} is no stretch of a saved array", path.string(), entry.name, entry.dtype_name);
      saved.arrays[entry.name.substr(0, at)].push_back({{begin, begin + entry.shape[0]}, {file, entry.offset, *dtype}});
    }
  }
  for (auto& [name, stretches] : saved.arrays)
    std::ranges::sort(stretches, {}, [](const SavedState::Stretch& s) { return s.span.begin; });
  return saved;
}

void lower_restore(const JobContext& job, ProgramId program, const SavedState& saved) {
  Emitter e(job.set, program, job.facts);
  std::vector<Transfer> transfers;
  for (const Kept& kept : kept_arrays(job)) {
    const Operand stored = slice(*kept.held, kept.span);
    const Span values = values_of(kept);
    int64_t next = values.begin;  // what stands before it was found
    const auto found = saved.arrays.find(kept.name);
    if (found != saved.arrays.end())
      for (const auto& [stretch, place] : found->second) {
        const Span wanted = intersection(stretch, {next, values.end});
        if (wanted.count() == 0 || wanted.begin != next || place.dtype != stored.dtype) continue;
        TensorPlace from = place;
        from.offset += static_cast<uint64_t>(wanted.begin - stretch.begin) * element_bytes(place.dtype);
        transfers.push_back({{slice(stored, values.begin, wanted)}, from});
        next = wanted.end;
      }
    if (next != values.end)
      user_error("{}: found no {} '{}' from element {} on; resume with the options of the run's job.yaml",
                 saved.files[0].parent_path().string(), snug::name(stored.dtype), kept.name, next);
  }
  e.scope("files");
  lower_reads(e, std::move(transfers), saved.file_bytes);
  share_all(job, e, false, true);
}

Output adapter_output(const JobContext& job) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    if (!job.table.params[i].adapter) continue;
    tensors.push_back({job.table.params[i].name, DType::F32, job.table.params[i].shape});
    transfers.push_back(whole_param(job, i, 0, 0, DType::F32));
  }
  return one_file("adapter_model.safetensors", tensors, std::move(transfers));
}

Output model_output(const JobContext& job, DType dtype, uint64_t max_bytes) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<size_t> params;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    if (job.table.params[i].adapter) continue;
    tensors.push_back({job.table.params[i].name, dtype, job.table.params[i].shape});
    params.push_back(i);
  }
  ShardedLayout sharded = shard_safetensors(tensors, max_bytes);
  Output output;
  output.files.index_json = std::move(sharded.index_json);
  for (auto& shard : sharded.shards) {
    const auto file = static_cast<int64_t>(output.files.names.size());
    for (size_t i = 0; i < shard.tensors.size(); i++)
      output.transfers.push_back(whole_param(job, params[shard.tensors[i]], file, shard.layout.offset[i], dtype));
    output.files.names.push_back(std::move(shard.file_name));
    output.files.layouts.push_back(std::move(shard.layout));
  }
  return output;
}

void lower_export(const JobContext& job, ProgramId program, Output output) {
  Emitter e(job.set, program, job.facts);
  std::map<std::pair<int, bool>, Stored> whole;  // by group and whether it is trained
  auto segment = [&](const ParamSpec& param) -> const Stored& {
    const auto [found, fresh] = whole.try_emplace({param.group, param.trainable});
    if (!fresh) return found->second;
    const std::string before = e.scope();
    e.scope(fmt::format("group.{}", param.group));
    const int64_t elements = job.layout().segment(param.group, param.trainable).elements;
    found->second.values = fetch_whole(e, "weights", job.storage.weights(param.group, param.trainable), elements);
    if (param.trainable && job.numerics.split_master())
      found->second.low = fetch_whole(e, "low", job.storage.low(param.group), elements);
    e.scope(before);
    // Files go through the groups in order; only two are held at a time, whatever is not resident.
    std::erase_if(whole, [&](const auto& held) { return held.first.first + 1 < param.group; });
    return whole.at({param.group, param.trainable});
  };
  auto resolve = [&](const Transfer& transfer) {
    const ParamSpec& param = job.table[transfer.param];
    const Stored& all = segment(param);
    Stored stored{flat(job.storage.view(all.values, transfer.param))};
    if (all.low) stored.low = flat(job.storage.view(*all.low, transfer.param));
    return stored;
  };
  if (job.topology().rank == 0) return lower_writes(e, std::move(output), resolve);
  std::ranges::sort(output.transfers, {}, [](const Transfer& t) { return std::pair(t.place.file, t.place.offset); });
  for (const Transfer& transfer : output.transfers) resolve(transfer);
  retire_later(e.program(), job.strategy.retire_lag);
}

void lower_merge(const JobContext& job, ProgramId program) {
  Emitter e(job.set, program, job.facts);
  auto in_fp32 = [&](std::string_view what, const Operand& stored) {
    const Operand wide = e.tensor(what, DType::F32, stored.shape, Role::Staging);
    e.op(what, Cast{}, {read(stored), write(wide)});
    return wide;
  };
  auto view = [&](const Held& held, ParamId id, int count) { return job.storage.view(held.array, id, count); };
  // A split adapter counts with all its bits.
  auto adapter_in_fp32 = [&](std::string_view what, ParamId id) {
    const int group = job.table[id].group;
    const Operand values = view(job.storage.weights(group, true), id, 1);
    if (!job.storage.split(id)) return in_fp32(what, values);
    const Operand wide = e.tensor(what, DType::F32, job.table[id].shape, Role::Staging);
    e.op(what, JoinMaster{}, {read(values), read(view(job.storage.low(group), id, 1)), write(wide)});
    return wide;
  };
  for (size_t block = 0; block < job.table.blocks.size(); block++) {
    const BlockParams& params = job.table.blocks[block];
    for (const Linear* linear : {&params.qkv, &params.o, &params.gate_up, &params.down})
      for (size_t i = 0; i < linear->lora.parts.size(); i++) {
        e.scope(fmt::format("block.{}.{}.merge", block, linear->site));
        const LoraPart& part = linear->lora.parts[i];
        const Held& held = job.storage.weights(job.table[linear->weight].group, false);
        const Operand stored = rows(view(held, linear->weight, linear->count), part.row_begin, part.row_end);
        const Operand sum = in_fp32("w", stored);
        const Operand a = adapter_in_fp32("a", linear->lora.a + static_cast<ParamId>(i));
        const Operand b = adapter_in_fp32("b", part.b);
        e.op("add", Gemm{.alpha = linear->lora.scale, .addend = true}, {read(b), read(a), read(sum), write(sum)});
        e.op("store", Cast{}, {read(sum), write(stored)});
      }
  }
}

}  // namespace snug
