// Commands that need no data set: import, merge, generate.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/text.h"
#include "format/gguf_import.h"
#include "format/json.h"
#include "train/export.h"
#include "train/generate.h"

namespace snug {
namespace {

constexpr uint64_t kMaxPrompts = 64u << 20;

void require_out(const Options& options) {
  if (options.out.empty()) user_error("--out is required: the directory to be made");
}

struct Prompt {
  std::string text, place;
};

std::vector<Prompt> read_prompts(const CommandFlags& flags) {
  std::vector<Prompt> prompts;
  for (const std::string& text : flags.prompts) prompts.push_back({text, fmt::format("--prompt '{}'", text)});
  if (flags.prompts_file.empty()) return prompts;
  std::istringstream lines(read_text(flags.prompts_file, kMaxPrompts));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string place = fmt::format("{}, line {}", flags.prompts_file, ++number);
    if (line.empty()) continue;
    const Json object = parse_json(line, place);
    prompts.push_back({JsonObject(object, place).string("prompt"), place});
  }
  return prompts;
}

// A directory is replaced only if all that is in it belongs to a model: whatever else lies there is somebody's.
void refuse_to_replace(const Options& options, const std::vector<std::string>& inputs) {
  const std::filesystem::path out = options.out;
  if (!options.overwrite || !std::filesystem::is_directory(out)) return;
  const std::vector<std::string> known = side_files(out);
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".json"));
    if (!entry.is_regular_file() || !(weights || std::ranges::find(known, name) != known.end()))
      user_error("{}: holds '{}', which is no part of a model directory; --overwrite replaces nothing else",
                 options.out, name);
  }
  for (const std::string& input : inputs)
    if (std::filesystem::weakly_canonical(input) == std::filesystem::weakly_canonical(out))
      user_error("{}: is read by this command, it cannot be replaced at the same time", options.out);
}

void print_made(const Options& options, const CommandFlags& flags, std::string_view what) {
  if (flags.json)
    fmt::print("{}\n", to_line({{"out", options.out}}));
  else
    fmt::print("{}: {}\n", options.out, what);
}

}  // namespace

int import_command(const Options& options, const CommandFlags& flags) {
  require_out(options);
  refuse_to_replace(options, {});
  import_gguf(flags.file, options.out, options.overwrite ? Existing::Replace : Existing::Refuse);
  print_made(options, flags, "a model directory");
  return 0;
}

int merge_command(const Options& options, const CommandFlags& flags) {
  require_out(options);
  if (options.adapter.empty()) user_error("--adapter is required: the PEFT directory to be merged");
  refuse_to_replace(options, {options.model, options.adapter});
  const Existing existing = options.overwrite ? Existing::Replace : Existing::Refuse;
  { const PendingDirectory probe(options.out, existing); }  // refuses now what it would refuse after the work
  Session session = make_session(make_job(options, Purpose::Merge), options);
  session.load();
  session.run(Task::Merge);
  export_model(session, options.out, options.model, existing);
  print_made(options, flags, "base and adapter as one model");
  return 0;
}

int generate_command(const Options& options, const CommandFlags& flags) {
  const std::vector<Prompt> prompts = read_prompts(flags);
  if (prompts.empty() && !flags.prompts_file.empty())
    user_error("{}: found no prompt, expected at least one", flags.prompts_file);
  if (prompts.empty()) user_error("--prompt or --prompts is required: what is to be completed");
  JobSpec spec = make_job(options, Purpose::Generate);
  const PromptEncoder encoder(options);
  std::vector<std::vector<int32_t>> encoded;
  size_t longest = 0;
  for (const Prompt& prompt : prompts) {
    encoded.push_back(encoder.encode(prompt.text, prompt.place, spec.config));
    longest = std::max(longest, encoded.back().size());
  }
  spec.cache_positions = static_cast<int64_t>(longest) + flags.max_new_tokens;
  spec.cut.sequence_length = 1;
  const std::vector<int64_t> stop = encoder.stop_tokens(spec.config);
  Session session = make_session(std::move(spec), options);
  session.load();
  Generator generator(session, {flags.max_new_tokens, flags.temperature, options.seed, stop});
  for (size_t i = 0; i < prompts.size(); i++) {
    const std::vector<int32_t> reply = generator.generate(encoded[i]);
    const std::string text = encoder.decode(reply);
    if (flags.json) {
      fmt::print("{}\n", to_line({{"prompt", prompts[i].text}, {"text", text}, {"ids", reply}}));
    } else {
      fmt::print("{}{}\n{}\n", i ? "\n" : "", prompts[i].text, text);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace snug
