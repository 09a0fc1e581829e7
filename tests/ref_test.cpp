// The naive decoder itself against what transformers stored: only then is it worth comparing anything with it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/model_config.h"
#include "ref/hf_decoder.h"

namespace snug {
namespace {

const std::filesystem::path kModels = std::filesystem::path(SNUG_FIXTURES) / "models";

// The samples of data.jsonl as one batch, each a document.
ref::Batch read_samples(size_t count) {
  ref::Batch batch{{}, {}, {0}, {}};
  std::ifstream in(kModels / "data.jsonl");
  for (std::string line; batch.documents.size() <= count && std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    const auto ids = json["input_ids"].get<std::vector<int32_t>>(), labels = json["labels"].get<std::vector<int32_t>>();
    for (size_t i = 0; i < ids.size(); i++) {
      batch.ids.push_back(ids[i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.targets.push_back(i + 1 < ids.size() ? labels[i + 1] : -1);
    }
    batch.documents.push_back(static_cast<int32_t>(batch.ids.size()));
  }
  return batch;
}

struct RefTest : testing::TestWithParam<const char*> {
  std::filesystem::path directory = kModels / GetParam();
  ModelSpec spec = read_model_config(directory).spec;
  ref::Tensors weights = ref::read_tensors(SafetensorsIndex::open_model(directory));
  ref::Tensors expected = ref::read_tensors(SafetensorsIndex::open_file(directory / "reference.safetensors"));
};

// transformers computed in fp32, 7e-7 from the truth at worst.
TEST_P(RefTest, GivesTheLogitsOfTransformers) {
  const ref::Batch batch = read_samples(4);
  const auto logits = ref::logits(ref::make_decoder<double>(spec, weights), batch);
  double largest = 0;
  for (const double x : logits.data) largest = std::max(largest, std::abs(x));
  for (size_t sample = 0; sample < 4; sample++) {
    const auto& want = expected.at("logits." + std::to_string(sample));
    ASSERT_EQ(batch.documents[sample] + want.rows, batch.documents[sample + 1]);
    for (int64_t t = 0; t < want.rows; t++)
      for (int64_t v = 0; v < want.cols; v++)
        ASSERT_TRUE(std::abs(logits(batch.documents[sample] + t, v) - want(t, v)) <= 3e-6 * largest)
            << "sample " << sample << ", token " << t << ", logit " << v;
  }
}

TEST_P(RefTest, GivesTheLossAndGradientsOfTransformers) {
  auto model = ref::make_decoder<ref::Complex>(spec, weights);
  const ref::Batch batch = read_samples(12);
  const auto reference = nlohmann::json::parse(std::ifstream(directory / "reference.json"));
  const double scale = 1 / reference["loss_tokens"].get<double>();
  EXPECT_NEAR(ref::loss(model, batch, scale).real(), reference["loss"].get<double>(), 1e-6);

  // The element with the largest gradient of a few parameters, one of each kind.
  const auto expect_gradient = [&](const std::string& name, std::vector<ref::Complex>& parameter) {
    const auto& want = expected.at("grad." + name).data;
    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const auto i = static_cast<size_t>(std::ranges::max_element(want, less) - want.begin());
    parameter[i] += ref::Complex(0, 1e-50);
    EXPECT_NEAR(ref::loss(model, batch, scale).imag() / 1e-50, want[i], 1e-5 * std::abs(want[i])) << name;
    parameter[i] = parameter[i].real();
  };
  auto& block = model.blocks[0];
  expect_gradient("model.embed_tokens.weight", model.embedding.data);
  if (!block.attention_norm.empty()) expect_gradient("model.layers.0.input_layernorm.weight", block.attention_norm);
  expect_gradient("model.layers.0.self_attn.q_proj.weight", block.q.weight.data);
  expect_gradient("model.layers.0.self_attn.k_proj.weight", block.k.weight.data);
  expect_gradient("model.layers.0.self_attn.o_proj.weight", block.o.weight.data);
  const auto expect_part = [&](const std::string& module, std::vector<ref::Complex>& parameter) {
    const std::string name = "model.layers.0." + module + ".weight";
    if (expected.contains("grad." + name)) expect_gradient(name, parameter);  // else of a fused linear
  };
  expect_part("mlp.up_proj", block.up.weight.data);
  expect_part("mlp.gate_proj", block.gate.weight.data);
  expect_gradient("model.norm.weight", model.final_norm);
  if (!model.final_norm_bias.empty()) expect_gradient("model.norm.bias", model.final_norm_bias);
  if (!block.v.bias.empty()) expect_gradient("model.layers.0.self_attn.v_proj.bias", block.v.bias);
}

INSTANTIATE_TEST_SUITE_P(Families, RefTest,
                         testing::Values("llama", "llama3", "llama_gqa7", "qwen2", "qwen2_tied", "qwen2_window",
                                         "llama_bias", "smollm3", "qwen3", "ernie4_5", "granite", "gemma", "gemma2",
                                         "gemma3", "nemotron", "arcee", "stablelm", "olmo2", "olmo3", "exaone4", "glm4",
                                         "hunyuan", "cohere", "cohere2", "granite4", "ministral3", "cohere_norms",
                                         "stablelm_norms", "starcoder2", "helium", "cwm"));

}  // namespace
}  // namespace snug
