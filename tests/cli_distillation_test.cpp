// Learning from a teacher as a user meets it: a run, its metrics and what is kept of the teacher, going on, and what is
// refused.
#include "preferences_run.h"

namespace snug {
namespace {

class Distillation : public Preferences {
 protected:
  void SetUp() override {
    put_lines("pairs.jsonl", [](const nlohmann::json& pair) {
      nlohmann::json ids = pair["prompt"], labels(ids.size(), -100);
      for (const nlohmann::json& id : pair["chosen"]) ids.push_back(id), labels.push_back(id);
      return nlohmann::json{{"input_ids", ids}, {"labels", labels}};
    });
  }

  static Words distill(const Words& more) {
    return dpo(with({"--objective", "distill", "--teacher", kModels / "llama_gqa7", "--schedule", "constant"}, more));
  }

  // Returns the line that says what a teacher was asked.
  static std::string asked(const Outcome& outcome) {
    const size_t begin = outcome.err.find("teacher: what");
    return begin == std::string::npos ? "" : outcome.err.substr(begin, outcome.err.find('\n', begin) - begin);
  }
};

TEST_F(Distillation, ARunComesNearerToItsTeacher) {
  const Outcome outcome = run_well(distill({"--validation", "0.2", "--max-steps", "12"}));
  EXPECT_THAT(outcome.err,
              HasSubstr("objective     distill, distill_beta 0; teacher: another model, of whose tokens the "
                        "64 most likely are kept"));
  EXPECT_THAT(outcome.err,
              HasSubstr("teacher       LlamaForCausalLM, 120,848 parameters; it scores the data by itself"));
  EXPECT_THAT(outcome.err, HasSubstr("38.4 KiB of disk for what it says of the data"));
  EXPECT_THAT(asked(outcome), HasSubstr("of 0 of 12 documents was known (run/reference)"));
  const auto steps = metrics();
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(steps[0]["loss"], steps[0]["kl"]);
  EXPECT_LT(steps[11]["kl"].get<double>(), steps[0]["kl"].get<double>() / 2);
  EXPECT_EQ(steps[11]["eval_kl"], steps[11]["eval_loss"]);
  EXPECT_TRUE(steps[11].contains("eval_agreement"));
  const Outcome eval =
      run_well({"eval", "--model", kModels / "llama", "--adapter", "run/adapter", "--data", "pairs.jsonl",
                "--objective", "distill", "--teacher", kModels / "llama_gqa7", "--reference-cache", "kept", "--compute",
                "fp32", "--sequence-length", "64", "--json"});
  EXPECT_LT(nlohmann::json::parse(eval.out)["kl"].get<double>(), 0.7 * steps[0]["kl"].get<double>());
}

TEST_F(Distillation, AModelThatIsItsOwnTeacherAgreesWithItself) {
  run_well(distill({"--teacher", kModels / "llama", "--max-steps", "1"}));
  const auto steps = metrics();
  EXPECT_NEAR(steps[0]["loss"].get<double>(), 0, 1e-6);
  EXPECT_EQ(steps[0]["agreement"], 1);
}

TEST_F(Distillation, AResumedRunGoesOnToTheBitAndAsksNothingAgain) {
  const Words more{"--overwrite", "--distill-weight", "0.5", "--distill-beta", "0.5"};
  run_well(distill(more));
  const auto expected = metrics();
  run_well(distill(with(more, {"--max-steps", "2"})));
  const Outcome resumed = run_well({"train", "--out", "run", "--resume", "--max-steps", "4"});
  EXPECT_EQ(metrics(), expected);
  EXPECT_THAT(asked(resumed), HasSubstr("of 12 of 12 documents was known"));
  EXPECT_THAT(asked(resumed), HasSubstr("asked in 0 passes"));
  expect_refused({"train", "--out", "run", "--resume", "--max-steps", "6", "--teacher", kModels / "llama16"},
                 {"reference's weights"});
  expect_refused({"train", "--out", "run", "--resume", "--max-steps", "6", "--distill-beta", "0"}, {"distill_beta"});
}

TEST_F(Distillation, WhatIsKeptServesRunsOfTheSameTeacherAndData) {
  const auto line = [&](const Words& more) {
    return asked(run_well(distill(with({"--overwrite", "--reference-cache", "kept"}, more))));
  };
  EXPECT_THAT(line({}), HasSubstr("of 0 of 12"));
  const auto expected = metrics();
  EXPECT_THAT(line({}), HasSubstr("of 12 of 12"));
  EXPECT_EQ(metrics(), expected);
  EXPECT_THAT(line({"--method", "full", "--distill-beta", "1", "--packing", "false"}), HasSubstr("of 12 of 12"));
  EXPECT_THAT(line({"--distill-temperature", "2"}), HasSubstr("of 0 of 12"));
  EXPECT_THAT(line({"--teacher-top-k", "8"}), HasSubstr("of 0 of 12"));
  EXPECT_THAT(line({"--teacher", kModels / "llama16"}), HasSubstr("of 0 of 12"));
  EXPECT_THAT(line({"--sequence-length", "12"}), HasSubstr("of 0 of 12"));
}

TEST_F(Distillation, AnInterruptKeepsWhatTheTeacherHasSaid) {
  std::string text;
  for (int i = 0; i < 2000; i++)
    text +=
        nlohmann::json{{"input_ids", {5 + i % 900, 7 + i / 900, 9, 2}}, {"labels", {-100, -100, 9, 2}}}.dump() + "\n";
  put(at("many.jsonl"), text);
  const Words words = on("many.jsonl", distill({"--packing", "false"}));
  const pid_t child = start(words);
  while (text_of(at("stderr")).find("objective     distill") == std::string::npos &&
         waitpid(child, nullptr, WNOHANG) == 0)
    usleep(1000);
  kill(child, SIGINT);
  const Outcome interrupted = finish(child);
  ASSERT_EQ(interrupted.code, 130) << interrupted.err;
  EXPECT_THAT(interrupted.err, HasSubstr("interrupted before the first step"));
  const std::string again = asked(run_well(words));
  EXPECT_THAT(again, HasSubstr("of 2000 documents was known"));
  EXPECT_THAT(again, testing::Not(HasSubstr("of 0 of 2000")));
}

TEST_F(Distillation, TwoRanksLearnTheSame) {
  run_well(distill({}));
  const auto expected = metrics();
  run_well(distill({"--overwrite", "--ranks", "2"}));
  const auto found = metrics();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t s = 0; s < found.size(); s++)
    EXPECT_NEAR(found[s]["loss"].get<double>(), expected[s]["loss"].get<double>(), 1e-6);
}

TEST_F(Distillation, WhatCannotTeachIsRefused) {
  expect_refused(dpo({"--objective", "distill"}), {"teacher: found nothing, expected a model"});
  expect_refused(distill({"--teacher", "nobody"}), {"teacher: found 'nobody', expected a model"});
  expect_refused(distill({"--teacher", fs::path(SNUG_FIXTURES) / "adapters" / "own_head"}),
                 {"teacher: '", "has a vocabulary of 61 tokens, expected that of the model, 997"});
  expect_refused(distill({"--reference", "auto", "--label-smoothing", "0.1"}), {"label_smoothing: found 0.1"});
  expect_refused(dpo({"--teacher", kModels / "llama_gqa7"}), {"teacher: found", "it is of objective distill"});
  expect_refused(distill({"--teacher-top-k", "257"}), {"teacher_top_k", "256"});
  expect_refused({"eval", "--model", kModels / "llama", "--data", "pairs.jsonl", "--objective", "distill", "--teacher",
                  kModels / "llama_gqa7", "--sequence-length", "64"},
                 {"reference_cache: found nothing, expected a directory"});
  const Outcome small = run(distill({"--disk-memory", "20KiB"}));
  EXPECT_EQ(small.code, 3);
  EXPECT_THAT(small.err, HasSubstr("for what the teacher says of the data; a smaller --teacher-top-k takes less"));
}

TEST_F(Distillation, ATeacherWithOtherTokensIsRefused) {
  for (const char* name : {"student", "teacher"})
    fs::copy(kModels / (name[0] == 's' ? "llama" : "llama_gqa7"), at(name), fs::copy_options::recursive);
  const auto vocabulary = [](int first) {
    nlohmann::json words;
    for (int i = 0; i < 997; i++) words["w" + std::to_string(i + (i == 400 ? first : 0) * 1000)] = i;
    return nlohmann::json{{"added_tokens", nlohmann::json::array()},
                          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                          {"decoder", {{"type", "ByteLevel"}}},
                          {"model", {{"type", "BPE"}, {"vocab", words}, {"merges", nlohmann::json::array()}}}}
        .dump();
  };
  put(at("student/tokenizer.json"), vocabulary(0));
  put(at("teacher/tokenizer.json"), vocabulary(0));
  const Words words = distill({"--model", "student", "--teacher", "teacher", "--max-steps", "1"});
  run_well(words);
  put(at("teacher/tokenizer.json"), vocabulary(1));
  expect_refused(with(words, {"--overwrite"}),
                 {"teacher: 'teacher' has 'w1400' as token 400, expected 'w400', which the model has"});
}

}  // namespace
}  // namespace snug
