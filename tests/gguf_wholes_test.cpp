// GGUF files of models whose own files have other tensors than GGUF's architecture: each has the bytes of the file of a
// model that computes the same and has those.
#include "gguf_wholes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "format/gguf.h"
#include "format/gguf_import.h"
#include "same_tensors.h"
#include "temp_directory.h"
#include "train/gguf_export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "gguf";

class GgufWholes : public testing::Test {
 protected:
  fs::path at(const std::string& name) const { return directory_.path() / name; }
  fs::path imported(const std::string& fixture) const {
    import_gguf(kFixtures / (fixture + ".gguf"), at(fixture), Existing::Refuse);
    return at(fixture);
  }
  // Returns the bytes of a model's file.
  std::string exported(const fs::path& model) {
    notes_ = export_gguf_model(read_model_config(model), model, model, at("x.gguf"), GgufFileType::Q8_0, "x");
    return read_text(at("x.gguf"), 10'000'000);
  }

  std::vector<std::string> notes_;
  TempDirectory directory_;
};

TEST_F(GgufWholes, TheTextOfAModelOfTextsAndImagesIsWrittenAsByItself) {
  const std::tuple<std::string, std::string, std::string> models[] = {
      {"gemma3", "gemma3", "Gemma3ForConditionalGeneration"},
      {"ministral3", "mistral3", "Mistral3ForConditionalGeneration"}};
  for (const auto& [fixture, type, class_name] : models) {
    const fs::path text = imported(fixture);
    const std::string expected = exported(text);
    EXPECT_EQ(notes_.size(), 1u) << fixture;
    for (const bool early : {false, true}) {
      const fs::path whole = at(fixture + (early ? ".early" : ".whole"));
      put_in_multimodal(text, whole, type, class_name, early);
      EXPECT_TRUE(exported(whole) == expected) << fixture;
      EXPECT_THAT(notes_.at(1), HasSubstr("the text model alone is written; left out, "));
      EXPECT_THAT(notes_.at(1), testing::EndsWith("vision_tower.patch.weight'"));
    }
  }
}

// Mistral Small 3.1's text is a Mistral, of which llama.cpp's converter writes mistral3 files too.
TEST_F(GgufWholes, MistralSmallsTextComesBackAsItWas) {
  const fs::path text = imported("mistral_small");
  put_in_multimodal(text, at("whole"), "mistral3", "Mistral3ForConditionalGeneration", false);
  export_gguf_model(read_model_config(at("whole")), at("whole"), at("whole"), at("x.gguf"), GgufFileType::BF16, "x");
  EXPECT_EQ(read_gguf({at("x.gguf")}).string("general.architecture"), "mistral3");
  import_gguf(at("x.gguf"), at("again"), Existing::Refuse);
  EXPECT_EQ(read_text(at("again") / "config.json", 100'000), read_text(text / "config.json", 100'000));
  expect_same_tensors(SafetensorsIndex::open_model(at("again")), SafetensorsIndex::open_model(text));
}

TEST_F(GgufWholes, ATensorOfTheTextWithoutAPlaceIsRefused) {
  put_in_multimodal(imported("gemma3"), at("whole"), "gemma3", "Gemma3ForConditionalGeneration", false);
  rewrite(at("whole"), at("more"), [](Json&, NamedNumbers& tensors) {
    tensors["model.language_model.layers.0.mlp.more.weight"] = {{1, 2}, "abcd"};
  });
  EXPECT_TRUE(
      fails_with<UserError>([&] { exported(at("more")); },
                            "found tensor 'model.language_model.layers.0.mlp.more.weight', which has no place"));
}

TEST_F(GgufWholes, Granite4IsWrittenAsGranite) {
  const fs::path granite = imported("granite4");
  const std::string expected = exported(granite);
  become_granite4(granite, at("hybrid"));
  EXPECT_TRUE(exported(at("hybrid")) == expected);
}

