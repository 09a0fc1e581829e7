// Images from data files to a model that answers from pixels, by the program itself, on a tower of two layers.
#include <cstring>

#include "base/file_lock.h"
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

  void expect_resumed() {
    const Words two = train({"--ranks", "2", "--batch-size", "4", "--max-steps", "6", "--save-every", "3"});
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

TEST_F(Images, AModelLearnsToAnswerFromPixels) { expect_answers(); }
TEST_F(Slices, AModelLearnsToAnswerFromPixels) { expect_answers({"--learning-rate", "3e-3", "--max-steps", "60"}); }
// What a block adds is normed, so that drawn patches begin as small beside it: they learn faster than the rest.
TEST_F(OneSize, AModelLearnsToAnswerFromPixels) {
  expect_answers({"--learning-rate", "3e-3", "--learning-rate-vision", "3e-2", "--max-steps", "100"});
}
TEST_F(Images, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed(); }
TEST_F(Slices, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed(); }
TEST_F(OneSize, RanksWithAndWithoutImagesGoOnTogetherAndResume) { expect_resumed(); }

// Run as a test of its own, as it takes a while (tests/rooms/cli.cmake). Of 8 blocks a step 2 have images, so that
// ranks mostly have none, and in passes of none no rank looks at any.
TEST_F(Images, DISABLED_FourRanksOfWhichSomeHaveNoImagesTakeAThousandSteps) {
  put(at("data.jsonl"), record("444.jpg", "One.") + record("rgb8.png", "Two.") + record("", "A.") + record("", "B.") +
                            record("", "C.") + record("", "D.") + record("", "E.") + record("", "F."));
  run_well(train({"--ranks", "4", "--batch-size", "8", "--max-steps", "1000", "--learning-rate", "1e-3"}));
  const std::vector<double> all = losses("run");
  ASSERT_EQ(all.size(), 1000u);
  EXPECT_LT(all.back(), all.front() / 4);  // what no image decides has six answers
}

// A model is written with the names and shapes that its own code has, and without images goes on as its text model,
// with the rest of its tensors copied.
TEST_F(OneSize, AModelIsWrittenAsItsCodeHasItAndItsTextModelTrainsAlone) {
  run_well(train({"--freeze-vision-tower", "false", "--freeze-projector", "false", "--max-steps", "2"}));
  const nlohmann::json whole = header_of(at("run/model/model.safetensors"));
  const std::map<std::string, std::vector<int>> shapes{{"cls_token", {1, 1, 32}},
                                                       {"pos_embed", {1, 5, 32}},
                                                       {"patch_embed.proj.weight", {32, 3, 14, 14}},
                                                       {"patch_embed.proj.bias", {32}},
                                                       {"blocks.1.attn.qkv.weight", {96, 32}},
                                                       {"blocks.1.attn.q_bias", {32}},
                                                       {"blocks.1.attn.v_bias", {32}},
                                                       {"blocks.1.mlp.fc1.bias", {48}},
                                                       {"norm.bias", {32}}};
  for (const auto& [name, shape] : shapes)
    EXPECT_EQ(whole["model.vision_tower." + name]["shape"].get<std::vector<int>>(), shape) << name;
  EXPECT_EQ(whole["model.resampler.pos_embed"]["shape"], (std::vector<int>{4, 128}));
  for (const auto& [name, tensor] : whole.items())
    EXPECT_TRUE(name.find("blocks.2.") == name.npos && name.find("k_bias") == name.npos) << name;
  fs::rename(at("run/model"), at("trained"));
  put(at("data.jsonl"), record("", "Nothing."));
  const Outcome text =
      run_well(train({"--model", "trained", "--init", "pretrained", "--overwrite", "--max-steps", "2"}));
  EXPECT_THAT(text.err, HasSubstr("of the model its text model is used and trained"));
  EXPECT_EQ(header_of(at("run/model/model.safetensors")), whole);
}

// PEFT has the whole resampler, with the places that are never trained, and asks for them. A checkpoint that becomes an
// adapter has them of the base's file.
TEST_F(OneSize, AResamplerIsSavedBesideAnAdapterAndUsed) {
  run_well(train({"--max-steps", "1", "--freeze-vision-tower", "false"}));
  fs::rename(at("run/model"), at("base"));
  run_well(train({"--model", "base", "--init", "pretrained", "--overwrite", "--method", "lora", "--freeze-projector",
                  "false", "--max-steps", "4", "--save-every", "2"}));
  const nlohmann::json header = header_of(at("run/adapter/adapter_model.safetensors"));
  for (const char* name : {"query", "proj", "attn.in_proj_weight", "kv_proj.weight", "ln_q.bias"})
    EXPECT_TRUE(header.contains(std::string("base_model.model.model.resampler.") + name)) << name;
  EXPECT_EQ(header["base_model.model.model.resampler.pos_embed"]["shape"], (std::vector<int>{4, 128}));
  EXPECT_TRUE(header.contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
  for (const auto& [name, tensor] : header.items()) EXPECT_EQ(name.find("vision_tower"), name.npos) << name;
  const Words eval{"eval",      "--data", "data.jsonl",        "--image-dir", kImages,
                   "--compute", "fp32",   "--sequence-length", "128",         "--json"};
  const auto loss = [&](const Words& more) { return nlohmann::json::parse(run_well(with(eval, more)).out)["loss"]; };
  EXPECT_EQ(loss({"--adapter", "run", "--checkpoint", "step-4"}), loss({"--adapter", "run/adapter"}));
  EXPECT_NE(loss({"--adapter", "run/adapter"}), loss({"--model", "base"}));
}

// An adapter of the tower is of the module that its code has, of queries, keys and values together.
TEST_F(OneSize, ATowersAdaptersHaveItsModulesNames) {
  run_well(train({"--method", "lora", "--freeze-vision-tower", "false", "--max-steps", "2"}));
  const nlohmann::json header = header_of(at("run/adapter/adapter_model.safetensors"));
  const std::string blocks = "base_model.model.model.vision_tower.blocks.";
  EXPECT_EQ(header[blocks + "0.attn.qkv.lora_B.weight"]["shape"][0], 96);
  EXPECT_TRUE(header.contains(blocks + "1.mlp.fc2.lora_A.weight"));
  EXPECT_FALSE(header.contains("base_model.model.model.vision_tower.patch_embed.proj.lora_A.weight"));
}

TEST_F(OneSize, PlansCountImagesOfOneSize) {
  EXPECT_THAT(run_well({"plan", "--model", "model", "--image-tokens", "9", "--sequence-length", "64"}).out,
              HasSubstr("up to 18 patches a block"));  // 2 images of 9
}

// Rows that are made once train as those that every pass makes, on any number of ranks, in both formats, and go on.
TEST_F(Images, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(Slices, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(Images, VideosAreGoneThroughOnceAndTrainTheSame) { expect_videos_train_the_same_with_cache(); }
TEST_F(Windows, ImagesAreGoneThroughOnceAndTrainTheSame) { expect_same_with_cache(); }
TEST_F(Windows, VideosAreGoneThroughOnceAndTrainTheSame) { expect_videos_train_the_same_with_cache(); }

// An adapter's file holds the resampler whole where it is trained, under the names that PEFT gives it.
TEST_F(Slices, AResamplerIsSavedBesideAnAdapterAndUsed) {
  run_well(train({"--method", "lora", "--freeze-projector", "false", "--max-steps", "4"}));
  const nlohmann::json header = header_of(at("run/adapter/adapter_model.safetensors"));
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

// What a process has made of images stays, whatever ends it; and a run goes on from a checkpoint with rows that are
// given, or without them, to the same end.
TEST_F(Images, RowsAreMadeAgainWhereTheyAreNotWholeAndARunGoesOnWithThemOrWithout) {
  put_records(3);
  make_base();
  const Words words = adapt({"--ranks", "2", "--save-every", "2"});
  run_well(words);
  const std::string expected = adapter("run");
  const std::vector<double> all = losses("run");
  ASSERT_GE(all.size(), 6u);
  fs::remove_all(at("run"));
  for (const auto& entry : fs::recursive_directory_iterator(at("cache/images")))
    if (entry.is_regular_file() && !entry.path().has_extension()) {
      fs::resize_file(entry.path(), 100);  // one is not whole
      break;
    }
  EXPECT_THAT(run_well(with(words, {"--max-steps", "4", "--schedule", "constant"})).err,
              HasSubstr("the rows of 1 image were made in "));
  for (const char* cache : {"off", "on"}) {
    fs::remove_all(at("copy"));
    fs::copy(at("run"), at("copy"), fs::copy_options::recursive);
    const Outcome resumed =
        run_well({"train", "copy/job.yaml", "--out", "copy", "--resume", "--max-steps", "6", "--image-cache", cache});
    EXPECT_THAT(resumed.err, HasSubstr("goes on after step 4"));
    if (std::string(cache) == "off") fs::rename(at("copy"), at("off"));
  }
  EXPECT_EQ(losses("copy"), losses("off"));
  EXPECT_EQ(adapter("copy"), adapter("off"));
}

// An image's bytes, the projector's and how pictures are cut each make other rows; texts of the data do not.
TEST_F(Images, AnotherImageOrProjectorOrSizeIsNoticed) {
  fs::create_directory(at("own"));
  for (const auto& [image, answer] : kAnswers) fs::copy_file(kImages / image, at("own") / image);
  make_base();
  const Words words = adapt({"--image-dir", "own", "--overwrite"});
  const auto made = [&](const Words& more = {}) {
    const std::string err = run_well(with(words, more)).err;
    const size_t place = err.find("the rows of ");
    return place == err.npos ? 0 : std::stoi(err.substr(place + 12));
  };
  EXPECT_EQ(made(), 2);
  EXPECT_EQ(made(), 0);
  put_records(2);
  EXPECT_EQ(made(), 0);
  fs::copy_file(kImages / "rgb8.png", at("own/444.jpg.png"));
  put(at("data.jsonl"), text_of(at("data.jsonl")) + record("444.jpg.png", "Again."));
  EXPECT_EQ(made(), 0);  // the same bytes under another name
  std::string jpeg = text_of(at("own/444.jpg"));
  put(at("own/444.jpg"), jpeg + "more");  // behind the picture's end
  EXPECT_EQ(made(), 1);
  EXPECT_EQ(made({"--image-min-pixels", "7840"}), 2);
  const fs::path weights = at("base/model/model.safetensors");
  std::string file = text_of(weights);
  const size_t header = 8 + *reinterpret_cast<const uint64_t*>(file.data());
  const auto tensors = nlohmann::json::parse(file.substr(8, header - 8));
  const auto place = tensors["model.visual.merger.mlp.0.weight"]["data_offsets"][0].get<size_t>();
  file[header + place + 2] = static_cast<char>(file[header + place + 2] ^ 0x20);
  put(weights, file);
  EXPECT_EQ(made(), 2);
}

// Of data that is gone through once nothing is kept unless that is asked for; but rows that are there are used.
TEST_F(Images, RowsAreKeptWhereTheyAreUsedAgain) {
  make_base();
  const Words once = adapt({"--epochs", "1", "--overwrite"});
  EXPECT_THAT(run_well(once).err, HasSubstr("the data is gone through once"));
  EXPECT_FALSE(fs::exists(at("cache/images")));
  EXPECT_THAT(run_well(with(once, {"--image-cache", "on"})).err, HasSubstr("the rows of 2 images were made"));
  EXPECT_THAT(run_well(once).err, HasSubstr(", 2 are in "));
  const Outcome full = run_well(adapt({"--overwrite", "--disk-memory", "8KiB"}));
  EXPECT_THAT(full.err, HasSubstr("and a quarter of --disk-memory is 2.0 KiB; passes make the rows"));
  const Outcome refused = run(adapt({"--overwrite", "--disk-memory", "2KiB", "--image-cache", "on"}));
  EXPECT_EQ(refused.code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("--disk-memory is 2.0 KiB; --cache-dir names another disk"));
  const Outcome trained = run(adapt({"--overwrite", "--freeze-projector", "false", "--image-cache", "on"}));
  EXPECT_EQ(trained.code, 2) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("image_cache: found on, expected auto or off"));
}

// What a run needs until its end is not taken from it by one that begins.
TEST_F(Images, RowsThatARunUsesAreNotRemoved) {
  make_base();
  run_well(adapt({}));
  const auto files = [&] {
    std::vector<fs::path> all;
    for (const auto& entry : fs::recursive_directory_iterator(at("cache/images")))
      if (entry.is_regular_file() && !entry.path().has_extension()) all.push_back(entry.path());
    return all;
  };
  ASSERT_EQ(files().size(), 2u);
  const uint64_t bytes = fs::file_size(files()[0]) + fs::file_size(files()[1]);
  // Another run, of one image in other sizes, has room for its own rows alone.
  Words other = adapt({"--out", "other", "--image-min-pixels", "784", "--image-max-pixels", "784", "--image-cache",
                       "on", "--disk-memory"});
  other.push_back(std::to_string(bytes));
  {
    const FileLock used = FileLock::in_use(files()[0].parent_path());
    ASSERT_TRUE(used.holds());
    const Outcome refused = run(other);
    EXPECT_EQ(refused.code, 3) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("and other runs use what lies in "));
    EXPECT_EQ(files().size(), 2u);
  }
  const fs::path before = files()[0].parent_path();
  run_well(other);
  EXPECT_LT(std::ranges::count(files(), before, &fs::path::parent_path), 2);
}

// What the plan says is what the run takes, and neither the tower's weights nor its passes are in it.
TEST_F(Images, PlansSayWhatRowsTake) {
  make_base();
  Words words = adapt({});
  words[0] = "plan";
  const auto plan = [&](const Words& more) { return nlohmann::json::parse(run_well(with(words, more)).out); };
  const auto with_rows = plan({"--json"}), without = plan({"--json", "--image-cache", "off"});
  EXPECT_LT(with_rows["device_bytes"], without["device_bytes"]);
  EXPECT_GT(with_rows["image_rows"]["device_bytes"], 0);
  EXPECT_FALSE(without.contains("image_rows"));
  EXPECT_FALSE(fs::exists(at("cache/images")));  // a plan makes nothing
  EXPECT_THAT(run_well(words).out, HasSubstr("the tower makes those that are missing by itself"));
  const auto result = nlohmann::json::parse(run_well(adapt({"--json"})).out);
  EXPECT_EQ(result["ranks"][0]["device_bytes"], with_rows["ranks"][0]["device_bytes"]);
  EXPECT_EQ(result["ranks"][0]["host_bytes"], with_rows["ranks"][0]["host_bytes"]);
  EXPECT_FALSE(plan({"--json"}).contains("image_rows"));  // they are there now
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
