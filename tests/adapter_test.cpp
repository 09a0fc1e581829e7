// Adapters as PEFT saves them, against the losses that PEFT gets when it loads them (tests/fixtures/README.md).
#include <gtest/gtest.h>

#include <fstream>

#include "api/inputs.h"
#include "api/job.h"
#include "api/rules.h"
#include "base/file.h"
#include "expect_error.h"
#include "stored_adapters.h"
#include "temp_directory.h"
#include "train/export.h"

namespace snug {
namespace {

JobConfig options_for(const std::filesystem::path& model, const std::filesystem::path& adapter) {
  JobConfig options;
  options.model = model.string();
  options.adapter = adapter.string();
  options.device = "cpu";
  options.compute = "fp32";
  options.base_format = "fp32";
  options.sequence_length = 32;
  static const TempDirectory cache;
  options.cache_dir = cache.path().string();
  find_inputs(options);
  return options;
}

double loss_of(const JobConfig& options) {
  const std::vector<TinySample> samples = samples_of_adapters();
  JobSpec spec = make_job(options, Purpose::Evaluate);
  spec.cut.micro_batch = std::ssize(samples);
  TinySession session(spec, 1);
  session.load();
  return TinyTrainer(session).evaluate(samples) / static_cast<double>(loss_tokens(samples));
}

struct Expected {
  std::string name, base;
  double loss = 0;
};
std::vector<Expected> expected() {
  std::vector<Expected> all;
  const auto stored = read_json(adapters() / "expected.json");
  for (const auto& [name, value] : stored.items()) all.push_back({name, value["base"], value["loss"]});
  return all;
}

TEST(Adapters, OfEveryKindHaveTheLossThatPeftGets) {
  ASSERT_GE(expected().size(), 20u);
  for (const auto& [name, base, loss] : expected())
    EXPECT_NEAR(loss_of(options_for(adapters() / base, adapters() / name)), loss, 2e-5) << name;
}

TEST(Adapters, OfEveryKindBecomePartOfAMergedModel) {
  for (const auto& [name, base, loss] : expected()) {
    const TempDirectory directory;
    const auto out = directory.path() / "merged";
    const JobConfig options = options_for(adapters() / base, adapters() / name);
    JobSpec spec = make_job(options, Purpose::Merge);
    TinySession session(spec, 1);
    session.load();
    export_model(session, out, adapters() / base, Existing::Refuse);
    EXPECT_NEAR(loss_of(options_for(out, "")), loss, 2e-5) << name;
    const auto config = read_json(out / "config.json");
    EXPECT_EQ(config["vocab_size"], name == "grown" ? 67 : name == "shrunk" ? 59 : 61) << name;
    EXPECT_EQ(config["tie_word_embeddings"], base == "tied" && name != "tied_saved_head" &&
                                                 name != "tied_saved_embedding" && name != "tied_head_tokens")
        << name;
  }
}

// An adapter like a stored one, with keys of its configuration and names of its tensors changed.
class Changed {
 public:
  explicit Changed(const std::string& name) : name_(name) {
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      std::filesystem::copy_file(adapters() / name / file, directory_.path() / file);
  }

  Changed& set(const char* key, const nlohmann::json& value) {
    auto config = read_json(directory_.path() / "adapter_config.json");
    config[key] = value;
    write_text(directory_.path() / "adapter_config.json", config.dump());
    return *this;
  }

  // In every name, the first occurrence.
  Changed& rename(const std::string& from, const std::string& to) {
    return rewrite([&](nlohmann::json& header, std::string&) {
      nlohmann::json renamed;
      for (const auto& [name, entry] : header.items()) {
        std::string other = name;
        if (const size_t at = name.find(from); at != std::string::npos) other.replace(at, from.size(), to);
        renamed[other] = entry;
      }
      header = renamed;
    });
  }

  // A tensor once more, under another name.
  Changed& repeat(const std::string& name, const std::string& other) {
    return rewrite([&](nlohmann::json& header, std::string& data) {
      auto entry = header.at(name);
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1], at = data.size();
      data += data.substr(begin, end - begin);
      entry["data_offsets"] = {at, data.size()};
      header[other] = entry;
    });
  }

  nlohmann::json config() const { return read_json(directory_.path() / "adapter_config.json"); }
  JobConfig options() const {
    const auto stored = read_json(adapters() / "expected.json");
    return options_for(adapters() / stored[name_]["base"].get<std::string>(), directory_.path());
  }
  void refused(const std::string& message, Purpose purpose = Purpose::Evaluate) const {
    EXPECT_TRUE(fails_with<UserError>([&] { make_job(options(), purpose); }, message));
  }

