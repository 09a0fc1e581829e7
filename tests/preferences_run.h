// Runs that learn from pairs, or from replies that were judged, on the tiny models.
#pragma once

#include "cli_fixture.h"

namespace snug {

class Preferences : public Cli {
 protected:
  void SetUp() override {
    put_lines("pairs.jsonl", [](const nlohmann::json& pair) {
      return nlohmann::json{
          {"prompt_ids", pair["prompt"]}, {"chosen_ids", pair["chosen"]}, {"rejected_ids", pair["rejected"]}};
    });
    put_lines("judged.jsonl", [](const nlohmann::json& judged) {
      return nlohmann::json{
          {"prompt_ids", judged["prompt"]}, {"completion_ids", judged["reply"]}, {"label", judged["label"]}};
    });
  }

  // Writes a file of the fixtures' lines under the keys of snug.
  void put_lines(const std::string& name, const std::function<nlohmann::json(const nlohmann::json&)>& line_of) const {
    std::string text;
    std::ifstream in(fs::path(SNUG_FIXTURES) / "objective" / name);
    for (std::string line; std::getline(in, line);) text += line_of(nlohmann::json::parse(line)).dump() + "\n";
    put(at(name), text);
  }

  static Words dpo(const Words& more) {
    return with({"train",
                 "--model",
                 kModels / "llama",
                 "--data",
                 "pairs.jsonl",
                 "--out",
                 "run",
                 "--objective",
                 "dpo",
                 "--compute",
                 "fp32",
                 "--sequence-length",
                 "64",
                 "--batch-size",
                 "2",
                 "--micro-batch-size",
                 "1",
                 "--learning-rate",
                 "1e-2",
                 "--threads",
                 "1",
                 "--max-steps",
                 "4",
                 "--save-every",
                 "2"},
                more);
  }

  // Replaces the data of words.
  static Words on(const char* file, Words words) {
    *std::ranges::find(words, "pairs.jsonl") = file;
    return words;
  }

  // Runs what is refused once a run is there.
  void expect_refused(const Words& words, const Words& why) const {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    for (const std::string& part : why) EXPECT_THAT(outcome.err, testing::HasSubstr(part));
  }

  std::vector<nlohmann::json> metrics(const char* name = "run") const {
    std::vector<nlohmann::json> all;
    std::istringstream lines(text_of(at(name) / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      all.push_back(nlohmann::json::parse(line));
      for (const char* other : {"step_seconds", "tokens_per_second"}) all.back().erase(other);
    }
    return all;
  }
};

}  // namespace snug
