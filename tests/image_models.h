// Small models of texts and images, one of each family, with data of two pictures, for tests of the program itself.
#pragma once

#include <cstring>

#include "cli_fixture.h"

namespace snug {

inline const fs::path kImages = fs::path(SNUG_FIXTURES) / "image";

// Qwen2-VL in small.
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

  void put_records(int times = 1) {
    std::string records;
    for (int i = 0; i < times; i++) {
      for (const auto& [image, answer] : kAnswers) records += record(image, answer);
      records += record("", "Nothing.");
    }
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

  void expect_resumed(const Words& cut) {
    const Words two = with(train({"--ranks", "2", "--max-steps", "6", "--save-every", "3"}), cut);
    run_well(two);
    const std::vector<double> expected = losses("run");
    fs::rename(at("run"), at("whole"));
    run_well(with(two, {"--max-steps", "3"}));
    run_well({"train", "run/job.yaml", "--resume", "--max-steps", "6"});
    EXPECT_EQ(losses("run"), expected);
  }

  // Makes a model with weights in files, whose tower may be frozen and kept.
  void make_base() { run_well(train({"--max-steps", "1", "--out", "base", "--freeze-vision-tower", "false"})); }

  // Trains adapters of that model for four epochs, packed, texts and images in one pass.
  static Words adapt(const Words& more) {
    return with({"train", "--model",      "base/model", "--data",          "data.jsonl", "--image-dir",
                 kImages, "--compute",    "fp32",       "--threads",       "1",          "--out",
                 "run",   "--epochs",     "4",          "--cache-dir",     "cache",      "--sequence-length",
                 "128",   "--batch-size", "4",          "--learning-rate", "1e-2"},
                more);
  }
  std::string adapter(const std::string& out) const { return text_of(at(out) / "adapter/adapter_model.safetensors"); }
  size_t kept_rows() const {
    size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(at("cache/images")))
      count += entry.is_regular_file() && !entry.path().has_extension();
    return count;
  }

  void expect_same_with_cache() {
    put_records(3);
    make_base();
    for (const std::string compute : {"fp32", "bf16"})
      for (const std::string ranks : {"1", "2", "4"}) {
        SCOPED_TRACE(compute + " on " + ranks);
        fs::remove_all(at("cache"));
        const Words words = adapt({"--compute", compute, "--ranks", ranks, "--overwrite"});
        run_well(with(words, {"--image-cache", "off", "--out", "without"}));
        EXPECT_FALSE(fs::exists(at("cache/images")));
        const Outcome first = run_well(words);
        EXPECT_THAT(first.err, HasSubstr("of 2 images, whose rows take "));
        EXPECT_THAT(first.err, HasSubstr("0 are in "));
        EXPECT_THAT(first.err, HasSubstr("the rows of 2 images were made in "));
        EXPECT_THAT(first.err, HasSubstr("the tower's weights are not held"));
        EXPECT_EQ(kept_rows(), 2u);
        EXPECT_EQ(losses("run"), losses("without"));
        EXPECT_EQ(adapter("run"), adapter("without"));
        const Outcome second = run_well(words);
        EXPECT_THAT(second.err, HasSubstr(", 2 are in "));
        EXPECT_THAT(second.err, ::testing::Not(HasSubstr("were made in")));
        EXPECT_EQ(adapter("run"), adapter("without"));
      }
  }

