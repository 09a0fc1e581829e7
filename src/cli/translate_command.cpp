// snug translate: options of another program -> a job file.
#include <algorithm>
#include <filesystem>

#include "api/failure.h"
#include "api/run_directory.h"
#include "api/text.h"
#include "base/file.h"
#include "base/say.h"
#include "cli/commands.h"
#include "translate/translate.h"
#include "translate/tree.h"

namespace snug {
namespace {

std::optional<Dialect> program_from(const std::string& word) {
  if (word.empty()) return std::nullopt;
  std::string names;
  for (const auto& [name, dialect] : program_names()) {
    if (word == name) return dialect;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  user_error("--from: found '{}', expected one of {}", word, names);
}

std::optional<std::string> read_if_there(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  return read_text(path, kMaxTranslatedFile);
}

void write_job(const std::string& out, const std::string& job, bool overwrite) {
  refuse_runs_own(out);
  require_writable_file(out, "--out");
  if (std::filesystem::exists(out) && !overwrite)
    user_error("--out: found '{}', expected a name that is free; --overwrite replaces the file", out);
  write_text(out, job);
}

}  // namespace

int translate_command(const JobConfig& options, const CommandFlags& flags) {
  TranslateRequest request;
  request.words = flags.words;
  request.program = program_from(flags.from);
  if (options.ranks > 0) request.ranks = options.ranks;
  request.pin = flags.pin;
  const TranslatedJob result = translate(request, read_if_there);
  if (!options.out.empty()) write_job(options.out, result.job, options.overwrite);
  if (flags.json) {
    Json lines = Json::array();
    for (const ReportLine& line : result.report)
      lines.push_back({{"mark", std::string(1, line.mark)},
                       {"option", line.option},
                       {"value", line.value},
                       {"origin", line.origin},
                       {"text", line.text},
                       {"default", line.is_default}});
    print(to_line({{"program", result.program},
                   {"job", result.job},
                   {"options", std::move(lines)},
                   {"notes", result.remarks},
                   {"whole", !result.changes}}) +
          "\n");
  } else {
    if (options.out.empty()) print(result.job);
    say(result.report_text());
  }
  if (!result.changes) return kDone;
  return fail(kUser, "translate: what is marked x above and changes what is trained is not in the job");
}

}  // namespace snug
