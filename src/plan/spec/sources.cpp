#include "plan/spec/sources.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "base/rounding.h"
#include "format/bnb.h"
#include "format/load.h"
#include "format/model_path.h"
#include "format/peft_tensors.h"
#include "model/multimodal.h"
#include "plan/spec/adapter_files.h"
#include "plan/spec/fills.h"
#include "plan/spec/initial_file.h"

namespace snug {
namespace {

// Adapters draw from random streams from this number on.
constexpr uint32_t kAdapterStreams = 1u << 31;

constexpr std::string_view kTextHead = "the head that gives logits, which a model that gives scores does not have";
constexpr std::string_view kBesideCodes = "what a quantised model has beside its weights";

// Returns stored numbers as the bits of fp32.
std::vector<uint32_t> widened(std::span<const std::byte> bytes, DType dtype) {
  std::vector<uint32_t> wide(bytes.size() / element_bytes(dtype));
  for (size_t i = 0; i < wide.size(); i++)
    dispatch_float(dtype, [&]<class T>() {
      wide[i] = std::bit_cast<uint32_t>(static_cast<float>(load<T>(bytes.data() + i * sizeof(T))));
    });
  return wide;
}

class Finder {
 public:
  Finder(const ParamTable& table, const SourceRequest& request) : table_(table), request_(request) {}

  WeightSources find() {
    std::optional<SafetensorsIndex> model;
    if (request_.adapter) adapter_ = open_adapter(*request_.adapter, embedding(), table_.head_tensor);
    check(!adapter_ || adapter_->config.init == LoraInit::Default,
          "an adapter whose first halves are taken off the base");
    if (!request_.random && SafetensorsIndex::is_in(request_.model)) {
      model = SafetensorsIndex::open_model(request_.model);
    } else if (!request_.random) {
      refuse_other_weights(request_.model);
      assume_file();
    }
    const int64_t model_base = model ? add_files(*model) : 0;
    adapter_base_ = adapter_ ? add_files(adapter_->index) : 0;
    const bool takes_off = std::ranges::any_of(table_.params, &ParamSpec::taken_off);
    if (takes_off) sources_.initial_file = assume(initial_ = initial_file(table_), "initial halves");
    if (has_new_rows()) {
      sources_.rows_file = assume(rows_ = rows_file(table_, new_row_count()), "new rows");
      sources_.new_rows = request_.new_rows;
    }
    uint32_t of_model = 0, of_adapter = kAdapterStreams;  // apart, so that an adapter does not change the base's draws
    for (const ParamSpec& param : table_.params) {
      const bool draws = !param.adapter || param.shape.rank == 2;  // halves are the same with norms beside them
      const uint32_t stream = !draws ? 0 : param.adapter ? of_adapter++ : of_model++;
      if (const auto replacement = from_adapter(param))
        sources_.params.push_back(*replacement);
      else if (param.adapter && takes_off)
        sources_.params.push_back(initial_place());
      else if (param.adapter)
        sources_.params.push_back(adapter_fill(param, request_.seed, stream));
      else if (is_drawn(model, param))
        sources_.params.push_back(model_fill(param, request_.seed, stream));
      else if (model)
        sources_.params.push_back(place(*model, model_base, param, "config.json"));
      else if (sources_.assumed)
        sources_.params.push_back(assumed(param));
      else
        sources_.params.push_back(model_fill(param, request_.seed, stream));
      if (adapter_) replace_rows(param);
      if (is_grown(param)) add_new_rows(param);
      sources_.dtypes.push_back(own_dtype(model, param));
    }
    if (sources_.assumed) note_assumption();
    if (model) judge_strangers(*model, "config.json", model_base);
    if (model) note_other_weights();
    if (adapter_) refuse_adapters_strangers();
    if (adapter_) note_left_out();
    if (adapter_) note_what_names_nothing();
    return std::move(sources_);
  }

 private:
  bool is_scorer() const { return table_.head_tensor == ModelSpec::kScoreHead; }

  // Returns whether a parameter of the model is drawn, as its files have none.
  bool is_drawn(const std::optional<SafetensorsIndex>& model, const ParamSpec& param) const {
    if (param.name != ModelSpec::kScoreHead || (model && model->find(param.name))) return false;
    if (!request_.draws_head && model)
      user_error("{}: found no tensor '{}', expected a model that gives scores, or the adapter of one ({})",
                 model->files()[0].string(), param.name, option_name("adapter"));
    return request_.draws_head;
  }

