// snug explain: what became of a run, and what its files tell.
#include "api/text.h"
#include "base/disk.h"
#include "base/say.h"
#include "cli/commands.h"
#include "report/explain.h"

namespace snug {
namespace {

// Returns what is free on a directory's disk; nothing where the system does not tell.
std::optional<uint64_t> room_in(const std::string& directory) {
  try {
    return free_bytes(existing_part(directory));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace

int explain_command(const JobConfig&, const CommandFlags& flags) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& directory : flags.runs) {
    const Circumstances circumstances{held_by(directory), read_kernel_log(), room_in(directory)};
    const std::vector<Finding> findings = is_before_its_first_step(directory)
                                              ? explain_beginning(circumstances)
                                              : explain(read_run(directory), circumstances);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    if (flags.runs.size() > 1 && !flags.json) print(directory + "\n");
    for (const Finding& finding : findings) {
      if (!flags.json) print(fmt::format("{:<8} {}\n", finding.subject, finding.text));
      list.push_back({{"subject", finding.subject}, {"text", finding.text}});
    }
    all.push_back({{"run", directory}, {"findings", std::move(list)}});
  }
  if (flags.json) print(to_line(all) + "\n");
  return 0;
}

}  // namespace snug
