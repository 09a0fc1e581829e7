// What `snug explain` finds in a run's files and beside them.
#include "report/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RunFiles run_of(const std::vector<double>& losses, const std::vector<double>& seconds) {
  RunFiles run;
  run.plan.step_seconds = 2;
  run.plan.tokens_per_step = 100;
  run.plan.device_bytes = 1 << 30;
  for (size_t i = 0; i < losses.size(); i++) {
    run.metrics.steps.push_back(static_cast<double>(i + 1));
    run.metrics.values["loss"].push_back(losses[i]);
    run.metrics.values["step_seconds"].push_back(seconds[i % seconds.size()]);
    run.metrics.values["tokens"].push_back(100);
    run.metrics.values["device_bytes"].push_back(1 << 30);
  }
  run.job = {{"out", "run"}, {"packing", "true"}};
  return run;
}

std::vector<std::string> lines(const RunFiles& run, const Circumstances& circumstances = {}) {
  std::vector<std::string> lines;
  for (const Finding& finding : explain(run, circumstances)) lines.push_back(finding.subject + " " + finding.text);
  return lines;
}

std::vector<double> falling(size_t count) {
  std::vector<double> losses;
  for (size_t i = 0; i < count; i++) losses.push_back(2 - static_cast<double>(i) / static_cast<double>(count));
  return losses;
}

TEST(Explain, SaysHowARunEnded) {
  RunFiles run = run_of(falling(4), {2});
  EXPECT_THAT(lines(run), Contains(HasSubstr("end it ended after step 4 and wrote no end.json, though by itself")));
  run.end = RunEnd{"ended", "2026-11-26 00:43:50", ""};
  EXPECT_THAT(lines(run), Contains("end it ended on 2026-11-26 00:43:50 after step 4"));
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("--resume"))));
  run.end = RunEnd{"failed", "2026-11-26 00:43:50", "rank 1 has ended"};
  run.checkpoint = 3;
  EXPECT_THAT(lines(run), Contains("end it failed on 2026-11-26 00:43:50 after step 4: rank 1 has ended"));
  EXPECT_THAT(lines(run), Contains("end --resume goes on from its checkpoint of step 3"));
}

// A disk that was full to the last byte has no room for end.json either.
TEST(Explain, SaysOfARunWithoutAnEndWhatItsOtherFilesTell) {
  RunFiles run = run_of(falling(4), {2});
  EXPECT_THAT(lines(run, {{}, {}, 4096}),
              Contains("end its disk is full, 4096 bytes are free: that is what ends a run so"));
  EXPECT_THAT(lines(run, {{}, {}, uint64_t{5} << 30}),
              Contains("end its disk has 5.00 GiB free now; if it was full then, the last line of its log says so"));
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("its disk has"))));
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("metrics.jsonl"))));
  run.metrics.torn = true;
  EXPECT_THAT(lines(run), Contains(HasSubstr("end the last line of metrics.jsonl is cut")));
  run.timeline = Timeline{.lanes = {}, .ops = {}, .step = 3, .steps = 3};
  EXPECT_THAT(lines(run), Contains("end trace.json has 3 of its steps, the first ones of that start"));
}

TEST(Explain, SaysOfARunThatEndedBeforeItsFirstStepThatItDid) {
  RunFiles run = run_of({}, {});
  EXPECT_THAT(lines(run), Contains(HasSubstr("end it ended before its first step and wrote no end.json")));
  EXPECT_THAT(lines(run), Contains("end it has no checkpoint, and nothing is lost: --overwrite begins anew"));
  run.end = RunEnd{"failed", "2026-11-26 00:43:50", "the disk is full"};
  EXPECT_THAT(lines(run), Contains("end it failed on 2026-11-26 00:43:50 before its first step: the disk is full"));
  // Without job.yaml and plan.json nothing but its owner is known.
  const auto beginning = [](const Circumstances& circumstances) {
    std::vector<std::string> texts;
    for (const Finding& finding : explain_beginning(circumstances)) texts.push_back(finding.text);
    return texts;
  };
  EXPECT_THAT(beginning({{}, {}, 4096}),
              ElementsAre(AllOf(StartsWith("it ended before its first step, by itself"), HasSubstr("standard error")),
                          StartsWith("its disk is full")));
  HeldBy held{.process = 4711, .host = "near", .words = "process 4711 on near", .here = false, .lives = true};
  EXPECT_THAT(beginning({held, {}}), ElementsAre("it goes on: process 4711 on near; it is loading, or making ready"));
  held.lives = false;
  EXPECT_THAT(beginning({held, {}}),
              ElementsAre(StartsWith("it was killed before its first step, or its machine stopped"),
                          StartsWith("why is in the log of near")));
}

