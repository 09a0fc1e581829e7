// What the host holds while a model of more than a gigabyte is loaded, as the kernel counts it.
#include <sys/resource.h>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "cli_fixture.h"
#include "control_group.h"
#include "format/safetensors.h"

namespace snug {
namespace {

// What those who enter it hold is counted.
struct MemoryGroup : ControlGroup {
  MemoryGroup() : ControlGroup("memory", {"memory.peak", "memory.max_usage_in_bytes"}) {}
};

constexpr int64_t kVocabulary = 32'000, kHidden = 1024, kFeedForward = 4096, kKeys = 256, kLayers = 30;

std::vector<SafetensorsTensor> tensors() {
  std::vector<SafetensorsTensor> all{{"model.embed_tokens.weight", DType::BF16, {kVocabulary, kHidden}},
                                     {"model.norm.weight", DType::BF16, {kHidden}},
                                     {"lm_head.weight", DType::BF16, {kVocabulary, kHidden}}};
  for (int64_t layer = 0; layer < kLayers; layer++) {
    auto add = [&](const std::string& name, Shape shape) {
      all.push_back({fmt::format("model.layers.{}.{}.weight", layer, name), DType::BF16, shape});
    };
    add("input_layernorm", {kHidden});
    add("post_attention_layernorm", {kHidden});
    add("self_attn.q_proj", {kHidden, kHidden});
    add("self_attn.k_proj", {kKeys, kHidden});
    add("self_attn.v_proj", {kKeys, kHidden});
    add("self_attn.o_proj", {kHidden, kHidden});
    add("mlp.gate_proj", {kFeedForward, kHidden});
    add("mlp.up_proj", {kFeedForward, kHidden});
    add("mlp.down_proj", {kHidden, kFeedForward});
  }
  return all;
}

// A Llama of random weights in several files. Returns their bytes.
uint64_t write_model(const fs::path& directory) {
  const nlohmann::json config{{"architectures", {"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"vocab_size", kVocabulary},
                              {"hidden_size", kHidden},
                              {"intermediate_size", kFeedForward},
                              {"num_hidden_layers", kLayers},
                              {"num_attention_heads", 16},
                              {"num_key_value_heads", 4},
                              {"max_position_embeddings", 512},
                              {"rms_norm_eps", 1e-5},
                              {"rope_theta", 10000.0},
                              {"hidden_act", "silu"},
                              {"tie_word_embeddings", false},
                              {"bos_token_id", 1},
                              {"eos_token_id", 2}};
  put(directory / "config.json", config.dump());
  std::vector<uint16_t> noise(4 << 20);  // numbers of about 0.02, of both signs
  for (size_t i = 0; i < noise.size(); i += 8) {
    const auto words = philox({static_cast<uint32_t>(i), 0, 0, 0}, {1, 2});
    for (size_t k = 0; k < 8; k++)
      noise[i + k] = static_cast<uint16_t>((words[k / 2] >> 16 * (k % 2)) & 0x80ff) | 0x3c00;
  }
  const auto layout = shard_safetensors(tensors(), uint64_t{400} << 20);
  uint64_t bytes = 0;
  for (const ShardedLayout::Shard& shard : layout.shards) {
    File file = File::create(directory / shard.file_name, IoMode::Direct);
    file.write(0, std::as_bytes(std::span(shard.layout.header)));
    for (uint64_t at = shard.layout.header.size(); at < shard.layout.file_bytes;) {
      const auto part = std::as_bytes(std::span(noise)).first(std::min(noise.size() * 2, shard.layout.file_bytes - at));
      file.write(at, part);
      at += part.size();
    }
    file.sync();
    bytes += shard.layout.file_bytes;
  }
  put(directory / "model.safetensors.index.json", layout.index_json);
  put(directory / "data.jsonl", R"({"input_ids": [1, 5, 9, 7], "labels": [1, 5, 9, 7]})");
  return bytes;
}

// Pages that are there already count for nobody.
void forget_pages(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const int file = open(entry.path().c_str(), O_RDONLY);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

struct Usage {
  int code = -1;
  uint64_t peak = 0, bytes_read = 0;
};

// Runs a command of the shell in a group of its own.
Usage run_in_group(const std::string& command) {
  const MemoryGroup group;
  const pid_t child = fork();
  if (child == 0) {
    if (!group.enter()) _exit(126);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, std::stoull(text_of(group.file())),
          static_cast<uint64_t>(usage.ru_inblock) * 512};
}

using HostPeak = Cli;

// Four ranks as processes load, train a step and save; adapters are small, so that the weights are what counts.
TEST_F(HostPeak, OfLoadingIsThePlansAndEveryByteIsReadOnce) {
  if (!MemoryGroup().made()) GTEST_SKIP() << "no control group that counts memory can be made here";
  const uint64_t model_bytes = write_model(directory_.path());
  ASSERT_GE(model_bytes, 1'000'000'000u);
  for (const std::string options :
       {"--base-format fp32 --zero 3", "--base-format bf16 --zero 3", "--base-format int8 --zero 3",
        "--base-format nf4 --zero 3", "--base-format fp8 --zero 3",
        "--base-format nf4 --zero 0 --offload-parameters none"}) {
    SCOPED_TRACE(options);
    const std::string job = fmt::format(
        "--model . --data data.jsonl --sequence-length 16 --batch-size 4 --max-steps 1 --threads 1 --lora-rank 4 {}",
        options);
    const std::string in = fmt::format("cd {} && ", directory_.path().string());
    ASSERT_EQ(std::system(fmt::format("{} {} plan {} --ranks 4 --json >plan.json", in, SNUG_BINARY, job).c_str()), 0);
    const auto plan = nlohmann::json::parse(text_of(at("plan.json")));
    const uint64_t planned = 4 * plan["device_bytes"].get<uint64_t>() + plan["host_bytes"].get<uint64_t>();
    forget_pages(directory_.path());
    const Usage usage = run_in_group(
        fmt::format("{} exec timeout 200 {} -n 4 --oversubscribe --allow-run-as-root {} train {} --out run --overwrite "
                    ">train.log 2>&1",
                    in, SNUG_MPIRUN, SNUG_BINARY, job));
    ASSERT_EQ(usage.code, 0) << text_of(at("train.log"));
    EXPECT_LE(usage.peak, planned + planned / 20 + 200'000'000);
    EXPECT_LE(usage.bytes_read, model_bytes + model_bytes / 20);
    fmt::print("{}: planned {} MB, peak {} MB; model {} MB, read {} MB\n", options, planned / 1'000'000,
               usage.peak / 1'000'000, model_bytes / 1'000'000, usage.bytes_read / 1'000'000);
  }
}

}  // namespace
}  // namespace snug
