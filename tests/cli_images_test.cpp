// Images from data files to a model that answers from pixels, by the program itself, on a tower of two layers.
#include <cstring>

#include "cli_fixture.h"

namespace snug {
namespace {

const fs::path kImages = fs::path(SNUG_FIXTURES) / "image";

class Images : public Cli {
 protected:
  void SetUp() override {
    const fs::path texts = fs::path(SNUG_FIXTURES) / "image_text" / "qwen2_vl";
    fs::create_directory(at("model"));
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"})
      fs::copy_file(texts / name, at("model") / name);
    auto config = nlohmann::json::parse(text_of(texts / "config.json"));
    config.update({{"architectures", {"Qwen2VLForConditionalGeneration"}},
                   {"hidden_size", 64},
                   {"intermediate_size", 128},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"rope_theta", 1e4},
                   {"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}}},
                   {"max_position_embeddings", 512},
                   {"tie_word_embeddings", true}});
    config["vision_config"].update({{"depth", 2},
                                    {"embed_dim", 32},
                                    {"hidden_size", 64},
                                    {"num_heads", 2},
                                    {"mlp_ratio", 2},
                                    {"temporal_patch_size", 2}});
    put(at("model/config.json"), config.dump());
    put_records();
  }

  void put_records() {
    std::string records;
    for (const auto& [image, answer] : kAnswers) records += record(image, answer);
    records += record("", "Nothing.");
    put(at("data.jsonl"), records);
  }

  void expect_answers(const Words& more = {}) {
    const Words all = with({"--freeze-vision-tower", "false", "--freeze-projector", "false"}, more);
    EXPECT_THAT(run_well(train(all)).err, HasSubstr("images        up to "));
    for (const auto& [image, answer] : kAnswers)
      EXPECT_THAT(run_well({"generate", "--model", "run/model", "--compute", "fp32", "--prompt", "What?", "--image",
                            kImages / image, "--max-new-tokens", "8"})
                      .out,
                  HasSubstr(answer))
          << image;
    EXPECT_THAT(run_well({"generate", "--model", "run/model", "--compute", "fp32", "--prompt", "What?",
                          "--max-new-tokens", "12"})
                    .out,
                HasSubstr("Nothing."));
  }

  void expect_resumed() {
    const Words two = train({"--ranks", "2", "--batch-size", "4", "--max-steps", "6", "--save-every", "3"});
    run_well(two);
    const std::vector<double> expected = losses("run");
    fs::rename(at("run"), at("whole"));
    run_well(with(two, {"--max-steps", "3"}));
    run_well({"train", "run/job.yaml", "--resume", "--max-steps", "6"});
    EXPECT_EQ(losses("run"), expected);
  }

  static std::string record(const std::string& image, const std::string& answer) {
    nlohmann::json json{{"messages",
                         {{{"role", "user"}, {"content", image.empty() ? "What?" : "<image>What?"}},
                          {{"role", "assistant"}, {"content", answer}}}}};
    if (!image.empty()) json["images"] = {image};
    return json.dump() + "\n";
  }

  static Words train(const Words& more) {
    return with(
        {"train", "--model",     "model", "--init",     "random",  "--data",          "data.jsonl", "--image-dir",
         kImages, "--method",    "full",  "--compute",  "fp32",    "--batch-size",    "3",          "--threads",
         "1",     "--out",       "run",   "--packing",  "false",   "--learning-rate", "1e-2",       "--sequence-length",
         "128",   "--max-steps", "30",    "--schedule", "constant"},
        more);
  }