  // Returns the dtype of the model's own tensor, whether or not an adapter replaces it.
  std::optional<DType> own_dtype(const std::optional<SafetensorsIndex>& model, const ParamSpec& param) const {
    if (param.adapter) return std::nullopt;
    if (model) {
      const SafetensorsEntry* const own = model->find(name_in(*model, param));
      return own ? own->dtype : std::nullopt;
    }
    const bool numbers = sources_.assumed && std::holds_alternative<TensorPlace>(sources_.params.back());
    return numbers ? std::optional(request_.dtype) : std::nullopt;
  }

  const std::string& embedding() const { return table_[table_.embedding].name; }

  const std::string& name_in(const SafetensorsIndex& index, const ParamSpec& param) const {
    const std::string& tensor = param.stored.tensor;
    const bool shared = request_.head_is_embedding && param.name == table_.head_tensor && !index.find(tensor);
    return shared ? table_[table_.embedding].stored.tensor : tensor;
  }

  // Returns where the adapter holds a parameter, one of its own or one of the model's.
  std::optional<ParamSource> from_adapter(const ParamSpec& param) {
    if (!adapter_) return std::nullopt;
    const bool initial = param.constant && param.name.ends_with(kInitial);
    if (!initial && param.adapter && param.shape.rank == 1) return std::nullopt;
    const std::string own = initial ? param.name.substr(0, param.name.size() - kInitial.size()) : param.name;
    const auto found = adapter_->tensors.find(own);
    if (found == adapter_->tensors.end() && !param.adapter) return std::nullopt;
    const std::string& name = found == adapter_->tensors.end() ? own : found->second;
    const SafetensorsEntry& entry = adapter_->index.require(name, shape_in_adapter(param),
                                                            param.adapter ? "adapter_config.json, 'r'" : "config.json");
    return TensorPlace{adapter_base_ + static_cast<int64_t>(entry.file), entry.offset, *entry.dtype};
  }

  // Replaces rows of a matrix that the adapter holds in the source found so far.
  void replace_rows(const ParamSpec& param) {
    const auto found = adapter_->tokens.find(param.name);
    if (found == adapter_->tokens.end()) return;
    const std::vector<int64_t>& rows = found->second.rows;
    const int64_t cols = param.shape.cols(), count = std::ssize(rows);
    const SafetensorsEntry& entry =
        adapter_->index.require(found->second.tensor, {count, cols}, "adapter_config.json, 'trainable_token_indices'");
    const auto* const whole = std::get_if<TensorPlace>(&sources_.params.back());
    if (!whole) user_error("{}: replaces rows of a matrix that no file holds", adapter_->where(entry.name));
    std::map<int64_t, int64_t> by_row;
    for (int64_t i = 0; i < count; i++) by_row[rows[static_cast<size_t>(i)]] = i;
    if (by_row.rbegin()->first >= param.shape.rows())
      user_error("{}: is for token {}, expected less than {}, the rows of '{}'", adapter_->where(entry.name),
                 by_row.rbegin()->first, param.shape.rows(), param.name);
    const TensorPlace ours{adapter_base_ + static_cast<int64_t>(entry.file), entry.offset, *entry.dtype};
    sources_.params.back() = with_rows(*whole, param.shape.rows(), cols, ours, by_row);
  }

  // Returns where a matrix lies of which some rows lie elsewhere: `by_row` says which row of `other` each is. `whole`
  // has `rows` rows; those behind them are all among the others.
  static RangedSource with_rows(const TensorPlace& whole, int64_t rows, int64_t cols, const TensorPlace& other,
                                const std::map<int64_t, int64_t>& by_row) {
    const auto row_of = [&](TensorPlace place, int64_t row) {
      place.offset += static_cast<uint64_t>(row * cols) * element_bytes(place.dtype);
      return place;
    };
    RangedSource pieces;
    int64_t next = 0;  // the first row that is in no range yet
    for (const auto& [row, i] : by_row) {
      if (row > next) pieces.push_back({next * cols, row_of(whole, next)});
      pieces.push_back({row * cols, row_of(other, i)});
      next = row + 1;
    }
    if (next < rows) pieces.push_back({next * cols, row_of(whole, next)});
    return pieces;
  }

