// Ranks as processes: what 'mpirun -n N snug train' leaves is what 'snug train --ranks N' leaves, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "temp_directory.h"

namespace snug {
namespace {

const std::filesystem::path kModels = std::filesystem::path(SNUG_FIXTURES) / "models";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The losses and norms of a run.
std::vector<std::pair<double, double>> numbers_of(const std::filesystem::path& run) {
  std::ifstream in(run / "metrics.jsonl");
  std::vector<std::pair<double, double>> numbers;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    numbers.emplace_back(json["loss"], json["grad_norm"]);
  }
  return numbers;
}

TEST(Ranks, AsProcessesLeaveWhatTheyLeaveAsThreads) {
  struct Case {
    int ranks;
    std::string options, product;
  };
  const std::string adapter = "adapter/adapter_model.safetensors", model = "model/model.safetensors";
  for (const auto& [ranks, options, product] :
       {Case{2, "--zero 0 --compute fp32", adapter},
        Case{4, "--zero 3 --base-format int8 --recompute block --order layer", adapter},
        Case{4, "--zero 2 --replicas 2 --state-format 8bit --offload-states disk --lora-dropout 0.1", adapter},
        Case{2, "--zero 3 --base-format nf4 --offload-parameters host --offload-activations disk --compute fp32",
             adapter},
        Case{4, "--method full --zero 1 --offload-gradients host --reduce-every step", model},
        Case{2, "--method full --zero 3 --state-format bf16 --offload-parameters disk --offload-states host", model}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, options));
    const TempDirectory directory;
    auto train = [&](const std::string& before, const std::string& name, const std::string& more) {
      const std::string command = fmt::format(
          "cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} {} train --model {} --data {} --sequence-length 48 "
          "--batch-size 8 --gradient-accumulation-steps 2 --max-steps 3 --threads 1 --out {} {} {} >{}.log 2>&1",
          directory.path().string(), before, SNUG_BINARY, (kModels / "llama").string(),
          (kModels / "data.jsonl").string(), name, options, more, name);
      EXPECT_EQ(std::system(command.c_str()), 0) << text_of(directory.path() / (name + ".log"));
    };
    train("", "threads", fmt::format("--ranks {}", ranks));
    train(fmt::format("{} -n {} --oversubscribe --allow-run-as-root", SNUG_MPIRUN, ranks), "processes", "");
    EXPECT_EQ(numbers_of(directory.path() / "processes"), numbers_of(directory.path() / "threads"));
    EXPECT_EQ(numbers_of(directory.path() / "threads").size(), 3u);
    const std::string bytes = text_of(directory.path() / "threads" / product);
    EXPECT_GT(bytes.size(), 10'000u);
    EXPECT_TRUE(text_of(directory.path() / "processes" / product) == bytes);
  }
}

// What they say, too, of a model that is evaluated, asked and talked to: with what rank 0 alone reads and writes.
TEST(Ranks, AsProcessesSayWhatTheySayAsThreads) {
  const TempDirectory directory;
  const auto model = directory.path() / "model";
  std::filesystem::copy(kModels.parent_path() / "tokenizer" / "smollm", model);
  auto config = nlohmann::json::parse(text_of(kModels / "llama" / "config.json"));
  config["vocab_size"] = 2620;
  std::ofstream(model / "config.json") << config.dump();
  std::ofstream(directory.path() / "typed") << "Hello\nAnd then?\n";
  const std::string talk = "--template chatml --max-new-tokens 6 --temperature 0.7";
  for (const auto& [command, lines] :
       {std::pair(fmt::format("eval --data {} --sequence-length 48", (kModels / "data.jsonl").string()), 1),
        {fmt::format("generate {} --prompt Hello --prompt 'What is a kluge?'", talk), 2},
        {fmt::format("chat {}", talk), 2}})
    for (const std::string held : {"--zero 0", "--zero 3 --base-format int8"}) {
      SCOPED_TRACE(command + " " + held);
      const auto run = [&](const std::string& before, const std::string& more) {
        const std::string line = fmt::format(
            "cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} {} {} --model model --init random --threads 1 --json "
            "{} {} <typed >out 2>log",
            directory.path().string(), before, SNUG_BINARY, command, held, more);
        EXPECT_EQ(std::system(line.c_str()), 0) << text_of(directory.path() / "log");
        return text_of(directory.path() / "out");
      };
      const std::string alone = run("", "");
      EXPECT_EQ(std::ranges::count(alone, '\n'), lines);
      EXPECT_EQ(run("", "--ranks 2"), alone);
      EXPECT_EQ(run(fmt::format("{} -n 2 --oversubscribe --allow-run-as-root", SNUG_MPIRUN), ""), alone);
    }
}

// Each process would do the same, and write to the same place.
TEST(Ranks, CommandsThatTakeOneProcessRefuseSeveral) {
  const TempDirectory directory;
  const std::string llama = (kModels / "llama").string(), data = (kModels / "data.jsonl").string();
  for (const auto& [name, options] : {std::pair("plan", fmt::format("--data {}", data)),
                                      {"merge", fmt::format("--adapter {}/adapter_qv --out merged", llama)}}) {
    const std::string command = fmt::format(
        "cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} -n 2 --oversubscribe --allow-run-as-root {} {} --model {} "
        "{} >log 2>&1",
        directory.path().string(), SNUG_MPIRUN, SNUG_BINARY, name, llama, options);
    EXPECT_NE(std::system(command.c_str()), 0) << name;
    EXPECT_NE(text_of(directory.path() / "log").find(fmt::format("2 processes, expected one of 'snug {}'", name)),
              std::string::npos)
        << text_of(directory.path() / "log");
    EXPECT_FALSE(std::filesystem::exists(directory.path() / "merged"));
  }
}

}  // namespace
}  // namespace snug
