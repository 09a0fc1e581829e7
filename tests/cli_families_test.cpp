// The program on the text model of a multimodal one, and on a model whose type no family has.
#include <cstring>
#include <map>

#include "cli_fixture.h"

namespace snug {
namespace {

const Words kData{"--data", (kModels / "data.jsonl").string(), "--data-format", "tokens", "--sequence-length", "48"};

// Returns the bytes of each tensor of a model, by name.
std::map<std::string, std::string> tensors_of(const fs::path& model) {
  const std::string file = text_of(model / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  std::map<std::string, std::string> tensors;
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, tensor] : header.items())
    if (name != "__metadata__")
      tensors[name] = file.substr(8 + length + tensor["data_offsets"][0].get<size_t>(),
                                  tensor["data_offsets"][1].get<size_t>() - tensor["data_offsets"][0].get<size_t>());
  return tensors;
}

// All of the model has its names; what is no text model's has its bytes, the rest has others.
void expect_text_model_changed(const fs::path& was, const fs::path& is) {
  const auto before = tensors_of(was), after = tensors_of(is);
  EXPECT_EQ(before.size(), after.size());
  size_t kept = 0, changed = 0;
  for (const auto& [name, bytes] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    const bool text = name.starts_with("language_model.");
    (text ? changed : kept) += text == (after.at(name) != bytes);
    EXPECT_TRUE(text || after.at(name) == bytes) << name;
  }
  EXPECT_EQ(kept, 34u);
  EXPECT_GT(changed, 15u);
}

TEST_F(Cli, AMultimodalModelsTextIsTrainedAndTheRestIsKept) {
  const fs::path model = kModels / "gemma3_vision";
  const Outcome lora = run_well(with({"train", "--model", model, "--out", "run", "--max-steps", "2"}, kData));
  EXPECT_THAT(lora.err, HasSubstr("config.json: a gemma3: its text model is used and trained, and nothing else of it"));
  EXPECT_THAT(lora.err, HasSubstr("'multi_modal_projector.mm_input_projection_weight' and 33 more"));
  const auto adapter = nlohmann::json::parse(text_of(at("run/adapter/adapter_config.json")));
  EXPECT_EQ(adapter["target_modules"].size(), 21u);
  EXPECT_EQ(adapter["target_modules"][0], "model.language_model.layers.0.mlp.down_proj");
  run_well({"merge", "--model", model, "--adapter", "run/adapter", "--out", "merged"});
  expect_text_model_changed(model, at("merged"));
  run_well(with({"train", "--model", model, "--method", "full", "--out", "full", "--max-steps", "2"}, kData));
  expect_text_model_changed(model, at("full/model"));
  const auto config = nlohmann::json::parse(text_of(at("full/model/config.json")));
  EXPECT_EQ(config["text_config"]["vocab_size"], 997);
  EXPECT_FALSE(config.contains("vocab_size"));
  // A checkpoint as a model is the model that was written.
  const auto loss = [&](const Words& words) {
    return nlohmann::json::parse(run_well(with(with({"eval", "--json"}, words), kData)).out)["loss"].get<double>();
  };
  EXPECT_EQ(loss({"--model", "full", "--checkpoint", "last", "--cache-dir", "cache"}), loss({"--model", "full/model"}));
  for (const auto& entry : fs::recursive_directory_iterator(at("cache")))
    if (entry.path().filename() == "model.safetensors") expect_text_model_changed(model, entry.path().parent_path());
}

TEST_F(Cli, AModelOfAnUnknownTypeIsReadAsAFamilyThatIsNamed) {
  fs::copy(kModels / "llama", at("m"), fs::copy_options::recursive);
  auto config = nlohmann::json::parse(text_of(at("m/config.json")));
  config["model_type"] = "vicuna_next";
  config["architectures"] = {"VicunaNextForCausalLM"};
  config["swirl_factor"] = 3;
  put(at("m/config.json"), config.dump());
  const Words eval = with({"eval", "--model", "m", "--json"}, kData);
  EXPECT_THAT(run(eval).err, HasSubstr("'model_type': found \"vicuna_next\", expected"));
  const Outcome read = run_well(with(eval, {"--family", "llama"}));
  EXPECT_THAT(read.err, HasSubstr("ASSUMED by --family: "));
  EXPECT_THAT(read.err, HasSubstr("is of type 'vicuna_next', which no family has; it is taken for a llama"));
  EXPECT_THAT(read.err, HasSubstr("keys that are not read: swirl_factor\n"));
  const Outcome own = run_well(with({"eval", "--model", kModels / "llama", "--json"}, kData));
  EXPECT_EQ(nlohmann::json::parse(read.out)["loss"], nlohmann::json::parse(own.out)["loss"]);
  EXPECT_THAT(run(with(eval, {"--family", "vicuna"})).err,
              HasSubstr("--family: found 'vicuna', expected one of arcee, "));
  EXPECT_THAT(run(with(eval, {"--family", "stablelm"})).err, HasSubstr("m/model.safetensors: "));  // other tensors
  EXPECT_THAT(run(with({"eval", "--model", kModels / "qwen2", "--family", "llama"}, kData)).err,
              HasSubstr("--family: found 'llama', expected nothing: "));
}

}  // namespace
}  // namespace snug
