// Says where the first value of every parameter comes from: model files, adapter files, or the seed.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <variant>

#include "base/heartbeat.h"
#include "format/bnb.h"
#include "model/params.h"
#include "program/ops.h"

namespace snug {

// Says where elements lie, one after the other.
struct TensorPlace {
  int64_t file = 0;     // index into the files of the program
  uint64_t offset = 0;  // bytes from the file's start
  DType dtype = DType::F32;
};

// Describes a linear's weight that a file holds in fewer bits, in the form of Numerics::base_format (format/bnb.h).
struct QuantizedSource {
  TensorPlace codes;
  TensorPlace scales;                         // Nf4: codes of scales, unless they are plain
  std::optional<TensorPlace> block_scales{};  //   and then their scales
  float offset = 0;                           //   and the offset that is added to them
};

// Is one of several places of a matrix's elements: it holds those from element `first` up to the next range's first.
struct SourceRange {
  int64_t first = 0;
  TensorPlace place;
};
using RangedSource = std::vector<SourceRange>;  // from element 0 on

// Says where a parameter's first value comes from.
using ParamSource = std::variant<TensorPlace, RandomFill, QuantizedSource, RangedSource>;

// Is the row of a new token. It begins as the mean of the rows of other tokens.
struct NewRow {
  int64_t row = 0;
  std::vector<int32_t> mean_of;
};

// Lists new tokens' rows of embedding and head. All rows behind those that the model's files have are new.
struct NewRows {
  int64_t stored = 0;  // rows that the files have
  std::vector<NewRow> rows{};
};

struct WeightSources {
  std::vector<ParamSource> params;           // by ParamId
  std::vector<std::filesystem::path> files;  // by TensorPlace::file
  std::vector<uint64_t> file_bytes;
  bool assumed = false;  // there are no weight files: sizes are those that a file would have; good for planning only
  std::vector<std::optional<DType>> dtypes;  // by ParamId: the dtype in the model's files, where these hold numbers
  // Describes a tensor of the model's files that is no parameter's but belongs to the model all the same.
  struct Extra {
    std::string name;
    Shape shape;
    TensorPlace place;
    ParamId same_as = kNoParam;  // the parameter whose values they repeat
  };
  std::vector<Extra> extras;
  // Says how the files hold linears, except those that their quantisation left out. Plain means that all may be
  // quantised as they are read.
  BaseFormat format = BaseFormat::Plain;
  bool plain_scales = false;             // Nf4
  std::optional<size_t> initial_file{};  // the file, of `files`, of the halves with which the adapter begins
  std::optional<size_t> rows_file{};     // the one of the rows with which new tokens begin,
  NewRows new_rows{};                    //   which are these
  std::vector<std::string> notes{};  // lines for the user: what the files hold and is passed over, or what they lack
};

struct SourceRequest {
  std::filesystem::path model;
  bool random = false;  // weights from the seed instead of files
  uint64_t seed = 0;
  std::optional<std::filesystem::path> adapter;  // PEFT directory; without one, fresh adapters: A from the seed, B zero
  int64_t prediction_layers = 0;                 // layers behind the model's last one, whose tensors are passed over
  // Describes weight files that do not exist: the type of their numbers, and how linears are quantised.
  DType dtype = DType::BF16;
  std::optional<BnbQuantization> quantization{};
  bool draws_head = false;         // a head that gives scores is drawn where the model's files have none
  bool head_is_embedding = false;  // the model's files have one matrix for both, though the table has two
  NewRows new_rows{};              // begin with those of a file (initial_file.h), whose path is set later
  // Lists parameters of a tower, and of its adapters, that the table leaves out: the adapter may hold values for them,
  // which are passed over.
  std::vector<ParamSpec> left_out{};
};

// Returns the sources of all parameters. Throws UserError for a tensor that is missing, has another shape than
// config.json says, or has no place in the model (except kinds that change nothing, which a note names), and where
// linears are quantised in several ways.
WeightSources find_sources(const ParamTable& table, const SourceRequest& request);

// Sets how parameters are stored to how the model's files have them: files of a base model, saved without a head or
// tied to its embedding, name tensors without the leading "model.", and are read and written so. Returns a line that
// says so; empty where the names need no change.
std::string store_as_files_do(ParamTable& table, const std::filesystem::path& model);

// Returns whether the model's files have a head whose values differ from the embedding's. It is not the embedding then,
// whatever config.json says. Reads both, as far as they are equal.
bool has_own_head(const std::filesystem::path& model, const ModelSpec& spec);

// Returns a hash of the sizes and ends of the files from which parameters are read, and of the first bytes of every
// such tensor: it tells one model or adapter from another, and reads little. `counts` says whether a parameter (by
// ParamId) is included; new tokens' rows, which follow from the rest, never are.
uint64_t hash_of_files(
    const WeightSources& sources, const Heartbeat& heartbeat,
    const std::function<bool(size_t)>& counts = [](size_t) { return true; });

// Returns the hash_of_files() of the base's weights, without an adapter's and those that it holds in their place;
// nothing where the seed draws them or there are no files.
std::optional<uint64_t> hash_of_base(const ParamTable& table, const WeightSources& sources, const PeftConfig& adapter);

// Throws UserError if weight files were only assumed.
void require_weights(const WeightSources& sources);

}  // namespace snug