  bool has_new_rows() const { return !request_.random && !request_.new_rows.rows.empty(); }
  int64_t new_row_count() const { return std::ssize(request_.new_rows.rows); }
  // Returns whether a parameter, of the model's files, gets new tokens' rows.
  bool is_grown(const ParamSpec& param) const {
    const auto id = static_cast<ParamId>(&param - table_.params.data());
    return has_new_rows() && table_.has_row_per_token(id);
  }
  // Returns the shape that the model's files have of a parameter as it is stored.
  Shape shape_in_files(const ParamSpec& param) const {
    Shape shape = stored_shape(param);
    if (is_grown(param)) shape.dims[0] = request_.new_rows.stored;
    return shape;
  }

  void add_new_rows(const ParamSpec& param) {
    std::map<int64_t, int64_t> by_row;
    for (int64_t i = 0; i < new_row_count(); i++) by_row[request_.new_rows.rows[static_cast<size_t>(i)].row] = i;
    const auto tensor = static_cast<size_t>(rows_.tensor_of[sources_.params.size() - 1]);
    const TensorPlace ours{static_cast<int64_t>(*sources_.rows_file), rows_.layout.offset[tensor], DType::F32};
    sources_.params.back() = with_rows(std::get<TensorPlace>(sources_.params.back()), request_.new_rows.stored,
                                       param.shape.cols(), ours, by_row);
  }

  ParamSource place(const SafetensorsIndex& index, int64_t base, const ParamSpec& param, std::string_view reason) {
    // Returns the place from the entry's value `first` on.
    const auto at = [&](const SafetensorsEntry& entry, DType dtype, int64_t first) {
      return TensorPlace{base + static_cast<int64_t>(entry.file),
                         entry.offset + static_cast<uint64_t>(first) * element_bytes(dtype), dtype};
    };
    const Shape whole = shape_in_files(param);
    const int64_t row = param.stored.first, first = param.shape.rank == 2 ? row * param.shape.cols() : row;
    if (!param.linear) {
      const SafetensorsEntry& entry = index.require(name_in(index, param), whole, reason);
      return at(entry, *entry.dtype, first);
    }
    const StoredWeight stored = find_stored_weight(index, param.stored.tensor, whole, reason);
    note_form(index, stored);
    if (stored.storage == WeightStorage::Plain) return at(*stored.weight, *stored.weight->dtype, first);
    if (stored.storage == WeightStorage::Int8)
      return QuantizedSource{at(*stored.weight, DType::I8, first), at(*stored.scales, DType::F32, row)};
    const int64_t block = stored.block_scales ? kNf4Block * kNf4ScaleBlock : kNf4Block;
    if (first % block != 0)
      user_error(
          "{}: tensor '{}' is stored in nf4, and '{}' begins within a block of {} of its elements, which have a "
          "scale in common: such a base is read where rows begin with blocks",
          index.files()[stored.weight->file].string(), stored.weight->name, param.name, block);
    QuantizedSource place{at(*stored.weight, DType::U8, first / 2),
                          at(*stored.scales, stored.block_scales ? DType::U8 : DType::F32, first / kNf4Block)};
    if (stored.block_scales) place.block_scales = at(*stored.block_scales, DType::F32, first / block);
    place.offset = stored.offset;
    return place;
  }

  // Notes the form of quantised linears; all must have the form of the first.
  void note_form(const SafetensorsIndex& index, const StoredWeight& stored) {
    if (stored.storage == WeightStorage::Plain) return;
    const BaseFormat format = stored.storage == WeightStorage::Int8 ? BaseFormat::Int8 : BaseFormat::Nf4;
    const bool plain_scales = format == BaseFormat::Nf4 && !stored.block_scales;
    if (first_linear_.empty()) {
      first_linear_ = stored.weight->name;
      sources_.format = format;
      sources_.plain_scales = plain_scales;
    }
    if (format != sources_.format || plain_scales != sources_.plain_scales)
      user_error(
          "{}: tensor '{}' is stored as {}{}, expected the form of '{}', or plain numbers: a model's linears are "
          "quantised in one way",
          index.files()[stored.weight->file].string(), stored.weight->name, stored.weight->dtype_name,
          plain_scales ? " with plain scales" : "", first_linear_);
    for (std::string& name : companions(stored.storage, stored.weight->name)) companions_.insert(std::move(name));
  }

