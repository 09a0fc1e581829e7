#include "api/job.h"

#include <algorithm>
#include <charconv>

#include "api/image_job.h"
#include "api/launch.h"
#include "api/new_tokens.h"
#include "api/numerics.h"
#include "api/objective.h"
#include "api/other_base.h"
#include "api/reference_model.h"
#include "api/rules.h"
#include "api/saving.h"
#include "api/text.h"
#include "base/cores.h"
#include "base/disk.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/option_name.h"
#include "base/parallel.h"
#include "base/rounding.h"
#include "base/size_text.h"
#include "format/json.h"
#include "format/peft.h"
#include "format/prompt_format.h"
#include "model/model_config.h"
#include "model/multimodal.h"
#include "plan/spec/adapter_files.h"
#include "train/metrics.h"

namespace snug {
namespace {

// Context, libraries and the process took these bytes of the host on H200s, beside the arenas: with one rank, with each
// further one, and for each op that a rank has bound, including the driver's.
constexpr uint64_t kProcessHostBytes = 411u << 20, kFurtherHostBytes = 82u << 20, kOpHostBytes = 1200;

// Returns the base's configuration, with its own head if the model's files hold one that is not the embedding, whatever
// config.json says. Reads both, as far as they are equal.
ModelConfig base_config_of(const JobConfig& options, Purpose purpose) {
  ModelConfig config = purpose == Purpose::Merge ? whole_model_config_of(options) : model_config_of(options);
  if (!config.spec.tied || options.init == "random" || !has_own_head(options.model, config.spec)) return config;
  config.spec.tied = false;
  config.notes.push_back(fmt::format(
      "{}: config.json says tie_word_embeddings, but lm_head.weight is not the embedding: it is taken as the head",
      options.model));
  return config;
}

}  // namespace

ModelConfig whole_model_config_of(const JobConfig& options) {
  ModelConfig config = read_model_config(options.model, options.family);
  const bool asked = objective_from_name(options.objective) == ObjectiveKind::Reward;
  const bool adapter = !options.adapter.empty() && read_peft_config(options.adapter).scores;
  if (asked && !config.spec.scores && (config.spec.tower || is_multimodal(config.spec.embedding)))
    user_error("{}: is a multimodal model, expected a text model with {} reward", options.model,
               option_name("objective"));
  if (asked && !options.adapter.empty() && !adapter)
    user_error(
        "{}: is an adapter of a model that gives logits, expected one that was trained with {} reward; merge makes a "
        "model of it to begin from",
        options.adapter, option_name("objective"));
  if (asked || adapter) config.spec.become_scorer();
  if (!options.found.new_tokens.empty())
    config.spec.vocabulary = std::max<int64_t>(config.spec.vocabulary, options.found.new_tokens.back().id + 1);
  return config;
}

ModelConfig model_config_of(const JobConfig& options) {
  ModelConfig config = whole_model_config_of(options);
  if (!config.spec.tower || options.found.block_patches > 0) return config;
  config.spec = without_tower(std::move(config.spec));
  config.notes.push_back("the data has no images: of the model its text model is used and trained, and nothing else");
  return config;
}

int64_t pad_token_of(const JobConfig& options, const std::vector<int64_t>& ends) {
  const std::filesystem::path path = std::filesystem::path(options.model) / "config.json";
  const Json json = parse_json(read_text(path, kMaxConfigBytes), path.string());
  const auto is_free = [&](int64_t token) { return std::ranges::find(ends, token) == ends.end(); };
  for (const char* key : {"pad_token_id", "bos_token_id"})
    if (json.contains(key) && json[key].is_number_unsigned())
      if (const auto token = json[key].get<int64_t>(); is_free(token)) return token;
  int64_t token = 0;
  while (!is_free(token)) token++;
  return token;
}

ModelTokens model_tokens(const JobConfig& options) {
  ModelConfig config = model_config_of(options);
  if (!options.adapter.empty())
    fit_to_adapter(config.spec, open_adapter(options.adapter, config.spec.embedding, config.spec.head));
  return {config.spec.vocabulary, config.end_tokens};
}

int thread_count(const JobConfig& options, int node_ranks, bool launched) {
  if (options.threads > 0) return static_cast<int>(options.threads);
  return std::max(1, (launched ? unbound_cores() : usable_cores()) / node_ranks);
}

namespace {

// Refuses a model that gives scores where logits are asked for.
void refuse_scorer(const JobConfig& options, Purpose purpose) {
  const std::string& what = options.adapter.empty() ? options.model : options.adapter;
  if (purpose == Purpose::Generate)
    user_error("{}: gives a text a score, expected a model that gives logits: it writes no text", what);
  user_error("{}: gives a text a score, expected {} reward, found {}", what, option_name("objective"),
             options.objective);
}

// Refuses products that a tower does not have, and notes in which format it stays beside a quantised base.
void judge_numerics_of_tower(JobSpec& spec) {
  if (spec.numerics.fp8_products)
    user_error(
        "compute: found fp8, expected bf16 or fp32 for data with images: products of the tower are not in fp8 yet");
  if (spec.numerics.quantized_base())
    spec.sources.notes.push_back(fmt::format("base_format {}: the tower that images go through stays in {}",
                                             name(spec.numerics.base_format), name(spec.numerics.base)));
}

}  // namespace

void require_logits(const JobConfig& options) {
  if (base_config_of(options, Purpose::Generate).spec.scores) refuse_scorer(options, Purpose::Generate);
}

JobSpec make_job(const JobConfig& options, Purpose purpose) {
  JobSpec spec;
  spec.purpose = purpose;
  ModelConfig config = base_config_of(options, purpose);
  spec.model = config.spec;
  ObjectiveOptions objective;
  if (purpose == Purpose::Train || purpose == Purpose::Evaluate) objective = objective_of(options);
  if (spec.model.scores && purpose != Purpose::Merge && !objective.scores()) refuse_scorer(options, purpose);
  if (objective.reference == Reference::Model)
    objective.reference_weights = hex(hash_of_files(reference_job(options, spec.model).sources, {}));
  const bool training = purpose == Purpose::Train, random = options.init == "random";
  SourceRequest request{options.model, random, options.seed, std::nullopt, config.prediction_layers};
  if (training) spec.rules = rules_of(options);
  const bool tied = spec.model.tied;
  std::optional<AdapterFiles> files;
  if (!options.adapter.empty()) {
    request.adapter = options.adapter;
    files = open_adapter(options.adapter, spec.model.embedding, spec.model.head);
    if (training) refuse_to_train(*files, *spec.rules.adapter);
    if (objective.has_reference() && objective.reference != Reference::Adapter &&
        !files->config.modules_to_save.empty())
      user_error(
          "{}: found modules that were trained whole ({}), expected none with {} {}: its reference would have them "
          "too; {} adapter takes the adapter as it is, and merge makes a model to begin from",
          options.adapter, fmt::join(files->config.modules_to_save, ", "), option_name("objective"), options.objective,
          option_name("reference"));
    fit_to_adapter(spec.model, *files);
  } else {
    fit_to_rules(spec.model, spec.rules);
  }
  if (spec.model.scores) spec.pad_token = pad_token_of(options, config.end_tokens);
  spec.new_adapter = training && options.method == "lora" && options.adapter.empty() && !options.resume;
  request.draws_head = training && options.adapter.empty();
  request.head_is_embedding = tied && !spec.model.tied;
  if (files) request.left_out = parameters_left_out(options, spec.model, files->config);
  const bool adapted = files && (request.left_out.empty() || adapts(files->config, spec.model));
  spec.table = training  ? trained_parameters(spec.model, spec.rules)
               : adapted ? lora_parameters(spec.model, files->config, true)
                         : full_parameters(spec.model, false);
  const std::string stored_otherwise = random ? "" : store_as_files_do(spec.table, options.model);
  spec.numerics = numerics_of(options);
  spec.objective = objective;
  request.dtype = config.dtype.value_or(DType::BF16);
  if (const auto& stored = config.quantization;
      stored && options.base_format.value_or(stored->nf4 ? "nf4" : "int8") == (stored->nf4 ? "nf4" : "int8"))
    request.quantization = stored;
  request.new_rows = new_rows(options);
  spec.sources = find_sources(spec.table, request);
  place_initial_halves(spec, options);
  place_new_rows(spec, options);
  resolve_base(spec, options);
  if (spec.purpose == Purpose::Train) note_matrices(spec);
  note_other_base(spec, options, request);
  if (options.adapter.empty() && is_file(std::filesystem::path(options.model) / kPeftConfigFile))
    spec.sources.notes.push_back(fmt::format("{} holds an adapter too ({}), which is not used: {} {} uses it",
                                             options.model, kPeftConfigFile, option_name("adapter"), options.model));
  std::vector<std::string>& notes = spec.sources.notes;
  notes.insert(notes.begin(), config.notes.begin(), config.notes.end());
  if (!stored_otherwise.empty()) notes.push_back(stored_otherwise);
  if (training && !config.dropout.empty())
    notes.push_back(
        fmt::format("config.json asks for {}, which is not applied: the model trains without dropout of its own",
                    fmt::join(config.dropout, ", ")));
  if (training) note_rules(spec, tied);
  spec.cut.sequence_length = options.sequence_length;
  spec.cut.patches = patch_shapes(options, spec);
  if (!spec.cut.patches.empty()) judge_numerics_of_tower(spec);
  spec.strategy = plain_strategy(spec.table);
  spec.given_embeddings = options.found.given_embeddings;
  return spec;
}

namespace {

std::optional<Offload> offload_of(std::string_view key, const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "none") return Offload{};
  if (text == "host") return Offload{1, Space::Host};
  if (text == "disk") return Offload{1, Space::Disk};
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc() || end != text.data() + text.size() || !(share >= 0 && share <= 1))
    user_error("{}: found '{}', expected auto, none, host, disk or a fraction", key, text);
  return Offload{share, Space::Host};
}

