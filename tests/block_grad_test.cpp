// Gradients of whole blocks, as a pass leaves them, against complex-step derivatives of the naive decoder: every
// parameter of every block, model's and adapters', is nudged in a few elements.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "ref/hf_decoder.h"
#include "tiny_model.h"

namespace snug {
namespace {

using ref::Complex;

ref::Batch reference_batch(const std::vector<TinySample>& samples) {
  ref::Batch batch{{}, {}, {0}, {}};
  for (const TinySample& sample : samples) {
    for (size_t i = 0; i < sample.ids.size(); i++) {
      batch.ids.push_back(sample.ids[i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.targets.push_back(i + 1 < sample.ids.size() ? sample.labels[i + 1] : -1);
    }
    batch.documents.push_back(static_cast<int32_t>(batch.ids.size()));
  }
  return batch;
}

// The decoder and where each of its parameters lies, by transformers' and PEFT's names.
struct NamedDecoder {
  ref::Decoder<Complex> model;
  std::map<std::string, std::vector<Complex>*> parameters;

  void name_linear(const std::string& module, ref::Linear<Complex>& linear) {
    parameters[module + ".weight"] = &linear.weight.data;
    if (!linear.bias.empty()) parameters[module + ".bias"] = &linear.bias;
    if (!linear.adapter) return;
    parameters["base_model.model." + module + ".lora_A.weight"] = &linear.adapter->a.data;
    parameters["base_model.model." + module + ".lora_B.weight"] = &linear.adapter->b.data;
  }
};

std::map<std::string, ref::Linear<Complex>*> linears_of(const LayerSpec& layer, ref::Block<Complex>& block) {
  const std::string up = layer.gated ? "mlp.up_proj" : layer.gate_up.parts[0].module;
  return {{"self_attn.q_proj", &block.q},           {"self_attn.k_proj", &block.k}, {"self_attn.v_proj", &block.v},
          {"self_attn.o_proj", &block.o},           {"mlp.gate_proj", &block.gate}, {up, &block.up},
          {layer.down.parts[0].module, &block.down}};
}

std::unique_ptr<NamedDecoder> named_decoder(const std::string& family, const std::optional<std::string>& adapter) {
  const auto directory = models() / family;
  const ModelSpec spec = read_model_config(directory).spec;
  auto named = std::make_unique<NamedDecoder>();
  named->model = ref::make_decoder<Complex>(spec, ref::read_tensors(SafetensorsIndex::open_model(directory)));
  ref::Tensors low;
  PeftConfig peft;
  if (adapter) {
    low = ref::read_tensors(SafetensorsIndex::open_file(directory / *adapter / "adapter_model.safetensors"));
    peft = read_peft_config(directory / *adapter);
  }
  for (size_t i = 0; i < named->model.blocks.size(); i++) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    ref::Block<Complex>& block = named->model.blocks[i];
    for (const auto& [module, linear] : linears_of(spec.layers[i], block)) {
      if (linear->weight.data.empty()) continue;  // the gate of an MLP without one
      const std::string name = "base_model.model." + at + module;
      if (low.contains(name + ".lora_A.weight"))
        linear->adapter = {ref::convert<Complex>(low.at(name + ".lora_A.weight")),
                           ref::convert<Complex>(low.at(name + ".lora_B.weight")),
                           peft.alpha / static_cast<double>(peft.rank)};
      named->name_linear(at + module, *linear);
    }
    const LayerSpec& layer = spec.layers[i];
    for (const auto& [norm, weight] :
         {std::pair(&layer.attention_norm, &block.attention_norm), std::pair(&layer.mlp_norm, &block.mlp_norm),
          std::pair(&layer.query_norm, &block.query_norm), std::pair(&layer.key_norm, &block.key_norm),
          std::pair(&layer.attention_post_norm, &block.attention_post_norm),
          std::pair(&layer.mlp_post_norm, &block.mlp_post_norm)})
      if (!weight->empty()) named->parameters[at + norm->weight] = weight;
    for (const auto& [norm, bias] : {std::pair(&layer.attention_norm, &block.attention_norm_bias),
                                     std::pair(&layer.mlp_norm, &block.mlp_norm_bias)})
      if (!bias->empty()) named->parameters[at + norm->bias] = bias;
  }
  return named;
}

// Puts the same small values into both.
void draw(const TensorView& weights, std::vector<Complex>& parameter) {
  const Random random(8, RandomPurpose::Initialisation, 0);
  for (size_t i = 0; i < parameter.size(); i++) {
    const float value = 1e-4f * static_cast<float>(random.below(i, 1000));
    weights.as<float>()[i] = value;
    parameter[i] = static_cast<double>(value);
  }
}

// The largest element and four others.
std::vector<size_t> probed_elements(const std::vector<float>& gradient, uint32_t stream) {
  const auto less = [](float a, float b) { return std::abs(a) < std::abs(b); };
  std::vector<size_t> elements{static_cast<size_t>(std::ranges::max_element(gradient, less) - gradient.begin())};
  const Random random(7, RandomPurpose::Initialisation, stream);
  for (uint64_t i = 0; i < 4; i++) elements.push_back(random.below(i, gradient.size()));
  return elements;
}

struct Case {
  std::string family;
  std::optional<std::string> adapter;
  Recompute recompute;
};

struct BlockGradients : testing::TestWithParam<Case> {};

TEST_P(BlockGradients, EqualComplexStepDerivatives) {
  const auto& [family, adapter, recompute] = GetParam();
  auto samples = tiny_samples();
  samples.resize(3);
  JobSpec spec = tiny_job(family, adapter, DType::F32);
  spec.cut.micro_batch = 3;
  spec.strategy = plain_strategy(spec.table, recompute);
  Session session(spec, 2);
  session.load();
  const auto reference = named_decoder(family, adapter);
  // A fresh adapter's B is zero, and with it the gradient of A.
  for (size_t i = 0; i < spec.table.params.size(); i++)
    if (spec.table.params[i].name.ends_with(".lora_B.weight"))
      draw(session.view(session.compiled().owned[i].weight), *reference->parameters.at(spec.table.params[i].name));
  TinyTrainer trainer(session);
  trainer.passes(samples, 1, 0);
  const ref::Batch batch = reference_batch(samples);
  const double scale = 1.0 / static_cast<double>(loss_tokens(samples));
  size_t checked = 0;
  for (size_t i = 0; i < spec.table.params.size(); i++) {
    const ParamSpec& param = spec.table.params[i];
    const auto found = reference->parameters.find(param.name);
    if (!param.trainable || found == reference->parameters.end()) continue;
    const std::vector<float> gradient = values(session, session.compiled().owned[i].gradient);
    const auto elements = probed_elements(gradient, static_cast<uint32_t>(i));
    const double bound = 2e-5 * std::abs(static_cast<double>(gradient[elements[0]]));
    for (const size_t element : elements) {
      Complex& nudged = (*found->second)[element];
      nudged += Complex(0, 1e-50);
      const double derivative = ref::loss(reference->model, batch, scale).imag() / 1e-50;
      nudged = nudged.real();
      EXPECT_NEAR(static_cast<double>(gradient[element]), derivative, bound) << param.name << "[" << element << "]";
    }
    checked++;
  }
  const bool of_adapter = adapter.has_value();
  EXPECT_EQ(checked, static_cast<size_t>(std::ranges::count_if(reference->parameters, [of_adapter](const auto& one) {
              return one.first.starts_with("base_model.") == of_adapter;
            })));
}

INSTANTIATE_TEST_SUITE_P(
    Families, BlockGradients,
    testing::Values(Case{"llama", {}, Recompute::None}, Case{"qwen2", {}, Recompute::Block},
                    Case{"llama_gqa7", {}, Recompute::Mlp}, Case{"llama", "adapter_init", Recompute::Attention},
                    Case{"qwen2", "adapter_init", Recompute::None}, Case{"llama_bias", {}, Recompute::Mlp},
                    Case{"llama_bias", "adapter_init", Recompute::Block}, Case{"llama_yarn", {}, Recompute::Mlp},
                    Case{"smollm3", {}, Recompute::Attention}, Case{"smollm3", "adapter_init", Recompute::Block},
                    Case{"qwen3", {}, Recompute::None}, Case{"qwen3", {}, Recompute::Attention},
                    Case{"qwen3", "adapter_init", Recompute::Block}, Case{"ernie4_5", {}, Recompute::Attention},
                    Case{"ernie4_5", "adapter_init", Recompute::None}, Case{"granite", {}, Recompute::None},
                    Case{"granite", {}, Recompute::Block}, Case{"granite", "adapter_init", Recompute::Mlp},
                    Case{"gemma", {}, Recompute::Mlp}, Case{"gemma3", {}, Recompute::None},
                    Case{"gemma3", {}, Recompute::Mlp}, Case{"gemma3", {}, Recompute::Attention},
                    Case{"gemma3", "adapter_init", Recompute::Block}, Case{"gemma3", "adapter_init", Recompute::None},
                    Case{"gemma2", {}, Recompute::Mlp}, Case{"nemotron", {}, Recompute::None},
                    Case{"nemotron", {}, Recompute::Mlp}, Case{"nemotron", "adapter_init", Recompute::Block},
                    Case{"arcee", {}, Recompute::Attention}, Case{"arcee", "adapter_init", Recompute::Mlp},
                    Case{"stablelm", {}, Recompute::Block}, Case{"stablelm", "adapter_init", Recompute::None},
                    Case{"olmo2", {}, Recompute::None}, Case{"olmo2", {}, Recompute::Block},
                    Case{"olmo2", "adapter_init", Recompute::Mlp}, Case{"olmo3", {}, Recompute::Attention},
                    Case{"exaone4", {}, Recompute::Mlp}, Case{"exaone4", "adapter_init", Recompute::Block},
                    Case{"hunyuan", {}, Recompute::None}, Case{"hunyuan", {}, Recompute::Attention},
                    Case{"hunyuan", "adapter_init", Recompute::Block}, Case{"cohere", {}, Recompute::None},
                    Case{"cohere", {}, Recompute::Block}, Case{"cohere", "adapter_init", Recompute::Mlp},
                    Case{"cohere2", {}, Recompute::Attention}, Case{"cohere2", "adapter_init", Recompute::None},
                    Case{"ministral3", {}, Recompute::Block}, Case{"ministral3", "adapter_init", Recompute::None},
                    Case{"cohere_norms", {}, Recompute::None}, Case{"cohere_norms", {}, Recompute::Attention},
                    Case{"cohere_norms", "adapter_init", Recompute::Block}, Case{"starcoder2", {}, Recompute::None},
                    Case{"starcoder2", {}, Recompute::Mlp}, Case{"starcoder2", "adapter_init", Recompute::Block},
                    Case{"helium", {}, Recompute::Block}, Case{"helium", "adapter_init", Recompute::Attention},
                    Case{"cwm", {}, Recompute::Attention}, Case{"cwm", "adapter_init", Recompute::Block}));

}  // namespace
}  // namespace snug
