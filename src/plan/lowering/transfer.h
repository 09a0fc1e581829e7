// Emits programs that move arrays between files and their storage, through planned staging: no file is ever held whole.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "plan/lowering/job.h"
#include "plan/spec/sources.h"

namespace snug {

// Holds elements to store or to read: a vector of values, in any space, or a split pair that a file has as fp32.
struct Stored {
  Operand values;
  std::optional<Operand> low{};
};
struct Transfer {
  Stored stored;
  TensorPlace place;
  ParamId param = kNoParam;
  std::optional<TensorPlace> source{};  // for what is copied from the model's files instead
};

// Elements that come from a file, and what is made of them.
struct TensorRead {
  TensorPlace place;
  int64_t count = 0;
  int64_t block = 1;  // they come in pieces of multiples of this; only the last may be short
  // Emits what becomes of a piece: a vector on the device, at any byte, whose first is element `first`.
  std::function<void(const Operand& piece, int64_t first)> consume;
};
// What is stored in the file's values, converted where its type is another. `e` is kept.
TensorRead stored_as(Emitter& e, const Stored& stored, const TensorPlace& place);

// Returns the bytes of a range, given the bytes of all that a program moves: long enough for a disk and a bus to run at
// full rate, and longer for large models, whose programs would otherwise have tens of thousands of ranges.
uint64_t range_bytes(uint64_t total);
// Returns the bytes of a range where the ranks divide the reading of files between them.
uint64_t range_bytes(const std::vector<uint64_t>& file_bytes, int ranks);

// Describes files that a program writes as a whole.
struct OutputFiles {
  std::vector<std::string> names;  // within their directory
  std::vector<SafetensorsLayout> layouts;
  std::string index_json;             // for model.safetensors.index.json; empty if one file holds all
  std::vector<std::string> halves{};  // tensors that become fp16 as they are written

  uint64_t disk_bytes() const;  // of all files, each in whole blocks of direct I/O
};
struct Output {
  OutputFiles files;
  std::vector<Transfer> transfers;
};
// Returns the tensors of one file with the transfers that fill it.
Output one_file(std::string name, const std::vector<SafetensorsTensor>& tensors, std::vector<Transfer> transfers);

// Reads ranges of at most `most` bytes of the files (ReadFile ops name a file by index), in their order, and takes what
// comes. `file_bytes`: the size of each file, as range ends are clipped to it.
void lower_reads(Emitter& e, const std::vector<TensorRead>& reads, const std::vector<uint64_t>& file_bytes,
                 uint64_t most);
// Reserves staging for a while beyond its last use, so that reading, copying and converting overlap. It must be called
// when all ops are emitted.
void let_staging_overlap(Program& program);

// Writes the files from their first byte to their last: headers, then tensors as the transfers (which cover the files'
// data) give them. `resolve`, if given, says where some of a transfer's elements are when they are needed.
using Resolve = std::function<Stored(const Transfer&, int64_t begin, int64_t end)>;
void lower_writes(Emitter& e, Output output, const Resolve& resolve = {});

}  // namespace snug