// Returns the blocks of a step: as given, or as a micro-batch and the passes of a step give them on all ranks.
int64_t batch_of(const JobConfig& options) {
  constexpr int64_t kBatch = 16;
  if (options.batch_size > 0) return options.batch_size;
  const int64_t ranks = options.ranks;
  if (!options.micro_batch_size || !options.gradient_accumulation_steps) return round_up(kBatch, ranks);
  const int64_t micro = *options.micro_batch_size, passes = *options.gradient_accumulation_steps;
  if (micro > kMaxBatch || passes > kMaxBatch || micro * passes > kMaxBatch / ranks)
    user_error(
        "micro_batch_size {} times gradient_accumulation_steps {} on {} ranks: expected at most {} blocks a step",
        micro, passes, ranks, kMaxBatch);
  return micro * passes * ranks;
}

// Gives launched processes equal shares of the ranks: of --ranks, or of a rank for each of this many cards of a
// machine.
void divide_ranks(JobConfig& options, int64_t cards, Comm& launched) {
  const int64_t processes = launched.topology().ranks, here = processes_of_node(launched).here;
  if (options.ranks == 0) options.ranks = processes * std::max<int64_t>(1, cards / here);
  const std::span<const uint64_t> values =
      launched.allgather_host(static_cast<uint64_t>(options.ranks), "the count of ranks");
  if (options.ranks % processes != 0)
    user_error(
        "ranks: found {}, expected a multiple of {}, the processes that the launcher started: each has as many; {}{} "
        "says how many all have together",
        options.ranks, processes, options.resume ? "a run goes on with as many as it had unless " : "",
        option_name("ranks"));
  const auto other = std::ranges::find_if(values, [&](uint64_t ranks) { return ranks != values[0]; });
  if (other != values.end())
    user_error(
        "ranks: found {} in process 0, {} in process {}, expected as many in each of the {} that the launcher started; "
        "{} says how many all have together",
        values[0] / values.size(), *other / values.size(), other - values.begin(), processes, option_name("ranks"));
}

}  // namespace

