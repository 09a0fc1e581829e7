#include "plan/transfer.h"

#include <algorithm>
#include <bit>

namespace snug {
namespace {

// Bytes of a staged range: long enough for a disk and a bus to run at full rate, and for the programs of large models,
// whose ranges would be tens of thousands, longer.
constexpr uint64_t kLeastRange = 8u << 20, kMostRange = 64u << 20, kManyRanges = 2048;
uint64_t range_bytes(const std::vector<Transfer>& transfers) {
  uint64_t total = 0;
  for (const Transfer& t : transfers)
    total += static_cast<uint64_t>(t.stored.shape.count()) * element_bytes(t.place.dtype);
  return std::clamp(std::bit_ceil(total / kManyRanges), kLeastRange, kMostRange);
}

// Further ops for which a range's staging stays its own, so that reading, copying and converting overlap.
constexpr int64_t kStagingLag = 8;

// Elements [begin, end) of a transfer, and where they lie in a staged range.
struct Piece {
  const Transfer* transfer;
  int64_t begin, end;
  uint64_t at;  // bytes from the range's start
};

struct Range {
  int64_t file;
  uint64_t begin, end;  // bytes of the file
  std::vector<Piece> pieces;
};

uint64_t floor_to(uint64_t x, uint64_t multiple) { return x / multiple * multiple; }

// Cuts tensors, in file order, into ranges of at most range_bytes() that start on direct I/O's boundaries and split no
// element.
std::vector<Range> cut_into_ranges(std::vector<Transfer>& transfers) {
  std::ranges::sort(transfers, [](const Transfer& a, const Transfer& b) {
    return std::pair(a.place.file, a.place.offset) < std::pair(b.place.file, b.place.offset);
  });
  const uint64_t most = range_bytes(transfers);
  std::vector<Range> ranges;
  for (const Transfer& t : transfers) {
    const uint64_t size = element_bytes(t.place.dtype);
    const int64_t count = t.stored.shape.count();
    for (int64_t i = 0; i < count;) {
      const uint64_t at = t.place.offset + static_cast<uint64_t>(i) * size;
      const bool follows = !ranges.empty() && ranges.back().file == t.place.file &&
                           at < ranges.back().end + kDirectIo && at >= ranges.back().begin &&
                           at + size <= ranges.back().begin + most;
      if (!follows) ranges.push_back({t.place.file, floor_to(at, kDirectIo), 0, {}});
      Range& range = ranges.back();
      const auto fitting = static_cast<int64_t>((range.begin + most - at) / size);
      const int64_t end = std::min(count, i + fitting);
      range.pieces.push_back({&t, i, end, at - range.begin});
      range.end = at + static_cast<uint64_t>(end - i) * size;
      i = end;
    }
  }
  return ranges;
}

// A piece's elements as they lie in staging.
Operand staged(const Operand& staging, const Piece& piece) {
  Operand view = staging;
  view.dtype = piece.transfer->place.dtype;
  view.offset = staging.offset + piece.at;
  view.shape = {piece.end - piece.begin};
  view.row_stride = piece.end - piece.begin;
  return view;
}

Operand part(const Operand& stored, const Piece& piece) { return elements(stored, piece.begin, piece.end); }

Operand staging_buffer(Emitter& e, std::string_view what, uint64_t bytes, Space space) {
  return e.tensor(what, DType::U8, {static_cast<int64_t>(bytes)}, Role::Staging, space);
}

// The first value of a parameter that no file holds. Split parameters are drawn in fp32, tile by tile.
void emit_random(Emitter& e, const Storage& storage, ParamId id, RandomFill fill) {
  constexpr int64_t kTile = 4 << 20;  // elements
  const Operand all = flat(storage.weight(id));
  if (!storage.split(id)) {
    e.op("random", fill, {write(all)});
    return;
  }
  const Operand low = flat(storage.low(id));
  for (int64_t begin = 0; begin < all.shape.count(); begin += kTile) {
    const int64_t end = std::min(begin + kTile, all.shape.count());
    const Operand drawn = e.tensor("drawn", DType::F32, {end - begin}, Role::Staging);
    fill.first = static_cast<uint64_t>(begin);
    e.op("random", fill, {write(drawn)});
    e.op("split", SplitMaster{}, {read(drawn), write(elements(all, begin, end)), write(elements(low, begin, end))});
  }
}

// Tensors of one file and the transfers that fill it.
StateFiles one_file(std::string name, const std::vector<SafetensorsTensor>& tensors, std::vector<Transfer> transfers) {
  StateFiles state;
  state.files.names = {std::move(name)};
  state.files.layouts = {layout_safetensors(tensors)};
  for (size_t i = 0; i < tensors.size(); i++) transfers[i].place.offset = state.files.layouts[0].offset[i];
  state.transfers = std::move(transfers);
  return state;
}

}  // namespace

void lower_reads(Emitter& e, std::vector<Transfer> transfers, const std::vector<uint64_t>& file_bytes) {
  for (const Range& range : cut_into_ranges(transfers)) {
    const uint64_t whole = (range.end + kDirectIo - 1) / kDirectIo * kDirectIo;
    const uint64_t bytes = std::min(whole, file_bytes[static_cast<size_t>(range.file)]) - range.begin;
    const Operand host = staging_buffer(e, "range.host", bytes, Space::Host);
    const Operand device = staging_buffer(e, "range", bytes, Space::Device);
    e.op("read", ReadFile{range.file, range.begin}, {write(host)}, Lane::DiskIo);
    e.op("copy", Copy{}, {read(host), write(device)}, Lane::CopyIn);
    for (const Piece& piece : range.pieces) {
      const Transfer& t = *piece.transfer;
      const Operand from = read(staged(device, piece));
      if (t.low)
        e.op("split", SplitMaster{}, {from, write(part(t.stored, piece)), write(part(*t.low, piece))});
      else if (t.place.dtype == t.stored.dtype)
        e.op("store", Copy{}, {from, write(part(t.stored, piece))});
      else
        e.op("store", Cast{}, {from, write(part(t.stored, piece))});
    }
  }
  retire_later(e.program(), kStagingLag);
}

void lower_writes(Emitter& e, std::vector<Transfer> transfers, const OutputFiles& files) {
  for (size_t i = 0; i < files.layouts.size(); i++) {
    const auto file = static_cast<int64_t>(i);
    const Operand header = staging_buffer(e, "header", files.layouts[i].header.size(), Space::Host);
    e.op("header", HostTask{HostJob::FillHeader, file}, {write(header)}, Lane::Host);
    e.op("write", WriteFile{file, 0}, {read(header)}, Lane::DiskIo);
  }
  for (const Range& range : cut_into_ranges(transfers)) {
    const uint64_t bytes = range.end - range.begin;
    const Operand device = staging_buffer(e, "range", bytes, Space::Device);
    const Operand host = staging_buffer(e, "range.host", bytes, Space::Host);
    for (const Piece& piece : range.pieces) {
      const Transfer& t = *piece.transfer;
      const Operand to = write(staged(device, piece));
      if (t.low && t.place.dtype == DType::F32)
        e.op("join", JoinMaster{}, {read(part(t.stored, piece)), read(part(*t.low, piece)), to});
      else if (t.place.dtype == t.stored.dtype)
        e.op("fetch", Copy{}, {read(part(t.stored, piece)), to});
      else
        e.op("fetch", Cast{}, {read(part(t.stored, piece)), to});
    }
    e.op("copy", Copy{}, {read(device), write(host)}, Lane::CopyOut);
    e.op("write", WriteFile{range.file, range.begin}, {read(host)}, Lane::DiskIo);
  }
  retire_later(e.program(), kStagingLag);
}

void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes) {
  Emitter e(job.set, program, job.facts);
  RopeTable rope{.theta = job.config.rope_theta};
  if (const auto& scaling = job.config.rope_scaling) {
    rope.factor = scaling->factor;
    rope.low_frequency_factor = scaling->low_freq_factor;
    rope.high_frequency_factor = scaling->high_freq_factor;
    rope.original_length = static_cast<double>(scaling->original_max_position);
  }
  e.op("rope_table", rope, {write(job.rope_table)});
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const auto id = static_cast<ParamId>(i);
    e.scope(job.table[id].name);
    if (const auto* fill = std::get_if<RandomFill>(&sources[i]))
      emit_random(e, job.storage, id, *fill);
    else
      transfers.push_back({job.storage.weight(id),
                           job.storage.split(id) ? std::optional(job.storage.low(id)) : std::nullopt,
                           std::get<TensorPlace>(sources[i])});
    if (!job.table[id].trainable || !job.storage.has_states()) continue;
    e.op("clear", Fill{}, {write(job.storage.first_moment(id))});
    e.op("clear", Fill{}, {write(job.storage.second_moment(id))});
  }
  e.scope("files");
  lower_reads(e, std::move(transfers), file_bytes);
}

