// snug report, and what else shows a run: from a run of the tiny model.
#include "cli_fixture.h"

namespace snug {
namespace {

class ReportCli : public Cli {};

TEST_F(ReportCli, ARunBecomesOnePage) {
  const Words more{"--validation", kModels / "data.jsonl", "--eval-every", "2", "--trace", "run/trace.json"};
  ASSERT_EQ(run(job("train", more)).code, 0) << text_of(at("stderr"));
  put(at("run/samples-before.jsonl"), "{\"prompt\": \"a<b\", \"text\": \"before\", \"ids\": [1]}\n");
  const Outcome outcome = run({"report", "run", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = text_of(at("report.html"));
  const auto said = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(said["bytes"], page.size());
  EXPECT_EQ(said["out"], "report.html");
  for (const char* part : {"Held-out loss", "the same to the byte", "Timeline of a step of run", "a&lt;b",
                           "<th scope=\"row\">max_steps</th><td>6</td>", "data: hash", "packing"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("No run has a trace")));

  ASSERT_EQ(run(job("train", {"--out", "other", "--learning-rate", "2e-3"})).code, 0);
  EXPECT_EQ(run({"report", "run", "other", "--out", "both.html"}).code, 0) << text_of(at("stderr"));
  EXPECT_THAT(text_of(at("both.html")), HasSubstr("learning_rate (differs)</th><td>0.001</td><td>0.002</td>"));
  ASSERT_EQ(run(job("train", {"--overwrite"})).code, 0);
  EXPECT_FALSE(fs::exists(at("run/trace.json"))) << "of the run that was replaced";
  EXPECT_TRUE(fs::exists(at("run/samples-before.jsonl"))) << "of the model alone";
}

TEST_F(ReportCli, MetricsAreWrittenInOtherFormats) {
  ASSERT_EQ(run(job("train", {"--metrics-format", "csv,tensorboard"})).code, 0) << text_of(at("stderr"));
  EXPECT_EQ(std::ranges::count(text_of(at("run/metrics.csv")), '\n'), 7);
  EXPECT_FALSE(fs::is_empty(at("run/tensorboard")));
  ASSERT_EQ(run(job("train", {"--overwrite"})).code, 0);
  EXPECT_FALSE(fs::exists(at("run/metrics.csv")));
  EXPECT_FALSE(fs::exists(at("run/tensorboard")));
  fs::remove_all(at("run"));
  expect_refusal(job("train", {"--metrics-format", "wandb"}), {"metrics_format", "'wandb'", "csv, tensorboard"});
}

TEST_F(ReportCli, WhatHoldsNoRunOrMayNotBeReplacedIsRefused) {
  fs::create_directory(at("empty"));
  expect_refusal({"report", "empty"}, {"empty: found no run", "job.yaml"});
  expect_refusal({"report", "nowhere"}, {"nowhere: found no run"});
  expect_refusal({"report"}, {"run"});
  put(at("notes.txt"), "mine");
  expect_refusal({"report", "empty", "--out", "notes.txt"}, {"--out", "notes.txt", "a report"});
  expect_refusal({"report", "empty", "--out", "nowhere/report.html"}, {"--out", "nowhere"});
  expect_refusal(with({"report"}, Words(9, "empty")), {"9 runs", "at most 8"});
}

}  // namespace
}  // namespace snug
