// ParamTable lists every parameter of a model; import, export, initialisation, gradients and updates all walk it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/peft.h"
#include "model/spec.h"
#include "tensor/view.h"

namespace snug {

using ParamId = int32_t;  // index into ParamTable::params
inline constexpr ParamId kNoParam = -1;

// Says where the model's files have a parameter: in rows from `first` on of a tensor of `rows` rows (of a vector:
// elements). Export writes them there again.
struct StoredRows {
  std::string tensor;
  int64_t first = 0, rows = 0;
  std::vector<int64_t> row_shape{};  // of a row in the files, where it is no vector: {3, 2, 14, 14} of a patch
};

struct ParamSpec {
  std::string name;   // PEFT's and the model's own code's: "model.layers.0.mlp.up_proj.weight"
  StoredRows stored;  // most often all rows of the tensor of that name
  Shape shape;
  int group = 0;  // its index in ParamTable::groups
  bool trainable = false;
  bool decay = false;      // weight decay applies: all but norms and biases
  double rate = 1;         // by which the learning rate is multiplied
  float initial = 0;       // an untrained vector holds it
  bool joined = false;     // its bytes follow the previous parameter's without a gap
  bool adapter = false;    // belongs to the adapter's files
  bool taken_off = false;  // is a half with which an adapter began, and which is taken off
  bool constant = false;   // is a vector of fp32 numbers of a run that every rank holds whole, in no segment
  bool linear = false;     // the weight of a layer's linear, which a quantised base holds in fewer bits
  bool fixed = false;      // is never trained: the model's authors computed it
  bool saved = false;      // is in an adapter's file, though it is not trained, beside what is of the same module
  bool tower = false;      // of the tower or its projector, which a quantised base holds as numbers all the same
};

// Returns the shape of the tensor of the files that has a parameter's rows.
Shape stored_shape(const ParamSpec& param);
// Returns the shape of the tensor that an adapter has of a parameter, one of its own or one that is trained whole: as
// the model's files store it, if they have it by itself.
Shape shape_in_adapter(const ParamSpec& param);

// Ends the names of the norms of an adapted weight's rows, and of what their trained norms began with, whose own names
// PEFT gives.
inline constexpr std::string_view kRowNorms = ".row_norms", kInitial = ".initial";

// Describes low-rank adaptation (Hu et al., arXiv:2106.09685) of some of a linear's parts: y += scale x A^T B^T.
struct LoraPart {
  int64_t row_begin = 0, row_end = 0;  // columns of the linear's output, which are rows of its weight
  ParamId b = kNoParam;                // [rows, rank]; those of all parts are joined
  int64_t rank = 0;
  float scale = 0;
};
struct Lora {
  ParamId a = kNoParam;  // the first of parts.size() joined parameters [rank, in]
  std::vector<LoraPart> parts{};
  // Adapters that begin with parts of the base have what they began with taken off: y += scale x (A^T B^T - A0^T B0^T).
  // Each A is then followed by its A0, joined to it; here is the first of parts.size() joined parameters -B0.
  ParamId initial_b = kNoParam;
  int pieces() const { return initial_b == kNoParam ? 1 : 2; }
  ParamId a_of(size_t part) const { return a + static_cast<ParamId>(part) * pieces(); }
  // Returns how many columns of x A^T a part has; products may take some of zeros beside them (linear.cpp).
  int64_t width(const LoraPart& part) const { return part.rank * pieces(); }
  double dropout = 0;  // the share of its input that is dropped in training
  // With trained norms of rows (DoRA), a part's rows have the norm m = initial + change. Each of these is the first of
  // parts.size() vectors: what is trained of m, which is joined and begins with zeros; m as it began; the norms of the
  // rows of the weight.
  ParamId change = kNoParam, initial_magnitude = kNoParam, row_norms = kNoParam;
  bool scales_rows() const { return change != kNoParam; }
  // Returns whether all parts have one rank and one scale.
  bool even() const;
};

// Describes one product y = x W^T (+ bias), over parameters whose rows lie one after the other (q, k and v; gate and
// up).
struct Linear {
  std::string site;                            // "qkv"
  ParamId weight = kNoParam, bias = kNoParam;  // the first of `count` joined parameters
  int count = 1;
  int64_t in = 0, out = 0;
  Lora lora{};                         // without parts: none
  bool transposed = false;             // y = x W
  std::optional<int64_t> first_row{};  // from which on `out` rows of the weight, and of the bias, are taken
  // Biases where some rows have none; `bias` is then the first of these.
  struct Bias {
    ParamId id = kNoParam;
    int64_t begin = 0, end = 0;  // rows
  };
  std::vector<Bias> biases{};
};

struct Norm {
  ParamId gain = kNoParam;  // the first of `count` joined parameters
  double epsilon = 0;
  bool plus_one = false;
  NormKind kind = NormKind::Rms;
  ParamId bias = kNoParam;
  int64_t gains = 1;  // rows of the gain: where heads have gains of their own, one for each
  int count = 1;
};

// Names a layer's parameters; its LayerSpec says the rest.
struct LayerParams {
  int group = 0;
  Linear qkv, o, gate_up, down;
  Norm attention_norm, mlp_norm, query_norm, key_norm, attention_post_norm, mlp_post_norm;  // without gains: none

