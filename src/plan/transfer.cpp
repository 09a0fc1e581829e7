#include "plan/transfer.h"

#include <algorithm>
#include <bit>

#include "plan/placement.h"

namespace snug {
namespace {

// Bytes of a staged range: long enough for a disk and a bus to run at full rate, and for the programs of large models,
// whose ranges would be tens of thousands, longer.
constexpr uint64_t kLeastRange = 8u << 20, kMostRange = 64u << 20, kManyRanges = 2048;
uint64_t range_bytes(const std::vector<Transfer>& transfers) {
  uint64_t total = 0;
  for (const Transfer& t : transfers)
    total += static_cast<uint64_t>(t.stored.values.shape.count()) * element_bytes(t.place.dtype);
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
    const int64_t count = t.stored.values.shape.count();
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

// Room on the device for values that are to be stored: where they are stored, if that is there.
Operand room_for(Emitter& e, std::string_view what, const Operand& stored) {
  if (e.set().buffers[stored.buffer].space == Space::Device) return stored;
  return e.tensor(what, stored.dtype, stored.shape, Role::Staging);
}

void take(Emitter& e, const Operand& from, const Piece& piece) {
  const Transfer& t = *piece.transfer;
  const Operand stored = part(t.stored.values, piece), values = room_for(e, "values", stored);
  if (t.stored.low) {
    const Operand low_stored = part(*t.stored.low, piece), low = room_for(e, "low", low_stored);
    e.op("split", SplitMaster{}, {from, write(values), write(low)});
    store(e, "low", low, low_stored);
  } else if (t.place.dtype == stored.dtype) {
    e.op("copy", Copy{}, {from, write(values)});
  } else {
    e.op("cast", Cast{}, {from, write(values)});
  }
  store(e, "values", values, stored);
}

void give(Emitter& e, const Operand& to, const Piece& piece, const Stored& stored) {
  const Operand values = fetch(e, "values", part(stored.values, piece), Role::Staging);
  if (stored.low && to.dtype == DType::F32)
    e.op("join", JoinMaster{}, {read(values), read(fetch(e, "low", part(*stored.low, piece), Role::Staging)), to});
  else if (to.dtype == values.dtype)
    e.op("copy", Copy{}, {read(values), to});
  else
    e.op("cast", Cast{}, {read(values), to});
}

}  // namespace

void lower_reads(Emitter& e, std::vector<Transfer> transfers, const std::vector<uint64_t>& file_bytes) {
  for (const Range& range : cut_into_ranges(transfers)) {
    const uint64_t whole = (range.end + kDirectIo - 1) / kDirectIo * kDirectIo;
    const uint64_t bytes = std::min(whole, file_bytes[static_cast<size_t>(range.file)]) - range.begin;
    const Operand host = staging_buffer(e, "range.host", bytes, Space::Host);
    const Operand device = staging_buffer(e, "range", bytes, Space::Device);
    e.op("read", ReadFile{range.file, range.begin}, {write(host)}, Lane::DiskIo);
    e.op("fetch", Copy{}, {read(host), write(device)}, Lane::CopyIn);
    for (const Piece& piece : range.pieces) take(e, read(staged(device, piece)), piece);
  }
  retire_later(e.program(), kStagingLag);
}

void lower_writes(Emitter& e, Output output, const std::function<Stored(const Transfer&)>& resolve) {
  for (size_t i = 0; i < output.files.layouts.size(); i++) {
    const auto file = static_cast<int64_t>(i);
    const Operand header = staging_buffer(e, "header", output.files.layouts[i].header.size(), Space::Host);
    e.op("header", HostTask{HostJob::FillHeader, file}, {write(header)}, Lane::Host);
    e.op("write", WriteFile{file, 0}, {read(header)}, Lane::DiskIo);
  }
  for (const Range& range : cut_into_ranges(output.transfers)) {
    const uint64_t bytes = range.end - range.begin;
    const Operand device = staging_buffer(e, "range", bytes, Space::Device);
    const Operand host = staging_buffer(e, "range.host", bytes, Space::Host);
    for (const Piece& piece : range.pieces)
      give(e, write(staged(device, piece)), piece, resolve ? resolve(*piece.transfer) : piece.transfer->stored);
    e.op("store", Copy{}, {read(device), write(host)}, Lane::CopyOut);
    e.op("write", WriteFile{range.file, range.begin}, {read(host)}, Lane::DiskIo);
  }
  retire_later(e.program(), kStagingLag);
}

}  // namespace snug
