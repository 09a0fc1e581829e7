// Adapters whose rows have norms that are trained (DoRA), beside PEFT's numbers and beside plain adapters.
#include <gtest/gtest.h>

#include "api/job.h"
#include "api/rules.h"
#include "expect_error.h"
#include "format/peft_tensors.h"
#include "stored_adapters.h"
#include "temp_directory.h"
#include "train/export.h"

namespace snug {
namespace {

JobConfig options_from(const std::string& adapter, const std::string& base) {
  JobConfig options = options_on(base);
  options.adapter = (adapters() / adapter).string();
  return options;
}

JobSpec job_of(const JobConfig& options, Purpose purpose = Purpose::Train) {
  JobSpec spec = make_job(options, purpose);
  spec.cut.micro_batch = std::ssize(samples_of_adapters());
  spec.evaluate = purpose == Purpose::Train;
  return spec;
}

double loss_of(const JobSpec& spec) {
  TinySession session(spec, 1);
  session.load();
  return TinyTrainer(session).evaluate(samples_of_adapters());
}

constexpr std::array<std::pair<const char*, const char*>, 2> kStored{{{"dora", "own_head"}, {"dora_uneven", "tied"}}};

TEST(Dora, GradientsOfEveryParameterAreThoseOfPeft) {
  const auto samples = samples_of_adapters();
  for (const auto& [adapter, base] : kStored) {
    const auto reference = read_tensors(adapters() / fmt::format("{}_reference.safetensors", adapter));
    const JobSpec spec = job_of(options_from(adapter, base));
    TinySession session(spec, 1);
    session.load();
    TinyTrainer(session).passes(samples, 1, 0);
    size_t compared = 0;
    for (size_t i = 0; i < spec.table.params.size(); i++) {
      const ParamSpec& param = spec.table.params[i];
      if (!param.trainable) continue;
      const double error =
          relative_error(values(session, session.compiled().owned[i].gradient), reference.at("grad." + param.name));
      EXPECT_TRUE(error <= 1e-5) << adapter << ": " << param.name << " is off by " << error;
      compared++;
    }
    EXPECT_EQ(compared + 1, reference.size()) << adapter;
  }
}

TEST(Dora, LogitsOfEveryPositionAreThoseOfPeft) {
  const auto samples = samples_of_adapters();
  for (const auto& [adapter, base] : kStored) {
    const auto reference = read_tensors(adapters() / fmt::format("{}_reference.safetensors", adapter));
    JobSpec spec = make_job(options_from(adapter, base), Purpose::Generate);
    spec.cache_positions = 64;
    TinySession session(spec, 1);
    session.load();
    std::vector<float> logits;
    size_t fed = 0;
    session.on(HostJob::FillTokens, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
      const TokenViews tokens = token_views(views);
      tokens.ids[0] = samples[0].ids[fed];
      tokens.positions[0] = static_cast<int32_t>(fed);
      tokens.row[0] = 0;
    });
    session.on(HostJob::TakeLogits, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
      logits.insert(logits.end(), views[0].as<float>(), views[0].as<float>() + spec.model.vocabulary);
    });
    for (; fed < samples[0].ids.size(); fed++) {
      RuntimeScalars runtime;
      runtime.position = static_cast<int64_t>(fed);
      session.run(Task::Decode, runtime);
    }
    EXPECT_LE(relative_error(logits, reference.at("logits")), 1e-5) << adapter;
  }
}

// Rows begin with the norms that they have, whatever the base is held in. In bf16 a product is rounded once more,
// before bias and residual are added to it.
TEST(Dora, AFreshAdapterIsTheBase) {
  for (const char* compute : {"fp32", "bf16"})
    for (const char* format : {"bf16", "int8", "nf4", "fp8"})
      for (const double dropout : {0.0, 0.3}) {
        JobConfig options = options_on("tied");
        options.compute = compute;
        options.base_format = format;
        options.lora_dropout = dropout;
        const double plain = loss_of(job_of(options));
        options.lora_dora = true;
        const double bound = compute == std::string("fp32") ? 0 : 2e-3 * plain;
        EXPECT_NEAR(loss_of(job_of(options)), plain, bound) << compute << ", " << format;
      }
}

