// Agreement with transformers and peft, from their stored answers (tests/fixtures/README.md). The bounds follow from
// how far fp32 itself is from fp64 there, with room for another order of sums.
#include <gtest/gtest.h>

#include "parity.h"
#include "tiny_families.h"
#include "train/generate.h"
#include "train/schedule.h"

namespace snug {
namespace {

constexpr size_t kStepSamples = 4;

class Parity : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return models() / GetParam(); }
};

// Every parameter's gradient, of 12 samples in one pass.
TEST_P(Parity, GradientsOfEveryParameterAgree) {
  const auto reference = read_tensors(folder() / "reference.safetensors");
  const auto json = read_json(folder() / "reference.json");
  const auto samples = tiny_samples();
  JobSpec spec = tiny_job(GetParam(), std::nullopt, DType::F32);
  spec.cut.micro_batch = static_cast<int64_t>(samples.size());
  spec.evaluate = true;
  TinySession session(spec, 1);
  session.load();
  TinyTrainer trainer(session);
  EXPECT_NEAR(trainer.evaluate(samples) / static_cast<double>(loss_tokens(samples)), json["loss"].get<double>(), 1e-5);
  ASSERT_EQ(loss_tokens(samples), json["loss_tokens"].get<int64_t>());
  trainer.passes(samples, 1, 0);
  expect_gradients(session, reference, json);
}

// Logits at every position, one token after the other with caches.
TEST_P(Parity, LogitsOfEveryPositionAgree) {
  const auto reference = read_tensors(folder() / "reference.safetensors");
  JobSpec spec = tiny_job(GetParam(), std::nullopt, DType::F32);
  spec.purpose = Purpose::Generate;
  spec.cache_positions = 64;
  TinySession session(spec, 1);
  session.load();
  const auto samples = tiny_samples();
  const auto vocabulary = static_cast<size_t>(spec.model.vocabulary);
  for (size_t s = 0; s < 4; s++) {
    std::vector<float> logits;
    size_t fed = 0;
    session.on(HostJob::FillTokens, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
      const TokenViews tokens = token_views(views);
      tokens.ids[0] = samples[s].ids[fed];
      tokens.positions[0] = static_cast<int32_t>(fed);
      tokens.row[0] = 0;
    });
    session.on(HostJob::TakeLogits, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
      logits.insert(logits.end(), views[0].as<float>(), views[0].as<float>() + vocabulary);
    });
    for (; fed < samples[s].ids.size(); fed++) {
      RuntimeScalars runtime;
      runtime.position = static_cast<int64_t>(fed);
      session.run(Task::Decode, runtime);
    }
    const double error = relative_error(logits, reference.at(fmt::format("logits.{}", s)));
    EXPECT_TRUE(error <= 1e-5) << "sample " << s << " is off by " << error;
  }
}

// A prompt of two prefills and a rest: the logits after it, whether it was fed in pieces, the last of them short, or
// token by token; and the tokens that follow.
TEST_P(Parity, GenerationAfterALongPromptAgrees) {
  const auto reference = read_json(folder() / "generation.json");
  const auto prompt = reference["prompt"].get<std::vector<int32_t>>();
  const auto reply = reference["reply"].get<std::vector<int32_t>>();
  ASSERT_GT(prompt.size(), 2 * static_cast<size_t>(kPrefillTokens));
  JobSpec spec = tiny_job(GetParam(), std::nullopt, DType::F32);
  spec.purpose = Purpose::Generate;
  spec.cache_positions = static_cast<int64_t>(prompt.size() + reply.size());
  TinySession session(spec, 1);
  session.load();
  Generator generator(session, {static_cast<int64_t>(reply.size()), {}, {}});
  EXPECT_EQ(generator.generate(prompt), reply);
  const std::vector<float> decoded = generator.score(prompt);
  std::vector<float> logits;
  size_t fed = 0;
  session.on(HostJob::FillTokens, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    const TokenViews tokens = token_views(views);
    for (size_t i = 0; i < tokens.ids.size(); i++) {
      const size_t at = fed + i;
      tokens.ids[i] = at < prompt.size() ? prompt[at] : 7;
      tokens.positions[i] = at < prompt.size() ? static_cast<int32_t>(at) : 3;
    }
    tokens.row[0] = static_cast<int32_t>(std::min(prompt.size() - fed, static_cast<size_t>(kPrefillTokens))) - 1;
  });
  take_logits(session, logits);
  for (; fed < prompt.size(); fed += static_cast<size_t>(kPrefillTokens)) {
    RuntimeScalars runtime;
    runtime.position = static_cast<int64_t>(fed);
    session.run(Task::Prefill, runtime);
  }
  const auto expected = reference["logits"].get<std::vector<float>>();
  EXPECT_LE(relative_error(logits, expected), 1e-5);
  EXPECT_LE(relative_error({decoded.end() - std::ssize(expected), decoded.end()}, expected), 1e-5);
}

// Ten steps of a family.
void expect_same_training(const std::string& family, const std::optional<std::string>& adapter, const std::string& run,
                          int64_t passes) {
  SCOPED_TRACE(fmt::format("{} {} in {} passes", family, run, passes));
  const auto expected = read_json(models() / family / "reference.json")[run];
  const auto reference = read_tensors(models() / family / "reference.safetensors");
  const auto samples = tiny_samples();
  JobSpec spec = tiny_job(family, adapter, DType::F32);
  spec.cut.passes = passes;
  spec.cut.micro_batch = static_cast<int64_t>(kStepSamples) / passes;
  const std::string prefix = run == "full" ? "final." : run == "lora" ? "lora_final." : "lora_qv_final.";
  expect_ten_steps(
      spec, [&](int64_t number) { return step_samples(samples, number, kStepSamples); }, expected, reference, prefix,
      0);
}

