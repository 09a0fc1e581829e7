// snug init: a job file for a model and data, after a look at both.
#include "cli_fixture.h"

namespace snug {
namespace {

class Init : public Cli {
 protected:
  static Words init(const Words& more = {}) {
    return with({"init", "--model", kModels / "llama", "--data", kModels / "data.jsonl", "--compute", "fp32"}, more);
  }
};

TEST_F(Init, WhatItWritesSaysWhyAndTrains) {
  const Outcome outcome = run_well(init());
  const std::string job = text_of(at("job.yaml"));
  EXPECT_EQ(outcome.out, job);
  // 12 samples of 1 to 40 tokens, 217 in all: the shortest block holds them, and one block is a step.
  EXPECT_THAT(job, HasSubstr("# 12 samples, 217 tokens; the median has 16, the longest 40\ndata: "));
  EXPECT_THAT(job, HasSubstr("# all samples fit whole into a block of so many tokens\nsequence_length: 256\n"));
  EXPECT_THAT(job, HasSubstr("# blocks a step: about 1 step an epoch\nbatch_size: 1\n"));
  EXPECT_THAT(job, HasSubstr("# times through the data, which is small\nepochs: 3\n"));
  EXPECT_THAT(job, HasSubstr("# adapters: it takes "));
  EXPECT_THAT(job, HasSubstr("; full (all weights) would take "));
  EXPECT_EQ(job.find(" s a step"), job.npos) << "no rates were measured";
  EXPECT_THAT(job, HasSubstr("\nlearning_rate: 0.0002\n"));
  run_well({"train", "job.yaml", "--compute", "fp32", "--threads", "1", "--out", "run"});
  EXPECT_EQ(losses("run").size(), 3u);
}

TEST_F(Init, ItNamesATimeForAMachineWithRates) {
  run_well(init({"--machine", "RTX4090"}));
  EXPECT_THAT(text_of(at("job.yaml")), HasSubstr(" of the host, and about "));
}

TEST_F(Init, WhatIsAskedForStays) {
  run_well(init({"--method", "full", "--sequence-length", "48", "--epochs", "2", "--out", "mine.yaml"}));
  const std::string job = text_of(at("mine.yaml"));
  EXPECT_THAT(job, HasSubstr("# as asked; it takes "));
  for (const char* line : {"\nmethod: full\n", "\nsequence_length: 48\n", "\nepochs: 2\n", "\nlearning_rate: 1e-05\n"})
    EXPECT_THAT(job, HasSubstr(line));
  EXPECT_EQ(job.find("lora_rank"), job.npos);

  run_well(init({"--lora-rank", "4", "--optimizer", "lion", "--seed", "7", "--max-steps", "5", "--out", "other.yaml"}));
  const std::string other = text_of(at("other.yaml"));
  for (const char* line :
       {"\nlora_rank: 4\n", "# as asked\noptimizer: lion\n", "\nseed: 7\n", "\nmax_steps: 5\n", "\ncompute: fp32\n"})
    EXPECT_THAT(other, HasSubstr(line));
  EXPECT_EQ(other.find("epochs"), other.npos);
  run_well({"plan", "other.yaml"});
}

TEST_F(Init, AFileThatIsThereStays) {
  put(at("job.yaml"), "mine\n");
  expect_refusal(init(), {"job.yaml: found a file, expected none", "--overwrite"});
  EXPECT_EQ(text_of(at("job.yaml")), "mine\n");
  run_well(init({"--overwrite"}));
  EXPECT_NE(text_of(at("job.yaml")), "mine\n");
  expect_refusal({"init", "--model", kModels / "llama"}, {"--data is required"});
}

}  // namespace
}  // namespace snug
