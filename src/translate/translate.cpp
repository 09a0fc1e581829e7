#include "translate/translate.h"

#include <fmt/format.h>

#include <algorithm>

#include "translate/gather.h"
#include "translate/translator.h"

namespace snug {
namespace {

// Writes "key: value  # origin" with the origins in one column where values are short.
std::string job_line(const std::string& key, const JobKey& entry, bool pin) {
  constexpr size_t kColumn = 38;
  const bool live = !entry.commented || pin;
  std::string line = fmt::format("{}{}: {}", live ? "" : "# ", key, entry.value);
  if (!entry.origin.empty()) {
    line += std::string(line.size() < kColumn ? kColumn - line.size() : 1, ' ');
    line += fmt::format("# {}{}", live ? "" : "was ", entry.origin);
  }
  return line + "\n";
}

std::string job_of(const Translator& t, bool pin) {
  std::string live = fmt::format("# By snug translate, from options of {}.\n", name(t.program())), decided, refused;
  for (const OurKey& key : our_keys()) {
    const auto found = t.keys().find(std::string(key.name));
    if (found == t.keys().end()) continue;
    (found->second.commented && !pin ? decided : live) += job_line(found->first, found->second, pin);
  }
  const bool trains = t.program() != Dialect::DeepSpeed && t.program() != Dialect::Accelerate;
  for (const char* required : {"model", "data"})
    if (!t.has(required))
      live += fmt::format("# {}: {}\n", required, trains ? "to be given" : "to be given, and is none of these options");
  if (t.has("eval_every") && !t.has("validation")) live += "# validation: to be given\n";
  for (size_t i = 0; i < t.settings().size(); i++)
    if (const Setting& one = t.settings()[i]; letter(t.verdict(i).mark) == 'x')
      refused += fmt::format("# x {}{}: {}\n", one_line(one.written), one.is_switch ? "" : " " + one_line(one.value),
                             one_line(t.verdict(i).text));
  if (!decided.empty()) decided = "# snug decides; uncomment to pin:\n" + decided;
  if (!refused.empty()) refused = "# Not translated:\n" + refused;
  return live + decided + refused;
}

}  // namespace

std::string TranslatedJob::report_text() const {
  std::string counts, text;
  const auto read = std::ranges::count(report, false, &ReportLine::is_default);
  for (const char mark : {'=', '~', '.', 'x'}) {
    const auto count =
        std::ranges::count_if(report, [&](const ReportLine& line) { return line.mark == mark && !line.is_default; });
    if (count > 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, mark);
  }
  text = fmt::format("{}, {} option{}: {}\n", program, read, read == 1 ? "" : "s", counts);
  for (const ReportLine& line : report) {
    text += fmt::format("{} {}{}{}", line.mark, line.option, line.value.empty() ? "" : " " + line.value,
                        line.origin.empty() ? "" : " (" + line.origin + ")");
    text += line.text.empty() ? "\n" : ": " + line.text + "\n";
  }
  for (const std::string& remark : remarks) text += "note: " + remark + "\n";
  return text;
}

TranslatedJob translate(const TranslateRequest& request, const FileReader& read) {
  Gathered found = gather(request, read);
  Translator t(found.program, std::move(found.command), std::move(found.starts_by), std::move(found.settings),
               request.ranks);
  t.translate();
  TranslatedJob result;
  result.program = name(t.program());
  result.job = job_of(t, request.pin);
  result.remarks = t.remarks();
  result.changes = t.changes();
  for (size_t i = 0; i < t.settings().size(); i++) {
    const Setting& setting = t.settings()[i];
    const Verdict& verdict = t.verdict(i);
    // A default is no option that was read; what it changes is said all the same.
    if (setting.is_default && (verdict.mark == Mark::Same || verdict.mark == Mark::Decided)) continue;
    const std::string origin = setting.is_default                 ? "their default"
                               : setting.origin == "command line" ? ""
                                                                  : setting.origin;
    result.report.push_back({letter(verdict.mark), one_line(setting.written),
                             setting.is_switch ? "" : one_line(setting.value), one_line(origin), one_line(verdict.text),
                             setting.is_default});
  }
  return result;
}

}  // namespace snug