const Cards& cards_of(const Target& target, PlanMode mode) {
  return mode == PlanMode::Run && target.here() ? *target.here() : *target.machine()->cards;
}

void resolve_ranks(JobConfig& options, const Target& target, PlanMode mode, Comm* launched) {
  if (launched) target.require_alike(*launched);
  const int64_t cards = target.cuda() ? cards_of(target, mode).count : 1;
  if (launched)
    divide_ranks(options, cards, *launched);
  else if (options.ranks == 0)
    options.ranks = target.cuda() ? options.nodes * cards : 1;
  if (options.ranks > kMaxCount)
    user_error("nodes: found {} of {} GPUs, expected at most {} ranks; {} says fewer", options.nodes, cards, kMaxCount,
               option_name("ranks"));
  options.batch_size = batch_of(options);
}

Choices choices_of(const JobConfig& options) {
  Choices choices;
  choices.batch_size = batch_of(options);
  choices.micro_batch = options.micro_batch_size;
  choices.passes = options.gradient_accumulation_steps;
  const std::string& text = options.recompute;
  for (const Recompute r : {Recompute::None, Recompute::Mlp, Recompute::Attention, Recompute::Block})
    if (text == name(r)) choices.recompute = r;
  if (text != "auto" && !choices.recompute) {
    int64_t layers = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
    if (error != std::errc() || end != text.data() + text.size() || layers < 0)
      user_error("recompute: found '{}', expected auto, none, mlp, attention, block or a number of layers", text);
    choices.recomputed_layers = layers;
  }
  choices.ranks = static_cast<int>(options.ranks);
  choices.replicas = static_cast<int>(options.replicas);
  if (options.zero != "auto") choices.zero = options.zero[0] - '0';
  if (options.order != "auto") choices.layer_major = options.order == "layer";
  choices.activations = offload_of("offload_activations", options.offload_activations);
  choices.states = offload_of("offload_states", options.offload_states);
  choices.gradients = offload_of("offload_gradients", options.offload_gradients);
  choices.parameters = offload_of("offload_parameters", options.offload_parameters);
  const bool matrices = updates_matrices(optimizer_from_name(options.optimizer));
  choices.update_in_backward = options.max_grad_norm == 0 && !(matrices && options.ranks > 1);
  choices.speculate = options.speculative_updates && options.max_grad_norm != 0 && !matrices;
  return choices;
}

