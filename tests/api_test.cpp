// Plans and trains as a program does that uses snug as a library: without a command line, flags or a job file.
#include "api/run.h"

#include "api/target.h"
#include "base/say.h"
#include "cli_fixture.h"
#include "expect_error.h"

namespace snug {
namespace {

class Api : public Cli {
 protected:
  static void SetUpTestSuite() { prepare_process(); }
  void SetUp() override {
    say_to([this](std::string_view text) { said_ += text; });
  }
  void TearDown() override { say_to({}); }

  // Returns the job of Cli::job(), into another directory.
  JobConfig config() const {
    JobConfig config;
    config.model = kModels / "llama";
    config.data = {kModels / "data.jsonl"};
    config.sequence_length = 48;
    config.batch_size = 4;
    config.max_steps = 6;
    config.threads = 1;
    config.compute = "fp32";
    config.learning_rate = 1e-3;
    config.out = at("library");
    return config;
  }

  std::string said_;
};

TEST_F(Api, TakesWhatItPlansAndLearnsAsTheCommandLineDoes) {
  const Job job(config());
  const Plan plan = job.plan();
  require_fit(plan);
  ASSERT_TRUE(plan.data);
  EXPECT_EQ(plan.data->steps, 6);

  std::vector<nlohmann::json> events;
  uint64_t of_run = 0;
  int starts = 0;
  const RunResult result = job.run({.planned = [&](const Plan& of) { of_run = of.planned.compiled.hash; },
                                    .event = [&](const nlohmann::ordered_json& event) { events.push_back(event); },
                                    .starts = [&] { starts++; }});
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(result.result, at("library") / "adapter");
  EXPECT_TRUE(fs::exists(result.result / "adapter_model.safetensors"));
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(of_run, plan.planned.compiled.hash);
  ASSERT_EQ(result.ranks.size(), 1u);
  EXPECT_EQ(result.ranks[0].bytes, plan.planned.compiled.plan.reserved_bytes);

  run_well(Cli::job("train"));
  std::vector<double> heard;
  for (const nlohmann::json& event : events)
    if (event["event"] == "step") heard.push_back(event["loss"]);
  EXPECT_EQ(heard, losses("run"));
  EXPECT_EQ(losses("library"), losses("run"));
  EXPECT_EQ(events.front()["event"], "begin");
  EXPECT_EQ(events.back()["event"], "end");
  const auto told = nlohmann::json::parse(text_of(at("run/plan.json")));
  EXPECT_EQ(nlohmann::json::parse(text_of(at("library/plan.json")))["classes"], told["classes"]);
  EXPECT_EQ(result.loss, losses("run").back());
}

TEST_F(Api, ARunThatIsInterruptedGoesOn) {
  int64_t steps = 0;
  const RunResult stopped =
      Job(config()).run({.event = [&](const nlohmann::ordered_json& event) { steps += event["event"] == "step"; },
                         .interrupted = [&] { return steps == 1; }});
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.steps, 2);
  JobConfig rest = config();
  rest.resume = true;
  const RunResult ended = Job(rest).run();
  EXPECT_FALSE(ended.interrupted);
  EXPECT_EQ(ended.steps, 6);
  run_well(Cli::job("train"));
  EXPECT_EQ(losses("library"), losses("run"));
  EXPECT_THAT(said_, HasSubstr("goes on after step 2"));
}

// Messages name fields, not flags.
TEST_F(Api, RefusesInTheWordsOfTheConfiguration) {
  JobConfig none = config();
  none.model.clear();
  EXPECT_TRUE(fails_with<UserError>([&] { Job{none}; }, "model is required"));
  JobConfig small = config();
  small.host_memory = 1 << 20;
  const Plan plan = Job(small).plan();
  EXPECT_TRUE(fails_with<CapacityError>([&] { require_fit(plan); }, "it would fit with host_memory "));
  EXPECT_FALSE(fs::exists(at("library")));
}

}  // namespace
}  // namespace snug