  // Refuses tensors without a place, such as those of more layers or other linears: nothing that a file holds is passed
  // over, except kinds that change no result. Tensors that belong to the model all the same are kept. `base` is the
  // number of the index's first file.
  void judge_strangers(const SafetensorsIndex& index, std::string_view config, int64_t base) {
    std::set<std::string_view> known(companions_.begin(), companions_.end());
    for (const ParamSpec& param : table_.params) known.insert(param.stored.tensor);
    std::map<std::string_view, std::vector<std::string_view>> passed;  // by kind
    for (const SafetensorsEntry& entry : index.entries()) {
      if (known.contains(entry.name)) continue;
      const std::string_view kind = harmless_kind(index, entry.name);
      if (kind.empty())
        user_error("{}: found tensor '{}', which {} has no place for", index.files()[entry.file].string(), entry.name,
                   config);
      passed[kind].push_back(entry.name);
      if (kind != kBesideCodes && kind != kTextHead) add_extra(entry, base);
    }
    for (const auto& [tensor, where] : index.absent()) passed["named by the index alone"].push_back(tensor);
    for (const auto& [kind, names] : passed)
      sources_.notes.push_back(fmt::format("passed over, {}: '{}'{}", kind, names[0],
                                           names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : ""));
  }

  // Returns the kind of a tensor without a place; empty if it would change what the model computes.
  std::string_view harmless_kind(const SafetensorsIndex& index, std::string_view name) const {
    if (name.find("rotary_emb.") != name.npos) return "what rotary embeddings are computed from";
    if (name.starts_with("v_head.")) return "a head that gives values, of reinforcement learning";
    if (name.ends_with(".attn.masked_bias") || name.ends_with(".self_attn.masked_bias")) return "a mask of attention";
    if (is_scorer() && name == "lm_head.weight") return kTextHead;
    if (is_head(name) && table_.tied()) return "the head, which is the embedding";
    if ((is_multimodal() && !is_of_text_model(name)) || is_beside_text_model(name))
      return "what a multimodal model has beside its text model";
    if (name.starts_with("mtp.") || name.starts_with("model.mtp") || name.find(".mtp_block.") != name.npos ||
        is_prediction_layer(index, name))
      return "layers that predict further tokens";
    constexpr std::array<std::string_view, 11> kTails{".SCB",
                                                      ".weight_format",
                                                      ".weight.absmax",
                                                      ".weight.quant_map",
                                                      ".weight.nested_absmax",
                                                      ".weight.nested_quant_map",
                                                      ".weight.quant_state.bitsandbytes__nf4",
                                                      ".weight.quant_state.bitsandbytes__fp4",
                                                      ".k_scale",
                                                      ".v_scale",
                                                      ".input_scale"};
    if (std::ranges::any_of(kTails, [&](std::string_view tail) { return name.ends_with(tail); })) return kBesideCodes;
    if (name.ends_with(".bias") && is_zero(index, *index.find(name))) return "a bias of zeros";
    return "";
  }

  bool is_multimodal() const { return snug::is_multimodal(embedding()); }
  bool is_head(std::string_view name) const {
    return name == table_.head_tensor || std::ranges::any_of(spellings_of(embedding()), [&](const Spelling& spelt) {
             return name == spelt(table_.head_tensor);
           });
  }

  // Programs that quantise give linears without a bias one all the same.
  static bool is_zero(const SafetensorsIndex& index, const SafetensorsEntry& entry) {
    constexpr uint64_t kMostBytes = 4 << 20;
    if (!entry.dtype || entry.bytes == 0 || entry.bytes > kMostBytes) return false;
    std::vector<std::byte> bytes(entry.bytes);
    File::open_read(index.files()[entry.file], IoMode::Buffered).read(entry.offset, bytes);
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }

  // "model.layers.N." of a layer behind the last: as many as config.json says, or with the projection that only these
  // have.
  bool is_prediction_layer(const SafetensorsIndex& index, std::string_view name) const {
    const std::string& prefix = table_.layer_prefix;
    if (!name.starts_with(prefix)) return false;
    int64_t layer = 0;
    const char* const begin = name.data() + prefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error != std::errc() || end == name.data() + name.size() || *end != '.') return false;
    const auto layers = static_cast<int64_t>(table_.layers.size());
    if (layer < layers) return false;
    return layer < layers + request_.prediction_layers ||
           index.find(fmt::format("{}{}.eh_proj.weight", prefix, layer)) != nullptr;
  }