Pricing pricing_of(const JobConfig& options, const Target& target, int threads) {
  Pricing pricing;
  pricing.threads = threads;
  if (target.machine()) pricing.machine = *target.machine();
  pricing.file = options.machine;
  pricing.facts = target.facts();
  return pricing;
}

namespace {

// Returns the fastest so far, cut to fit a line of a terminal.
std::string best_so_far(const Fitter& fitter) {
  constexpr size_t kMost = 56;
  std::string words = fitter.fastest();
  if (words.empty()) return "none fits yet";
  if (words.size() > kMost) words.replace(kMost, words.npos, "...");
  return words;
}

void require_cards(const Cards& cards, int node_ranks) {
  if (node_ranks > cards.count)
    user_error(
        "ranks: found {} of one machine, expected at most {}: a GPU each, there are {} x {}; {} takes fewer, {} of "
        "plan more machines, and a launcher that shows each process a GPU of its own must show it all",
        node_ranks, cards.count, cards.count, cards.name, option_name("ranks"), option_name("nodes"));
}

void require_products(const Cards& cards, const Numerics& numerics) {
  if (numerics.fp8_products && cards.rates.fp8_flops == 0)
    user_error(
        "compute fp8: '{}' has no products in fp8 with a scale for each row, expected compute capability 8.9, 9.0 or "
        "12.0; bf16 runs",
        cards.name);
}

// Returns whether the arrangement that was found has no room once two things are counted: what it saves in memory, and
// what a process on the CPU needs for each op. The caps count these from then on, and the first never grows.
bool leaves_too_little(Planned& planned, const JobConfig& options) {
  Caps& caps = planned.caps;
  const Arrangement& found = planned.shown();
  const uint64_t saved = saved_in_memory(planned, options);
  const bool more_saved = saved > caps.saved_host_bytes;
  if (more_saved) caps.saved_host_bytes = saved;
  const auto ranks = static_cast<uint64_t>(caps.ranks_of_node(found.cut.ranks));
  const uint64_t of_ops = caps.shared ? ranks * found.forecast.ops * kOpHostBytes : 0;
  const uint64_t room = planned.free.host_bytes - std::min(planned.free.host_bytes, of_ops);
  const bool beyond = std::ranges::any_of(needs(found.forecast, found.cut.ranks, caps), [&](const Need& need) {
    return need.option == "host_memory" && need.bytes > std::min(need.allowed, room);
  });
  const bool said = planned.mode == PlanMode::Look && options.host_memory;  // of another machine
  if (beyond && !said && room < caps.host_bytes) {
    caps.host_bytes = room;
    caps.host_limit = planned.free.host_limit;
  }
  return more_saved || (beyond && !fits(found.forecast, found.cut.ranks, caps));
}

// Searches for a job with its caps: what is chosen, and what else is reported of it.
void search(Planned& planned, const JobConfig& options, Comm* launched) {
  const Choices choices = choices_of(options);
  const ParamTable& table = planned.spec.table;
  const int64_t layers = std::ssize(table.layers) - table.first_layer_of_backward();
  if (choices.recomputed_layers.value_or(0) > layers)
    user_error("recompute: found {} layers, the backward reaches {} of the model's {}", *choices.recomputed_layers,
               layers, table.layers.size());
  const std::unique_ptr<OpFacts> facts = planned.target.facts();
  Progress progress("arrangement", 0, 0, !launched || launched->topology().rank == 0);
  const Fitter* searching = nullptr;
  const Heartbeat of_process = heartbeat_of(launched), heartbeat = [&] {
    call(of_process);
    if (searching) progress.update(static_cast<int64_t>(searching->compiled()), best_so_far(*searching));
  };
  Fitter fitter(planned.spec, choices, *facts, planned.pricing, heartbeat);
  searching = &fitter;
  const bool trains = planned.spec.purpose == Purpose::Train;
  do {
    planned.fit = fitter.fit(planned.caps);
    planned.spec.cut = planned.shown().cut;
    planned.spec.strategy = planned.shown().strategy;
    planned.compiled = std::move(planned.fit.compiled);
    if (trains) planned.checkpoint_bytes = saved_bytes(planned.spec, *facts);
  } while (planned.fit.chosen && leaves_too_little(planned, options));
  if (!planned.fit.chosen && trains) {
    planned.changes =
        changes_that_fit(options, planned.spec.evaluate, *facts, planned.caps, planned.pricing, heartbeat);
  } else if (planned.fit.chosen && planned.mode == PlanMode::Look) {
    planned.more = what_more_buys(fitter, planned.caps, planned.fit);
    planned.less = with_less(fitter, planned.caps, planned.shown());
  }
  planned.pricing.lanes = lanes_of(planned.spec.strategy, planned.spec.cut);
}

}  // namespace

