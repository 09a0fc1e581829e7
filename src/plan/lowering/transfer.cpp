#include "plan/lowering/transfer.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/rounding.h"
#include "plan/lowering/placement.h"

namespace snug {
namespace {

// A range's staging stays reserved for this many further ops, so that reading, copying and converting overlap.
constexpr int64_t kStagingLag = 8;

// Elements of a tensor of a file, of which `block` at a time are not split.
struct TensorRange {
  TensorPlace place;
  int64_t count, block;
};

// Elements [begin, end) of a tensor, and where they lie in a staged range.
struct Piece {
  size_t tensor;
  int64_t begin, end;
  uint64_t at;  // bytes from the range's start
};

struct Range {
  int64_t file;
  uint64_t begin, end;  // bytes of the file
  std::vector<Piece> pieces;
};

uint64_t floor_to(uint64_t x, uint64_t multiple) { return x / multiple * multiple; }

// Cuts tensors, in file order, into ranges of at most `most` bytes that start on direct I/O's boundaries.
std::vector<Range> cut_into_ranges(const std::vector<TensorRange>& tensors, uint64_t most) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t i) { return std::pair(tensors[i].place.file, tensors[i].place.offset); });
  std::vector<Range> ranges;
  for (const size_t index : order) {
    const auto& [place, count, block] = tensors[index];
    const uint64_t size = element_bytes(place.dtype);
    for (int64_t i = 0; i < count;) {
      const uint64_t at = place.offset + static_cast<uint64_t>(i) * size;
      const uint64_t least = static_cast<uint64_t>(std::min(block, count - i)) * size;
      const bool follows = !ranges.empty() && ranges.back().file == place.file && at < ranges.back().end + kDirectIo &&
                           at >= ranges.back().begin && at + least <= ranges.back().begin + most;
      if (!follows) ranges.push_back({place.file, floor_to(at, kDirectIo), 0, {}});
      Range& range = ranges.back();
      check(at + least <= range.begin + most, "{} bytes that may not be split are more than a range of {}", least,
            most);
      auto end = std::min(count, i + static_cast<int64_t>((range.begin + most - at) / size));
      if (end < count) end -= (end - i) % block;
      range.pieces.push_back({index, i, end, at - range.begin});
      range.end = at + static_cast<uint64_t>(end - i) * size;
      i = end;
    }
  }
  return ranges;
}

// Returns a piece's elements as they lie in staging.
Operand staged(const Operand& staging, const Piece& piece, DType dtype) {
  Operand view = staging;
  view.dtype = dtype;
  view.offset = staging.offset + piece.at;
  view.shape = {piece.end - piece.begin};
  view.row_stride = piece.end - piece.begin;
  return view;
}

Operand staging_buffer(Emitter& e, std::string_view what, uint64_t bytes, Space space) {
  return e.tensor(what, DType::U8, {static_cast<int64_t>(bytes)}, Role::Staging, space);
}

Stored part(const Stored& stored, int64_t begin, int64_t end) {
  Stored some{elements(stored.values, begin, end)};
  if (stored.low) some.low = elements(*stored.low, begin, end);
  return some;
}

void emit_conversion(Emitter& e, const Operand& to, const Stored& stored) {
  Operand values = fetch(e, "values", stored.values, Role::Staging);
  if (to.dtype == values.dtype) {
    e.op("copy", Copy{}, {read(values), to});
    return;
  }
  if (stored.low) {
    const Operand low = fetch(e, "low", *stored.low, Role::Staging);
    const Operand wide = to.dtype == DType::F32 ? to : e.tensor("wide", DType::F32, to.shape, Role::Staging);
    e.op("join", JoinMaster{}, {read(values), read(low), write(wide)});
    values = wide;
  }
  if (to.dtype != values.dtype) e.op("cast", Cast{}, {read(values), to});
}

}  // namespace

uint64_t OutputFiles::disk_bytes() const {
  uint64_t bytes = index_json.size();
  for (const SafetensorsLayout& layout : layouts) bytes += round_up(layout.file_bytes, kDirectAlignment);
  return bytes;
}

Output one_file(std::string name, const std::vector<SafetensorsTensor>& tensors, std::vector<Transfer> transfers) {
  Output output;
  output.files.names = {std::move(name)};
  output.files.layouts = {layout_safetensors(tensors)};
  for (size_t i = 0; i < tensors.size(); i++) transfers[i].place.offset = output.files.layouts[0].offset[i];
  output.transfers = std::move(transfers);
  return output;
}