  // Adds a tensor to the extras. `base` is the number of the index's first file.
  void add_extra(const SafetensorsEntry& entry, int64_t base) {
    if (!entry.dtype || entry.shape.size() > Shape().dims.size()) return;
    const ParamId same_as = is_head(entry.name) ? table_.embedding : kNoParam;
    Shape shape;
    for (const int64_t size : entry.shape) shape.dims[static_cast<size_t>(shape.rank++)] = size;
    if (same_as != kNoParam) shape = table_[same_as].shape;
    sources_.extras.push_back(
        {entry.name, shape, {base + static_cast<int64_t>(entry.file), entry.offset, *entry.dtype}, same_as});
  }

  // Refuses whatever an adapter's file holds without a place.
  void refuse_adapters_strangers() const {
    std::set<std::string_view> known;
    for (const ParamSpec& param : request_.left_out) known.insert(param.name);
    for (const ParamSpec& param : table_.params) {
      known.insert(param.name);
      if (!param.adapter && saves_whole(adapter_->config, param.name) && !adapter_->tensors.contains(param.name))
        user_error("{}: found no tensor of '{}', which adapter_config.json, key 'modules_to_save', names",
                   adapter_->index.files()[0].string(), param.name);
      if (param.linear && sources_.format != BaseFormat::Plain && adapter_->tensors.contains(param.name))
        user_error("{}: replaces a linear of the base, which is stored as {}; that is read beside plain weights alone",
                   adapter_->where(adapter_->tensors.at(param.name)), name(sources_.format));
    }
    for (const auto& [param, tensor] : adapter_->tensors) {
      if (known.contains(param) || is_same_as_embedding(param)) continue;
      const size_t half = param.find(".lora_");
      if (half == std::string::npos)
        user_error("{}: found a parameter that the model does not have", adapter_->where(tensor));
      if (!adapter_->config.dora && param.ends_with(kMagnitude))
        user_error("{}: found norms of rows, as DoRA has them, expected adapter_config.json, key 'use_dora', to say so",
                   adapter_->where(tensor));
      const std::string module = param.substr(kPeftPrefix.size(), half - kPeftPrefix.size());
      user_error("{}: found an adapter of '{}', expected one of {}", adapter_->where(tensor), module,
                 known.contains(module + ".weight") && module + ".weight" != embedding() &&
                         module + ".weight" != table_.head_tensor
                     ? "the linears that adapter_config.json, key 'target_modules', says"
                     : "the model's linears, its embedding and head not among them");
    }
    for (const auto& [param, rows] : adapter_->tokens)
      if (!known.contains(param))
        user_error("{}: found rows of a parameter that the model does not have", adapter_->where(rows.tensor));
  }

  // Notes what the adapter's file holds of a tower that the table leaves out.
  void note_left_out() {
    std::vector<std::string> tensors;
    for (const ParamSpec& param : request_.left_out)
      if (const auto found = adapter_->tensors.find(param.name); found != adapter_->tensors.end())
        tensors.push_back(found->second);
    if (tensors.empty()) return;
    sources_.notes.push_back(
        fmt::format("{}: passed over, as there are no images: {} of its {} tensors, of tower and "
                    "projector: '{}'{}",
                    request_.adapter->string(), tensors.size(), adapter_->index.entries().size(), tensors[0],
                    tensors.size() > 1 ? " and others" : ""));
  }

  void note_other_weights() {
    const std::vector<std::string> names = SafetensorsIndex::passed_over(request_.model);
    if (!names.empty())
      sources_.notes.push_back(fmt::format("{}: weights are read of {}; passed over beside it: '{}'",
                                           request_.model.string(), sources_.files[0].filename().string(),
                                           fmt::join(names, "', '")));
  }

  // Notes what an adapter's configuration names and neither its weights nor the model's linears have.
  void note_what_names_nothing() {
    std::vector<std::string> linears, adapted;
    for (const std::vector<ParamSpec>* params : {&table_.params, &request_.left_out})
      for (const ParamSpec& param : *params) {
        if (!param.linear) continue;
        const std::string linear = param.name.substr(0, param.name.rfind('.'));
        linears.push_back(adapter_->config.spelling(linear));
        if (target_of(adapter_->config, linear)) adapted.push_back(linears.back());
      }
    const auto note = [&](std::string_view key, std::string_view name, std::string_view what) {
      sources_.notes.push_back(fmt::format("{}, key '{}': '{}' names none of {}",
                                           (*request_.adapter / kPeftConfigFile).string(), key, name, what));
    };
    for (const std::string& name : adapter_->config.target_modules)
      if (std::ranges::none_of(linears, [&](const std::string& path) { return ends_path(path, name); }))
        note("target_modules", name, "the model's linears, and no weights are there for it");
    const auto judge = [&](std::string_view key, const auto& patterns) {
      for (const auto& [pattern, value] : patterns)
        if (std::ranges::none_of(adapted,
                                 [&pattern = pattern](const std::string& path) { return pattern.matches(path); }))
          note(key, written_pattern(pattern), "the linears that are adapted");
    };
    judge("rank_pattern", adapter_->config.rank_pattern);
    judge("alpha_pattern", adapter_->config.alpha_pattern);
  }

