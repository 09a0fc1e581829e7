#include "api/rules.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "api/cache.h"
#include "api/image_job.h"
#include "api/job.h"
#include "api/launch.h"
#include "api/learning.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/say.h"
#include "base/size_text.h"
#include "model/model_config.h"
#include "model/multimodal.h"
#include "train/initial_halves.h"
#include "train/principal_halves.h"

namespace snug {
namespace {

constexpr int64_t kMostRank = 1 << 16;
constexpr double kMostAlpha = 1e6;

// Is another one when what is computed of the same base changes: files in the cache are then computed anew.
constexpr int kHalvesVersion = 2;

// Names the options of what a method trains.
constexpr std::array<const char*, 13> kLoraKeys{
    "lora_dora",           "lora_init",       "lora_rank",         "lora_alpha",  "lora_rslora",
    "lora_dropout",        "lora_targets",    "lora_rank_pattern", "lora_layers", "modules_to_save",
    "ensure_weight_tying", "lora_plus_ratio", "lora_alpha_pattern"};
constexpr std::array<const char*, 2> kFullKeys{"train_modules", "freeze"};

// Reads "NAME=NUMBER" entries of an option.
template <class T>
std::vector<std::pair<Pattern, T>> parse_patterns(const std::vector<std::string>& entries, const std::string& option,
                                                  T least, T most) {
  std::vector<std::pair<Pattern, T>> patterns;
  for (const std::string& entry : entries) {
    const size_t equals = entry.rfind('=');
    T value{};
    const char* const end = entry.data() + entry.size();
    const char* const begin = equals == std::string::npos ? end : entry.data() + equals + 1;
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (equals == std::string::npos || equals == 0 || error != std::errc() || stop != end ||
        !(value >= least && value <= most))
      user_error("{}: found '{}', expected NAME=NUMBER with a number from {} to {}", option, entry, least, most);
    patterns.emplace_back(pattern_of_ends(entry.substr(0, equals), option), value);
  }
  return patterns;
}

std::vector<int64_t> parse_layers(const std::vector<std::string>& entries, int64_t layers) {
  std::set<int64_t> numbers;
  for (const std::string& entry : entries) {
    int64_t first = 0, last = 0;
    const char *const begin = entry.data(), *const end = begin + entry.size();
    auto [stop, error] = std::from_chars(begin, end, first);
    last = first;
    if (error == std::errc() && stop != end && *stop == '-') {
      const auto second = std::from_chars(stop + 1, end, last);
      stop = second.ptr, error = second.ec;
    }
    if (error != std::errc() || stop != end || first < 0 || last < first || last >= layers)
      user_error("lora_layers: found '{}', expected numbers or ranges such as 8-15, of layers 0 to {}", entry,
                 layers - 1);
    for (int64_t i = first; i <= last; i++) numbers.insert(i);
  }
  return {numbers.begin(), numbers.end()};
}

// Returns whether a name is that of a list of modules, such as "blocks" of "visual.blocks.0.norm1.weight", which PEFT
// saves one by one alone.
bool is_list(const std::string& name, const std::set<std::string>& params) {
  const auto numbered = [&](const std::string& param) {
    const size_t at = ("." + param).find("." + name + ".");
    if (at == std::string::npos) return false;
    const size_t next = at + name.size() + 1, end = param.find('.', next);
    return end != std::string::npos && end > next && param.find_first_not_of("0123456789", next) >= end;
  };
  return !params.empty() && std::ranges::all_of(params, numbered);
}

// Returns names for modules_to_save that mean these parameters to PEFT, which looks at the ends of texts, and to
// options, which look at the parts of paths: `names` where both take them so, else paths of modules.
std::vector<std::string> saved_names(const ModelSpec& model, const std::vector<std::string>& names, bool as_peft,
                                     const Spelling& spelling = {}) {
  std::vector<std::string> result;
  ModelSpec parted = model;
  parted.tied = false;
  const ParamTable table = full_parameters(parted, false);
  for (const std::string& name : names) {
    std::set<std::string> to_peft, chosen;
    const PeftConfig one{.modules_to_save = {name}, .spelling = spelling};
    for (const ParamSpec& param : table.params)
      if (saves_whole(one, param.name)) to_peft.insert(param.name);
    try {
      for (std::string& param : parameters_named(parted, name, "modules_to_save")) chosen.insert(std::move(param));
    } catch (const UserError&) {
      if (!as_peft || to_peft.empty()) throw;
    }
    if (to_peft == chosen && !is_list(name, chosen)) {
      result.push_back(name);
      continue;
    }
    std::set<std::string> modules;
    for (const std::string& param : as_peft ? to_peft : chosen) modules.insert(param.substr(0, param.rfind('.')));
    result.insert(result.end(), modules.begin(), modules.end());
  }
  std::ranges::sort(result);
  const auto repeated = std::ranges::unique(result);
  result.erase(repeated.begin(), repeated.end());
  return result;
}

// Leaves out those of a tower, unless it has adapters, and of its projector, which is trained whole if it is.
std::vector<std::string> adapted_linears(const ModelSpec& model, const PeftConfig& adapter, bool tower) {
  std::vector<std::string> adapted;
  for (const ParamSpec& param : full_parameters(model, false).params) {
    const std::string path = param.name.substr(0, param.name.rfind('.'));
    const bool left_out = param.tower && (!tower || param.name.starts_with(model.tower.projector_prefix));
    if (param.linear && !left_out && target_of(adapter, path)) adapted.push_back(path);
  }
  return adapted;
}

// Names the adapted linears of a multimodal model by their paths: by their last names PEFT would find such of its
// vision tower too.
PeftConfig named_in_full(PeftConfig adapter, const ModelSpec& model, bool tower) {
  if (!model.tower && !is_multimodal(model.embedding)) return adapter;
  adapter.target_modules = adapted_linears(model, adapter, tower);
  std::ranges::sort(adapter.target_modules);
  return adapter;
}

// Returns the names of linears that may have adapters.
std::vector<std::string> all_linears(ModelSpec model, bool tower) {
  if (!model.tower) return linear_names(model);
  if (!tower) return linear_names(without_tower(std::move(model)));
  model.layers.erase(model.layers.begin() + model.tower.layers - 1);  // the projector
  return linear_names(model);
}

bool fits_any(const Pattern& pattern, const std::vector<std::string>& paths) {
  return std::ranges::any_of(paths, [&](const std::string& path) { return pattern.matches(path); });
}

// Refuses patterns that fit no linear that is adapted.
void refuse_vain_patterns(const ModelSpec& model, const PeftConfig& adapter, bool tower) {
  const std::vector<std::string> adapted = adapted_linears(model, adapter, tower);
  const auto judge = [&](std::string_view option, const auto& patterns) {
    for (const auto& entry : patterns)
      if (!fits_any(entry.first, adapted))
        user_error("{}: '{}' names none of the linears that are adapted, expected ends of names such as '{}'", option,
                   written_pattern(entry.first), adapted.empty() ? "q_proj" : adapted[0]);
  };
  judge("lora_rank_pattern", adapter.rank_pattern);
  judge("lora_alpha_pattern", adapter.alpha_pattern);
}

// Leaves out such patterns of an adapter that is continued; a note names them (find_sources()).
void drop_vain_patterns(const ModelSpec& model, PeftConfig& adapter) {
  const std::vector<std::string> adapted = adapted_linears(model, adapter, true);
  const auto is_vain = [&](const auto& entry) { return !fits_any(entry.first, adapted); };
  std::erase_if(adapter.rank_pattern, is_vain);
  std::erase_if(adapter.alpha_pattern, is_vain);
}

// Refuses to continue an adapter that holds parts of a tower which the data leaves out, as what is trained would be
// written without them; and one of the projector's linears.
void refuse_parts_of_tower(const AdapterFiles& files, const JobConfig& options, const ModelSpec& model) {
  for (const ParamSpec& param : parameters_left_out(options, model, files.config))
    if (const auto found = files.tensors.find(param.name); found != files.tensors.end())
      user_error(
          "{}: is of the tower or projector, expected data with images: an adapter trained on texts alone would be "
          "written without it; merge makes a model to begin from",
          files.where(found->second));
  for (const auto& [param, tensor] : files.tensors)
    if (is_of_projector(param, model) && param.find(".lora_") != param.npos)
      user_error(
          "{}: adapts the projector, expected one that is trained whole (modules_to_save), or not at all: training it "
          "by an adapter is not supported yet; eval, generate, chat and merge read it",
          files.where(tensor));
}

// Refuses to freeze or train a tower or projector otherwise than an adapter that is continued does.
void refuse_other_parts(const JobConfig& options, const PeftConfig& adapter) {
  const ModelSpec model = model_config_of(options).spec;
  if (!model.tower) return;
  const std::vector<std::string> adapted = adapted_linears(model, adapter, true);
  bool tower = false, projector = false;
  for (const ParamSpec& param : full_parameters(model, false).params)
    if (param.tower && (saves_whole(adapter, param.name) ||
                        std::ranges::find(adapted, param.name.substr(0, param.name.rfind('.'))) != adapted.end()))
      (is_of_projector(param.name, model) ? projector : tower) = true;
  const auto judge = [&](const char* key, bool frozen, bool trained) {
    if (options.given.contains(key) && frozen == trained)
      user_error("{}: found {}, expected {}: {} {}, and what an adapter trains is settled when it begins", key, frozen,
                 !frozen, options.adapter, trained ? "trains it" : "does not train it");
  };
  judge("freeze_vision_tower", options.freeze_vision_tower, tower);
  judge("freeze_projector", options.freeze_projector, projector);
}

// Refuses options of what is trained that the method, or the adapter that is continued, leaves no room for.
void refuse_other_rules(JobConfig options) {
  const bool full = options.method == "full";
  const JobConfig defaults;
  const auto differs = [&](const char* key) {
    const OptionSpec& spec = find_option(key, "job");
    return spec.get(options) != spec.get(defaults);
  };
  if (!full)
    for (const char* key : kFullKeys)
      if (differs(key))
        user_error(
            "{}: found {}, expected nothing: {} lora trains adapters and what modules_to_save names; {} full trains "
            "the model's own weights",
            key, find_option(key, "job").get(options), option_name("method"), option_name("method"));
  if (!full && options.adapter.empty()) return;
  std::ranges::sort(options.lora_targets);  // an adapter's are
  JobConfig own;
  const PeftConfig adapter = full ? PeftConfig() : adapter_of(options);
  if (!full) take_adapter(own, adapter);
  for (const char* key : kLoraKeys) {
    const OptionSpec& spec = find_option(key, "job");
    const std::string found = spec.get(options);
    const bool passed_over = !differs(key) && (full || !options.given.contains(key));
    if (passed_over || found == spec.get(own)) continue;
    if (full && key == std::string_view("modules_to_save"))
      user_error("{}: found {}, expected nothing: {} full trains all weights, or what train_modules names", key, found,
                 option_name("method"));
    if (full)
      user_error("{}: found {}, expected nothing: {} full trains all weights, no adapters", key, found,
                 option_name("method"));
    if (key == std::string_view("lora_plus_ratio") || key == std::string_view("lora_init"))
      continue;  // judged by itself
    user_error("{}: found {}, expected {}, as in {}", key, found, spec.get(own), options.adapter);
  }
  if (!full) refuse_other_parts(options, adapter);
}

}  // namespace

PeftConfig adapter_of(const JobConfig& options) {
  const ModelSpec model = model_config_of(options).spec;
  const bool tower = model.tower && !options.freeze_vision_tower;
  if (!options.adapter.empty()) {
    const std::filesystem::path directory = options.adapter;
    const AdapterFiles files = open_adapter(directory, model.embedding, model.head);
    refuse_parts_of_tower(files, options, model);
    PeftConfig adapter = plain_adapter(model, files.config, (directory / kPeftConfigFile).string());
    adapter.modules_to_save = saved_names(model, adapter.modules_to_save, true, files.config.spelling);
    drop_vain_patterns(model, adapter);
    return named_in_full(adapter, model, true);
  }
  PeftConfig config;
  config.rank = options.lora_rank;
  config.alpha = options.lora_alpha;
  config.rslora = options.lora_rslora;
  config.dora = options.lora_dora;
  config.dropout = options.lora_dropout;
  config.init = options.lora_init == "pissa"   ? LoraInit::Pissa
                : options.lora_init == "olora" ? LoraInit::Olora
                                               : LoraInit::Default;
  config.target_modules = options.lora_targets;
  if (config.target_modules == std::vector<std::string>{"all"}) config.target_modules = all_linears(model, tower);
  std::ranges::sort(config.target_modules);
  config.rank_pattern = parse_patterns<int64_t>(options.lora_rank_pattern, "lora_rank_pattern", 1, kMostRank);
  config.alpha_pattern = parse_patterns<double>(options.lora_alpha_pattern, "lora_alpha_pattern", 1e-6, kMostAlpha);
  if (!options.lora_layers.empty())
    config.layers_to_transform = parse_layers(options.lora_layers, std::ssize(model.layers) - model.tower.layers);
  config.scores = model.scores;
  std::vector<std::string> whole = options.modules_to_save;
  if (config.scores) whole.emplace_back("score");  // a head that is new is trained whole
  if (model.tower && !options.freeze_projector) whole.push_back(module_of(model.tower.projector_prefix));
  config.ensure_weight_tying = options.ensure_weight_tying;
  if (!options.found.new_tokens.empty()) {
    const auto train = [&](const std::string& param) {
      const std::string module = module_of(param);
      whole.push_back(module.substr(module.rfind('.') + 1));
    };
    config.ensure_weight_tying |= model.tied && !options.given.contains("ensure_weight_tying");
    train(model.embedding);
    if (!(model.tied && config.ensure_weight_tying) && !model.scores) train(model.head);
  }
  config.modules_to_save = saved_names(model, whole, false);
  config = plain_adapter(model, config, "lora_targets");
  refuse_vain_patterns(model, config, tower);
  config = named_in_full(config, model, tower);
  if (model.tower && config.target_modules.empty())
    user_error(
        "lora_targets: found {}, which names linears of the frozen tower, or of the projector, alone, expected some of "
        "the text model, or {} false",
        fmt::join(options.lora_targets, ","), option_name("freeze_vision_tower"));
  return config;
}

void take_adapter(JobConfig& options, const PeftConfig& adapter) {
  options.lora_rank = adapter.rank;
  options.lora_alpha = adapter.alpha;
  options.lora_rslora = adapter.rslora;
  options.lora_dora = adapter.dora;
  options.lora_dropout = adapter.dropout;
  options.lora_targets = adapter.target_modules;
  options.lora_rank_pattern = written_patterns(adapter.rank_pattern);
  options.lora_alpha_pattern = written_patterns(adapter.alpha_pattern);
  options.lora_layers.clear();
  for (const int64_t layer : adapter.layers_to_transform.value_or(std::vector<int64_t>{}))
    options.lora_layers.push_back(fmt::format("{}", layer));
  options.modules_to_save = adapter.modules_to_save;
  options.ensure_weight_tying = adapter.ensure_weight_tying;
}

PeftConfig written_adapter(const JobConfig& options) {
  PeftConfig adapter = adapter_of(options);
  return adapter.init == LoraInit::Default ? adapter : with_first_halves(std::move(adapter));
}

ParamRules rules_of(const JobConfig& options) {
  if (options.method == "full" && !options.adapter.empty())
    user_error("{} goes with {} lora; with full, merge it first: snug merge", option_name("adapter"),
               option_name("method"));
  refuse_other_rules(options);
  const double rate = learning_rate(options);
  const auto share = [&](const std::optional<double>& of_part) { return rate > 0 ? of_part.value_or(rate) / rate : 1; };
  ParamRules rules{.tower_rate = share(options.learning_rate_vision),
                   .projector_rate = share(options.learning_rate_projector)};
  if (options.method == "full") {
    rules.train = options.train_modules;
    rules.freeze = options.freeze;
    std::ranges::copy(frozen_parts(options, model_config_of(options).spec), std::back_inserter(rules.freeze));
    return rules;
  }
  if (options.freeze_language_model)
    user_error(
        "freeze_language_model: found true, expected {} full beside it: lora leaves the model's own weights as they "
        "are",
        option_name("method"));
  if (options.lora_init != "default" && !options.adapter.empty())
    user_error("lora_init: found {}, expected nothing: {} {} says what the adapter begins with", options.lora_init,
               option_name("adapter"), options.adapter);
  if (options.lora_init != "default" && options.lora_dora)
    user_error(
        "lora_dora: found lora_init {} beside it, expected default: halves that are taken off the base leave its "
        "rows no norms of their own to train; without lora_dora, or with lora_init default, it runs",
        options.lora_init);
  rules.adapter = adapter_of(options);
  rules.lora_plus_ratio = options.lora_plus_ratio;
  return rules;
}

void fit_to_rules(ModelSpec& model, const ParamRules& rules) {
  if (rules.adapter && model.tied && parts_head(*rules.adapter, model.embedding, model.head)) model.tied = false;
}

void refuse_to_train(const AdapterFiles& files, const PeftConfig& adapter) {
  const bool one_matrix = adapter.ensure_weight_tying && saves_whole(adapter, files.embedding);
  for (const std::string& param : files.replaced())
    if (!saves_whole(adapter, param) && !(one_matrix && param == files.head))
      user_error(
          "{}: holds '{}' beside the adapter, which modules_to_save does not name: training on it is not supported "
          "yet; "
          "eval, generate, chat and merge read it",
          files.index.files()[0].string(), param);
}

namespace {

// Returns the host memory that computing the halves takes, one linear at a time, before a run reserves its own.
uint64_t initial_bytes(const JobSpec& spec) {
  uint64_t most = 0;
  for (const LayerParams& layer : spec.table.layers)
    for (const Linear* linear : layer.linears())
      for (const LoraPart& part : linear->lora.parts)
        most = std::max(most, halves_bytes(part.row_end - part.row_begin, linear->in, part.rank));
  return most;
}

}  // namespace

void place_initial_halves(JobSpec& spec, const JobConfig& options) {
  WeightSources& sources = spec.sources;
  if (!sources.initial_file) return;
  const LoraInit init = spec.rules.adapter->init;
  for (size_t i = 0; i < spec.table.params.size(); i++)
    if (spec.table.params[i].linear && !std::holds_alternative<TensorPlace>(sources.params[i]))
      user_error("lora_init {}: '{}' is {}, expected a base whose files hold numbers", name(init),
                 spec.table.params[i].name,
                 std::holds_alternative<RandomFill>(sources.params[i]) ? "drawn" : "stored as codes");
  if (const uint64_t bytes = initial_bytes(spec); options.host_memory && bytes > *options.host_memory)
    throw CapacityError(fmt::format("lora_init {}: takes {} of host memory to compute, found host_memory {}",
                                    name(init), format_size(bytes), format_size(*options.host_memory)));
  if (sources.assumed) return;
  std::string key = fmt::format("{} {} {} {}", kHalvesVersion, name(init), options.seed,
                                hex(*hash_of_base(spec.table, sources, *spec.rules.adapter)));
  for (const LayerParams& layer : spec.table.layers)
    for (const Linear* linear : layer.linears())
      for (const LoraPart& part : linear->lora.parts)
        key += fmt::format(" {} {} {}", spec.table[part.b].name, part.rank, part.scale);
  const std::filesystem::path cache = cache_directory(options, "lora_init: is computed once of the base's weights");
  sources.files[*sources.initial_file] = cache / fmt::format("halves-{:016x}.safetensors", hash_of(key));
}

void make_initial_halves(const JobSpec& spec, const Heartbeat& heartbeat) {
  if (!spec.sources.initial_file) return;
  const std::filesystem::path& file = spec.sources.files[*spec.sources.initial_file];
  const FileLock held = lock_in_cache(file);
  if (is_file(file)) return;
  if (is_first_process())
    say(fmt::format("lora_init {}: computes what adapters begin with, once: {}\n", name(spec.rules.adapter->init),
                    file.string()));
  write_initial_halves(spec, file, heartbeat);
}

void note_rules(JobSpec& spec, bool tied) {
  const std::optional<PeftConfig>& adapter = spec.rules.adapter;
  if (!adapter) return;
  std::vector<std::string>& notes = spec.sources.notes;
  if (tied && !spec.model.tied)
    notes.push_back(
        fmt::format("'{}' was the head too: modules_to_save makes each a matrix of its own, as PEFT does, and the "
                    "model is no longer tied; {} keeps one",
                    spec.model.embedding, option_name("ensure_weight_tying")));
  if (adapter->init != LoraInit::Default)
    notes.push_back(fmt::format(
        "lora_init {}: what adapters begin with is taken off the base, which stays as it is; they are written with "
        "twice the rank, of which one half takes it off, and load as plain LoRA; computing them takes {} of host "
        "memory, once, before the run takes its own{}",
        name(adapter->init), format_size(initial_bytes(spec)),
        spec.numerics.quantized_base() ? "; the base is quantised whole, where PEFT would quantise what is left of it"
                                       : ""));
  const bool saved = saves_whole(*adapter, spec.model.embedding) || saves_whole(*adapter, spec.model.head);
  if (adapter->ensure_weight_tying && !(tied && saved))
    notes.push_back(
        fmt::format("ensure_weight_tying changes nothing: {}", tied ? "modules_to_save names neither embedding nor head"
                                                                    : "the model's head is not its embedding"));
}

std::string method_words(const JobSpec& spec) {
  if (!spec.rules.adapter) {
    const bool all = std::ranges::all_of(spec.table.params, &ParamSpec::trainable);
    return all ? "full" : "full, the rest frozen";
  }
  std::set<int64_t> ranks;
  for (const LayerParams& layer : spec.table.layers)
    for (const Linear* linear : layer.linears())
      for (const LoraPart& part : linear->lora.parts) ranks.insert(part.rank);
  const std::string_view kind = spec.rules.adapter->dora ? "dora" : "lora";
  std::string words = ranks.size() == 1 ? fmt::format("{}, rank {}", kind, *ranks.begin())
                                        : fmt::format("{}, ranks {} to {}", kind, *ranks.begin(), *ranks.rbegin());
  if (!spec.rules.adapter->modules_to_save.empty())
    words += fmt::format(", {} whole", fmt::join(spec.rules.adapter->modules_to_save, ", "));
  return words;
}

}  // namespace snug
