// What a run says while it goes on, to people and to programs.
#include <map>
#include <set>

#include "doc_tables.h"
#include "terminal.h"

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

TEST_F(LogCli, ALossThatLeapsIsSaidWithTheSamplesOfItsStep) {
  std::string lines;
  for (int line = 1; line <= 64; line++)
    lines += line == 58 ? "{\"input_ids\": [9, 700, 33, 512, 8, 901, 77, 40]}\n"
                        : "{\"input_ids\": [5, 5, 5, 5, 5, 5, 5, 5]}\n";
  put(at("alike.jsonl"), lines);
  Words words = job(
      "train", {"--shuffle", "false", "--packing", "false", "--batch-size", "2", "--method", "full", "--learning-rate",
                "1e-2", "--schedule", "constant", "--max-steps", "32", "--on-event", "cat > events.jsonl"});
  std::ranges::replace(words, (kModels / "data.jsonl").string(), "alike.jsonl");
  const std::string said = run_well(words).err;
  const std::string place = "step 29: the loss leapt to ";
  ASSERT_THAT(said, HasSubstr("warning: " + place));
  EXPECT_THAT(said, HasSubstr("; its samples: alike.jsonl, line 57; alike.jsonl, line 58\n"));
  EXPECT_EQ(said.find("warning: "), said.rfind("warning: "));
  const std::vector<Json> told = events_of(text_of(at("events.jsonl")));
  const auto warning = std::ranges::find(told, Json("warning"), [](const Json& event) { return event["event"]; });
  ASSERT_NE(warning, told.end());
  EXPECT_EQ((*warning)["samples"], Json({"alike.jsonl, line 57", "alike.jsonl, line 58"}));
  EXPECT_THAT((*warning)["message"].get<std::string>(), StartsWith(place));
  EXPECT_EQ(fields_of(*warning), documented_fields().at("warning"));
}

// What a terminal shows: lines said, the last of which was not ended, and all that stood there meanwhile.
struct Screen {
  std::vector<std::string> lines{""}, overwritten;

  void take(std::string_view text) {
    constexpr std::string_view kClear = "\r\033[K";
    while (!text.empty()) {
      if (text.starts_with(kClear)) {
        overwritten.push_back(std::exchange(lines.back(), ""));
        text.remove_prefix(kClear.size());
      } else if (text.starts_with("\r\n")) {  // as the terminal makes of a newline
        lines.emplace_back();
        text.remove_prefix(2);
      } else {
        lines.back() += text.front();
        text.remove_prefix(1);
      }
    }
  }
};

class TerminalCli : public Cli {
 protected:
  // Runs snug with a terminal of so many columns as its standard error.
  Screen run_at_terminal(const Words& words, unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    Screen screen;
    screen.take(snug::run_at_terminal(directory_.path(), words, {STDERR_FILENO}, &size));
    return screen;
  }
};

// Returns a line with its numbers as '#', as rates and times differ from run to run.
std::string without_numbers(const std::string& line) {
  std::string text;
  for (const char c : line) {
    const bool number = std::isdigit(static_cast<unsigned char>(c)) || c == '.';
    if (!number || !text.ends_with('#')) text += number ? '#' : c;
  }
  return text;
}

TEST_F(TerminalCli, AStatusLineStandsBelowAllThatIsSaid) {
  const Words words = job("train", {"--log-every", "3", "--max-steps", "30"});
  const Screen screen = run_at_terminal(words, 120);
  EXPECT_THAT(screen.overwritten,
              ::testing::Contains(
                  MatchesRegex("step 1/30  .*left  loss .* tokens/s  device .* of .* GiB.*  process 0[.][0-9]+ GiB")));
  EXPECT_THAT(screen.overwritten, ::testing::Contains(MatchesRegex("step 7/30  .*left  loss .* [(][-+]0[.].*")));
  std::vector<std::string> shown, piped;
  for (const std::string& line : screen.lines) shown.push_back(without_numbers(line));
  const std::string in_pipe = run_well(with(words, {"--overwrite"})).err;
  EXPECT_EQ(in_pipe.find_first_of("\r\033"), in_pipe.npos);
  for (const std::string& line : lines_of(in_pipe)) piped.push_back(without_numbers(line));
  piped.emplace_back();
  EXPECT_EQ(shown, piped) << "nothing of the status is left";
}

TEST_F(TerminalCli, AStatusLineIsCutToTheTerminal) {
  size_t longest = 0;
  for (const std::string& status : run_at_terminal(job("train", {"--log-every", "3"}), 40).overwritten)
    longest = std::max(longest, status.size());
  EXPECT_EQ(longest, 39U);
}

TEST_F(TerminalCli, AJsonLogHasNoStatusLine) {
  const Screen screen = run_at_terminal(job("train", {"--log-format", "json"}), 120);
  EXPECT_THAT(screen.overwritten, ::testing::IsEmpty());
  for (size_t i = 0; i + 1 < screen.lines.size(); i++) EXPECT_TRUE(Json::accept(screen.lines[i])) << screen.lines[i];
}

}  // namespace
}  // namespace snug
