// The executor on a backend with streams: whatever the strategy and the order in which streams run, the bits are those
// of the plain strategy.
#include <gtest/gtest.h>

#include "model/model_config.h"
#include "tiny_model.h"
#ifndef SNUG_TESTS_ON_CUDA
#include "deferred_backend.h"
#endif

namespace snug {
namespace {

struct Outcome {
  std::vector<StepResult> steps;
  std::vector<std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

Outcome train(Session& session) {
  session.load();
  TinyTrainer trainer(session);
  trainer.pack_samples(true);
  Outcome outcome;
  const auto samples = tiny_samples();
  for (int64_t number = 1; number <= 3; number++)
    outcome.steps.push_back(trainer.step(step_samples(samples, number, 4), number, 1e-2));
  for (size_t i = 0; i < session.spec().table.params.size(); i++)
    if (session.spec().table.params[i].trainable)
      outcome.weights.push_back(values(session, session.compiled().owned[i].weight));
  return outcome;
}

Outcome train_on_streams(const JobSpec& spec, [[maybe_unused]] uint64_t seed) {
#ifdef SNUG_TESTS_ON_CUDA
  TinySession session(spec, 1);
#else
  set_threads(1);
  Session::Resources means;
  means.backend = [seed] { return std::make_unique<DeferredBackend>(seed); };
  Session session(spec, compile(spec, CpuFacts()), means);
#endif
  return train(session);
}

struct Case {
  std::string family;
  bool lora;
  DType compute;
  int64_t passes;
  BaseFormat base = BaseFormat::Plain;
};

class StreamsTest : public testing::TestWithParam<Case> {};

// Of widths, tokens and rank that cards' kernels for adapters and for SwiGLU are written for. `adapted`: which linears;
// nothing: all weights are trained.
JobSpec wide_job(const std::optional<std::vector<std::string>>& adapted) {
  JobSpec spec = tiny_job("llama", std::nullopt, DType::BF16);
  auto config = read_json(models() / "llama" / "config.json");
  config["hidden_size"] = config["intermediate_size"] = 256;
  config["num_attention_heads"] = config["num_key_value_heads"] = 4;
  config["head_dim"] = 64;
  spec.model = parse_model_config(config.dump(), "llama, wide").spec;
  spec.table = adapted ? lora_parameters(spec.model, {.rank = 16, .alpha = 32, .target_modules = *adapted}, true)
                       : full_parameters(spec.model, true);
  spec.sources = find_sources(spec.table, {models() / "llama", true, 1, std::nullopt});
  return spec;
}

void expect_the_same_bits(const JobSpec& spec) {
  TinySession plain(spec, 1);
  const Outcome expected = train(plain);
  uint64_t seed = 0;
  for (const Recompute recompute : {Recompute::None, Recompute::Mlp, Recompute::Attention, Recompute::Block})
    for (const int64_t offloaded : {0, 2})
      for (const Space space : {Space::Device, Space::Host}) {
        JobSpec variant = spec;
        variant.strategy = plain_strategy(spec.table, recompute);
        for (int64_t block = 0; block < offloaded; block++) {
          ActivationPolicy& policy = variant.strategy.activations[static_cast<size_t>(block)];
          policy = snug::offloaded(policy);
        }
        variant.strategy.buffer_hold_ops = 2;
        variant.strategy.defer_updates = space == Space::Host;
        variant.strategy.speculate = offloaded > 0;
        variant.strategy.layer_major = spec.cut.passes > 1 && recompute == Recompute::Mlp;
        for (auto& group : variant.strategy.groups) group.weights = group.states = group.gradients = space;
        EXPECT_TRUE(train_on_streams(variant, seed++) == expected)
            << static_cast<int>(recompute) << ", " << offloaded << " offloaded, state on " << name(space);
      }
}

TEST_P(StreamsTest, StrategiesAndOrdersChangeNoBit) {
  const Case& c = GetParam();
  JobSpec spec = tiny_job(c.family, c.lora ? std::optional<std::string>("adapter_init") : std::nullopt, c.compute);
  spec.cut.passes = c.passes;
  spec.cut.micro_batch = 4 / c.passes;
  spec.numerics.base_format = c.base;
  expect_the_same_bits(spec);
}

TEST(Streams, StrategiesChangeNoBitOfWideLayers) {
  using Names = std::vector<std::string>;
  for (const std::optional<Names>& adapted :
       {std::optional(Names{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        std::optional<Names>(), std::optional(Names{"q_proj", "v_proj"}),
        std::optional(Names{"gate_proj", "down_proj"})}) {
    SCOPED_TRACE(adapted ? fmt::format("{}", fmt::join(*adapted, ", ")) : "all weights");
    JobSpec spec = wide_job(adapted);
    spec.cut.micro_batch = 4;
    expect_the_same_bits(spec);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, StreamsTest,
                         testing::Values(Case{"llama", true, DType::F32, 1}, Case{"qwen2_tied", false, DType::BF16, 2},
                                         Case{"llama_gqa7", false, DType::F32, 4},
                                         Case{"llama3", true, DType::BF16, 2, BaseFormat::Nf4},
                                         Case{"llama16", true, DType::BF16, 4, BaseFormat::Int8}),
                         [](const auto& info) { return info.param.family; });

}  // namespace
}  // namespace snug
