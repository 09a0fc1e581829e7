// Where the first value of every parameter comes from: model files, adapter files, or the seed.
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

// Where elements lie, one after the other.
struct TensorPlace {
  int64_t file = 0;     // index into the files of the program
  uint64_t offset = 0;  // bytes from the file's start
  DType dtype = DType::F32;
};

// A linear's weight that a file holds in fewer bits, in the form of Numerics::base_format (format/bnb.h).
struct QuantizedSource {
  TensorPlace codes;
  TensorPlace scales;                         // Nf4: codes of scales, unless they are plain
  std::optional<TensorPlace> block_scales{};  //   and then their scales
  float offset = 0;                           //   and what they are counted from
};

// A matrix whose elements lie in several places: each from its first element on, up to the next one's.
struct SourceRange {
  int64_t first = 0;
  TensorPlace place;
};
using RangedSource = std::vector<SourceRange>;  // from element 0 on

// Where a parameter's first value comes from.
using ParamSource = std::variant<TensorPlace, RandomFill, QuantizedSource, RangedSource>;

struct WeightSources {
  std::vector<ParamSource> params;           // by ParamId
  std::vector<std::filesystem::path> files;  // by TensorPlace::file
  std::vector<uint64_t> file_bytes;
  bool assumed = false;  // there are no weight files: sizes are those of one that would be; good for planning only
  std::vector<std::optional<DType>> dtypes;  // by ParamId: of the model's files, where these hold numbers
  // Tensors of the model's files that are no parameter's, and belong to the model all the same.
  struct Extra {
    std::string name;
    Shape shape;
    TensorPlace place;
    ParamId same_as = kNoParam;  // the parameter whose values they repeat
  };
  std::vector<Extra> extras;
  // How the files hold linears, but for those that their quantisation left out; Plain means that all may be quantised
  // as they are read.
  BaseFormat format = BaseFormat::Plain;
  bool plain_scales = false;         // Nf4
  std::vector<std::string> notes{};  // lines for the user: what the files hold and is passed over, or do not hold
};

struct SourceRequest {
  std::filesystem::path model;
  bool random = false;  // weights from the seed instead of files
  uint64_t seed = 0;
  std::optional<std::filesystem::path> adapter;  // PEFT directory; without one, fresh adapters: A from the seed, B zero
  int64_t prediction_layers = 0;                 // behind the model's last one, whose tensors are passed over
  // Of weight files that are not there: the type of their numbers, and how linears are quantised.
  DType dtype = DType::BF16;
  std::optional<BnbQuantization> quantization{};
  bool head_is_embedding = false;  // the model's files have one matrix for both, though the table has two
};

// UserError for a tensor that is missing or of another shape than config.json says, that the model has no place for
// (but for kinds that change nothing, which a note names), and where linears are quantised in several ways.
WeightSources find_sources(const ParamTable& table, const SourceRequest& request);

// Where a model's files have the tensors of a base model, without the "model." before their names, as one is saved that
// has no head or is tied to its embedding, the parameters are stored so: read, and written again. Returns a line that
// says so; empty where they have it.
std::string store_as_files_do(ParamTable& table, const std::filesystem::path& model);

// Whether a model has a head in its files and its values differ from its embedding's: it is not the embedding then,
// whatever config.json says. Reads both, as far as they are equal.
bool has_own_head(const std::filesystem::path& model, const ModelSpec& spec);

// A hash of the sizes and ends of the files that parameters are read from, and of the first bytes of every such tensor:
// tells one model or adapter from another, and reads little. `counts`: whether a parameter (by ParamId) does.
uint64_t hash_of_files(
    const WeightSources& sources, const Heartbeat& heartbeat,
    const std::function<bool(size_t)>& counts = [](size_t) { return true; });

// That of the base's weights, without an adapter's; nothing where the seed draws them, or there are no files.
std::optional<uint64_t> hash_of_base(const ParamTable& table, const WeightSources& sources);

// UserError if weight files were only assumed.
void require_weights(const WeightSources& sources);

}  // namespace snug
