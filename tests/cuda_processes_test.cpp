// Ranks on the GPUs of several processes: what NCCL carries between them is what one process's threads copy.
#include <fmt/format.h>

#include "backend/cuda/cards.h"
#include "cli_fixture.h"

namespace snug {
namespace {

struct Processes : Cli {
  // On the first `ranks` GPUs, in `processes` whose GPUs reach each other by nothing but sockets.
  Outcome train(const std::string& out, int ranks, int processes) const {
    Words words = job("train", {"--device", "cuda", "--compute", "bf16", "--zero", "3", "--base-format", "int8",
                                "--ranks", std::to_string(ranks), "--out", out});
    if (processes == 1) return run(words);
    words.insert(
        words.begin(),
        {"-c", "export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_DEBUG=INFO; exec \"$@\"", "sh",
         SNUG_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(processes), SNUG_BINARY});
    return finish(start(words, "/bin/sh"));
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

}  // namespace
}  // namespace snug
