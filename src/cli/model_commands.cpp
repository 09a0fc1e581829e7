// Implements the commands that need no data set, without chat: import, merge, generate.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "api/checkpoint_choice.h"
#include "api/import.h"
#include "api/launch.h"
#include "api/learning.h"
#include "api/no_effect.h"
#include "api/prompting.h"
#include "api/run_directory.h"
#include "api/text.h"
#include "api/use.h"
#include "base/disk.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/say.h"
#include "cli/commands.h"
#include "cli/prompt_images.h"
#include "cli/reply_text.h"
#include "data/null_fields.h"
#include "data/record_keys.h"
#include "format/json.h"
#include "format/model_path.h"
#include "train/export.h"

namespace snug {
namespace {

constexpr uint64_t kMaxPrompts = 64u << 20;

void require_out(const JobConfig& options) {
  if (options.out.empty()) user_error("--out is required: the directory to be made");
}

struct Prompt {
  std::string text, place;
};

// Lists keys of a file of prompts that ask for something, separated by blanks, with the option that does it.
constexpr std::pair<std::string_view, std::string_view> kAskedOfPrompts[] = {
    {"max_new_tokens max_tokens max_completion_tokens max_length", "none: --max-new-tokens is for all prompts"},
    {"temperature top_p top_k min_p repetition_penalty seed",
     "none: the option of this name (--temperature, --seed, ...) is for all prompts"},
    {"stop stop_sequences", "none: --stop is for all prompts"},
    {"typical_p frequency_penalty presence_penalty do_sample num_beams stop_token_ids logit_bias logprobs n "
     "num_return_sequences response_format",
     "none: it is not supported yet"},
    {"system system_prompt system_message", "none: --system is for all prompts"},
    {"messages conversations history", "none: a prompt is one text, under 'prompt'; 'snug chat' is for several turns"},
    {"tools functions tool_choice", "none: tools are not supported yet"},
    {"image images image_url", "none: --image is for all prompts"},
    {"audio video videos", "none: sound and video are not supported yet"},
    {"chat_template chat_template_kwargs enable_thinking add_generation_prompt",
     "none: --template is for all prompts, and thinking is not rendered yet"}};

// Returns the text of a record. Keys that ask for nothing are counted in `ignored`.
std::string prompt_of(const JsonObject& record, std::map<std::string, int64_t>& ignored) {
  for (const auto& [key, value] : record.value().items()) {
    if (key == "prompt" || value.is_null()) continue;
    for (const auto& [names, expected] : kAskedOfPrompts)
      if (is_among(key, names)) record.fail(key, expected);
    ++ignored[key];
  }
  if (record.value().contains("prompt") && !record.has("prompt")) refuse_null(record, "prompt");
  return record.string("prompt");
}

// Returns the prompts of the command line and of the file; what is to be said of the file is added to `notes`.
std::vector<Prompt> read_prompts(const JobConfig& options, const CommandFlags& flags, std::vector<std::string>& notes) {
  std::vector<Prompt> prompts;
  for (const std::string& text : flags.prompts) prompts.push_back({text, fmt::format("--prompt '{}'", text)});
  if (flags.prompts_file.empty()) return prompts;
  RecordOptions record_options;
  record_options.max_record_bytes = kMaxPrompts;
  record_options.text_split = TextSplit::Line;
  RecordReader reader(flags.prompts_file, std::move(record_options));
  std::map<std::string, int64_t> ignored;
  NullCounter empty(flags.prompts_file);
  std::string refused;
  int64_t records = 0;
  for (Record record; reader.next(record); record = {}) {
    records++;
    if (!reader.json()) {
      prompts.push_back({record.text, record.place});
      continue;
    }
    const Json object = parse_json(record.text, record.place, record.line);
    try {
      prompts.push_back({prompt_of(JsonObject(object, record.place), ignored), record.place});
    } catch (const NullFieldError& error) {
      if (empty.count() == 0) refused = error.what();
      empty.add(record.place, is_all_null(object));
    }
  }
  if (empty.count() > 0 && empty_records(options) == EmptyRecords::Error) empty.refuse(refused);
  if (empty.count() > 0) notes.push_back(empty.line(records));
  if (prompts.empty())
    user_error("{}, expected at least one",
               notes.empty() ? flags.prompts_file + ": found no prompt" : notes.front() + ": found no other prompt");
  if (!ignored.empty()) notes.push_back(ignored_keys_text(flags.prompts_file, ignored));
  return prompts;
}

// Refuses to replace a directory unless all that is in it belongs to a model: anything else may be the user's.
void refuse_to_replace_model(const JobConfig& options, const std::vector<std::string>& inputs) {
  const std::filesystem::path out = options.out;
  const std::vector<std::string> known = side_files(out);
  const auto is_part = [&](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".json"));
    return (name == kAdditionalTemplates && entry.is_directory()) ||
           (entry.is_regular_file() && (weights || std::ranges::find(known, name) != known.end()));
  };
  refuse_to_replace(options, is_part, "which is no part of a model directory");
  if (!options.overwrite || !std::filesystem::is_directory(out)) return;
  for (const std::string& input : inputs)
    if (std::filesystem::weakly_canonical(input) == std::filesystem::weakly_canonical(out))
      user_error("{}: is read by this command, it cannot be replaced at the same time", options.out);
}

}  // namespace