  inline static const std::vector<std::pair<std::string, std::string>> kAnswers{{"444.jpg", "One."},
                                                                                {"rgb8.png", "Two."}};
};

// MiniCPM-Llama3-V 2.5 in small: slices, and a resampler.
class Slices : public Images {
 protected:
  void SetUp() override {
    Images::SetUp();
    fs::remove(at("model/preprocessor_config.json"));
    auto tokenizer = nlohmann::json::parse(text_of(at("model/tokenizer.json")));
    auto& added = tokenizer["added_tokens"];
    const nlohmann::json like = added.back();
    for (const char* token : {"<unk>", "<image>", "</image>", "<slice>", "</slice>"}) {
      nlohmann::json one = like;
      one.update({{"id", added.back()["id"].get<int>() + 1}, {"content", token}});
      added.push_back(one);
    }
    put(at("model/tokenizer.json"), tokenizer.dump());
    put(at("model/config.json"), nlohmann::json{{"architectures", {"MiniCPMV"}},
                                                {"model_type", "minicpmv"},
                                                {"version", "2.5"},
                                                {"hidden_size", 128},
                                                {"intermediate_size", 128},
                                                {"num_hidden_layers", 2},
                                                {"num_attention_heads", 4},
                                                {"num_key_value_heads", 2},
                                                {"rms_norm_eps", 1e-5},
                                                {"rope_theta", 1e4},
                                                {"max_position_embeddings", 512},
                                                {"tie_word_embeddings", false},
                                                {"vocab_size", 270},
                                                {"query_num", 3},
                                                {"patch_size", 14},
                                                {"slice_config", {{"max_slice_nums", 4}, {"scale_resolution", 28}}},
                                                {"vision_config",
                                                 {{"hidden_size", 32},
                                                  {"intermediate_size", 48},
                                                  {"num_hidden_layers", 2},
                                                  {"num_attention_heads", 2},
                                                  {"image_size", 70},
                                                  {"patch_size", 14}}}}
                                     .dump());
  }
};

TEST_F(Images, AModelLearnsToAnswerFromPixels) { expect_answers(); }
TEST_F(Slices, AModelLearnsToAnswerFromPixels) { expect_answers({"--learning-rate", "3e-3", "--max-steps", "60"}); }
TEST_F(Images, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed(); }
TEST_F(Slices, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed(); }

// An adapter's file holds the resampler whole where it is trained, under the names that PEFT gives it.
TEST_F(Slices, AResamplerIsSavedBesideAnAdapterAndUsed) {
  run_well(train({"--method", "lora", "--freeze-projector", "false", "--max-steps", "4"}));
  const std::string file = text_of(at("run/adapter/adapter_model.safetensors"));
  uint64_t bytes = 0;
  std::memcpy(&bytes, file.data(), sizeof(bytes));
  const auto header = nlohmann::json::parse(file.substr(sizeof(bytes), bytes));
  for (const char* name : {"query", "proj", "attn.in_proj_weight", "attn.in_proj_bias", "kv_proj.weight", "ln_q.bias"})
    EXPECT_TRUE(header.contains(std::string("base_model.model.resampler.") + name)) << name;
  EXPECT_TRUE(header.contains("base_model.model.llm.model.layers.0.self_attn.q_proj.lora_A.weight"));
  for (const auto& [name, tensor] : header.items()) EXPECT_EQ(name.find("vpm."), std::string::npos) << name;
  const Words base{"generate", "--model", "model", "--init", "random", "--prompt", "What?", "--max-new-tokens", "4"};
  run_well(with(base, {"--adapter", "run/adapter", "--image", kImages / "rgb8.png"}));
}

TEST_F(Slices, PlansCountPatchesOfViewsWhereThereIsNoData) {
  EXPECT_THAT(run_well({"plan", "--model", "model", "--image-tokens", "9", "--sequence-length", "64"}).out,
              HasSubstr("up to 12 patches a block"));  // 3 views of 4
}

TEST_F(Images, WhatIsNotThereIsRefused) {
  const auto expect = [&](const Words& words, const char* part) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  expect(train({"--compute", "fp8"}), "products of the tower are not in fp8 yet");
  expect(train({"--freeze-language-model", "true"}), "expected a part that is trained");
  expect({"generate", "--model", "model", "--init", "random", "--prompt", "What? <|image_pad|>", "--image",
          kImages / "rgb8.png"},
         "which the model has for images alone");
  put(at("data.jsonl"), record("", "Nothing."));
  expect(train({"--freeze-language-model", "true"}), "nothing else is trained");
}

}  // namespace
}  // namespace snug
