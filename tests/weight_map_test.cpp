// Parameters that the model's files have as rows of shared tensors, and under other names: read, trained, and written
// as they were.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "stored_tensors.h"
#include "temp_directory.h"
#include "tiny_model.h"
#include "train/export.h"

namespace snug {
namespace {

constexpr std::string_view kPrefix = "language_model.";

// Puts the parts' rows one after the other in one tensor, whatever their modules' tensors are.
void fuse(StoredTensors& tensors, const std::vector<std::string>& modules, const std::string& into) {
  const auto part_of = [](const std::string& name, const std::string& module) {
    return name.find(fmt::format(".{}.", module));
  };
  StoredTensors fused;
  for (const auto& [name, tensor] : tensors) {
    const size_t at = part_of(name, modules[0]);
    if (at == name.npos) continue;
    StoredTensor& all = fused[name.substr(0, at + 1) + into + name.substr(at + 1 + modules[0].size())];
    all = {tensor.dtype, tensor.shape, tensor.shape.empty() ? tensor.bytes : ""};
    if (tensor.shape.empty()) continue;  // alike for all parts
    all.shape[0] = 0;
    for (const std::string& module : modules) {
      const StoredTensor& part = tensors.at(name.substr(0, at + 1) + module + name.substr(at + 1 + modules[0].size()));
      all.shape[0] += part.shape[0];
      all.bytes += part.bytes;
    }
  }
  std::erase_if(tensors, [&](const auto& tensor) {
    return std::ranges::any_of(modules,
                               [&](const auto& module) { return part_of(tensor.first, module) != std::string::npos; });
  });
  tensors.merge(fused);
}

// The files' tensors as another program would have them: q, k and v in one, gate and up in one, all behind a prefix.
StoredTensors otherwise(StoredTensors tensors) {
  fuse(tensors, {"q_proj", "k_proj", "v_proj"}, "qkv_proj");
  fuse(tensors, {"gate_proj", "up_proj"}, "gate_up_proj");
  StoredTensors prefixed;
  for (auto& [name, tensor] : tensors) prefixed[std::string(kPrefix) + name] = std::move(tensor);
  return prefixed;
}

ModelSpec otherwise(ModelSpec model) {
  for (LayerSpec& layer : model.layers) {
    for (LinearPart& part : layer.qkv.parts) part.stored_in = "self_attn.qkv_proj";
    for (LinearPart& part : layer.gate_up.parts) part.stored_in = "mlp.gate_up_proj";
  }
  for (std::string* name : {&model.embedding, &model.head, &model.layer_prefix, &model.final_norm.weight})
    name->insert(0, kPrefix);
  return model;
}

JobSpec job_of(const std::string& family, const fs::path& files, const ModelSpec& model) {
  JobSpec spec = tiny_job(family, std::nullopt, DType::F32);
  spec.model = model;
  spec.table = full_parameters(model, true);
  spec.sources = find_sources(spec.table, {files, false, 1, std::nullopt});
  return spec;
}

// Losses and norms of three steps; then the model is written to `out`.
std::vector<StepResult> train(const JobSpec& spec, const fs::path& source, const fs::path& out) {
  TinySession session(spec, 1);
  session.load();
  TinyTrainer trainer(session);
  std::vector<StepResult> results;
  const auto samples = tiny_samples();
  for (int64_t number = 1; number <= 3; number++)
    results.push_back(trainer.step({samples[static_cast<size_t>(number) + 1]}, number, 1e-2));
  export_model(session, out, source, Existing::Refuse);
  return results;
}

TEST(WeightMap, RowsOfSharedTensorsTrainAsTensorsOfTheirOwnAndAreWrittenBackAsTheyWere) {
  const TempDirectory directory;
  const std::string family = "qwen2";  // with biases
  const fs::path plain = models() / family, other = directory.path() / "other";
  fs::create_directories(other);
  fs::copy(plain / "config.json", other / "config.json");
  write_stored(other / "model.safetensors", otherwise(read_model(plain)));
  const ModelSpec model = read_model_config(plain).spec;
  const auto expected = train(job_of(family, plain, model), plain, directory.path() / "plain_out");
  const auto found = train(job_of(family, other, otherwise(model)), other, directory.path() / "other_out");
  EXPECT_EQ(found, expected);
  EXPECT_EQ(read_model(directory.path() / "other_out"), otherwise(read_model(directory.path() / "plain_out")));
}

TEST(WeightMap, RowsOfSharedQuantisedTensorsAreFoundWithTheirScales) {
  const TempDirectory directory;
  const fs::path plain = fs::path(SNUG_FIXTURES) / "bnb" / "int8", other = directory.path() / "other";
  fs::create_directories(other);
  write_stored(other / "model.safetensors", otherwise(read_model(plain)));
  const ModelSpec model = read_model_config(plain).spec;
  const auto loaded = [&](const fs::path& files, const ModelSpec& spec) {
    JobSpec job = job_of("llama", files, spec);
    job.table = full_parameters(spec, false);
    job.purpose = Purpose::Evaluate;
    job.numerics.compute = job.numerics.base = DType::BF16;
    job.numerics.base_format = BaseFormat::Int8;
    TinySession session(job, 1);
    session.load();
    std::vector<std::string> bytes;
    const auto take = [&](const Operand& operand) {
      const TensorView view = session.view(operand);
      bytes.emplace_back(reinterpret_cast<const char*>(view.data),
                         static_cast<size_t>(view.count()) * element_bytes(view.dtype));
    };
    for (const Compiled::Owned& owned : session.compiled().owned) {
      take(owned.weight);
      std::ranges::for_each(owned.scales, take);
    }
    return bytes;
  };
  EXPECT_EQ(loaded(other, otherwise(model)), loaded(plain, model));
}

TEST(WeightMap, ATensorThatHasNotTheRowsOfAllItsPartsIsRefusedByName) {
  const TempDirectory directory;
  ModelSpec model = otherwise(read_model_config(models() / "llama").spec);
  StoredTensors tensors = otherwise(read_model(models() / "llama"));
  StoredTensor& fused = tensors.at("language_model.model.layers.0.self_attn.qkv_proj.weight");
  fused.bytes.resize(fused.bytes.size() / static_cast<size_t>(fused.shape[0]) *
                     static_cast<size_t>(fused.shape[0] - 1));
  fused.shape[0]--;
  write_stored(directory.path() / "model.safetensors", tensors);
  EXPECT_TRUE(fails_with<UserError>([&] { job_of("llama", directory.path(), model); }, "self_attn.qkv_proj.weight"));
}

}  // namespace
}  // namespace snug
