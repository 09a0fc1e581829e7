// Ranks of several processes: what 'mpirun -n N snug train' leaves, or fewer processes of more ranks each, is what
// 'snug train --ranks N' leaves, byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "api/launch.h"
#include "base/error.h"
#include "comm/mpi.h"
#include "temp_directory.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

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

std::string mpirun(int processes) {
  return fmt::format("{} -n {} --oversubscribe --allow-run-as-root", SNUG_MPIRUN, processes);
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
    auto train = [&, &options = options](const std::string& before, const std::string& name, const std::string& more) {
      const std::string command = fmt::format(
          "cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} {} train --model {} --data {} --sequence-length 48 "
          "--batch-size 8 --gradient-accumulation-steps 2 --max-steps 3 --threads 1 --out {} {} {} >{}.log 2>&1",
          directory.path().string(), before, SNUG_BINARY, (kModels / "llama").string(),
          (kModels / "data.jsonl").string(), name, options, more, name);
      EXPECT_EQ(std::system(command.c_str()), 0) << text_of(directory.path() / (name + ".log"));
    };
    train("", "threads", fmt::format("--ranks {}", ranks));
    train(mpirun(ranks), "processes", "");
    std::vector<std::string> others{"processes"};
    if (ranks == 4) {
      train(mpirun(2), "both", "--ranks 4");
      others.push_back("both");
    }
    const std::string bytes = text_of(directory.path() / "threads" / product);
    EXPECT_GT(bytes.size(), 10'000u);
    EXPECT_EQ(numbers_of(directory.path() / "threads").size(), 3u);
    for (const std::string& name : others) {
      SCOPED_TRACE(name);
      EXPECT_EQ(numbers_of(directory.path() / name), numbers_of(directory.path() / "threads"));
      EXPECT_TRUE(text_of(directory.path() / name / product) == bytes);
    }
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
      const auto run = [&, &command = command](const std::string& before, const std::string& more) {
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
      EXPECT_EQ(run(mpirun(2), ""), alone);
      EXPECT_EQ(run(mpirun(2), "--ranks 4"), alone);
    }
}

// Ranks 0 and 1 are one process, 2 and 3 the other.
TEST(Ranks, ADeviceThatIsLostEndsAllProcessesWithTheCause) {
  for (const int rank : {1, 2}) {
    SCOPED_TRACE(rank);
    const TempDirectory directory;
    // Keeps a process's exit code, and waits for the other one's before mpirun ends it.
    std::ofstream(directory.path() / "process")
        << "\"$@\" >log.$OMPI_COMM_WORLD_RANK 2>&1\ncode=$?\necho $code >code.$OMPI_COMM_WORLD_RANK\n"
           "for i in $(seq 100); do [ -s code.0 ] && [ -s code.1 ] && break; sleep 0.1; done\nexit $code\n";
    const std::string command = fmt::format(
        "cd {} && ASAN_OPTIONS=detect_leaks=0 SNUG_FAULT_RANK={} SNUG_FAULT_AT=300 timeout 120 {} sh process {} train "
        "--model {} --data {} --sequence-length 48 --batch-size 8 --max-steps 3 --threads 1 --zero 3 --ranks 4 "
        "--out run >log 2>&1",
        directory.path().string(), rank, mpirun(2), SNUG_FAULTY_DEVICE, (kModels / "llama").string(),
        (kModels / "data.jsonl").string());
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(std::system(command.c_str()), 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);  // before patience has run out
    for (const int process : {0, 1}) {
      EXPECT_EQ(text_of(directory.path() / fmt::format("code.{}", process)), "4\n");
      const std::string log = text_of(directory.path() / fmt::format("log.{}", process)),
                        line = log.substr(std::min(log.size(), log.find("snug: ")));
      EXPECT_EQ(std::ranges::count(line, '\n'), 1) << log;
      EXPECT_NE(line.find("the device is lost"), line.npos) << log;
      EXPECT_EQ(line.starts_with(fmt::format("snug: rank {} failed: ", rank)), process != rank / 2) << log;
    }
  }
}

// Whichever process it reaches.
TEST(Ranks, ASignalToOneOfSeveralProcessesEndsTheRunAfterItsStep) {
  for (const int signalled : {0, 1}) {
    SCOPED_TRACE(signalled);
    const TempDirectory directory;
    std::ofstream(directory.path() / "process")
        << "\"$@\" >log.$OMPI_COMM_WORLD_RANK 2>&1 &\nchild=$!\n"
           "if [ $OMPI_COMM_WORLD_RANK = "
        << signalled
        << " ]; then\n  for i in $(seq 600); do grep -q '\"step\":3' run/metrics.jsonl && break; sleep 0.1; done\n"
           "  kill -USR1 $child\nfi 2>/dev/null\nwait $child\ncode=$?\n"
           "echo $code >code.$OMPI_COMM_WORLD_RANK\n"
           "for i in $(seq 100); do [ -s code.0 ] && [ -s code.1 ] && break; sleep 0.1; done\nexit $code\n";
    const std::string command = fmt::format(
        "cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} sh process {} train --model {} --data {} "
        "--sequence-length 48 --batch-size 8 --max-steps 1000000 --threads 1 --out run >log 2>&1",
        directory.path().string(), mpirun(2), SNUG_BINARY, (kModels / "llama").string(),
        (kModels / "data.jsonl").string());
    EXPECT_NE(std::system(command.c_str()), 0);
    for (const int process : {0, 1}) EXPECT_EQ(text_of(directory.path() / fmt::format("code.{}", process)), "130\n");
    EXPECT_NE(text_of(directory.path() / "log.0").find("interrupted; --resume goes on from here"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(directory.path() / "run/adapter"));
  }
}

// This program as one of two processes of two ranks, of which the last one hangs.
int process_main() {
  std::unique_ptr<Comm> processes = open_mpi(2);
  const int process = processes->topology().rank;
  try {
    return run_ranks(
        4, 1, std::move(processes),
        [](int rank, int place, Comm* comm) {
          if (place != rank) user_error("rank {} is the machine's {}", rank, place);
          comm->barrier();
          if (rank == 3) std::this_thread::sleep_for(1h);
          comm->barrier();
          return 0;
        },
        2);
  } catch (const PeerError& error) {
    fmt::print(stderr, "process {} is told: {}\n", process, error.what());
    std::this_thread::sleep_for(5s);  // what ends the other process is not that this one has ended
    return 4;
  }
}

TEST(Ranks, AThreadThatHangsInOneOfSeveralProcessesHoldsNone) {
  const TempDirectory directory;
  const std::filesystem::path log = directory.path() / "log";
  const std::string command = fmt::format("ASAN_OPTIONS=detect_leaks=0 timeout 30 {} {} --process >{} 2>&1", mpirun(2),
                                          std::filesystem::read_symlink("/proc/self/exe").string(), log.string());
  EXPECT_NE(std::system(command.c_str()), 0);
  const std::string output = text_of(log),
                    what = ": rank 3 has given no sign of life for 2 s while others wait for it\n";
  EXPECT_NE(output.find("process 0 is told" + what), output.npos) << output;
  EXPECT_NE(output.find("snug" + what), output.npos) << output;
  EXPECT_EQ(output.find("process 1"), output.npos) << output;
}

// Copies a model; one bit of the first number of a tensor of its last block is another.
void copy_with_another_bit(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to);
  std::fstream file(to / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto tensor = nlohmann::json::parse(header)["model.layers.1.mlp.up_proj.weight"];
  const auto at =
      static_cast<std::streamoff>(sizeof header_bytes + header_bytes + tensor["data_offsets"][0].get<uint64_t>());
  const int before = file.seekg(at).get();
  file.seekp(at).put(static_cast<char>(before ^ 1));
}

TEST(Ranks, ProcessesThatAreToDoDifferentThingsAreRefused) {
  const TempDirectory directory;
  const std::string llama = (kModels / "llama").string(), data = (kModels / "data.jsonl").string();
  copy_with_another_bit(llama, directory.path() / "other");
  const std::string first = fmt::format("eval --model {} --data {} --sequence-length 48 --threads 1", llama, data);
  for (const auto& [second, differs] :
       {std::pair(fmt::format("eval --model other --data {} --sequence-length 48 --threads 1", data),
                  "what the files of model and adapter hold"),
        {fmt::format("train --model {} --data {} --out run", llama, data), "the command of snug"}}) {
    std::ofstream(directory.path() / "differ")
        << fmt::format("[ $OMPI_COMM_WORLD_RANK = 0 ] && exec {0} {1}\nexec {0} {2}\n", SNUG_BINARY, first, second);
    const std::string command = fmt::format("cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} sh differ >log 2>&1",
                                            directory.path().string(), mpirun(2));
    EXPECT_EQ(std::system(command.c_str()) >> 8, 2);
    EXPECT_NE(text_of(directory.path() / "log").find(fmt::format("ranks do not agree on {}: ", differs)),
              std::string::npos)
        << text_of(directory.path() / "log");
  }
}

// Each process would do the same, and write to the same place.
TEST(Ranks, CommandsThatTakeOneProcessRefuseSeveral) {
  const TempDirectory directory;
  const std::string llama = (kModels / "llama").string(), data = (kModels / "data.jsonl").string();
  for (const auto& [name, options] : {std::pair("plan", fmt::format("--data {}", data)),
                                      {"merge", fmt::format("--adapter {}/adapter_qv --out merged", llama)}}) {
    const std::string command =
        fmt::format("cd {} && ASAN_OPTIONS=detect_leaks=0 timeout 120 {} {} {} --model {} {} >log 2>&1",
                    directory.path().string(), mpirun(2), SNUG_BINARY, name, llama, options);
    EXPECT_NE(std::system(command.c_str()), 0) << name;
    EXPECT_NE(text_of(directory.path() / "log").find(fmt::format("2 processes, expected one of 'snug {}'", name)),
              std::string::npos)
        << text_of(directory.path() / "log");
    EXPECT_FALSE(std::filesystem::exists(directory.path() / "merged"));
  }
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--process") return snug::process_main();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
