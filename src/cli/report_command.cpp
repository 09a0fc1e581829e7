// snug report: runs -> one page.
#include <fmt/ranges.h>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "api/run_directory.h"
#include "api/text.h"
#include "base/file.h"
#include "base/say.h"
#include "base/size_text.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "report/page.h"
#include "report/page_server.h"

namespace snug {
namespace {

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

// Runs whose last names are alike are called by what was given.
void tell_apart(std::vector<RunFiles>& runs, const std::vector<std::string>& given) {
  std::vector<std::string> names;
  for (const RunFiles& run : runs) names.push_back(run.name);
  for (size_t i = 0; i < runs.size(); i++)
    if (std::ranges::count(names, names[i]) > 1) runs[i].name = given[i];
}

// A file of somebody's stays.
void refuse_to_replace_other(const std::string& out) {
  refuse_runs_own(out);
  require_writable_file(out, "--out");
  if (!std::filesystem::exists(out)) return;
  std::string begin(kPageBegin.size(), ' ');
  std::ifstream(out).read(begin.data(), std::ssize(begin));
  if (begin != kPageBegin)
    user_error("--out: found '{}', which is no report, expected a report to replace or a name that is free", out);
}

std::vector<RunFiles> read_runs(const std::vector<std::string>& given) {
  std::vector<RunFiles> runs;
  for (const std::string& run : given) runs.push_back(read_run(run));
  tell_apart(runs, given);
  return runs;
}

// Serves the runs' page, as they are at each request, until it is interrupted.
int serve_report(const JobConfig& options, const CommandFlags& flags) {
  if (!options.out.empty()) user_error("--out: found '{}' beside --serve, which writes no file", options.out);
  InterruptGuard guard;
  read_runs(flags.runs);  // what holds no run is refused here, not in a browser
  PageServer server(flags.port);
  const std::string url = fmt::format("http://127.0.0.1:{}/", server.port());
  guard.hold();
  flags.json ? print(to_line({{"url", url}, {"runs", flags.runs}}) + "\n")
             : say(fmt::format("{} shows {} until Ctrl-C\n", url, fmt::join(flags.runs, ", ")));
  const auto page = [&] {
    const std::vector<RunFiles> runs = read_runs(flags.runs);
    const bool goes_on = std::ranges::any_of(runs, [](const RunFiles& run) { return !run.end; });
    return ServedPage{report_page(runs, fmt::format("Read by snug {} at {}{}", SNUG_VERSION, now_text(),
                                                    goes_on ? "; loaded again every few seconds." : ".")),
                      goes_on};
  };
  server.serve(page, [&] { return guard.interrupted(); });
  return 0;
}

}  // namespace

int report_command(const JobConfig& options, const CommandFlags& flags) {
  const std::string out = options.out.empty() ? "report.html" : options.out;
  if (flags.runs.size() > kMaxRuns)
    user_error("command line: found {} runs, expected at most {}", flags.runs.size(), kMaxRuns);
  if (flags.serve) return serve_report(options, flags);
  refuse_to_replace_other(out);
  const std::vector<RunFiles> runs = read_runs(flags.runs);
  const std::string page =
      report_page(runs, fmt::format("Made by snug {} at {}, as the runs were then.", SNUG_VERSION, now_text()));
  write_text(out, page);
  if (flags.json) {
    print(to_line({{"out", out}, {"bytes", page.size()}, {"runs", flags.runs}}) + "\n");
  } else {
    say(fmt::format("{}: {} of {} run{}\n", out, format_size(page.size()), runs.size(), runs.size() == 1 ? "" : "s"));
  }
  return 0;
}

}  // namespace snug