int import_command(const JobConfig& options, const CommandFlags& flags) {
  require_out(options);
  const std::filesystem::path model =
      is_file(flags.file) ? std::filesystem::path(flags.file) : find_model_directory(flags.file);
  refuse_to_replace_model(options, {model.string()});
  const std::vector<std::string> notes =
      import_model(model, options.out, options.overwrite ? Existing::Replace : Existing::Refuse);
  for (const std::string& note : notes) say(fmt::format("note: {}: {}\n", flags.file, note));
  if (flags.json)
    fmt::print("{}\n", to_line({{"out", options.out}}));
  else
    fmt::print("{}: a model directory\n", options.out);
  return 0;
}

namespace {

// Measures how far a merged model's logits are from those of base and adapter.
struct Drift {
  double largest = 0, mean = 0;  // of |difference|
  size_t same = 0, tokens = 0;   // tokens with an equal likeliest next token, and all
};

// Returns the tokens on which the two are compared: a text, or tokens from the seed if the model has no tokenizer.
std::vector<int32_t> tokens_to_compare(const JobConfig& options) {
  constexpr uint64_t kTokens = 64;
  constexpr std::string_view kText =
      "Explain in three sentences why the sky is blue at noon and red in the evening, to a child who knows what a "
      "rainbow is. Then write a Python function that returns the n-th prime number.";
  try {
    if (has_tokenizer(tokenizer_directory(options)))
      return PromptEncoder(options).encode(std::string(kText), options.model);
  } catch (const UserError&) {  // for a kind that is not read: merging needs none
  }
  const Random random(options.seed, RandomPurpose::Sampling);
  const auto vocabulary = static_cast<uint64_t>(model_tokens(options).vocabulary);
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < kTokens; i++) ids.push_back(static_cast<int32_t>(random.below(i, vocabulary)));
  return ids;
}

std::vector<float> logits_of(const JobConfig& options, const std::vector<int32_t>& ids) {
  JobSpec spec = make_job(options, Purpose::Generate);
  spec.cache_positions = static_cast<int64_t>(ids.size());
  spec.cut.sequence_length = 1;
  std::vector<float> logits;
  use_model(plan_use(std::move(spec), options, nullptr, false), options, nullptr,
            [&](Session& session) { logits = Generator(session, {}).score(ids); });
  return logits;
}

Drift drift_of(const std::vector<float>& merged, const std::vector<float>& apart, size_t tokens) {
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!std::ranges::all_of(apart, finite) || !std::ranges::all_of(merged, finite))
    user_error("logits of {} are not finite: its weights, or the adapter's, hold a value that is not",
               std::ranges::all_of(apart, finite) ? "the merged model" : "base and adapter");
  Drift drift{.tokens = tokens};
  for (size_t i = 0; i < merged.size(); i++) {
    const double difference = std::abs(static_cast<double>(merged[i]) - static_cast<double>(apart[i]));
    drift.largest = std::max(drift.largest, difference);
    drift.mean += difference / static_cast<double>(merged.size());
  }
  const auto row = static_cast<ptrdiff_t>(merged.size() / tokens);
  auto best = [row](const std::vector<float>& logits, size_t token) {
    const auto first = logits.begin() + static_cast<ptrdiff_t>(token) * row;
    return std::max_element(first, first + row) - first;
  };
  for (size_t t = 0; t < tokens; t++) drift.same += best(merged, t) == best(apart, t);
  return drift;
}

}  // namespace

namespace {

// Copies the model that was made of a checkpoint, of a run that trains all weights.
int copy_checkpoint(const JobConfig& options, const CommandFlags& flags) {
  refuse_to_replace_model(options, {options.model});
  if (options.flags.contains("base_format"))
    user_error("base_format: found {}, expected nothing: a checkpoint of all weights is written in its base's formats",
               options.base_format.value_or(""));
  const WriteExtraFiles write_extra = write_adapters_format(options);
  require_room_in_memory(options.out, bytes_in(options.model));
  PendingDirectory pending(options.out, options.overwrite ? Existing::Replace : Existing::Refuse);
  std::filesystem::copy(options.model, pending.path(), std::filesystem::copy_options::recursive);
  write_extra(pending.path());
  pending.publish();
  if (flags.json)
    fmt::print("{}\n", to_line({{"out", options.out}}));
  else
    fmt::print("{}: {} as a model\n", options.out, options.found.given_model);
  return 0;
}

}  // namespace

