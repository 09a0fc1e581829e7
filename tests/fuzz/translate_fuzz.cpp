// Options of other programs: anything but a UserError, or a job that snug does not read, is a fault. The first byte
// says what the rest is: a file of options of a program, a script, or the words of a command, with a file that they
// name.
#include <cstdint>

#include "base/error.h"
#include "cli/job_file.h"
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t kind = data[0];
  constexpr const char* kFiles[] = {"a.yaml", "a.json", "a.sh"};
  TranslateRequest request;
  request.ranks = kind & 0x40 ? std::optional<int64_t>(2) : std::nullopt;
  request.pin = kind & 0x20;
  const size_t program = kind % 16;
  if (program < program_names().size()) request.program = program_names()[program].second;
  if ((kind >> 4 & 3) == 3)
    request.words = lines_of(text);
  else
    request.words = {kFiles[(kind >> 4 & 3) % 3]};
  const FileReader read = [&](const std::string&) { return std::optional<std::string>(text); };
  TranslatedJob result;
  try {
    result = translate(request, read);
  } catch (const UserError&) {
    return 0;
  }
  Options options;
  try {
    parse_job(result.job, "job.yaml", options);
  } catch (const UserError& error) {
    check(false, "{}\n{}", error.what(), result.job);
  }
  return 0;
}