Planned plan_job(JobSpec spec, const JobConfig& options, Target target, PlanMode mode, Comm* launched) {
  if (mode == PlanMode::Run && options.nodes > 1)
    user_error("nodes: found {}, expected 1: mpirun places the ranks of a run; snug plan looks at nodes elsewhere",
               options.nodes);
  if (options.ranks % options.nodes != 0)
    user_error("nodes: found {}, expected a divisor of {}, the number of {}", options.nodes, options.ranks,
               option_name("ranks"));
  if (options.ranks % options.replicas != 0)
    user_error("replicas: found {}, expected a divisor of {}, the number of {}", options.replicas, options.ranks,
               option_name("ranks"));
  const int processes = launched ? launched->topology().ranks : 1, locals = static_cast<int>(options.ranks) / processes;
  Processes here{1, options.ranks / options.nodes};
  if (launched) here = {processes_of_node(*launched).most, locals, true};
  JobConfig uncapped = options;
  uncapped.device_memory = uncapped.host_memory = uncapped.disk_memory = std::nullopt;
  const Caps free = caps_of(uncapped, target, mode, here);
  Caps caps = caps_of(options, target, mode, here);
  caps.node_ranks = here.count * static_cast<int>(here.ranks);
  if (target.cuda()) {
    const Cards& cards = cards_of(target, mode);
    require_cards(cards, *caps.node_ranks);
    require_products(cards, spec.numerics);
    caps.tabled_ranks = launched ? locals : *caps.node_ranks;
    const auto of_process = static_cast<uint64_t>(caps.tabled_ranks);
    caps.driver_host_bytes = (kProcessHostBytes + (of_process - 1) * kFurtherHostBytes) / of_process;
    caps.op_host_bytes = kOpHostBytes;
  }
  // Images are read beside what is planned, unless the rows that a tower makes of them are given.
  if (!spec.given_embeddings) caps.driver_host_bytes += options.found.decoding_bytes;
  if (target.cuda() && options.ranks > 1) {
    const Cards& cards = *target.machine()->cards;
    caps.link_bytes = cards.link(launched || options.nodes > 1).bytes;
  }
  // All ranks plan alike, whatever cores their machines have. Scratch depends on the team, which is the run's already.
  const int own_threads = thread_count(options, *caps.node_ranks, launched != nullptr);
  const auto threads = least_of_ranks(launched, static_cast<uint64_t>(own_threads));
  Pricing pricing = pricing_of(options, target, static_cast<int>(threads));
  pricing.nodes = Nodes({static_cast<int>(options.ranks), static_cast<int>(options.replicas), 0}, *caps.node_ranks,
                        launched != nullptr);
  if (options.network_rate == 0) user_error("network_rate: found 0, expected at least a byte a second");
  if (options.network_rate && pricing.machine.cards)
    pricing.machine.cards->node_link = static_cast<double>(*options.network_rate) / *caps.node_ranks;
  if (launched) take_cores(locals * pricing.threads);
  set_threads(pricing.threads);
  Planned planned{.target = std::move(target),
                  .mode = mode,
                  .spec = std::move(spec),
                  .free = free,
                  .caps = caps,
                  .pricing = pricing};
  if (options.network_rate && (options.ranks == *caps.node_ranks || !planned.target.cuda()))
    planned.spec.sources.notes.push_back(
        fmt::format("{} has no effect: {}", option_name("network_rate"),
                    planned.target.cuda() ? "all ranks are on one machine" : "it is for machines with GPUs"));
  for (uint64_t* bytes : {&planned.free.device_bytes, &planned.free.host_bytes, &planned.free.disk_bytes})
    *bytes = least_of_ranks(launched, *bytes);
  planned.caps.device_bytes = least_of_ranks(launched, planned.caps.device_bytes);
  planned.caps.host_bytes = least_of_ranks(launched, planned.caps.host_bytes);
  planned.caps.disk_bytes = least_of_ranks(launched, planned.caps.disk_bytes);
  if (planned.caps.host_bytes < caps.host_bytes) planned.caps.host_limit = "what another process finds";
  search(planned, options, launched);
  give_back_freed_memory();
  const bool elsewhere = mode == PlanMode::Look && !options.machine.empty();
  if (planned.fit.chosen && !elsewhere) require_files(planned.spec, planned.compiled, here, mode);
  return planned;
}

