// Ranks on the GPUs of several processes: what NCCL carries between them is what one process's threads copy, and at
// equal ranks the same bits, whatever is shared.
#include <fmt/format.h>

#include "backend/cuda/cards.h"
#include "cli_fixture.h"

namespace snug {
namespace {

// What runs a program in so many processes, after it has set what the shell is to export.
Words in_processes(int processes, const std::string& exported) {
  return {"-c",
          "export NCCL_NET=Socket NCCL_DEBUG=INFO " + exported + "; exec \"$@\"",
          "sh",
          SNUG_MPIRUN,
          "--allow-run-as-root",
          "--oversubscribe",
          "-n",
          std::to_string(processes)};
}

struct Processes : Cli {
  // On the first `ranks` GPUs, in `processes` whose GPUs reach each other by nothing but sockets.
  Outcome train(const std::string& out, int ranks, int processes) const {
    const Words words = job("train", {"--device", "cuda", "--compute", "bf16", "--zero", "3", "--base-format", "int8",
                                      "--ranks", std::to_string(ranks), "--out", out});
    if (processes == 1) return run(words);
    const Words apart = in_processes(processes, "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1");
    return finish(start(with(with(apart, {SNUG_BINARY}), words), "/bin/sh"));
  }
};

TEST_F(Processes, TrainOverSocketsToTheBytesOfThreads) {
  const auto cards = static_cast<int>(cuda_cards().size());
  if (cards < 2) GTEST_SKIP() << "there are fewer than two GPUs";
  const int ranks = cards < 4 ? 2 : 4;
  const Outcome threads = train("threads", ranks, 1);
  ASSERT_EQ(threads.code, 0) << threads.err;
  const std::string adapter = text_of(at("threads/adapter/adapter_model.safetensors"));
  EXPECT_GT(adapter.size(), 10'000u);
  for (int processes = 2; processes <= ranks; processes *= 2) {
    const std::string out = fmt::format("processes-{}", processes);
    const Outcome outcome = train(out, ranks, processes);
    ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    EXPECT_THAT(outcome.out + outcome.err, HasSubstr("via NET/Socket"));
    EXPECT_TRUE(text_of(at(out) / "adapter/adapter_model.safetensors") == adapter) << out;
    EXPECT_EQ(losses(out), losses("threads"));
  }
}

// Four ranks where there need not be so many GPUs: processes that each have a machine's name of their own, and so a GPU
// or two of it, which NCCL takes for GPUs of as many machines.
struct NamedHosts : Cli {
  void SetUp() override {
    if (cards_ == 0) GTEST_SKIP() << "there is no GPU";
    if (std::system("unshare -u hostname snug-0 2>/dev/null") != 0)
      GTEST_SKIP() << "'unshare -u' and 'hostname' give no process a machine's name here";
  }

  Outcome train(const std::string& out, int ranks, const Words& more) const {
    const Words named{"unshare", "-u",       "sh", "-c", "hostname snug-$OMPI_COMM_WORLD_RANK && exec \"$@\"",
                      "sh",      SNUG_BINARY};
    const Words its = job("train", {"--device", "cuda", "--compute", "bf16", "--method", "full", "--ranks",
                                    std::to_string(ranks), "--out", out});
    const Words apart = in_processes(ranks / std::min(cards_, 2), "");
    return finish(start(with(with(with(apart, named), its), more), "/bin/sh"));
  }

  std::string model(const std::string& out) const { return text_of(at(out) / "model/model.safetensors"); }

 private:
  const int cards_ = static_cast<int>(cuda_cards().size());
};

TEST_F(NamedHosts, TrainTheSameModelHoweverItIsShared) {
  const std::vector<Words> shared{{"--zero", "0"},
                                  {"--zero", "1", "--offload-states", "host"},
                                  {"--zero", "2", "--recompute", "block"},
                                  {"--zero", "3"},
                                  {"--zero", "3", "--replicas", "2"},
                                  {"--zero", "3", "--offload-parameters", "host", "--offload-states", "disk"}};
  for (size_t i = 0; i < shared.size(); i++) {
    SCOPED_TRACE(::testing::PrintToString(shared[i]));
    const std::string out = fmt::format("run-{}", i);
    const Outcome outcome = train(out, 4, shared[i]);
    ASSERT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    EXPECT_THAT(outcome.out + outcome.err, HasSubstr("via NET/Socket"));
    EXPECT_GT(model(out).size(), 100'000u);
    EXPECT_EQ(losses(out).size(), 6u);
    if (i == 0) continue;
    EXPECT_TRUE(model(out) == model("run-0"));
    EXPECT_EQ(losses(out), losses("run-0"));
  }
}

TEST_F(NamedHosts, WhatFourRanksSavedGoesOnOnFourOnTwoAndOnProcessors) {
  const Outcome whole = train("run", 4, {"--zero", "3", "--save-every", "1", "--keep", "all"});
  ASSERT_EQ(whole.code, 0) << whole.err << whole.out;
  const std::string trained = model("run");
  const std::vector<double> expected = losses("run");
  ASSERT_EQ(expected.size(), 6u);
  const auto resumed = [&](const std::string& out, const std::function<Outcome(const std::string&)>& go_on) {
    fs::copy(at("run"), at(out), fs::copy_options::recursive);
    fs::remove_all(at(out) / "model");
    for (const char* step : {"step-4", "step-5", "step-6"}) fs::remove_all(at(out) / "checkpoints" / step);
    const Outcome outcome = go_on(out);
    EXPECT_EQ(outcome.code, 0) << outcome.err << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("goes on after step 3\n"));
    return losses(out);
  };
  const auto on_gpus = [&](int ranks, const Words& more) {
    return [=, this](const std::string& out) { return train(out, ranks, with({"--resume", "true"}, more)); };
  };
  EXPECT_EQ(resumed("four", on_gpus(4, {"--zero", "2"})), expected);
  EXPECT_TRUE(model("four") == trained);
  const auto expect_near = [&](const std::vector<double>& found) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); i++) EXPECT_NEAR(found[i], expected[i], i < 3 ? 0 : 1e-2) << i;
  };
  expect_near(resumed("two", on_gpus(2, {})));
  expect_near(resumed("processors", [&](const std::string& out) {
    return run({"train", "--out", out, "--resume", "--device", "cpu", "--ranks", "2"});
  }));
}

}  // namespace
}  // namespace snug