TEST(Explain, ARunBeforeItsFirstStepIsKnownByWhatItLeft) {
  const TempDirectory directory;
  const std::filesystem::path run = directory.path();
  EXPECT_FALSE(is_before_its_first_step(run)) << "an empty directory is no run's";
  std::filesystem::create_directory(run / "checkpoints");
  EXPECT_TRUE(is_before_its_first_step(run));
  std::ofstream(run / "job.yaml") << "format: 1\n";
  EXPECT_TRUE(is_before_its_first_step(run));
  std::ofstream(run / "plan.json") << "{}";
  EXPECT_FALSE(is_before_its_first_step(run));
}

TEST(Explain, NamesThreadsWhereAProcessorIsShared) {
  const auto threads = HasSubstr("--threads below 8, which it had, leaves cores to them");
  RunFiles run = run_of(falling(40), {3});
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("--threads")))) << "of cards, or not said";
  run.plan.device = "cpu";
  run.plan.threads = 8;
  EXPECT_THAT(lines(run), Contains(threads));
  EXPECT_THAT(lines(run), Contains(HasSubstr("on a processor slow steps mostly share its cores")));
  const auto traced = [&](double compute) {
    run.timeline = Timeline{
        .lanes = {"compute", "disk_in"},
        .ops = {{0, OpGroup::Products, "a", "gemm", 0, compute}, {1, OpGroup::Transfer, "b", "disk_read", 0, 3e6}},
        .duration = 3e6};
    return lines(run);
  };
  EXPECT_THAT(traced(2.7e6), Contains(HasSubstr("it computed in 90 % of the traced step, so slow steps share")));
  EXPECT_THAT(traced(1e6), Not(Contains(HasSubstr("--threads")))) << "it waits for its disk";
  run.timeline.reset();
  run.metrics.values["step_seconds"].assign(40, 2.2);
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("--threads")))) << "little slower than forecast";
  for (size_t i = 0; i < 40; i += 5) run.metrics.values["step_seconds"][i] = 6;
  EXPECT_THAT(lines(run), Contains(threads)) << "some steps are";
  run.plan.threads = 1;
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("--threads"))));
}

TEST(Explain, SaysWhyAProcessIsGone) {
  const RunFiles run = run_of(falling(4), {2});
  HeldBy held{.process = 4711, .host = "near", .words = "process 4711 on near", .here = true, .lives = true};
  EXPECT_THAT(lines(run, {held, {}}), Contains("end it goes on: process 4711 on near; step 4 is written"));
  held.lives = false;
  EXPECT_THAT(lines(run, {held, {}}), Contains(HasSubstr("sudo dmesg | grep 'Killed process 4711'")));
  EXPECT_THAT(lines(run, {held, std::vector<KernelEvent>{}}), Contains(HasSubstr("lack of memory was not the cause")));
  const KernelEvent kill{.process = 4711, .name = "snug", .resident = uint64_t{31} << 30};
  EXPECT_THAT(lines(run, {held, std::vector{kill}}),
              Contains(HasSubstr("killed snug (process 4711), 31.0 GiB resident")));
  held.here = false;
  EXPECT_THAT(lines(run, {held, std::vector{kill}}), Contains(HasSubstr("why is in the log of near")));
  EXPECT_THAT(lines(run, {held, std::vector{kill}}), Contains(HasSubstr("it has no checkpoint")));
}