StateFiles state_files(const JobContext& job) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Transfer> transfers;
  auto add = [&](const std::string& name, const Operand& stored) {
    tensors.push_back({name, stored.dtype, stored.shape});
    transfers.push_back({stored, std::nullopt, {0, 0, stored.dtype}});
  };
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const auto id = static_cast<ParamId>(i);
    const ParamSpec& param = job.table[id];
    if (!param.trainable) continue;
    add(param.name, job.storage.weight(id));
    if (job.storage.split(id)) add(param.name + ".low", job.storage.low(id));
    add(param.name + ".first_moment", job.storage.first_moment(id));
    add(param.name + ".second_moment", job.storage.second_moment(id));
  }
  return one_file("state.safetensors", tensors, std::move(transfers));
}

StateFiles adapter_files(const JobContext& job) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<Transfer> transfers;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    const auto id = static_cast<ParamId>(i);
    if (!job.table[id].adapter) continue;
    tensors.push_back({job.table[id].name, DType::F32, job.table[id].shape});
    transfers.push_back({job.storage.weight(id),
                         job.storage.split(id) ? std::optional(job.storage.low(id)) : std::nullopt,
                         {0, 0, DType::F32}});
  }
  return one_file("adapter_model.safetensors", tensors, std::move(transfers));
}