  ParamId query = kNoParam, query_places = kNoParam;  // of a resampler, whose q, k and v take rows of qkv
  Linear q{}, k{}, v{};

  std::array<const Linear*, 4> linears() const { return {&qkv, &o, &gate_up, &down}; }
};

struct ParamTable {
  std::vector<ParamSpec> params;
  // Names the groups, which are gathered, offloaded and updated as a whole: "embedding", "layers.0", "head". The
  // parameters of a group stand together, in the order of the groups, which is that of the forward.
  std::vector<std::string> groups;
  Linear patches{};  // of a tower; `layers` begins with the tower's
  ParamId position_rows = kNoParam, class_row = kNoParam;
  ParamId embedding = kNoParam;
  Norm final_norm;
  ParamId head = kNoParam;   // the embedding where they are tied
  std::string head_tensor;   // files have it, or may have it though the two are tied
  std::string layer_prefix;  // begins tensors' names: "model.layers.", which a layer's number and a dot follow
  std::vector<LayerParams> layers;

  int group_count() const { return static_cast<int>(groups.size()); }
  int group_of(ParamId id) const { return params[static_cast<size_t>(id)].group; }
  bool tied() const { return head == embedding; }
  // Returns whether a parameter has a row for each token: the embedding, and a head of its own that gives logits.
  bool has_row_per_token(ParamId id) const;
  int head_group() const { return group_count() - 1; }
  const ParamSpec& operator[](ParamId id) const { return params[static_cast<size_t>(id)]; }
  int64_t count(bool trainable_only) const;  // returns how many elements the parameters have
  // Return the first group that has something to train, and the first layer from there on, which are as many as there
  // are if nothing is. The backward goes no further, so that layers before keep nothing for it.
  int first_trained_group() const;
  int first_layer_of_backward() const;
};

// Returns the names that a trained parameter has in an adapter's file: PEFT's for one of the model that is trained
// whole, which saves an embedding that is the head too under both names.
std::vector<std::string> names_in_adapter(const ParamTable& table, ParamId param);

// Returns the last names of the linears of a model's layers, as PEFT takes them for targets, in the order of a layer.
std::vector<std::string> linear_names(const ModelSpec& model);

// Returns the table for full fine-tuning (or no training at all): every parameter is the model's own.
ParamTable full_parameters(const ModelSpec& model, bool trainable);
// Returns the table for low-rank adaptation: the model's parameters are frozen, adapters are trainable, and stand
// beside the halves with which they began where those are taken off of the base. UserError if no linear is adapted.
ParamTable lora_parameters(const ModelSpec& model, const PeftConfig& adapter, bool trainable);

// Returns whether an adapter has halves of any linear of a model.
bool adapts(const PeftConfig& adapter, const ModelSpec& model);

// Says which parameters a job trains, and how.
struct ParamRules {
  // Has low-rank halves, which are trained, and names modules that are trained whole beside them. Without an adapter
  // the model's own parameters are trained.
  std::optional<PeftConfig> adapter{};
  std::vector<std::string> train{}, freeze{};  // without an adapter: what alone is trained, and what is not
  double lora_plus_ratio = 1;  // the rate of halves B, by that of all else (LoRA+, Hayou et al., arXiv:2402.12354)
  double tower_rate = 1, projector_rate = 1;  // the rate of a tower and of its projector, by that of all else
};

// Returns the table of what a job trains. UserError, by option, for a name that means none of the model's parameters,
// and if nothing is left to train.
ParamTable trained_parameters(const ModelSpec& model, const ParamRules& rules);

// Returns the model's parameters, by name, that a name means: those of modules whose path is the name or ends with it,
// and of modules within these. A part of a name may be a range of numbers: "layers.4-7.mlp". UserError that begins with
// `option` if there are none.
std::vector<std::string> parameters_named(const ModelSpec& model, const std::string& name, std::string_view option);

// Returns `adapter` without expressions and in our spelling, as snug trains and writes it. `source` is its name for
// messages. UserError, by key, for one that has more than low-rank halves and modules that are trained whole, and for a
// target that is no linear of the model.
PeftConfig plain_adapter(const ModelSpec& model, const PeftConfig& adapter, std::string_view source);

}  // namespace snug