// Gate and up have one adapter in Granite 4's files: both take its A, and each the rows of B that are its own.
TEST_F(GgufWholes, AnAdapterOfGateAndUpIsOfBoth) {
  become_granite4(imported("granite4"), at("hybrid"));
  fs::create_directory(at("adapter"));
  write_text(at("adapter") / "adapter_config.json",
             R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["input_linear"], "bias": "none"})");
  constexpr int64_t kHidden = 32, kInner = 64, kRank = 2;
  std::vector<SafetensorsTensor> tensors;
  std::vector<float> values;
  for (int layer = 0; layer < 2; ++layer) {
    const auto name = fmt::format("base_model.model.model.layers.{}.shared_mlp.input_linear", layer);
    tensors.push_back({name + ".lora_A.weight", DType::F32, {kRank, kHidden}});
    tensors.push_back({name + ".lora_B.weight", DType::F32, {2 * kInner, kRank}});
    for (int64_t i = 0; i < kRank * (kHidden + 2 * kInner); ++i) values.push_back(static_cast<float>(values.size()));
  }
  write_text(at("adapter") / "adapter_model.safetensors",
             layout_safetensors(tensors).header +
                 std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  export_gguf_adapter(read_model_config(at("hybrid")), at("hybrid"), at("adapter"), at("x.gguf"));
  const GgufHeader header = read_gguf({at("x.gguf")});
  EXPECT_EQ(header.tensors().size(), 8u);
  const auto part = [&](const std::string& name) {
    const GgufTensor& tensor = *header.find(name);
    std::vector<float> found(tensor.bytes / sizeof(float));
    File::open_read(at("x.gguf"), IoMode::Buffered).read(tensor.offset, std::as_writable_bytes(std::span(found)));
    return found;
  };
  constexpr int64_t kB = kRank * kHidden, kHalf = kInner * kRank;
  const std::vector<float> a(values.begin(), values.begin() + kB),
      first(values.begin() + kB, values.begin() + kB + kHalf),
      second(values.begin() + kB + kHalf, values.begin() + kB + 2 * kHalf);
  EXPECT_EQ(part("blk.0.ffn_gate.weight.lora_a"), a);
  EXPECT_EQ(part("blk.0.ffn_up.weight.lora_a"), a);
  EXPECT_EQ(part("blk.0.ffn_gate.weight.lora_b"), first);
  EXPECT_EQ(part("blk.0.ffn_up.weight.lora_b"), second);
}

// llama.cpp knows by the number of layers whether heads of Command R are normed.
TEST_F(GgufWholes, CommandRPlusHas64Layers) {
  const fs::path small = imported("command_r_plus");
  EXPECT_TRUE(fails_with<UserError>([&] { exported(small); },
                                    "found 1 layers with norms of heads, expected these from 64 layers on"));
  rewrite(small, at("large"), [](Json& config, NamedNumbers& tensors) {
    config["num_hidden_layers"] = 64;
    const NamedNumbers one = tensors;
    for (const auto& [name, numbers] : one)
      for (int layer = 1; name.starts_with("model.layers.0.") && layer < 64; ++layer)
        tensors[fmt::format("model.layers.{}.{}", layer, name.substr(15))] = numbers;
  });
  export_gguf_model(read_model_config(at("large")), at("large"), at("large"), at("x.gguf"), GgufFileType::BF16, "x");
  const GgufHeader header = read_gguf({at("x.gguf")});
  const GgufTensor& gains = *header.find("blk.63.attn_q_norm.weight");
  EXPECT_EQ(gains.type, GgufType::F32);
  EXPECT_EQ(gains.shape, (std::vector<int64_t>{2, 16}));
  import_gguf(at("x.gguf"), at("again"), Existing::Refuse);
  expect_same_tensors(SafetensorsIndex::open_model(at("again")), SafetensorsIndex::open_model(at("large")));
}

}  // namespace
}  // namespace snug
