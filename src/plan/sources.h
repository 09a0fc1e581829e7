// Where the first value of every parameter comes from: model files, adapter files, or the seed.
#pragma once

#include <filesystem>
#include <optional>

#include "base/alive.h"
#include "plan/load.h"

namespace snug {

struct WeightSources {
  std::vector<ParamSource> params;           // by ParamId
  std::vector<std::filesystem::path> files;  // by TensorPlace::file
  std::vector<uint64_t> file_bytes;
  bool assumed = false;  // there are no weight files: sizes are those of one bf16 file; good for planning only
  // How the files hold linears; Plain means that they may be quantised as they are read.
  BaseFormat format = BaseFormat::Plain;
  bool plain_scales = false;  // Nf4
  // In what format, if they hold them as numbers: the widest of all.
  std::optional<DType> linears;
  std::vector<std::string> notes;  // a line for each kind of thing in the files that is passed over
};

struct SourceRequest {
  std::filesystem::path model;
  bool random = false;  // weights from the seed instead of files
  uint64_t seed = 0;
  std::optional<std::filesystem::path> adapter;  // PEFT directory; without one, fresh adapters: A from the seed, B zero
  int64_t prediction_layers = 0;                 // behind the model's last one, whose tensors are passed over
  bool head_is_embedding = false;                // the model's files have one matrix for both, though the table has two
};

// UserError for a tensor that is missing or of another shape than config.json says, that the model has no place for
// (but for kinds that change nothing, which a note names), and where linears that products need differ in their form.
WeightSources find_sources(const ParamTable& table, const SourceRequest& request);

// A hash of the files' sizes and ends, and of the first bytes of every tensor that a parameter is read from: tells one
// model or adapter from another, and reads little.
uint64_t hash_of_files(const WeightSources& sources, const Alive& alive);

// UserError if weight files were only assumed.
void require_weights(const WeightSources& sources);

}  // namespace snug
