// snug translate as a command, and what it writes as a job of snug's.
#include <fmt/format.h>

#include <set>

#include "cli_fixture.h"
#include "translate_cases.h"

namespace snug {
namespace {

class TranslateCli : public Cli {
 protected:
  // Starts the program on a case's words, in a directory that has its files.
  Outcome translated(const std::string& name, const Words& flags = {}) const {
    for (const fs::path& folder : {kTranslateCases / "shared", kTranslateCases / name})
      fs::copy(folder, directory_.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    const TranslateCase one = read_case(name);
    Words words = with({"translate"}, flags);
    if (one.request.ranks) words = with(words, {"--ranks", std::to_string(*one.request.ranks)});
    return run(with(with(words, {"--"}), one.request.words));
  }
};

TEST_F(TranslateCli, TheJobGoesToStandardOutputAndTheReportToStandardError) {
  const Outcome outcome = translated("lf_lora_sft");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, text_of(kTranslateCases / "lf_lora_sft/job.yaml"));
  EXPECT_EQ(outcome.err, text_of(kTranslateCases / "lf_lora_sft/report.txt"));
}

TEST_F(TranslateCli, WhatWouldChangeTheTrainingEndsInExitCode2) {
  const Outcome outcome = translated("job1", {"--out", "out.yaml"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(text_of(at("out.yaml")), text_of(kTranslateCases / "job1/job.yaml"));
  EXPECT_THAT(outcome.err, HasSubstr("snug: translate: what is marked x above"));
  EXPECT_THAT(translated("job1", {"--out", "out.yaml"}).err, HasSubstr("expected a name that is free"));
  EXPECT_EQ(translated("lf_lora_sft", {"--out", "out.yaml", "--overwrite"}).code, 0);
}

TEST_F(TranslateCli, JsonHasTheJobAndEveryOption) {
  const Outcome outcome = translated("job1", {"--json"});
  EXPECT_EQ(outcome.code, 2);
  const auto said = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(said["job"], text_of(kTranslateCases / "job1/job.yaml"));
  EXPECT_EQ(said["program"], "llama-recipes");
  EXPECT_EQ(said["whole"], false);
  EXPECT_EQ(said["options"].size(), 14U);
  EXPECT_EQ(said["options"].back()["option"], "--output_dir");
  EXPECT_EQ(said["options"][1]["option"], "dataset");
  EXPECT_EQ(said["options"][1]["default"], true);
}

TEST_F(TranslateCli, FilesNeedNoDashesAndFlagsAreSnugs) {
  put(at("t.yaml"), "base_model: m\ndatasets:\n  - path: d.jsonl\n    type: completion\nlearning_rate: 1e-5\n");
  EXPECT_EQ(run({"translate", "t.yaml", "--ranks", "2"}).code, 0) << text_of(at("stderr"));
  EXPECT_EQ(run({"translate", "t.yaml", "micro_batch_size=3", "--ranks", "2", "--pin"}).code, 0);
  EXPECT_THAT(text_of(at("stdout")), HasSubstr("\nmicro_batch_size: 3"));
  expect_refusal({"translate"}, {"words"});
  expect_refusal({"translate", "t.yaml", "--learning_rate", "1"}, {"learning_rate"});
  expect_refusal({"translate", "t.yaml", "--from", "unsloth"}, {"--from", "'unsloth'", "llamafactory"});
  expect_refusal({"translate", "--", "ls"}, {"--from"});
}

// What translates whole, and the five jobs that snug exists for, on a tiny model and data.
TEST_F(TranslateCli, JobsArePlanned) {
  size_t planned = 0;
  std::string pairs;  // of which kto makes replies with labels
  for (int i = 0; i < 8; i++)
    pairs += fmt::format("{{\"prompt_ids\": [{}, 6], \"chosen_ids\": [7, 8, {}], \"rejected_ids\": [9]}}\n", i, i);
  put(at("pairs.jsonl"), pairs);
  for (const std::string& name : case_names()) {
    const TranslatedJob job = read_case(name).translated();
    if (job.changes && !name.starts_with("job")) continue;
    std::string text, data = kModels / "data.jsonl";
    std::istringstream lines(job.job);
    for (std::string line; std::getline(lines, line);) {
      const std::string key = line.substr(0, line.find(':'));
      if (const size_t tower = line.find(", vpm"); tower != line.npos) line.erase(tower, 5);  // this model has none
      const std::set<std::string> of_theirs{"model",   "data",   "data_format", "validation",
                                            "columns", "prompt", "adapter",     "reference"};
      if (key == "teacher")
        text += fmt::format("teacher: {}\n", (kModels / "llama").string());
      else if (!of_theirs.contains(key))
        text += line + "\n";
      if (key == "objective" && !line.starts_with("objective: distill")) data = at("pairs.jsonl");
    }
    put(at("job.yaml"), text);
    const Outcome outcome =
        run({"plan", "job.yaml", "--model", kModels / "llama", "--data", data, "--machine", "8xH100", "--json"});
    EXPECT_EQ(outcome.code, 0) << name << "\n" << outcome.err;
    planned++;
  }
  EXPECT_GE(planned, 36U);
}

}  // namespace
}  // namespace snug