// Halves are drawn as without norms, and a number a row is trained beside them.
TEST(Dora, HalvesAreThoseOfAPlainAdapter) {
  JobConfig options = options_on("own_head");
  const JobSpec plain = make_job(options, Purpose::Train);
  options.lora_dora = true;
  const JobSpec dora = make_job(options, Purpose::Train);
  std::map<std::string, RandomFill> drawn;
  int64_t rows = 0;
  for (size_t i = 0; i < plain.table.params.size(); i++) {
    if (const auto* const fill = std::get_if<RandomFill>(&plain.sources.params[i]))
      drawn[plain.table.params[i].name] = *fill;
    if (plain.table.params[i].linear) rows += plain.table.params[i].shape.rows();
  }
  size_t compared = 0;
  for (size_t i = 0; i < dora.table.params.size(); i++) {
    const auto found = drawn.find(dora.table.params[i].name);
    if (found == drawn.end()) continue;
    const auto& fill = std::get<RandomFill>(dora.sources.params[i]);
    EXPECT_TRUE(fill.stream == found->second.stream && fill.scale == found->second.scale) << found->first;
    compared++;
  }
  EXPECT_EQ(compared, drawn.size());
  EXPECT_EQ(dora.table.count(true), plain.table.count(true) + rows);
  EXPECT_EQ(dora.table.count(false), plain.table.count(false) + rows);
}

// A base in bf16 moves the norms by less than bf16's unit in a step: they are trained in fp32.
TEST(Dora, NormsMoveByLessThanAUnitOfBf16) {
  const TempDirectory directory;
  JobConfig options = options_on("own_head");
  options.compute = "bf16";
  options.lora_dora = true;
  const auto written = [&](int64_t steps) {
    const auto out = directory.path() / fmt::format("{}", steps);
    TinySession session(job_of(options), 1);
    session.load();
    TinyTrainer trainer(session);
    for (int64_t number = 1; number <= steps; number++) trainer.step(samples_of_adapters(), number, 1e-5);
    export_adapter(session, out, written_adapter(options), options.model);
    return read_tensors(out / "adapter_model.safetensors");
  };
  const auto before = written(0), after = written(2);
  size_t norms = 0;
  for (const auto& [name, values] : before) {
    if (!name.ends_with(kMagnitude)) continue;
    for (size_t i = 0; i < values.size(); i++) {
      const float moved = std::abs(after.at(name)[i] - values[i]);
      EXPECT_TRUE(moved > 5e-6f && moved < 3e-5f) << name << ": " << values[i] << " moved by " << moved;
      EXPECT_GT(values[i], 0.0f) << name;
    }
    norms++;
  }
  EXPECT_EQ(norms, 14u);
}

void expect_refused(const JobConfig& options, const std::string& message) {
  EXPECT_TRUE(fails_with<UserError>([&] { make_job(options, Purpose::Train); }, message));
}

TEST(Dora, WhatIsNotThereIsRefused) {
  JobConfig options = options_on("own_head");
  options.lora_dora = true;
  options.lora_init = "pissa";
  expect_refused(options, "lora_dora: found lora_init pissa beside it");
  options.lora_init = "default";
  options.lora_targets = {"q_proj"};
  options.modules_to_save = {"k_proj"};
  expect_refused(options, "lora_dora: modules_to_save names 'model.layers.0.self_attn.k_proj.weight'");
  options.modules_to_save = {"lm_head", "o_proj"};
  EXPECT_NO_THROW(make_job(options, Purpose::Train));
  options = options_from("plain", "own_head");
  options.lora_dora = true;
  expect_refused(options, "lora_dora: found true, expected false, as in");
}

}  // namespace
}  // namespace snug