  // Returns whether a head is a copy of the embedding beside it: PEFT saves both where they are one.
  bool is_same_as_embedding(const std::string& param) const {
    const auto& tensors = adapter_->tensors;
    if (param != table_.head_tensor || table_.head != table_.embedding || !tensors.contains(embedding())) return false;
    const auto entry = [&](const std::string& of) { return adapter_->index.find(tensors.at(of)); };
    if (same_bytes(adapter_->index, *entry(param), *entry(embedding()))) return true;
    user_error("{}: differs from the embedding beside it, expected the same: the base has one matrix for both",
               adapter_->where(entry(param)->name));
  }

  // Returns the index of the first file added.
  int64_t add_files(const SafetensorsIndex& index) {
    const auto base = static_cast<int64_t>(sources_.files.size());
    for (const auto& path : index.files()) {
      if (path.extension() == ".bin")
        sources_.notes.push_back(fmt::format("{}: pickled, read as tensors and nothing else", path.string()));
      sources_.file_bytes.push_back(std::filesystem::file_size(path));
      sources_.files.push_back(path);
    }
    return base;
  }

  // Adds a file that need not be there yet, and returns its number.
  size_t assume(const InitialFile& file, std::string_view name) {
    sources_.files.emplace_back(name);
    sources_.file_bytes.push_back(file.layout.file_bytes);
    return sources_.files.size() - 1;
  }

  // Returns where the file of initial halves has the next parameter.
  TensorPlace initial_place() const {
    const auto tensor = static_cast<size_t>(initial_.tensor_of[sources_.params.size()]);
    return {static_cast<int64_t>(*sources_.initial_file), initial_.layout.offset[tensor], DType::F32};
  }

  // ---- Sources without weight files: the file that config.json describes is assumed ----

  void assume_file() {
    sources_.assumed = true;
    sources_.files.push_back(request_.model / "model.safetensors");
    sources_.file_bytes.push_back(kDirectAlignment);  // the header
  }

  TensorPlace assumed(DType dtype, int64_t count) {
    uint64_t& end = sources_.file_bytes[0];  // others follow: an adapter's
    const TensorPlace place{0, end, dtype};
    end += round_up(static_cast<uint64_t>(count) * element_bytes(dtype), 8);
    return place;
  }

  ParamSource assumed(const ParamSpec& param) {
    const int64_t count = param.shape.count();
    if (is_grown(param)) return assumed(request_.dtype, request_.new_rows.stored * param.shape.cols());
    if (!param.linear) return assumed(request_.dtype, count);
    const std::string_view tensor = param.stored.tensor, linear = tensor.substr(0, tensor.rfind('.'));
    if (!request_.quantization || !quantises(*request_.quantization, linear)) {
      plain_linears_++;
      return assumed(request_.dtype, count);
    }
    const bool nf4 = request_.quantization->nf4, nested = request_.quantization->nested;
    sources_.format = nf4 ? BaseFormat::Nf4 : BaseFormat::Int8;
    sources_.plain_scales = nf4 && !nested;
    if (!nf4) return QuantizedSource{assumed(DType::I8, count), assumed(DType::F32, param.shape.rows())};
    const int64_t blocks = ceil_div(count, kNf4Block);
    QuantizedSource place{assumed(DType::U8, count / 2), assumed(nested ? DType::U8 : DType::F32, blocks)};
    if (nested) place.block_scales = assumed(DType::F32, ceil_div(blocks, kNf4ScaleBlock));
    return place;
  }

