// Programs that move arrays between files and their storage, through planned staging: no file is ever held as a whole.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "plan/job.h"

namespace snug {

// Where elements lie, one after the other.
struct TensorPlace {
  int64_t file = 0;     // index into the files of the program
  uint64_t offset = 0;  // bytes from the file's start
  DType dtype = DType::F32;
};

// Elements and their place in a file: a vector of values, in any space, or a split pair for which a file's fp32 stands.
struct Stored {
  Operand values;
  std::optional<Operand> low{};
};
struct Transfer {
  Stored stored;
  TensorPlace place;
  ParamId param = kNoParam;
};

// Files to be written, whole, by a program.
struct OutputFiles {
  std::vector<std::string> names;  // within their directory
  std::vector<SafetensorsLayout> layouts;
  std::string index_json;  // for model.safetensors.index.json; empty if one file holds all
};
struct Output {
  OutputFiles files;
  std::vector<Transfer> transfers;
};

// Reads ranges of the files (ReadFile ops name a file by index), converts them and writes them to their storage.
// `file_bytes`: the size of each file, as range ends are clipped to it.
void lower_reads(Emitter& e, std::vector<Transfer> transfers, const std::vector<uint64_t>& file_bytes);

// Writes the files from their first byte to their last: headers, then tensors as the transfers (which cover the files'
// data) give them. `resolve`, if given, says where a transfer's elements are when they are needed.
void lower_writes(Emitter& e, Output output, const std::function<Stored(const Transfer&)>& resolve = {});

}  // namespace snug