int merge_command(JobConfig options, const CommandFlags& flags) {
  options.ranks = 1;
  options.offload_parameters = "none";  // offloading has no place to go, as the directory to be made does not exist yet
  require_out(options);
  if (options.adapter.empty() && is_checkpoint(options.found.given_model)) return copy_checkpoint(options, flags);
  if (options.adapter.empty())
    user_error(
        "--adapter is required: the PEFT directory to be merged; of a run of all weights --model RUN --checkpoint "
        "step-N, best or last");
  refuse_to_replace_model(options, {options.model, options.adapter});
  const Existing existing = options.overwrite ? Existing::Replace : Existing::Refuse;
  { const PendingDirectory probe(options.out, existing); }  // refuses now what would be refused after the work
  const WriteExtraFiles write_extra = write_adapters_format(options);
  if (const std::string missing = missing_code(options.model); !missing.empty())
    say(fmt::format("note: {}: {}\n", model_as_given(options), missing));
  const bool compares = !model_config_of(options).spec.scores;  // scores are read by eval alone
  const std::vector<int32_t> ids = compares ? tokens_to_compare(options) : std::vector<int32_t>();
  const std::vector<float> apart = compares ? logits_of(options, ids) : std::vector<float>();
  use_model(plan_use(make_job(options, Purpose::Merge), options, nullptr), options, nullptr,
            [&](Session& session) { export_model(session, options.out, options.model, existing, write_extra); });
  if (!compares) {
    fmt::print("{}\n", flags.json ? to_line({{"out", options.out}, {"drift", nullptr}})
                                  : fmt::format("{}: base and adapter as one model that gives scores", options.out));
    return 0;
  }
  JobConfig merged = options;
  merged.model = options.out;
  merged.adapter.clear();
  merged.base_format.reset();
  if (merged.compute == "fp8") merged.compute = "bf16";  // as it is written
  const Drift drift = drift_of(logits_of(merged, ids), apart, ids.size());
  if (flags.json)
    fmt::print("{}\n", to_line({{"out", options.out},
                                {"drift",
                                 {{"largest", drift.largest},
                                  {"mean", drift.mean},
                                  {"same_likeliest", drift.same},
                                  {"tokens", drift.tokens}}}}));
  else
    fmt::print(
        "{}: base and adapter as one model\n"
        "logits after {} tokens differ from those of base + adapter by {:.4g} at most, {:.4g} in the mean; the "
        "likeliest token is the same after {}\n",
        options.out, drift.tokens, drift.largest, drift.mean, drift.same);
  return 0;
}

int generate_command(JobConfig options, const CommandFlags& flags) {
  std::unique_ptr<Comm> comm = launched("generate");
  std::vector<std::string> notes;
  const std::vector<Prompt> prompts = read_prompts(options, flags, notes);
  if (prompts.empty()) user_error("--prompt or --prompts is required: what is to be completed");
  require_logits(options);
  const PromptEncoder encoder(options, flags.system);
  const PromptImages images(options, flags.images, encoder.tokenizer());
  images.refuse_in(flags.system, "--system");
  options.found.block_patches = images.patches();
  JobSpec spec = make_job(options, Purpose::Generate);
  if (!comm || comm->topology().rank == 0) {
    say_lines(encoder.format().notes);
    say_lines(notes);
  }
  std::vector<std::vector<int32_t>> encoded;
  size_t longest = 0;
  for (const Prompt& prompt : prompts) {
    encoded.push_back(
        images.expand(encoder.encode(images.write(prompt.text, prompt.place), prompt.place), prompt.place));
    longest = std::max(longest, encoded.back().size());
  }
  spec.cache_positions = static_cast<int64_t>(longest) + flags.max_new_tokens;
  spec.cut.sequence_length = 1;
  const Planned planned = plan_use(std::move(spec), options, comm.get());
  if (!comm || comm->topology().rank == 0) {
    say_lines(
        position_notes(planned.spec.cache_positions, "the longest prompt with --max-new-tokens:", planned.spec.model));
    say_lines(options_without_effect(options, {.draws_nothing = flags.sampling.temperature == 0,
                                               .shows_no_image = images.empty(),
                                               .reads_no_prompts = flags.prompts_file.empty()}));
  }
  use_model(planned, options, std::move(comm), [&](Session& session) {
    session.agree("the prompts", std::accumulate(encoded.begin(), encoded.end(), uint64_t{0},
                                                 [](uint64_t hash, const std::vector<int32_t>& prompt) {
                                                   return hash_of(std::span(prompt), hash);
                                                 }));
    Generator generator(session, generate_options(options, flags, encoder));
    std::vector<uint32_t> shown;
    for (size_t i = 0; i < prompts.size(); i++) {
      ReplyText text(encoder.stream(), flags.stop);
      images.show(encoded[i], generator, options, shown);
      const std::vector<int32_t> reply = generator.generate(encoded[i], [&](int32_t token) { return text.add(token); });
      if (session.rank() != 0) continue;
      if (flags.json) {
        fmt::print("{}\n", to_line({{"prompt", prompts[i].text}, {"text", text.text()}, {"ids", reply}}));
      } else {
        fmt::print("{}{}\n{}\n", i ? "\n" : "", prompts[i].text, text.text());
      }
      std::fflush(stdout);
    }
  });
  return 0;
}

}  // namespace snug