  void note_assumption() {
    std::string linears;
    if (sources_.format != BaseFormat::Plain)
      linears = fmt::format("linears are taken to be in {}{}, as its config.json says{}, and the rest",
                            name(sources_.format), sources_.plain_scales ? " with plain scales" : "",
                            plain_linears_ ? fmt::format(" ({} of them left out)", plain_linears_) : "");
    sources_.notes.push_back(fmt::format("{}: no weight files; {} in {}", request_.model.string(),
                                         linears.empty() ? "weights are taken to be" : linears, name(request_.dtype)));
  }

  const ParamTable& table_;
  const SourceRequest& request_;
  std::optional<AdapterFiles> adapter_;
  InitialFile initial_, rows_;
  int64_t adapter_base_ = 0;  // number of its first file
  WeightSources sources_;
  std::string first_linear_;
  std::set<std::string> companions_;  // tensors that belong to quantised weights
  int64_t plain_linears_ = 0;         // number of those that are assumed
};

}  // namespace

WeightSources find_sources(const ParamTable& table, const SourceRequest& request) {
  return Finder(table, request).find();
}

namespace {

constexpr std::string_view kBasePrefix = "model.";

std::string without_prefix(const std::string& name) {
  return name.starts_with(kBasePrefix) ? name.substr(kBasePrefix.size()) : name;
}

}  // namespace

std::string store_as_files_do(ParamTable& table, const std::filesystem::path& model) {
  if (!SafetensorsIndex::is_in(model)) return "";
  const auto index = SafetensorsIndex::open_model(model);
  const std::string& embedding = table[table.embedding].stored.tensor;
  if (is_multimodal(embedding)) {
    if (index.find(embedding)) return "";
    for (const Spelling& spelt : spellings_of(embedding)) {
      if (!index.find(spelt(embedding))) continue;
      for (ParamSpec& param : table.params)
        if (!param.adapter) param.stored.tensor = spelt(param.stored.tensor);
      table.layer_prefix = spelt(table.layer_prefix);
      return "";
    }
    return "";
  }
  const bool has_head = table.tied() || table.head_tensor == ModelSpec::kScoreHead || index.find(table.head_tensor);
  if (!has_head || index.find(embedding) || !index.find(without_prefix(embedding))) return "";
  for (ParamSpec& param : table.params)
    if (!param.adapter) param.stored.tensor = without_prefix(param.stored.tensor);
  table.layer_prefix = without_prefix(table.layer_prefix);
  return fmt::format("{}: names of tensors lack '{}', as a base model is saved: they are read, and written, without it",
                     model.string(), kBasePrefix);
}

bool has_own_head(const std::filesystem::path& model, const ModelSpec& spec) {
  if (!SafetensorsIndex::is_in(model)) return false;
  const auto index = SafetensorsIndex::open_model(model);
  const SafetensorsEntry *head = index.find(spec.head), *embedding = index.find(spec.embedding);
  if (!embedding) embedding = index.find(without_prefix(spec.embedding));
  for (const Spelling& spelt : spellings_of(spec.embedding)) {
    if (!embedding) embedding = index.find(spelt(spec.embedding));
    if (!head) head = index.find(spelt(spec.head));
  }
  if (!head || !embedding) return false;
  if (head->shape != embedding->shape) return true;
  if (!head->dtype || !embedding->dtype) return false;  // refused where they are read
  constexpr int64_t kChunk = 1 << 20;
  const auto count = static_cast<int64_t>(head->bytes / element_bytes(*head->dtype));
  const auto numbers = [&](const SafetensorsEntry& entry) {
    return [file = File::open_read(index.files()[entry.file], IoMode::Buffered), &entry](int64_t begin, int64_t n) {
      const uint64_t size = element_bytes(*entry.dtype);
      std::vector<std::byte> bytes(static_cast<uint64_t>(n) * size);
      file.read(entry.offset + static_cast<uint64_t>(begin) * size, bytes);
      return bytes;
    };
  };
  const auto of_head = numbers(*head), of_embedding = numbers(*embedding);
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t n = std::min(kChunk, count - begin);
    const auto a = of_head(begin, n), b = of_embedding(begin, n);
    if (head->dtype == embedding->dtype ? a != b : widened(a, *head->dtype) != widened(b, *embedding->dtype))
      return true;
  }
  return false;
}

void require_weights(const WeightSources& sources) {
  if (sources.assumed)
    user_error(
        "{}: found config.json, but no weights, expected model.safetensors or its shards with "
        "model.safetensors.index.json",
        sources.files[0].parent_path().string());
}

}  // namespace snug