StateFiles model_files(const JobContext& job, DType dtype, uint64_t max_bytes) {
  std::vector<SafetensorsTensor> tensors;
  std::vector<ParamId> ids;
  for (size_t i = 0; i < job.table.params.size(); i++) {
    if (job.table.params[i].adapter) continue;
    tensors.push_back({job.table.params[i].name, dtype, job.table.params[i].shape});
    ids.push_back(static_cast<ParamId>(i));
  }
  ShardedLayout sharded = shard_safetensors(tensors, max_bytes);
  StateFiles state;
  state.files.index_json = std::move(sharded.index_json);
  for (auto& shard : sharded.shards) {
    const auto file = static_cast<int64_t>(state.files.names.size());
    for (size_t i = 0; i < shard.tensors.size(); i++) {
      const ParamId id = ids[shard.tensors[i]];
      state.transfers.push_back({job.storage.weight(id),
                                 job.storage.split(id) ? std::optional(job.storage.low(id)) : std::nullopt,
                                 {file, shard.layout.offset[i], dtype}});
    }
    state.files.names.push_back(std::move(shard.file_name));
    state.files.layouts.push_back(std::move(shard.layout));
  }
  return state;
}

void lower_merge(const JobContext& job, ProgramId program) {
  Emitter e(job.set, program, job.facts);
  auto in_fp32 = [&](std::string_view what, const Operand& stored) {
    const Operand wide = e.tensor(what, DType::F32, stored.shape, Role::Staging);
    e.op(what, Cast{}, {read(stored), write(wide)});
    return wide;
  };
  // A split adapter counts with all its bits.
  auto adapter_in_fp32 = [&](std::string_view what, ParamId id) {
    if (!job.storage.split(id)) return in_fp32(what, job.storage.weight(id));
    const Operand wide = e.tensor(what, DType::F32, job.table[id].shape, Role::Staging);
    e.op(what, JoinMaster{}, {read(job.storage.weight(id)), read(job.storage.low(id)), write(wide)});
    return wide;
  };
  for (size_t block = 0; block < job.table.blocks.size(); block++) {
    const BlockParams& params = job.table.blocks[block];
    for (const Linear* linear : {&params.qkv, &params.o, &params.gate_up, &params.down})
      for (size_t i = 0; i < linear->lora.parts.size(); i++) {
        e.scope(fmt::format("block.{}.{}.merge", block, linear->site));
        const LoraPart& part = linear->lora.parts[i];
        const Operand stored = rows(job.storage.weight(linear->weight, linear->count), part.row_begin, part.row_end);
        const Operand sum = in_fp32("w", stored);
        const Operand a = adapter_in_fp32("a", linear->lora.a + static_cast<ParamId>(i));
        const Operand b = adapter_in_fp32("b", part.b);
        e.op("add", Gemm{.alpha = linear->lora.scale, .addend = true}, {read(b), read(a), read(sum), write(sum)});
        e.op("store", Cast{}, {read(sum), write(stored)});
      }
  }
}

}  // namespace snug