uint64_t range_bytes(uint64_t total) {
  constexpr uint64_t kLeast = 8u << 20, kMost = 64u << 20, kMany = 2048;
  return std::clamp(std::bit_ceil(total / kMany), kLeast, kMost);
}

uint64_t range_bytes(const std::vector<uint64_t>& file_bytes, int ranks) {
  return range_bytes(std::accumulate(file_bytes.begin(), file_bytes.end(), uint64_t{0}) / static_cast<uint64_t>(ranks));
}

TensorRead stored_as(Emitter& e, const Stored& stored, const TensorPlace& place) {
  return {place, stored.values.shape.count(), 1,
          [&e, stored, dtype = place.dtype](const Operand& piece, int64_t first) {
            const int64_t end = first + piece.shape.count();
            const Operand target = elements(stored.values, first, end), values = allocate(e, "values", target);
            if (stored.low) {
              const Operand low_target = elements(*stored.low, first, end), low = allocate(e, "low", low_target);
              e.op("split", SplitMaster{}, {read(piece), write(values), write(low)});
              store(e, "low", low, low_target);
            } else if (dtype == target.dtype) {
              e.op("copy", Copy{}, {read(piece), write(values)});
            } else {
              e.op("cast", Cast{}, {read(piece), write(values)});
            }
            store(e, "values", values, target);
          }};
}

void lower_reads(Emitter& e, const std::vector<TensorRead>& reads, const std::vector<uint64_t>& file_bytes,
                 uint64_t most) {
  std::vector<TensorRange> tensors;
  for (const TensorRead& in : reads) tensors.push_back({in.place, in.count, in.block});
  for (const Range& range : cut_into_ranges(tensors, most)) {
    const uint64_t whole = round_up(range.end, kDirectIo);
    const uint64_t bytes = std::min(whole, file_bytes[static_cast<size_t>(range.file)]) - range.begin;
    const Operand host = staging_buffer(e, "range.host", bytes, Space::Host);
    const Operand device = staging_buffer(e, "range", bytes, Space::Device);
    e.op("read", ReadFile{range.file, range.begin}, {write(host)}, Lane::DiskIn);
    e.op("fetch", Copy{}, {read(host), write(device)}, Lane::CopyIn);
    for (const Piece& piece : range.pieces) {
      const TensorRead& in = reads[piece.tensor];
      in.consume(staged(device, piece, in.place.dtype), piece.begin);
    }
  }
}

void let_staging_overlap(Program& program) { retire_later(program, kStagingLag); }

void lower_writes(Emitter& e, Output output, const Resolve& resolve) {
  for (size_t i = 0; i < output.files.layouts.size(); i++) {
    const auto file = static_cast<int64_t>(i);
    const Operand header = staging_buffer(e, "header", output.files.layouts[i].header.size(), Space::Host);
    e.op("header", HostTask{HostJob::FillHeader, file}, {write(header)}, Lane::Host);
    e.op("write", WriteFile{file, 0}, {read(header)}, Lane::DiskOut);
  }
  std::vector<TensorRange> tensors;
  uint64_t total = 0;
  for (const Transfer& t : output.transfers) {
    tensors.push_back({t.place, t.stored.values.shape.count(), 1});
    total += static_cast<uint64_t>(tensors.back().count) * element_bytes(t.place.dtype);
  }
  for (const Range& range : cut_into_ranges(tensors, range_bytes(total))) {
    const uint64_t bytes = range.end - range.begin;
    const Operand device = staging_buffer(e, "range", bytes, Space::Device);
    const Operand host = staging_buffer(e, "range.host", bytes, Space::Host);
    for (const Piece& piece : range.pieces) {
      const Transfer& transfer = output.transfers[piece.tensor];
      const Stored stored =
          resolve ? resolve(transfer, piece.begin, piece.end) : part(transfer.stored, piece.begin, piece.end);
      emit_conversion(e, write(staged(device, piece, transfer.place.dtype)), stored);
    }
    e.op("store", Copy{}, {read(device), write(host)}, Lane::CopyOut);
    e.op("write", WriteFile{range.file, range.begin}, {read(host)}, Lane::DiskOut);
  }
  let_staging_overlap(e.program());
}

}  // namespace snug
