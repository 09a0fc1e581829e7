// Checkpoints as a user meets them: what may be resumed, and what else is made of one.
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "cli_fixture.h"

namespace snug {
namespace {

TEST_F(Cli, OptionsThatAreNotTheRunsAreNamed) {
  ASSERT_EQ(run(job("train", {"--max-steps", "2"})).code, 0);
  const auto refusal = [&](const Words& more) {
    const Outcome other = run(with({"train", "--out", "run", "--resume"}, more));
    EXPECT_EQ(other.code, 2);
    return other.err;
  };
  EXPECT_EQ(
      refusal({"--lora-alpha", "8", "--seed", "7"}),
      "snug: run/checkpoints/step-2: lora_alpha: found 8, expected 32; seed: found 7, expected 42, as the run has "
      "it\n");
  EXPECT_EQ(refusal({"--method", "full"}),
            "snug: run/checkpoints/step-2: method: found full, expected lora, as the run has it\n");
  EXPECT_EQ(
      refusal({"--packing", "false", "--batch-size", "8"}),
      "snug: run/checkpoints/step-2: batch_size: found 8, expected 4; packing: found false, expected true, as the "
      "run has it\n");
  EXPECT_EQ(refusal({"--state-format", "bf16"}),
            "snug: run/checkpoints/step-2: state_format: found bf16, expected fp32, as the run has it\n");
  EXPECT_THAT(refusal({"--adapter", kModels / "llama/adapter_init"}),
              HasSubstr("adapter_init, expected nothing, as in run/job.yaml: --resume goes on with the adapter of "
                        "run/checkpoints/step-2; another --out begins anew\n"));
}

// What the rest of a cut was derived from is no longer so.
TEST_F(Cli, ACutThatIsNamedInPartIsDerivedAnew) {
  ASSERT_EQ(run(job("train", {"--max-steps", "2", "--micro-batch-size", "4"})).code, 0);
  const Outcome resumed =
      run({"train", "--out", "run", "--resume", "--max-steps", "3", "--batch-size", "4", "--micro-batch-size", "1"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(text_of(at("run/job.yaml")), HasSubstr("gradient_accumulation_steps: 4\n"));
}

// Files may change under a run; as they were, it goes on.
TEST_F(Cli, AnotherModelOrOtherDataAreNoRunsOwn) {
  fs::copy(kModels / "llama", at("m"), fs::copy_options::recursive);
  fs::copy(kModels / "data.jsonl", at("d.jsonl"));
  ASSERT_EQ(run(job("train", {"--max-steps", "2", "--data", "d.jsonl"}, "m")).code, 0);
  const Words resume{"train", "--out", "run", "--resume", "--max-steps", "3"};
  const auto refusal = [&](const char* file, const std::function<void(std::string&)>& edit) {
    const std::string whole = text_of(at(file));
    std::string edited = whole;
    edit(edited);
    put(at(file), edited);
    const Outcome other = run(resume);
    put(at(file), whole);
    EXPECT_EQ(other.code, 2) << file;
    return other.err;
  };
  const auto with_value = [](const char* key, double value) {
    return [=](std::string& text) {
      auto config = nlohmann::ordered_json::parse(text);
      config.at(nlohmann::ordered_json::json_pointer(key)) = value;
      text = config.dump();
    };
  };
  EXPECT_EQ(refusal("m/config.json", with_value("/rope_parameters/rope_theta", 20000)),
            "snug: run/checkpoints/step-2: rope.theta: found 20000, expected 10000, as the run has it\n");
  EXPECT_THAT(refusal("m/config.json", with_value("/rms_norm_eps", 1e-3)),
              HasSubstr(": final_norm.epsilon: found 0.001, expected 1e-05; attention_norm.epsilon: found 0.001, "));
  EXPECT_THAT(refusal("m/model.safetensors", [](std::string& bytes) { bytes.back() ^= 1; }),
              HasSubstr("step-2: weights: found "));
  EXPECT_THAT(refusal("d.jsonl", [](std::string& text) { text += text.substr(0, text.find('\n') + 1); }),
              HasSubstr("step-2: the content of the data has changed, or "));
  EXPECT_EQ(run(resume).code, 0) << text_of(at("stderr"));
}

TEST_F(Cli, CheckpointsOfOtherVersionsAreNamed) {
  ASSERT_EQ(run(job("train", {"--max-steps", "1"})).code, 0);
  const fs::path state = at("run/checkpoints/step-1/state.json");
  fs::copy_file(fs::path(SNUG_FIXTURES) / "checkpoint_state/state.json", state, fs::copy_options::overwrite_existing);
  EXPECT_THAT(run({"train", "--out", "run", "--resume"}).err,
              HasSubstr("state.json: found no 'format', expected format 2"));
}

// A run that gets worse from its second step on, as its learning rate is far too high.
class Kept : public Cli {
 protected:
  void SetUp() override {
    fs::copy(kModels / "llama", at("m"), fs::copy_options::recursive);
    put(at("held.jsonl"), text_of(kModels / "data.jsonl"));
  }
  Outcome train(const Words& more) const {
    return run(job("train",
                   with({"--validation", "held.jsonl", "--eval-every", "1", "--save-every", "1", "--keep", "all",
                         "--learning-rate", "0.05", "--schedule", "constant", "--warmup-ratio", "0"},
                        more),
                   "m"));
  }
  // The loss on held-out samples after each step.
  std::vector<double> held_out() const {
    std::vector<double> result;
    std::istringstream lines(text_of(at("run/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line)["eval_loss"]);
    return result;
  }
  // What was made of a step; empty if nothing was.
  fs::path made_of(const std::string& step) const {
    if (fs::exists(at("cache")))
      for (const auto& entry : fs::recursive_directory_iterator(at("cache")))
        if (entry.path().filename().string().starts_with(step + "-")) return entry.path();
    return {};
  }
  double evaluated(const Words& more) const {
    const Outcome outcome = run(with({"eval", "--data", "held.jsonl", "--sequence-length", "48", "--compute", "fp32",
                                      "--threads", "1", "--json", "--cache-dir", "cache"},
                                     more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? nlohmann::json::parse(outcome.out)["loss"].get<double>() : 0;
  }
};

TEST_F(Kept, EveryCheckpointOfAnAdapterCanBeUsed) {
  const Outcome trained = train({});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::vector<double> losses = held_out();
  const size_t best = static_cast<size_t>(std::ranges::min_element(losses) - losses.begin());
  ASSERT_LT(best + 1, losses.size()) << "the last step is no use here";
  EXPECT_THAT(trained.err, HasSubstr("The adapter of step 6 is in run/adapter; the best held-out loss, "));
  EXPECT_THAT(trained.err, HasSubstr(" was that of step " + std::to_string(best + 1) +
                                     ": --adapter run --checkpoint best uses it\n"));
  for (size_t i = 0; i < losses.size(); i++)
    EXPECT_NEAR(evaluated({"--adapter", "run", "--checkpoint", "step-" + std::to_string(i + 1)}), losses[i], 2e-5);
  EXPECT_NEAR(evaluated({"--adapter", "run", "--checkpoint", "best", "--model", "m"}), losses[best], 2e-5);
  EXPECT_NEAR(evaluated({"--adapter", "run/checkpoints/step-2"}), losses[1], 2e-5);
  EXPECT_NEAR(evaluated({"--adapter", "run/adapter"}), losses.back(), 2e-5) << "on the base that it names";
  EXPECT_THAT(text_of(at("stderr")), HasSubstr("--model is m, as run/adapter/adapter_config.json says\n"));
  EXPECT_EQ(evaluated({"--adapter", "run", "--checkpoint", "last"}),
            evaluated({"--model", "m", "--adapter", "run/adapter"}));
  for (const char* file : {"adapter_model.safetensors", "adapter_config.json"})
    EXPECT_EQ(text_of(made_of("step-6") / file), text_of(at("run/adapter") / file)) << file;
  EXPECT_EQ(run({"merge", "--adapter", "run", "--checkpoint", "best", "--compute", "fp32", "--out", "merged",
                 "--cache-dir", "cache"})
                .code,
            0)
      << text_of(at("stderr"));
  EXPECT_NEAR(evaluated({"--model", "merged"}), losses[best], 1e-4 * losses[best]);
  EXPECT_EQ(run({"train", "--out", "run", "--resume", "--max-steps", "7"}).code, 0) << "and resumed";
}

// Of two ranks, whose files each hold a part.
TEST_F(Kept, EveryCheckpointOfAllWeightsCanBeUsed) {
  const Words full{"--method", "full", "--ranks", "2", "--learning-rate", "0.003"};
  ASSERT_EQ(train(full).code, 0) << text_of(at("stderr"));
  const std::vector<double> losses = held_out();
  EXPECT_NEAR(evaluated({"--model", "run", "--checkpoint", "step-3"}), losses[2], 2e-5);
  EXPECT_NEAR(evaluated({"--model", "run", "--checkpoint", "last"}), evaluated({"--model", "run/model"}), 1e-6);
  const Outcome merged =
      run({"merge", "--model", "run", "--checkpoint", "step-3", "--out", "third", "--cache-dir", "cache"});
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_THAT(merged.out, ::testing::EndsWith("run/checkpoints/step-3 as a model\n"));
  EXPECT_NEAR(evaluated({"--model", "third"}), losses[2], 2e-5);
  EXPECT_THAT(run({"eval", "--data", "held.jsonl", "--model", "m", "--adapter", "run", "--checkpoint", "best"}).err,
              HasSubstr("trained all weights (method full), expected --model run"));
}

TEST_F(Kept, CheckpointsThatAreNotThereAreNamed) {
  ASSERT_EQ(run(job("train", {"--save-every", "2", "--keep", "1"})).code, 0) << text_of(at("stderr"));
  const auto refusal = [&](const Words& more) {
    const Outcome outcome = run(with({"eval", "--data", "held.jsonl", "--model", "m", "--cache-dir", "cache"}, more));
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refusal({"--adapter", "run", "--checkpoint", "step-2"}),
              HasSubstr("no checkpoint of step 2, expected one of the steps 6"));
  EXPECT_THAT(refusal({"--adapter", "run", "--checkpoint", "best"}), HasSubstr("had no held-out samples"));
  EXPECT_THAT(refusal({"--adapter", "run", "--checkpoint", "first"}),
              HasSubstr("found 'first', expected best, last or step-N"));
  EXPECT_THAT(refusal({"--checkpoint", "last"}), HasSubstr("found no run in 'm', expected --adapter RUN"));
  const fs::path state = at("run/checkpoints/step-6/state-00001-of-00001.safetensors");
  std::string bytes = text_of(state);
  bytes.back() ^= 1;
  put(state, bytes);
  EXPECT_THAT(refusal({"--adapter", "run", "--checkpoint", "last"}), HasSubstr("damaged"));
  EXPECT_EQ(made_of("step-6"), "");
}

// It may be going on, or lie where nothing can be written.
TEST_F(Kept, NothingIsWrittenIntoTheRunWhoseCheckpointIsUsed) {
  ASSERT_EQ(train({}).code, 0);
  const auto files = [&] {
    std::map<fs::path, fs::file_time_type> times;
    for (const auto& entry : fs::recursive_directory_iterator(at("run"))) times[entry.path()] = entry.last_write_time();
    return times;
  };
  const auto before = files();
  evaluated({"--adapter", "run", "--checkpoint", "last"});
  EXPECT_EQ(files(), before);
  const fs::path made = made_of("step-6");
  evaluated({"--adapter", "run", "--checkpoint", "step-5"});
  fs::rename(at("run/checkpoints/step-6"), at("away"));
  evaluated({"--adapter", "run", "--checkpoint", "step-4"});
  EXPECT_FALSE(fs::exists(made)) << "as its checkpoint";
  EXPECT_NE(made_of("step-5"), "");
}

TEST_F(Kept, EvaluatingARunThatGoesOnEndsNeither) {
  const pid_t child = start(job("train", {"--save-every", "1", "--keep", "1", "--max-steps", "100000"}, "m"));
  wait_for_steps(2);
  for (int i = 0; i < 12; i++) {
    const Words words = {"eval", "--data",      "held.jsonl", "--adapter",         "run", "--checkpoint",
                         "last", "--cache-dir", "cache",      "--sequence-length", "48",  "--threads",
                         "1"};
    const pid_t eval = start(words, SNUG_BINARY);
    EXPECT_EQ(finish(eval).code, 0) << text_of(at("stderr"));
  }
  kill(child, SIGTERM);
  EXPECT_EQ(finish(child).code, 130) << text_of(at("stderr"));
}

TEST_F(Kept, ACheckpointThatSomebodyReadsIsRemovedWithTheNext) {
  const Words words{"--save-every", "1", "--keep", "1"};
  const auto resume = [&](const std::string& steps) {
    return run(job("train", with(words, {"--max-steps", steps, "--resume"})));
  };
  ASSERT_EQ(run(job("train", with(words, {"--max-steps", "1"}))).code, 0);
  const int reader = open(at("run/checkpoints/step-1").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(reader, LOCK_SH), 0);
  EXPECT_THAT(resume("2").err, HasSubstr("step-1: somebody reads it; the next checkpoint removes it"));
  EXPECT_TRUE(fs::exists(at("run/checkpoints/step-1/state.json")));
  close(reader);
  EXPECT_EQ(resume("3").code, 0);
  EXPECT_FALSE(fs::exists(at("run/checkpoints/step-1")));
}

// A mount in the place of a file that somebody has open on NFS: the kernel refuses to remove it.
TEST_F(Kept, WhatCannotBeRemovedEndsNoRunAndIsTriedAgain) {
  const Words words{"--save-every", "1", "--keep", "1"};
  ASSERT_EQ(run(job("train", with(words, {"--max-steps", "1"}))).code, 0);
  fs::create_directory(at("run/checkpoints/step-1/held"));
  const auto resume = [&](const std::string& steps, bool held) {
    return finish(start(job("train", with(words, {"--max-steps", steps, "--resume"})), SNUG_BINARY, [=] {
      return !held || (unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       mount("none", "run/checkpoints/step-1/held", "tmpfs", 0, nullptr) == 0);
    }));
  };
  const Outcome kept = resume("3", true);
  if (kept.code == 126) GTEST_SKIP() << "nothing can be mounted here";
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_THAT(kept.err, HasSubstr("step-1.old/held: cannot remove it: Device or resource busy; the next checkpoint "));
  EXPECT_TRUE(fs::exists(at("run/checkpoints/step-1.old")));
  EXPECT_EQ(resume("4", false).code, 0);
  EXPECT_FALSE(fs::exists(at("run/checkpoints/step-1.old")));
  EXPECT_TRUE(fs::exists(at("run/checkpoints/step-4")));
}

}  // namespace
}  // namespace snug
