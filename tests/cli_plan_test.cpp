// What 'snug plan' says, and that a run says and takes the same.
#include <cmath>

#include "cli_fixture.h"

namespace snug {
namespace {

TEST_F(Cli, PlanSumsItsClassesAndSaysWhyNothingFits) {
  const auto plan = nlohmann::json::parse(run(job("plan", {"--json"})).out);
  uint64_t sum = 0;
  for (const auto& [name, bytes] : plan["classes"].items()) sum += bytes.get<uint64_t>();
  EXPECT_EQ(sum, plan["device_bytes"]);
  const Outcome small = run(job("plan", {"--json", "--device-memory", "1MiB"}));
  EXPECT_EQ(small.code, 3);
  EXPECT_TRUE(nlohmann::json::parse(small.out).contains("reason"));
  EXPECT_EQ(run(job("train", {"--device-memory", "1MiB"})).code, 3);
  EXPECT_FALSE(fs::exists(at("run")));
}

// A cap that is named as enough is.
TEST_F(Cli, WhereTheUsersCapIsAllThatIsShortARefusalSaysWhatItWouldTake) {
  for (const Words& caps : {Words{"--host-memory", "1MiB"},
                            {"--machine", "H100", "--device", "cuda", "--device-memory", "1MiB"},
                            {"--machine", "H100", "--device", "cuda", "--offload-parameters", "host",
                             "--offload-states", "host", "--host-memory", "1MiB", "--disk-memory", "0"}}) {
    Words words = job("plan", {"--method", "full", "--sequence-length", "64"});
    words.insert(words.end(), caps.begin(), caps.end());
    const std::string reason = run(words).err;
    const std::string_view before = "it would fit with ", after = " or more";
    const size_t begin = reason.find(before);
    ASSERT_NE(begin, reason.npos) << reason;
    std::istringstream named(reason.substr(begin + before.size(), reason.find(after) - begin - before.size()));
    for (std::string word; named >> word;)
      if (word != "and") words.push_back(word);
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << reason << outcome.err;
  }
}

TEST_F(Cli, AnEvaluationThatDoesNotFitNamesTheOptionOfItsTokens) {
  const Outcome outcome = run({"eval", "--model", kModels / "llama", "--data", kModels / "data.jsonl",
                               "--micro-batch-size", "8", "--host-memory", "1MiB"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("a lower --micro-batch-size"));
}

// The host is fullest elsewhere than the device is; what waits on the disk lies there all the time.
TEST_F(Cli, ARefusalSaysWhereWhatIsShortIsFullest) {
  auto plan = [&](const Words& more) {
    Words words = job("plan", {"--json", "--method", "full"});
    words.insert(words.end(), more.begin(), more.end());
    return nlohmann::json::parse(run(words).out);
  };
  auto reason = [](const nlohmann::json& plan) { return plan["reason"].get<std::string>(); };
  const auto host = plan({"--machine", "H100", "--device", "cuda", "--offload-states", "host", "--offload-parameters",
                          "host", "--host-memory", "1MiB"});
  EXPECT_THAT(reason(host), HasSubstr("of the host"));
  EXPECT_THAT(reason(host), testing::Not(HasSubstr(host["peak"].get<std::string>())));
  const auto device = plan({"--machine", "H100", "--device", "cuda", "--device-memory", "1MiB"});
  EXPECT_THAT(reason(device), HasSubstr("short, at " + device["peak"].get<std::string>()));
  const auto disk = plan({"--offload-states", "disk", "--disk-memory", "1KiB"});
  EXPECT_THAT(reason(disk), HasSubstr("short, at every op"));
}

// Caps of a node hold for the ranks it has; a plan, unlike a run, may be for machines that are elsewhere.
TEST_F(Cli, PlanLooksAtNodesElsewhere) {
  const Words eight{"--json", "--ranks",         "8",    "--batch-size",  "8",   "--micro-batch-size",
                    "1",      "--device-memory", "2TiB", "--host-memory", "3TiB"};
  const Outcome one = run(job("plan", eight));
  ASSERT_EQ(one.code, 0) << one.err;
  Words spread = eight;
  spread.insert(spread.end(), {"--nodes", "4"});
  const auto together = nlohmann::json::parse(one.out), apart = nlohmann::json::parse(run(job("plan", spread)).out);
  EXPECT_EQ(together["device_bytes"], apart["device_bytes"]);
  EXPECT_EQ(together["host_bytes"].get<int64_t>(), 4 * apart["host_bytes"].get<int64_t>());
  EXPECT_EQ(together["node"]["host_bytes"].get<int64_t>(), 4 * apart["node"]["host_bytes"].get<int64_t>());
  expect_refusal(job("train", {"--nodes", "2", "--ranks", "2"}), {"nodes", "found 2", "mpirun"});
  expect_refusal(job("plan", {"--nodes", "2"}), {"nodes", "found 2", "a divisor of 1, the number of --ranks"});
}

// Two nodes of four cards: what connects them, what a step waits for, what each rank needs.
TEST_F(Cli, PlanTakesAsManyBlocksAsRanksCanShareAndRanksAsHostsCan) {
  const fs::path model = fs::path(SNUG_FIXTURES) / "configs/llama-3-8b";
  const Words many{"plan", "--model", model, "--machine", "8xH100", "--nodes", "4"};
  EXPECT_THAT(run(many).out, HasSubstr("step          32 blocks of "));
  const Words three{"plan", "--model", model, "--machine", "6xH100", "--batch-size", "16"};
  EXPECT_THAT(run(three).err, HasSubstr("batch_size: found 16, expected a multiple of 6 ranks"));
  const Words uneven{"plan", "--model", model, "--machine", "8xH100", "--ranks", "8", "--nodes", "3"};
  EXPECT_THAT(run(uneven).err, HasSubstr("nodes: found 3, expected a divisor of 8, the number of --ranks"));
}

// Without options but for model and data, as everybody begins.
TEST_F(Cli, PlanReadsDataByTheUsualBatch) {
  const Words plain{"plan", "--model", kModels / "llama", "--data", kModels / "data.jsonl", "--sequence-length", "48"};
  for (const auto& [ranks, blocks] : {std::pair("1", "16"), {"3", "18"}}) {
    Words usual = plain;
    usual.insert(usual.end(), {"--json", "--ranks", ranks});
    Words said = usual;
    said.insert(said.end(), {"--batch-size", blocks});
    const Outcome outcome = run(usual);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto found = nlohmann::json::parse(outcome.out), expected = nlohmann::json::parse(run(said).out);
    EXPECT_EQ(found["tokens_per_step"], 48 * std::stoi(blocks));
    EXPECT_GT(found["steps_per_epoch"], 0);
    EXPECT_EQ(found["steps_per_epoch"], expected["steps_per_epoch"]);
  }
}

TEST_F(Cli, PlanSaysWhereRanksAreAndWhatTheyWaitFor) {
  const Words words{"plan",         "--model", fs::path(SNUG_FIXTURES) / "configs/llama-3-8b",
                    "--method",     "full",    "--machine",
                    "4xH100",       "--nodes", "2",
                    "--batch-size", "8"};
  auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string text = run(words).out;
  EXPECT_THAT(text, HasSubstr("8 x H100, 171.4 GB/s to each from the others of its node; 2 nodes of 4, 45.0 GB/s"));
  EXPECT_THAT(text, HasSubstr(" a rank), estimated from 4xH100: its maker's figures as far as an H200"));
  EXPECT_THAT(run(with({"--machine", "H100"})).out, HasSubstr("2 x H100; 2 nodes of 1, 45.0 GB/s"));
  EXPECT_THAT(text, HasSubstr("  links       busy "));
  EXPECT_THAT(text, HasSubstr("all 8 need in arenas: device "));
  const auto two = nlohmann::json::parse(run(with({"--json"})).out),
             one = nlohmann::json::parse(run(with({"--json", "--machine", "8xH100", "--nodes", "1"})).out);
  EXPECT_EQ(two["node"]["count"], 2);
  EXPECT_EQ(two["ranks"].size(), 8u);
  EXPECT_EQ(two["step_time"]["bound_by"], "links");
  EXPECT_EQ(one["step_time"]["bound_by"], "computing");
  EXPECT_GT(two["step_time"]["links"]["busy_seconds"], 2 * one["step_time"]["links"]["busy_seconds"].get<double>());
  expect_refusal(with({"--replicas", "3"}), {"replicas", "found 3", "a divisor of 8"});
}

TEST_F(Cli, TrainEndsWithWhatEachRankNeeds) {
  const Outcome train = run(job("train", {"--ranks", "2", "--json"}));
  const auto end = nlohmann::json::parse(train.out), plan = nlohmann::json::parse(text_of(at("run/plan.json")));
  EXPECT_EQ(end["ranks"], plan["ranks"]);
  EXPECT_EQ(end["ranks"].size(), 2u);
  EXPECT_GT(end["load_seconds"], 0);
  EXPECT_THAT(train.err, HasSubstr("all weights are in place after "));
  EXPECT_THAT(train.err, HasSubstr("ranks: all 2 need in arenas: device "));
}

// Changes are named that were planned and fit; a huge adapter is not made to fit by shorter blocks.
TEST_F(Cli, PlanNamesTheChangesThatFit) {
  auto bytes = [&](const Words& more) {
    const auto plan = nlohmann::json::parse(run(job("plan", more)).out);
    return plan["device_bytes"].get<int64_t>() + plan["host_bytes"].get<int64_t>();
  };
  const std::string cap = std::to_string(2 * bytes({"--json", "--lora-rank", "16"}));
  const Outcome refused = run(job(
      "plan", {"--json", "--lora-rank", "4096", "--device-memory", cap, "--host-memory", cap, "--disk-memory", "0"}));
  EXPECT_EQ(refused.code, 3);
  const auto plan = nlohmann::json::parse(refused.out);
  std::vector<std::string> options;
  for (const auto& change : plan["changes"]) {
    options.push_back(change["option"]);
    EXPECT_TRUE(change["fits"]);
    EXPECT_LE(change["device_bytes"].get<int64_t>() + change["host_bytes"].get<int64_t>(), std::stoll(cap));
    EXPECT_THAT(plan["reason"].get<std::string>(), HasSubstr(options.back()));
  }
  EXPECT_THAT(options, testing::Contains(StartsWith("--lora-rank")));
  EXPECT_THAT(options, testing::Not(testing::Contains(StartsWith("--sequence-length"))));
}

// Of what is pinned it is said what to lift: one thing, or where that is not enough all.
TEST_F(Cli, PlanNamesThePinsToLift) {
  const Words full = job("plan", {"--json", "--method", "full"});
  auto plan = [&](Words words, const std::string& cap, const Words& pins) {
    words.insert(words.end(), {"--host-memory", cap});
    for (const std::string& pin : pins) words.insert(words.end(), {"--offload-" + pin, "none"});
    return nlohmann::json::parse(run(words).out);
  };
  auto least = [&](const Words& pins) {
    const auto smallest = plan(full, "1KiB", pins);
    return smallest["device_bytes"].get<int64_t>() + smallest["host_bytes"].get<int64_t>();
  };
  auto changes = [&](const Words& pins) {
    std::vector<std::string> options;
    const auto refused = plan(full, std::to_string((least({}) + least(pins)) / 2), pins);
    for (const auto& change : refused["changes"]) options.push_back(change["option"]);
    return options;
  };
  EXPECT_THAT(changes({"states"}), testing::Contains("--offload-states auto"));
  EXPECT_THAT(changes({"states", "gradients", "parameters", "activations"}),
              testing::Contains(StartsWith("--offload-states auto")));
}

TEST_F(Cli, PlanPricesAStepByAProfile) {
  const std::string profile = fs::path(SNUG_FIXTURES) / "machine/second_an_op.json";
  EXPECT_TRUE(nlohmann::json::parse(run(job("plan", {"--json"})).out)["step_seconds"].is_null());
  const auto plan = nlohmann::json::parse(run(job("plan", {"--json", "--machine", profile})).out);
  const double seconds = plan["step_seconds"];  // one for each op
  EXPECT_GT(seconds, 50);
  EXPECT_NEAR(seconds, std::round(seconds), 1e-6);
  EXPECT_THAT(run(job("plan", {"--machine", profile})).out,
              HasSubstr(std::to_string(static_cast<int>(std::round(seconds))) + ".00 s"));
  expect_refusal(job("plan", {"--machine", "2xA10"}), {"machine", "'2xA10'", "snug doctor", "A100-40GB"});
  put(at("broken.json"), R"({"format": "snug machine 5"})");
  expect_refusal(job("train", {"--machine", "broken.json"}), {"broken.json", "processor"});
  expect_refusal({"doctor", "--disk-dir", "nowhere"}, {"disk-dir", "'nowhere'"});
}

TEST_F(Cli, AProfileThatCannotBeWrittenIsNotMeasured) {
  expect_refusal({"doctor", "--out", "nowhere/m.json"}, {"--out", "'nowhere/m.json'"});
  expect_refusal({"doctor", "--out", "."}, {"--out", "directory '.'"});
}

// By every build, on any machine.
TEST_F(Cli, PlanIsMadeForGpusByName) {
  const auto plan = nlohmann::json::parse(run(job("plan", {"--json", "--machine", "2xA100-40GB"})).out);
  EXPECT_TRUE(plan["fits"]);
  EXPECT_GT(plan["driver_bytes"].get<uint64_t>(), 1u << 28);
  EXPECT_EQ(plan["classes"]["driver"], plan["driver_bytes"]);
  EXPECT_GT(plan["device_bytes"].get<uint64_t>(), plan["driver_bytes"].get<uint64_t>());
  EXPECT_GT(plan["step_seconds"].get<double>(), 0);
  EXPECT_EQ(run(job("plan", {"--machine", "A100-40GB", "--device-memory", "500MiB"})).code, 3) << "the driver's share";
  EXPECT_EQ(plan["arrangement"]["ranks"], 2) << "as many as there are GPUs";
  const auto driver_bytes = [&](const std::string& machine, const std::string& ranks) {
    const auto found = nlohmann::json::parse(run(job("plan", {"--json", "--machine", machine, "--ranks", ranks})).out);
    EXPECT_EQ(found["arrangement"]["ranks"], std::stoi(ranks));
    return found["driver_bytes"].get<uint64_t>();
  };
  EXPECT_GT(driver_bytes("2xRTX4090", "2"), driver_bytes("2xRTX4090", "1") + (1u << 28)) << "NCCL's share";
  EXPECT_LT(driver_bytes("2xH100", "2"), driver_bytes("2xH100", "1") + (1u << 20)) << "they read each other's memory";
  const auto nodes = nlohmann::json::parse(run(job("plan", {"--json", "--machine", "2xH100", "--nodes", "2"})).out);
  EXPECT_EQ(nodes["arrangement"]["ranks"], 4);
  EXPECT_EQ(nodes["links"]["from_own_host_bytes_per_second"], 153e9) << "NCCL's, as it is between hosts";
  EXPECT_EQ(nodes["links"]["from_other_hosts_bytes_per_second"], 45e9);
  const auto slower = nlohmann::json::parse(
      run(job("plan", {"--json", "--machine", "2xH100", "--nodes", "2", "--network-rate", "1GB"})).out);
  EXPECT_EQ(slower["links"]["from_other_hosts_bytes_per_second"], 5e8) << "a machine's, which two GPUs share";
  EXPECT_GT(slower["step_seconds"].get<double>(), nodes["step_seconds"].get<double>());
  EXPECT_THAT(run(job("plan", {"--machine", "2xH100", "--network-rate", "1GB"})).err,
              HasSubstr("--network-rate has no effect: all ranks are on one machine"));
  expect_refusal(job("plan", {"--machine", "2xH100", "--network-rate", "0"}), {"network_rate", "found 0"});
  EXPECT_EQ(plan["links"]["from_own_host_bytes_per_second"], 249e9);
  EXPECT_TRUE(plan["links"]["from_other_hosts_bytes_per_second"].is_null());
  expect_refusal(job("plan", {"--machine", "2xH100", "--ranks", "3"}), {"ranks", "found 3", "at most 2", "2 x H100"});
  const auto host_of_process = [&](const std::string& machine, const std::string& passes) {
    const Words more{"--json", "--machine", machine, "--batch-size", "8", "--gradient-accumulation-steps", passes};
    return nlohmann::json::parse(run(job("plan", more)).out)["driver_host_bytes"].get<uint64_t>();
  };
  EXPECT_LT(host_of_process("2xH100", "1"), host_of_process("1xH100", "1")) << "of a rank, as host_bytes are of a node";
  const uint64_t more_ops = host_of_process("1xH100", "2") - host_of_process("1xH100", "1");
  EXPECT_GT(more_ops, 0) << "an op is bound for each program that has it";
  EXPECT_EQ(more_ops % 1200, 0);
  EXPECT_GE(plan["host_bytes"].get<uint64_t>(), plan["driver_host_bytes"].get<uint64_t>());
  EXPECT_THAT(plan["estimated_from"].get<std::string>(), HasSubstr("an H200's driver")) << "nothing was measured";
  const auto cpu = nlohmann::json::parse(run(job("plan", {"--json"})).out);
  EXPECT_EQ(cpu["driver_host_bytes"], 0);
  EXPECT_TRUE(cpu["estimated_from"].is_null() && cpu["links"].is_null());
  EXPECT_THAT(run(job("plan", {"--machine", "H100", "--device", "cpu"})).out,
              HasSubstr("assumed, --host-memory says what there is"));
  EXPECT_EQ(nlohmann::json::parse(run(job("plan", {"--json", "--machine", "H100", "--device", "cpu"})).out)["classes"],
            cpu["classes"]);
  expect_refusal(job("plan", {"--device", "cuda", "--machine", fs::path(SNUG_FIXTURES) / "machine/second_an_op.json"}),
                 {"device", "'cuda'", "no GPU"});
}

// A machine that is only named is taken to have a host and a disk: what is offloaded there may not fit.
TEST_F(Cli, PlanSaysFirstThatItRestsOnMemoryThatIsOnlyAssumed) {
  const auto plan = [&](const Words& more) {
    Words words{"--machine", "H100"};
    words.insert(words.end(), more.begin(), more.end());
    return job("plan", words);
  };
  const std::string text = run(plan({"--offload-states", "host"})).out;
  const size_t at = text.find("\nASSUMED       it rests on ");
  ASSERT_NE(at, text.npos) << text;
  EXPECT_LT(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'), 5);
  const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  for (const std::string_view part : {"of the host memory of H100", "`snug doctor`", "--host-memory"})
    EXPECT_THAT(line, HasSubstr(std::string(part)));
  const auto assumed = [&](Words words) {
    words.push_back("--json");
    return nlohmann::json::parse(run(plan(words)).out)["assumed_memory"];
  };
  EXPECT_EQ(assumed({"--offload-states", "host"}), nlohmann::json::array({"host"}));
  EXPECT_EQ(assumed({"--offload-states", "disk"}), nlohmann::json::array({"disk"}));
  EXPECT_EQ(assumed({"--offload-states", "host", "--host-memory", "100GiB"}), nlohmann::json::array());
  EXPECT_EQ(assumed({}), nlohmann::json::array()) << "nothing is offloaded";
  EXPECT_THAT(run(plan({})).out, Not(HasSubstr("ASSUMED")));
  EXPECT_THAT(run(job("plan", {"--offload-states", "host"})).out, Not(HasSubstr("ASSUMED")))
      << "this machine's is known";
}

// What a process takes beside its arena goes by the ops it binds, which are known once they are chosen.
TEST_F(Cli, PlanKeepsToAHostThatItsOpsHaveToFit) {
  const auto planned = [&](uint64_t host_bytes) {
    return run(job("plan", {"--json", "--machine", "A100-40GB", "--host-memory", std::to_string(host_bytes)}));
  };
  const auto host_bytes = [](const Outcome& outcome) {
    return nlohmann::json::parse(outcome.out)["host_bytes"].get<uint64_t>();
  };
  const uint64_t took = host_bytes(planned(uint64_t{1} << 30));
  EXPECT_EQ(host_bytes(planned(took)), took);
  const Outcome less = planned(took - 1);
  EXPECT_TRUE(less.code == 3 || (less.code == 0 && host_bytes(less) < took)) << less.out;
}

#ifndef SNUG_CUDA
TEST_F(Cli, AMachineWithGpusIsNotRunOnByABuildWithout) {
  expect_refusal(job("train", {"--machine", "H100"}), {"the machine of --machine has GPUs", "--device cpu"});
  expect_refusal(job("train", {"--device", "cuda", "--machine", "H100"}), {"a GPU is asked for"});
}
#endif

TEST_F(Cli, PlanWarnsOfADiskThatCheckpointsDoNotFit) {
  auto machine = nlohmann::json::parse(text_of(fs::path(SNUG_FIXTURES) / "machine/second_an_op.json"));
  machine["disk"]["free_bytes"] = 100 << 10;
  put(at("small.json"), machine.dump());
  const auto plan = [&](const Words& more) {
    Words words{"--machine", at("small.json")};
    words.insert(words.end(), more.begin(), more.end());
    return run(job("plan", words)).out;
  };
  // It stands beside "fits", in the line that follows it.
  EXPECT_THAT(plan({}), testing::ContainsRegex(
                            "\nmemory        fits: [^\n]*\ndisk          DOES NOT FIT, a run is refused: there: found "
                            "100.0 KiB .102400 bytes. free, expected 1.7 MiB .[0-9]+ bytes. for an export of [0-9.]+ "
                            "KiB, 3 checkpoints of [0-9.]+ KiB .the last 2, the one being written.; --out names "
                            "another place, a lower --keep keeps fewer, --save-every 0 writes one alone"));
  EXPECT_THAT(plan({"--keep", "all"}), HasSubstr("1 checkpoint of "));
  EXPECT_THAT(plan({"--save-every", "0"}), Not(HasSubstr("a lower --keep")));
  EXPECT_THAT(plan({"--disk-memory", "0"}), HasSubstr("DOES NOT FIT")) << "of what is offloaded";
  EXPECT_THAT(plan({"--disk-memory", "1GiB"}), Not(HasSubstr("DOES NOT FIT"))) << "a larger disk than it was";
  EXPECT_THAT(run(job("plan", {"--machine", "H100"})).out, Not(HasSubstr("DOES NOT FIT")));
}

// Staging for the disk may need more of the host than offloading nothing does: on a small host some arrangements fit
// that have neither all nor nothing elsewhere.
TEST_F(Cli, PlanFindsWhatFitsASmallHost) {
  const fs::path configs = fs::path(SNUG_FIXTURES) / "configs";
  for (const Words& more :
       {Words{"llama-3-8b", "RTX4090", "1GiB", "--sequence-length", "8192", "--batch-size", "4"},
        Words{"llama-3-8b", "H100", "1480MiB", "--method", "full", "--batch-size", "1", "--sequence-length", "128"}}) {
    Words words{"plan", "--model", configs / more[0], "--machine", more[1], "--host-memory", more[2]};
    words.insert(words.end(), more.begin() + 3, more.end());
    EXPECT_EQ(run(words).code, 0) << more[0] << " " << more[2] << ": " << text_of(at("stderr"));
  }
}

// What is nearly as fast and takes more was not taken for its bytes; more memory does not buy it.
TEST_F(Cli, MoreMemoryBuysOnlyWhatDoesNotFit) {
  const auto plan =
      nlohmann::json::parse(run({"plan", "--json", "--model", fs::path(SNUG_FIXTURES) / "configs/llama-3-8b",
                                 "--machine", "H200", "--device-memory", "79.3GiB"})
                                .out);
  for (const auto& more : plan["more_memory"]) EXPECT_GT(more["device_bytes"].get<double>(), 79.3 * 0x1p30) << more;
}

TEST_F(Cli, TrainTakesWhatPlanSays) {
  const auto plan = nlohmann::json::parse(run(job("plan", {"--json"})).out);
  ASSERT_EQ(run(job("train")).code, 0);
  for (const char* name : {"job.yaml", "plan.json", "metrics.jsonl", "adapter", "checkpoints/step-6"})
    EXPECT_TRUE(fs::exists(at("run") / name)) << name;
  std::istringstream lines(text_of(at("run/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(nlohmann::json::parse(line)["device_bytes"], plan["device_bytes"]);
  EXPECT_EQ(run(job("train")).code, 2) << "holds a run";
}

// Ranks share the cores, and scratch depends on how many a rank has.
TEST_F(Cli, RanksTakeWhatPlanSays) {
  for (const Words& more : {Words{"--ranks", "2", "--threads", "0"}, Words{"--ranks", "2", "--threads", "3"}}) {
    Words words = job("plan", more);
    words.push_back("--json");
    const auto plan = nlohmann::json::parse(run(words).out);
    words = job("train", more);
    words.push_back("--overwrite");
    ASSERT_EQ(run(words).code, 0) << text_of(at("stderr"));
    const auto ran = nlohmann::json::parse(text_of(at("run/plan.json")));
    for (const char* key : {"device_bytes", "host_bytes", "classes", "hash", "ranks"})
      EXPECT_EQ(ran[key], plan[key]) << key;
    std::istringstream lines(text_of(at("run/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);)
      EXPECT_EQ(nlohmann::json::parse(line)["device_bytes"], plan["device_bytes"]);
  }
}

// A checkpoint's tensors, each rank's in a file that fills whole blocks of the disk, and 64 KiB a rank for what is
// small.
TEST_F(Cli, CheckpointsTakeWhatPlanSays) {
  Words words = job("plan", {"--method", "full", "--ranks", "2", "--save-every", "2"});
  EXPECT_THAT(run(words).out, HasSubstr("saved         3 checkpoints of "));
  words.push_back("--json");
  const auto plan = nlohmann::json::parse(run(words).out);
  words = job("train", {"--method", "full", "--ranks", "2", "--save-every", "2"});
  ASSERT_EQ(run(words).code, 0) << text_of(at("stderr"));
  const auto blocks_of = [](const fs::path& directory, uint64_t more) {
    for (const auto& entry : fs::directory_iterator(directory))
      if (entry.path().extension() == ".safetensors") more += (entry.file_size() + 4095) / 4096 * 4096;
    return more;
  };
  EXPECT_EQ(plan["saved"]["checkpoint_bytes"], blocks_of(at("run/checkpoints/step-6"), 2 << 16));
  EXPECT_EQ(plan["saved"]["checkpoints"], 3);
  EXPECT_GE(plan["saved"]["export_bytes"], blocks_of(at("run/model"), 0));
  EXPECT_LE(plan["saved"]["export_bytes"], blocks_of(at("run/model"), 0) + (8 << 20)) << "tokenizer and the like";
}

// What more memory would buy is looked at by plan alone, and of a node's ranks all rows of the table speak together.
TEST_F(Cli, ARunClaimsNothingThatNobodyLookedAt) {
  const Outcome train = run(job("train", {"--ranks", "2"}));
  EXPECT_THAT(train.err, testing::Not(HasSubstr("more memory")));
  EXPECT_TRUE(nlohmann::json::parse(text_of(at("run/plan.json")))["more_memory"].is_null());
  const std::string plan = run(job("plan", {"--ranks", "2"})).out;
  EXPECT_THAT(plan, HasSubstr("fits: device and host of a node "));
  EXPECT_THAT(plan,
              testing::ContainsRegex("\nless memory   with 25 % less: device and host of a node [0-9.]+ MiB[^:]*: "));
}

// Several that are nearly as fast offer one thing: the line names the fastest, and of equals the smallest.
TEST_F(Cli, OfWhatElseFitsOneIsNamedOfAKind) {
  const auto begin_so = [](const std::string& text, const std::string& word) {
    int count = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) count += line.starts_with(word) ? 1 : 0;
    return count;
  };
  const auto look = [&](Words words) {
    const std::string text = run_well(words).out;
    words.push_back("--json");
    return std::pair(text, nlohmann::json::parse(run_well(words).out)["alternatives"]);
  };
  const auto [slower, all_slower] =
      look(job("plan", {"--machine", (fs::path(SNUG_FIXTURES) / "machine/second_an_op.json").string()}));
  ASSERT_EQ(all_slower.size(), 2u);
  EXPECT_EQ(begin_so(slower, "second best"), 1);
  EXPECT_THAT(slower, testing::ContainsRegex("second best   a step takes 212 % of the time, [^\n]* .1 more fits.\n"));
  const auto [faster, all_faster] =
      look({"plan", "--model", fs::path(SNUG_FIXTURES) / "configs/llama-3-8b", "--machine", "RTX4090"});
  ASSERT_EQ(all_faster.size(), 4u);
  EXPECT_EQ(begin_so(faster, "faster"), 1);
  EXPECT_THAT(faster, testing::ContainsRegex("\nfaster        a step takes 98 % of the time, [^\n]* .3 more fit.\n"));
  // Two take 98 %: the one that takes less is named.
  EXPECT_THAT(faster, HasSubstr("the host 43.68 GiB: 2 passes of 8 blocks"));
}

// Rough rates rank arrangements; by how much one is faster they do not know.
TEST_F(Cli, APlanWithoutAProfileNamesNoTime) {
  const Words unpriced = job("plan");
  const std::string rough = run_well(unpriced).out;
  EXPECT_THAT(rough, HasSubstr("\ntime          not forecast, as no rates were measured: "));
  EXPECT_THAT(rough, HasSubstr("\nless memory   with 25 % less: device and host together "));
  for (const char* claim : {"a step takes", "a step about", "% of the time", "second best", "faster  "})
    EXPECT_THAT(rough, Not(HasSubstr(claim)));
  Words words = unpriced;
  words.push_back("--json");
  const auto json = nlohmann::json::parse(run_well(words).out);
  EXPECT_TRUE(json["less_memory"]["relative_time"].is_null());
  words.insert(words.end(), {"--machine", (fs::path(SNUG_FIXTURES) / "machine/second_an_op.json").string()});
  EXPECT_TRUE(nlohmann::json::parse(run_well(words).out)["less_memory"]["relative_time"].is_number());
}

}  // namespace
}  // namespace snug
