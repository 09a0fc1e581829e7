// What is added to the cross-entropy of replies: against fp64 (fixtures/objective/sft.json), however a step is cut or
// held; and not to what is held out.
#include <gmock/gmock.h>

#include "expect_error.h"
#include "pairs.h"

namespace snug {
namespace {

const nlohmann::json& expected_sft() {
  static const nlohmann::json all = read_json(kObjective / "sft.json");
  return all;
}

JobSpec job_of_sft(const nlohmann::json& given, bool lora = false, DType compute = DType::F32) {
  ObjectiveOptions objective;
  objective.label_smoothing = given.value("label_smoothing", 0.0);
  objective.z_loss = given.value("z_loss", 0.0);
  JobSpec spec = job_of(objective, lora, compute, 32);
  spec.numerics.neftune_alpha = given.value("neftune_alpha", 0.0);
  return spec;
}

// Calls f with the session of a variant and a run of so many steps, each in passes of four replies in all.
void with_run(const char* variant, int64_t passes, int64_t steps, const std::function<void(Session&, PairRun&)>& f) {
  const Dataset dataset = replies_of_file();
  References none(dataset);
  JobSpec spec = job_of_sft(expected_sft()[variant]["options"]);
  spec.cut.micro_batch = 4 / passes;
  spec.cut.passes = passes;
  Session session(spec, 1);
  session.load();
  PairRun run(session, dataset, none, steps);
  f(session, run);
}

class SftSteps : public testing::TestWithParam<const char*> {};

// Four replies a step, in one pass and in four.
TEST_P(SftSteps, LossAndNormOfThreeStepsAreThoseOfFp64) {
  for (const int64_t passes : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} passes", passes));
    with_run(GetParam(), passes, 3, [](Session&, PairRun& run) {
      const TempDirectory directory;
      expect_steps(run.train(directory.path() / "out", 1e-3), expected_sft()[GetParam()]["steps"]);
    });
  }
}

TEST_P(SftSteps, GradientsOfEveryParameterAreThoseOfFp64) {
  with_run(GetParam(), 1, 3, [](Session& session, PairRun& run) {
    expect_gradients(session, run, expected_sft()[GetParam()]["steps"][0]["gradients"]);
  });
}

TEST_P(SftSteps, WhatIsHeldOutHasTheCrossEntropyAlone) {
  with_run(GetParam(), 1, 1, [](Session& session, PairRun& run) {
    const double loss = evaluate(session, run.data, 1).loss, expected = expected_sft()["cross_entropy"].get<double>();
    EXPECT_NEAR(loss, expected, 1e-5 * expected);
  });
}

TEST_P(SftSteps, ArrangementsChangeNoBit) {
  const Dataset dataset = replies_of_file();
  for (const bool lora : {false, true}) {
    const JobSpec spec = job_of_sft(expected_sft()[GetParam()]["options"], lora, DType::BF16);
    std::map<std::pair<int, int64_t>, std::vector<std::string>> expected;  // by ranks and passes
    for (const Arrangement& a : pair_arrangements()) {
      const std::vector<std::string> found = lines_of_ranks(spec, a, dataset);
      auto& of_cut = expected[{a.ranks, a.passes}];
      if (of_cut.empty()) of_cut = found;
      ASSERT_EQ(found.size(), 3u);
      EXPECT_EQ(found, of_cut) << to_string(a);
      // However a step is cut, it has the same noise.
      const auto loss = [](const std::vector<std::string>& lines) {
        return nlohmann::json::parse(lines[0])["loss"].get<double>();
      };
      EXPECT_NEAR(loss(found), loss(expected[{1, 1}]), 2e-3) << to_string(a);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, SftSteps, testing::Values("label_smoothing", "z_loss", "both", "neftune"));

}  // namespace
}  // namespace snug