TEST(Explain, ComparesStepsWithTheirForecast) {
  EXPECT_THAT(lines(run_of(falling(40), {2})), Contains(HasSubstr("a step took 2 s; the plan had 2 s: as forecast")));
  EXPECT_THAT(lines(run_of(falling(40), {3})), Contains(HasSubstr("the plan had 2 s: 1.50 times as long")));
  EXPECT_THAT(lines(run_of(falling(40), {2, 2, 2, 2, 6})),
              Contains(HasSubstr("one step in ten took 3.00 times as long")));
  std::vector<double> slower(40, 2.0);
  for (size_t i = 20; i < 40; i++) slower[i] = 2.5;
  EXPECT_THAT(lines(run_of(falling(40), slower)), Contains(HasSubstr("its last steps took 1.25 times as long")));
  RunFiles padded = run_of(falling(4), {2});
  padded.metrics.values["tokens"].assign(4, 30);
  EXPECT_THAT(lines(padded), Contains(HasSubstr("blocks are 30 % full")));
  padded.plan.step_seconds.reset();
  EXPECT_THAT(lines(padded), Contains(HasSubstr("no forecast: 'snug doctor'")));
}

TEST(Explain, SaysWhatATracedStepDid) {
  RunFiles run = run_of(falling(4), {2});
  run.plan.kernels = {{"gemm", "", 1.0}, {"attention", "heads of 100 are padded", 0.5}};
  run.timeline = Timeline{.lanes = {"compute", "gather"},
                          .ops = {{0, OpGroup::Products, "a", "gemm", 0, 1.5e6},
                                  {0, OpGroup::Attention, "b", "attention", 1.5e6, 0.25e6},
                                  {1, OpGroup::Transfer, "c", "all_gather", 0, 1e6},
                                  {1, OpGroup::Wait, "d", "wait", 1e6, 1e6}},
                          .duration = 2e6};
  EXPECT_THAT(lines(run), Contains("speed in the traced step these were busy: compute 88 %, gather 50 %"));
  EXPECT_THAT(lines(run), Contains("speed longer than planned: gemm 1.5 s, planned 1 s"));
  EXPECT_THAT(lines(run), Not(Contains(HasSubstr("longer than planned: attention"))));
  EXPECT_THAT(lines(run), Contains("kernels attention is not on its fast kernel: heads of 100 are padded"));
}

TEST(Explain, LooksAtTheLoss) {
  std::vector<double> losses = falling(60);
  EXPECT_THAT(lines(run_of(losses, {2})), Contains(HasSubstr("in the first third of its steps")));
  EXPECT_THAT(lines(run_of(losses, {2})), Not(Contains(HasSubstr("leapt"))));
  losses[40] = 9;
  EXPECT_THAT(lines(run_of(losses, {2})), Contains(HasSubstr("it leapt up 1 time: 9.000 at step 41")));
  EXPECT_THAT(lines(run_of(std::vector<double>(30, 2.0), {2})), Contains(HasSubstr("it has not fallen")));
  RunFiles held_out = run_of(falling(4), {2});
  held_out.metrics.values["eval_loss"] = {2, 1, kMissing, 3};
  EXPECT_THAT(lines(held_out), Contains(HasSubstr("least at step 2 (1.0000), 3.0000 at step 4")));
}

TEST(Explain, TheFileOfAnEndIsForeignBytes) {
  const RunEnd end{"failed", "2026-11-26 00:43:50", "a \"b\"\n\xff"};
  EXPECT_EQ(parse_end(write_end(end), "end.json").how, "failed");
  for (const char* text : {"", "[]", "{}", R"({"how": "well", "time": ""})", R"({"how": 3, "time": ""})"})
    EXPECT_TRUE(fails_with<UserError>([&] { parse_end(text, "end.json"); }, "end.json")) << text;
}

}  // namespace
}  // namespace snug
