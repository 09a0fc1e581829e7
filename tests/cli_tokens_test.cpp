// Token ids that one command keeps and later ones use: the same lines, plans, losses and weights.
#include "tokens_fixture.h"

namespace snug {
namespace {

using ::testing::Not;

TEST_F(Tokens, APlanKeepsWhatTrainingUsesAndNoBitIsAnother) {
  const Words plan = command("plan", {"--json"});
  const Outcome first = run_well(plan), second = run_well(plan);
  EXPECT_THAT(first.err, HasSubstr(kKept));
  EXPECT_THAT(second.err, HasSubstr(kUsed));
  EXPECT_THAT(second.err, HasSubstr("d.jsonl: keys ignored: \"foo\""));
  EXPECT_EQ(other_lines(second), other_lines(first));
  const auto data = [](const Outcome& outcome) { return nlohmann::json::parse(outcome.out)["data"]; };
  EXPECT_EQ(data(second), data(first));
  const Outcome eval = run_well(command("eval", {"--max-samples", "20000"}));
  EXPECT_THAT(eval.err, HasSubstr(kKept));  // by other options
  const Outcome used = run_well(train("one"));
  EXPECT_THAT(used.err, HasSubstr(kUsed));
  const Outcome anew = run_well(train("two", {"--overwrite", "true"}));
  EXPECT_THAT(anew.err, HasSubstr(kKept));
  EXPECT_EQ(losses("one"), losses("two"));
  EXPECT_EQ(text_of(at("one/adapter/adapter_model.safetensors")), text_of(at("two/adapter/adapter_model.safetensors")));
}

TEST_F(Tokens, OfProcessesThatBeginTogetherOneEncodes) {
  std::vector<pid_t> children;
  for (int i = 0; i < 3; i++) {
    fs::create_directory(at(std::to_string(i)));
    const std::string line = "cd " + std::to_string(i) + " && exec \"$@\" >out 2>err";
    Words words{"-c", line, "sh", SNUG_BINARY};
    for (std::string word : command("plan")) {
      for (const char* path : {"model", "d.jsonl", "cache"})
        if (word == path) word = at(path);
      words.push_back(word);
    }
    children.push_back(start(words, "/bin/sh"));
  }
  int kept = 0, used = 0;
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(finish(children[static_cast<size_t>(i)]).code, 0);
    const std::string said = text_of(at(std::to_string(i) + "/err"));
    kept += said.find("token ids are kept for later runs") != said.npos;
    used += said.find("that an earlier run has kept") != said.npos;
  }
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(used, 2);
}

TEST_F(Tokens, AProcessThatIsKilledWhileItEncodesHoldsNobodyUp) {
  const pid_t child = start(command("plan"));
  const auto has_lock = [&] {
    std::error_code none;
    return std::any_of(fs::directory_iterator(at("cache/tokens"), none), fs::directory_iterator(),
                       [](const auto& entry) { return entry.path().extension() == ".lock"; });
  };
  for (int i = 0; i < 3000 && !has_lock(); i++) usleep(1000);
  kill(child, SIGKILL);
  finish(child);
  EXPECT_THAT(run_well(command("plan")).err, ::testing::AnyOf(HasSubstr(kKept), HasSubstr(kUsed)));
  EXPECT_THAT(run_well(command("plan")).err, HasSubstr(kUsed));
}

TEST_F(Tokens, WithoutAPlaceForThemALineSaysSo) {
  const Outcome nowhere = finish(start(
      [&] {
        Words words = command("plan");
        words.resize(words.size() - 2);  // --cache-dir
        return words;
      }(),
      SNUG_BINARY, [] { return unsetenv("HOME") == 0 && unsetenv("XDG_CACHE_HOME") == 0; }));
  EXPECT_EQ(nowhere.code, 0) << nowhere.err;
  EXPECT_THAT(nowhere.err, HasSubstr("d.jsonl: is encoded by every run, and there is no home directory to keep what is "
                                     "made of it in; --cache-dir names one"));
  const Outcome small = run_well(command("plan", {"--disk-memory", "1KiB"}));
  EXPECT_THAT(small.err, HasSubstr("d.jsonl: its token ids are not kept for later runs: they take "));
  EXPECT_THAT(small.err, HasSubstr("and a quarter of --disk-memory is 256 B"));
  EXPECT_THAT(small.err, Not(HasSubstr(kKept)));
}

}  // namespace
}  // namespace snug