Planned plan_training(JobSpec spec, const JobConfig& options, Target target, bool evaluate, PlanMode mode,
                      Comm* launched, std::optional<SavedState> saved) {
  spec.evaluate = evaluate;
  spec.saved = std::move(saved);
  return plan_job(std::move(spec), options, std::move(target), mode, launched);
}

const Arrangement& Planned::shown() const {
  if (fit.chosen) return fit.tried[*fit.chosen];
  return fit.tried.front();
}

namespace {

// Returns options that take less, for a job that does not train, where no search tries what would fit.
std::string what_takes_less(const Planned& planned) {
  std::vector<std::string> options;
  const Purpose purpose = planned.spec.purpose;
  if (!planned.spec.numerics.quantized_base()) options.push_back(option_name("base_format") + " int8 or nf4");
  if (purpose == Purpose::Evaluate)
    options.push_back(fmt::format("a lower {}{}",
                                  planned.spec.cut.micro_batch > 1 ? option_name("micro_batch_size") + " or " : "",
                                  option_name("sequence_length")));
  if (purpose == Purpose::Generate)
    options.push_back("fewer tokens: " + option_name("max_new_tokens") + ", or " + option_name("sequence_length") +
                      " of chat");
  if (planned.target.cuda() && purpose != Purpose::Merge) options.push_back("more " + option_name("ranks"));
  return options.empty() ? "" : fmt::format("less is taken with {}", fmt::join(options, ", or "));
}

// Returns higher caps, if the user's caps are all that is short: "--host-memory 2.82GiB".
std::string caps_that_fit(const Planned& planned, const JobConfig& options) {
  const Arrangement& least = planned.shown();
  Caps there = planned.caps;
  there.device_bytes = planned.free.device_bytes;
  there.host_bytes = planned.free.host_bytes;
  there.disk_bytes = planned.free.disk_bytes;
  const auto needs_of = [&](const Caps& caps) { return needs(least.forecast, least.cut.ranks, caps); };
  if (planned.mode == PlanMode::Run && std::ranges::any_of(needs_of(there), &Need::missing)) return "";
  std::vector<std::string> caps;
  for (const Need& need : needs_of(planned.caps)) {
    if (need.missing() == 0) continue;
    const OptionSpec& option = find_option(std::string(need.option), "advice");
    if (option.get(options) != fmt::format("{}", need.allowed)) return "";
    caps.push_back(fmt::format("{} {}", option_name(option.key), size_for_option(need.bytes)));
  }
  return fmt::format("{}", fmt::join(caps, " and "));
}

}  // namespace