TEST_P(Parity, TenFullStepsAgree) {
  for (const int64_t passes : {1, 2, 4}) expect_same_training(GetParam(), std::nullopt, "full", passes);
}

TEST_P(Parity, TenLoraStepsAgree) {
  for (const int64_t passes : {1, 2, 4}) expect_same_training(GetParam(), "adapter_init", "lora", passes);
}

INSTANTIATE_TEST_SUITE_P(Families, Parity, testing::ValuesIn(kTinyFamilies),
                         [](const auto& info) { return std::string(info.param); });

TEST(ParityLora, RankStabilisedAdaptersOfQueriesAndValuesAgree) {
  expect_same_training("llama", "adapter_qv", "lora_qv", 1);
}

// A code has three bits behind its first, so that one activation rounded otherwise moves gradients by some percent;
// what is wired wrongly moves them by their size.
void expect_fp8_products(const std::string& method, int expected_products, size_t tensors) {
  const std::filesystem::path stored = std::filesystem::path(SNUG_FIXTURES) / "fp8";
  const auto samples = tiny_samples();
  const bool lora = method == "lora";
  JobSpec spec = tiny_job("llama16", lora ? std::optional<std::string>("adapter_init") : std::nullopt, DType::BF16);
  if (lora) spec.numerics.base_format = BaseFormat::Fp8;
  spec.numerics.fp8_products = true;
  spec.cut.micro_batch = static_cast<int64_t>(samples.size());
  spec.evaluate = true;
  TinySession session(spec, 1);
  session.load();
  TinyTrainer trainer(session);
  const Compiled& compiled = session.compiled();
  int products = 0, dequantized = 0;
  for (const Op& op : compiled.set.programs[compiled.at(compiled.passes[0])].ops) {
    products += std::holds_alternative<Fp8Gemm>(op.attrs);
    dequantized += std::holds_alternative<Dequantize>(op.attrs);
  }
  EXPECT_EQ(products, expected_products);
  EXPECT_EQ(dequantized, 0);
  const double loss = trainer.evaluate(samples) / static_cast<double>(loss_tokens(samples));
  EXPECT_NEAR(loss, read_json(stored / "losses.json")[method].get<double>(), 5e-3);
  trainer.passes(samples, 1, 0);
  size_t compared = 0;
  for (const auto& [name, expected] : read_tensors(stored / (method + ".safetensors"))) {
    const auto& params = spec.table.params;
    const auto i = static_cast<size_t>(std::ranges::find(params, name, &ParamSpec::name) - params.begin());
    ASSERT_LT(i, params.size()) << name;
    const double error = relative_error(values(session, session.compiled().owned[i].gradient), expected);
    EXPECT_TRUE(error <= 0.2) << name << " is off by " << error;
    compared++;
  }
  EXPECT_EQ(compared, tensors);
}

// Two blocks of four linears, both ways but for the first block's input; and their gradients.
TEST(ParityFp8, LossAndLoraGradientsAreThoseOfCodesTimesCodes) { expect_fp8_products("lora", 2 * 4 * 2 - 1, 28); }
TEST(ParityFp8, LossAndAllGradientsAreThoseOfCodesTimesCodes) { expect_fp8_products("full", 2 * 4 * 3, 21); }

TEST(ParitySchedule, LearningRatesAreThoseOfTransformers) {
  for (const auto& entry : read_json(models() / "schedules.json")) {
    const std::string word = entry["schedule"];
    Schedule schedule{schedule_from_name(word), 1.0, entry["warmup_steps"], entry["steps"]};
    EXPECT_EQ(name(schedule.kind), word);
    schedule.min_ratio = entry.value("min_ratio", 0.0);
    schedule.cycles = entry.value("cycles", 1);
    schedule.power = entry.value("power", 1.0);
    schedule.decay_steps = entry.value("decay_steps", 1);
    for (size_t i = 0; i < entry["factors"].size(); i++)
      EXPECT_NEAR(schedule.at(static_cast<int64_t>(i) + 1), entry["factors"][i].get<double>(), 1e-12)
          << word << " step " << i + 1;
  }
}

// bf16 storage and products, fp32 master weights. The stored runs are themselves 5e-4 (losses) and 8e-3 (norms) from
// fp64, and round at other places: peft multiplies adapters in fp32, and sums gradients over samples in bf16.
TEST_P(Parity, TenStepsInBf16StayClose) {
  const auto expected = read_json(folder() / "reference.json")["bf16"];
  const auto samples = tiny_samples();
  for (const bool lora : {true, false}) {
    JobSpec spec = tiny_job(GetParam(), lora ? std::optional<std::string>("adapter_init") : std::nullopt, DType::BF16);
    spec.cut.micro_batch = static_cast<int64_t>(kStepSamples);
    TinySession session(spec, 1);
    session.load();
    TinyTrainer trainer(session);
    const auto& run = expected[lora ? "lora" : "full"];
    for (int64_t number = 1; number <= 10; number++) {
      const auto i = static_cast<size_t>(number - 1);
      const StepResult got =
          trainer.step(step_samples(samples, number, kStepSamples), number, run["learning_rate"][i].get<double>());
      const double loss = run["loss"][i].get<double>(), norm = run["grad_norm"][i].get<double>();
      EXPECT_NEAR(got.loss, loss, 3e-3 * loss) << "lora " << lora << " step " << number;
      EXPECT_NEAR(got.norm, norm, 4e-2 * norm) << "lora " << lora << " step " << number;
    }
  }
}

}  // namespace
}  // namespace snug