  // Videos beside images and texts, in one pass: each step of two frames has rows of its own.
  void expect_videos_train_the_same_with_cache() {
    put_records(1);
    make_base();
    std::string records = record("rgb8.png", "Two.") + record("", "Nothing.");
    for (const int count : {4, 3}) {
      auto json = nlohmann::json::parse(record("", "Moves."));
      json["messages"][0]["content"] = "<video>What?";
      auto& video = json["videos"][0];
      for (int i = 0; i < count; i++) video.push_back("../video/frame" + std::to_string(i) + ".png");
      records += json.dump() + "\n";
    }
    put(at("data.jsonl"), records);
    for (const std::string ranks : {"1", "2"}) {
      SCOPED_TRACE(ranks);
      fs::remove_all(at("cache"));
      const Words words = adapt({"--ranks", ranks, "--overwrite"});
      run_well(with(words, {"--image-cache", "off", "--out", "without"}));
      EXPECT_THAT(run_well(words).err,
                  HasSubstr("the rows of 4 images were made in "));  // frames 0 and 1 stand in both
      EXPECT_EQ(kept_rows(), 4u);
      EXPECT_EQ(losses("run"), losses("without"));
      EXPECT_EQ(adapter("run"), adapter("without"));
    }
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

// Models of other families, whose tokens for images are in the tokenizer alone.
class OtherImages : public Images {
 protected:
  void add_tokens(const Words& tokens) {
    fs::remove(at("model/preprocessor_config.json"));
    auto tokenizer = nlohmann::json::parse(text_of(at("model/tokenizer.json")));
    auto& added = tokenizer["added_tokens"];
    const nlohmann::json like = added.back();
    for (const std::string& token : tokens) {
      nlohmann::json one = like;
      one.update({{"id", added.back()["id"].get<int>() + 1}, {"content", token}});
      added.push_back(one);
    }
    put(at("model/tokenizer.json"), tokenizer.dump());
  }

  // Of a file's tensors their dtypes and shapes.
  static nlohmann::json header_of(const fs::path& safetensors) {
    const std::string file = text_of(safetensors);
    uint64_t bytes = 0;
    std::memcpy(&bytes, file.data(), sizeof(bytes));
    auto header = nlohmann::json::parse(file.substr(sizeof(bytes), bytes));
    for (auto& tensor : header) tensor.erase("data_offsets");
    return header;
  }
};

// MiniCPM-Llama3-V 2.5 in small: slices, and a resampler.
class Slices : public OtherImages {
 protected:
  void SetUp() override {
    Images::SetUp();
    add_tokens({"<unk>", "<image>", "</image>", "<slice>", "</slice>"});
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

// OmniLMM in small: a class row before the patches of every image, all of one size, and tables of positions for fewer.
class OneSize : public OtherImages {
 protected:
  void SetUp() override {
    Images::SetUp();
    add_tokens({"<im_patch>", "<im_start>", "<im_end>"});
    put(at("model/config.json"), nlohmann::json{{"architectures", {"OmniLMMForCausalLM"}},
                                                {"model_type", "omnilmm"},
                                                {"hidden_size", 128},
                                                {"intermediate_size", 128},
                                                {"num_hidden_layers", 2},
                                                {"num_attention_heads", 4},
                                                {"num_key_value_heads", 2},
                                                {"rms_norm_eps", 1e-5},
                                                {"rope_theta", 1e4},
                                                {"sliding_window", 4096},
                                                {"max_position_embeddings", 512},
                                                {"tie_word_embeddings", false},
                                                {"vocab_size", 270},
                                                {"num_query", 4},
                                                {"image_size", 42},
                                                {"mm_use_im_start_end", true},
                                                {"mm_vision_tower", "eva02_enormous_patch14_clip_224.laion2b_plus"},
                                                {"vision_config",
                                                 {{"img_size", 28},
                                                  {"patch_size", 14},
                                                  {"embed_dim", 32},
                                                  {"depth", 3},
                                                  {"num_heads", 2},
                                                  {"mlp_ratio", 1.5}}}}
                                     .dump());
  }
};

// Qwen2.5-VL in small: attention within windows, so that a tower has patches in an order of its own.
class Windows : public Images {
 protected:
  void SetUp() override {
    Images::SetUp();
    auto config = nlohmann::json::parse(text_of(at("model/config.json")));
    config.update({{"architectures", {"Qwen2_5_VLForConditionalGeneration"}}, {"model_type", "qwen2_5_vl"}});
    config["vision_config"] = {{"model_type", "qwen2_5_vl"},
                               {"depth", 2},
                               {"hidden_size", 32},
                               {"out_hidden_size", 64},
                               {"intermediate_size", 48},
                               {"num_heads", 2},
                               {"in_channels", 3},
                               {"patch_size", 14},
                               {"spatial_patch_size", 14},
                               {"spatial_merge_size", 2},
                               {"temporal_patch_size", 2},
                               {"window_size", 56},
                               {"fullatt_block_indexes", {1}},
                               {"hidden_act", "silu"}};
    put(at("model/config.json"), config.dump());
  }
};

}  // namespace snug