void require_fit(const Planned& planned, const JobConfig& options) {
  if (planned.fit.chosen) return;
  const Arrangement& least = planned.shown();
  const Need need = tightest_need(least.forecast, least.cut.ranks, planned.caps);
  std::vector<std::string> changes;
  for (const Change& change : planned.changes) changes.push_back(change.option);
  std::vector<std::string> helps;
  const std::string less = planned.spec.purpose == Purpose::Train ? "" : what_takes_less(planned);
  if (const std::string caps = caps_that_fit(planned, options); !caps.empty())
    helps.push_back(fmt::format("it would fit with {} or more", caps));
  if (!changes.empty()) helps.push_back(fmt::format("it would fit with {}", fmt::join(changes, ", or ")));
  if (!less.empty()) helps.push_back(less);
  if (helps.empty()) helps.emplace_back("no change of one option that was tried makes it fit");
  auto spelt = [](uint64_t bytes) { return fmt::format("{} bytes ({})", bytes, format_size(bytes)); };
  throw CapacityError(fmt::format("what comes nearest ({}) needs {} of {}, {} are {}: {} short, at {}; {}", least.words,
                                  spelt(need.bytes), need.what, spelt(need.allowed), limit_word(options, need),
                                  format_size(need.missing()), least.forecast.peak_sites[index(need.space)],
                                  fmt::join(helps, "; ")));
}

std::string limit_word(const JobConfig& options, const Need& need) {
  const uint64_t limit = need.allowed;
  if (options.device_memory == limit || options.host_memory == limit || options.disk_memory == limit) return "allowed";
  return need.limit.empty() ? "free" : fmt::format("free within {}", need.limit);
}

Session rank_session(const Planned& planned, const JobConfig& options, int rank, int device, Comm* comm) {
  JobSpec spec = planned.spec;
  spec.rank = rank;
  const int threads = planned.pricing.threads;
  set_threads(threads);
  Compiled compiled = rank == 0 ? planned.compiled : compile(spec, *planned.target.facts());
  raise(compiled.plan.reserved_bytes, planned.compiled.plan.reserved_bytes);  // as planned, on every rank
  // The team has all threads besides the busy lanes, which mostly wait for the disk or for other ranks.
  const LaneMode lanes = lanes_of(spec.strategy, spec.cut);
  return Session(
      std::move(spec), std::move(compiled),
      {.threads = threads, .lanes = lanes, .comm = comm, .disk_directory = disk_directory(options), .backend = [&] {
         return planned.target.backend(device, comm);
       }});
}

}  // namespace snug
