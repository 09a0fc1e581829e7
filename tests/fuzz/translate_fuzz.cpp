// Options of other programs: anything but a UserError, or a job that snug does not read, is a fault. Each input is
// taken for a file of options in YAML and in JSON, for a script, and for the words of a command, which all name it
// again.
#include <cstdint>

#include "api/job_file.h"
#include "base/error.h"
#include "translate/translate.h"

namespace {

using namespace snug;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

void try_words(std::vector<std::string> words, const std::string& text) {
  const FileReader read = [&](const std::string&) { return std::optional<std::string>(text); };
  TranslateRequest request{std::move(words), std::nullopt, std::nullopt, text.size() % 2 == 1};
  if (text.size() % 3 == 0) request.ranks = 2;
  // Whose options they are is said by the text, or by its length.
  const size_t program = text.size() % (2 * program_names().size());
  if (program < program_names().size()) request.program = program_names()[program].second;
  TranslatedJob result;
  try {
    result = translate(request, read);
  } catch (const UserError&) {
    return;
  }
  JobConfig options;
  try {
    parse_job(result.job, "job.yaml", options);
  } catch (const UserError& error) {
    check(false, "{}\n{}", error.what(), result.job);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const char* file : {"a.yaml", "a.json", "a.sh"}) try_words({file}, text);
  try_words(lines_of(text), text);
  return 0;
}
