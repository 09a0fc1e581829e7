// Commands that need no data set: import, merge, generate.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/text.h"
#include "format/gguf_import.h"
#include "train/export.h"
#include "train/generate.h"

namespace snug {
namespace {

constexpr uint64_t kMaxPrompts = 64u << 20;

void require_out(const Options& options) {
  if (options.out.empty()) user_error("--out is required: the directory to be made");
}

std::vector<std::string> read_prompts(const CommandFlags& flags) {
  std::vector<std::string> prompts = flags.prompts;
  if (flags.prompts_file.empty()) return prompts;
  std::istringstream lines(read_text(flags.prompts_file, kMaxPrompts));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    number++;
    if (line.empty()) continue;
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object() || !object.contains("prompt") || !object["prompt"].is_string())
      user_error("{}, line {}: expected {{\"prompt\": \"...\"}}", flags.prompts_file, number);
    prompts.push_back(object["prompt"].get<std::string>());
  }
  return prompts;
}

}  // namespace

int import_command(const Options& options, const CommandFlags& flags) {
  require_out(options);
  import_gguf(flags.file, options.out, options.overwrite ? Existing::Replace : Existing::Refuse);
  if (flags.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"out", options.out}}.dump());
  else
    fmt::print("{}: a model directory\n", options.out);
  return 0;
}

int merge_command(const Options& options, const CommandFlags& flags) {
  require_out(options);
  if (options.adapter.empty()) user_error("--adapter is required: the PEFT directory to be merged");
  if (!options.overwrite && std::filesystem::exists(options.out))
    user_error("{}: exists already; --overwrite replaces it", options.out);
  JobSpec spec = make_job(options, Purpose::Merge);
  Session session(std::move(spec), thread_count(options));
  session.load();
  session.run(Task::Merge);
  export_model(session, options.out, options.model);
  if (flags.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"out", options.out}}.dump());
  else
    fmt::print("{}: base and adapter as one model\n", options.out);
  return 0;
}

int generate_command(const Options& options, const CommandFlags& flags) {
  const std::vector<std::string> prompts = read_prompts(flags);
  if (prompts.empty()) user_error("--prompt or --prompts is required: what is to be completed");
  JobSpec spec = make_job(options, Purpose::Generate);
  const PromptEncoder encoder(options);
  std::vector<std::vector<int32_t>> encoded;
  size_t longest = 0;
  for (const std::string& prompt : prompts) {
    encoded.push_back(encoder.encode(prompt));
    if (encoded.back().empty()) user_error("--prompt: found an empty text, expected at least one token");
    longest = std::max(longest, encoded.back().size());
  }
  spec.cache_positions = static_cast<int64_t>(longest) + flags.max_new_tokens;
  spec.cut.sequence_length = 1;
  const std::vector<int64_t> stop = encoder.stop_tokens(spec.config);
  Session session(std::move(spec), thread_count(options));
  session.load();
  Generator generator(session, {flags.max_new_tokens, flags.temperature, options.seed, stop});
  for (size_t i = 0; i < prompts.size(); i++) {
    const std::vector<int32_t> reply = generator.generate(encoded[i]);
    const std::string text = encoder.decode(reply);
    if (flags.json) {
      const nlohmann::ordered_json line{{"prompt", prompts[i]}, {"text", text}, {"ids", reply}};
      fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    } else {
      fmt::print("{}{}\n{}\n", i ? "\n" : "", prompts[i], text);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace snug
