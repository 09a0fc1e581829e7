// What a run says while it goes on, to people and to programs.
#include <map>
#include <set>

#include "cli_fixture.h"
#include "doc_tables.h"

namespace snug {
namespace {

using ::testing::MatchesRegex;
using Json = nlohmann::ordered_json;

// Returns lines that are JSON, one and all.
std::vector<Json> events_of(const std::string& log) {
  std::vector<Json> events;
  for (const std::string& line : lines_of(log)) {
    events.push_back(Json::parse(line, nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << line;
    EXPECT_EQ(events.back().begin().key(), "event");
    EXPECT_THAT(events.back().value("time", ""),
                MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9:]+[.][0-9][0-9][0-9]Z"));
  }
  return events;
}

std::vector<std::string> names_of(const std::vector<Json>& events) {
  std::vector<std::string> names;
  for (const Json& event : events)
    if (event["event"] != "note") names.push_back(event["event"]);
  return names;
}

std::set<std::string> fields_of(const Json& event) {
  std::set<std::string> fields;
  for (const auto& [key, value] : event.items())
    if (key != "event" && key != "time") fields.insert(key);
  return fields;
}

std::string without_quotes(const std::string& cell) {
  std::string text = cell;
  std::erase(text, '`');
  return text;
}

// Returns the fields of each event as docs/runs.md has them; those of "step" are in words.
std::map<std::string, std::set<std::string>> documented_fields() {
  std::map<std::string, std::set<std::string>> events;
  bool here = false;
  for (const std::string& line : lines_of(text_of(fs::path(SNUG_DOCS) / "runs.md"))) {
    here = line.starts_with("| event |") || (here && line.starts_with("|"));
    if (!here || !line.starts_with("| `")) continue;
    const std::vector<std::string> cells = cells_of(line);
    std::istringstream names(without_quotes(cells.at(1)));
    for (std::string name; std::getline(names >> std::ws, name, ',');) events[without_quotes(cells[0])].insert(name);
  }
  return events;
}

class LogCli : public Cli {};

TEST_F(LogCli, AJsonLogIsNothingButEventsAsTheyAreDocumented) {
  const Words validation{"--validation", "0.4", "--eval-every", "4", "--log-every", "3"};
  const Outcome outcome = run(job("train", with(validation, {"--log-format", "json", "--json"})));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> events = events_of(outcome.err);
  EXPECT_EQ(names_of(events), Words({"plan", "begin", "step", "step", "checkpoint", "step", "checkpoint", "end"}))
      << "of steps, those of --log-every and those that were evaluated";
  const auto documented = documented_fields();
  std::vector<Json> metrics;
  for (const std::string& line : lines_of(text_of(at("run/metrics.jsonl")))) metrics.push_back(Json::parse(line));
  for (const Json& event : events) {
    const std::string name = event["event"];
    if (name == "step")
      EXPECT_EQ(fields_of(event), fields_of(metrics.at(event["step"].get<size_t>() - 1)));
    else
      EXPECT_EQ(fields_of(event), documented.at(name)) << name;
  }
  EXPECT_EQ(events.back()["result"], "run/adapter");
  const bool first_is_best = metrics[3]["eval_loss"] <= metrics[5]["eval_loss"];
  EXPECT_EQ(events.back()["best_step"], first_is_best ? 4 : 6);
  const Json plan = Json::parse(text_of(at("run/plan.json")));
  for (const char* key : {"hash", "device_bytes", "host_bytes", "tokens_per_step"})
    EXPECT_EQ(events.front()[key], plan[key]) << key;
  EXPECT_EQ(events.front()["steps"], 6);
  EXPECT_EQ(Json::parse(outcome.out)["steps"], 6);
}

TEST_F(LogCli, AnErrorEndsAJsonLog) {
  run_well(job("train"));
  const Outcome refused = run(job("train", {"--log-format", "json"}));
  EXPECT_EQ(refused.code, 2);
  const std::vector<Json> events = events_of(refused.err);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0]["message"], "run: holds a run already; --resume continues it, --overwrite replaces it");
  EXPECT_EQ(events[0]["exit_code"], 2);
  EXPECT_EQ(fields_of(events[0]), documented_fields().at("error"));
  const Outcome failed = run(job("train", {"--overwrite", "--log-format", "json", "--learning-rate", "999",
                                           "--max-grad-norm", "0", "--max-steps", "400"}));
  EXPECT_EQ(failed.code, 2);
  const std::vector<Json> told = events_of(failed.err);
  EXPECT_THAT(told.back()["message"].get<std::string>(), HasSubstr("is not finite"));
  EXPECT_EQ(std::ranges::count(names_of(told), "error"), 1);
}

}  // namespace
}  // namespace snug