  double expected_loss() const { return read_json(adapters() / "expected.json")[name_]["loss"]; }

 private:
  Changed& rewrite(const std::function<void(nlohmann::json& header, std::string& data)>& change) {
    const auto path = directory_.path() / "adapter_model.safetensors";
    const std::string bytes = read_text(path, 1 << 24);
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    auto header = nlohmann::json::parse(bytes.substr(8, size));
    std::string data = bytes.substr(8 + size);
    change(header, data);
    const std::string text = header.dump();
    const uint64_t length = text.size();
    write_text(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
    return *this;
  }

  std::string name_;
  TempDirectory directory_;
};

// As PEFT saves embeddings that were resized: once as a module that is saved whole, once as themselves; and a tied
// head's rows beside those of the embedding.
TEST(Adapters, WhatIsSavedTwiceCountsOnce) {
  const std::string base = "base_model.model.", delta = ".token_adapter.trainable_tokens_delta";
  Changed saved("saved"), tokens("tied_tokens");
  saved.repeat(base + "lm_head.weight", base + "lm_head.modules_to_save.weight");
  tokens.repeat(base + "model.embed_tokens" + delta, base + "lm_head" + delta);
  for (const Changed* adapter : {&saved, &tokens})
    EXPECT_NEAR(loss_of(adapter->options()), adapter->expected_loss(), 2e-5);
  Changed("tied_tokens")
      .rename("model.embed_tokens.token_adapter", "lm_head.token_adapter")
      .refused("no token ids for them");
}

TEST(Adapters, WhatTheirConfigurationNamesInVainIsSaid) {
  const auto notes = [](Changed& adapter) {
    return fmt::format("{}", fmt::join(make_job(adapter.options(), Purpose::Evaluate).sources.notes, "\n"));
  };
  Changed plain("plain"), patterns("plain"), head("plain");
  EXPECT_EQ(notes(plain).find("names none of"), std::string::npos) << notes(plain);
  patterns.set("alpha_pattern", {{"layers.7.mlp.*", 3}});
  EXPECT_NE(notes(patterns).find("key 'alpha_pattern': 'layers.7.mlp.*' names none of the linears that are adapted"),
            std::string::npos)
      << notes(patterns);
  auto targets = patterns.config()["target_modules"];
  targets.push_back("lm_head");
  head.set("target_modules", targets);
  EXPECT_NE(notes(head).find("key 'target_modules': 'lm_head' names none of the model's linears, and no weights"),
            std::string::npos)
      << notes(head);
}

TEST(Adapters, WhatTheirFileHoldsIsReadOrRefusedByTensor) {
  Changed("plain")
      .rename("layers.1.self_attn.v_proj", "layers.2.self_attn.v_proj")
      .refused("layers.1.self_attn.v_proj");
  Changed("layers").set("layers_to_transform", nullptr).refused("model.layers.0.");
  Changed("plain").set("target_modules", {"q_proj"}).refused("key 'target_modules', says");
  Changed("plain").rename("layers.1.mlp.up_proj", "layers.1.mlp.gate.0").refused("up_proj.lora_A.weight' is missing");
  Changed("plain")
      .set("exclude_modules", {"v_proj"})
      .rename("model.layers.1.self_attn.v_proj", "lm_head")
      .refused("its embedding and head not among them");
  Changed("plain")
      .rename("v_proj.lora_A.weight", "v_proj.lora_A.x.weight")
      .rename("lora_B.weight", "lora_B.y.weight")
      .refused("found the adapters 'x', 'y'");
  Changed("plain").rename("v_proj.lora_A.weight", "v_proj.lora_embedding_A").refused("the adapter of an embedding");
  Changed("plain").set("use_dora", true).refused("lora_magnitude_vector' is missing");
  Changed("dora").set("use_dora", false).refused("key 'use_dora', to say so");
  Changed("dora").rename("lora_magnitude_vector", "lora_magnitude_vector.x.y").refused("no tensor of a LoRA adapter");
  Changed("named")
      .rename("layers.0.self_attn.v_proj.lora_A.default", "layers.0.self_attn.q_proj.lora_A")
      .refused("which means the same");
  Changed("saved")
      .rename("layers.1.input_layernorm", "layers.1.other_layernorm")
      .refused("no tensor of 'model.layers.1.input_layernorm.weight'");
  Changed("saved")
      .set("modules_to_save", {"lm_head", "embed_tokens"})
      .rename("layers.1.input_layernorm", "layers.1.other_layernorm")
      .refused("does not have");
  Changed("saved").rename("lm_head.weight", "model.final_norm.weight").refused("no tensor of 'lm_head'");
  Changed("saved")
      .set("modules_to_save", {"lm_head", "embed_tokens", "norm", "o_proj"})
      .refused("no tensor of 'o_proj'");
  Changed("plain").set("rank_pattern", {{"v_proj", 7}}).refused("v_proj.lora_A.weight");
}

// As PEFT saves PiSSA and OLoRA where it is not told to convert them.
TEST(Adapters, WhoseHalvesAreTakenOffTheBaseAreMadePlainOnce) {
  const JobConfig options = options_for(adapters() / "own_head", adapters() / "pissa");
  EXPECT_EQ(options.found.given_adapter, (adapters() / "pissa").string());
  const auto config = read_json(std::filesystem::path(options.adapter) / "adapter_config.json");
  EXPECT_EQ(config["r"], 6);
  EXPECT_EQ(config["lora_alpha"], 12);
  EXPECT_EQ(config["init_lora_weights"], true);
  const auto made = std::filesystem::last_write_time(options.adapter);
  EXPECT_EQ(options_for(adapters() / "own_head", adapters() / "pissa").adapter, options.adapter);
  EXPECT_EQ(std::filesystem::last_write_time(options.adapter), made);
  EXPECT_NE(Changed("pissa").set("lora_alpha", 7).options().adapter, options.adapter);
  EXPECT_NO_THROW(make_job(options, Purpose::Train));

  const TempDirectory trained;  // with what a trainer leaves there
  std::filesystem::copy(adapters() / "pissa", trained.path());
  std::ofstream(trained.path() / "optimizer.pt") << "many bytes";
  std::ofstream(trained.path() / "tokenizer_config.json") << "{}";
  const std::filesystem::path plain = options_for(adapters() / "own_head", trained.path()).adapter;
  EXPECT_TRUE(std::filesystem::exists(plain / "tokenizer_config.json"));
  EXPECT_FALSE(std::filesystem::exists(plain / "optimizer.pt"));

  Changed("pissa").set("r", 2).refused("found F32 [3, 24], expected [2, 24]");
  Changed("pissa").set("use_dora", true).refused("'use_dora': found true, expected false beside init_lora_weights");
  const TempDirectory bare;
  std::filesystem::copy_file(adapters() / "own_head" / "config.json", bare.path() / "config.json");
  EXPECT_TRUE(fails_with<UserError>([&] { options_for(bare.path(), adapters() / "pissa"); },
                                    "begins with halves of its base's weights (init_lora_weights 'pissa'), expected"));
}

TEST(Adapters, OfAnotherVocabularySayHowManyRowsTheyHold) {
  Changed("grown").rename("lm_head.weight", "model.norm.weight").refused("found 67 rows of the embedding and 61");
  Changed("tokens").set("trainable_token_indices", {7, 61, 3, 8}).refused("is for token 61, expected less than 61");
  Changed("tokens").set("trainable_token_indices", {7, 3, 8}).refused("trainable_tokens_delta");
  Changed("tokens").set("trainable_token_indices", nullptr).refused("no token ids for them");
}

TEST(Adapters, OfExpressionsAndLayersAreContinuedAsListsOfNames) {
  EXPECT_EQ(
      adapter_of(Changed("exclude").options()).target_modules,
      (std::vector<std::string>{"down_proj", "gate_proj", "model.layers.1.mlp.up_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(adapter_of(Changed("expression").options()).target_modules,
            (std::vector<std::string>{"model.layers.1.mlp.up_proj", "model.layers.1.self_attn.q_proj",
                                      "model.layers.1.self_attn.v_proj"}));
  EXPECT_NO_THROW(make_job(Changed("layers").options(), Purpose::Train));
  EXPECT_NO_THROW(make_job(Changed("wrapped").options(), Purpose::Train));
}

TEST(Adapters, WithRowsOfTokensOrBiasesAreNotTrained) {
  Changed("grown").refused("which modules_to_save does not name: training on it is not supported yet", Purpose::Train);
  Changed("tokens").refused("key 'trainable_token_indices': training", Purpose::Train);
  Changed("biases").refused("key 'bias': training", Purpose::Train);
}

TEST(Adapters, InDirectoriesBelowAreNamed) {
  const TempDirectory directory;
  for (const char* name : {"second", "first"}) {
    std::filesystem::create_directory(directory.path() / name);
    std::filesystem::copy_file(adapters() / "plain" / "adapter_config.json",
                               directory.path() / name / "adapter_config.json");
  }
  const std::string below = (directory.path() / "first").string() + ", " + (directory.path() / "second").string();
  EXPECT_TRUE(fails_with<UserError>([&] { read_peft_config(directory.path()); }, below));
}

}  // namespace
}  // namespace snug
