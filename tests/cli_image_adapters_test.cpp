// Adapters that hold parts of a tower, beside images, on texts alone, and merged, by the program itself.
#include <cmath>

#include "format/peft_tensors.h"
#include "image_models.h"
#include "same_tensors.h"

namespace snug {
namespace {

template <class Model>
class TowerAdapters : public Model {
 protected:
  using Model::at;
  using Model::run;
  using Model::run_well;

  // Makes a base, and of it an adapter of tower and text beside a projector that is trained whole.
  void SetUp() override {
    Model::SetUp();
    put(at("texts.jsonl"), Model::record("", "Nothing.") + Model::record("", "Other."));
    Model::make_base();
    run_well(continued({"--freeze-vision-tower", "false", "--freeze-projector", "false"}));
    fs::rename(at("run/adapter"), at("adapter"));
    fs::remove_all(at("run"));
  }

  static Words continued(const Words& more) {
    return Model::train(Model::with({"--model", "base/model", "--init", "pretrained", "--method", "lora", "--max-steps",
                                     "4", "--save-every", "2", "--overwrite"},
                                    more));
  }

  double loss(const std::string& data, const Words& more) const {
    const Words eval{"eval", "--data", data, "--image-dir", kImages, "--compute", "fp32", "--sequence-length",
                     "128",  "--json"};
    return nlohmann::json::parse(run_well(Model::with(eval, more)).out)["loss"].template get<double>();
  }

  static inline const Words kApart{"--model", "base/model", "--adapter", "adapter"}, kMerged{"--model", "merged"};
};

using Models = ::testing::Types<Images, Windows, Slices, OneSize>;
TYPED_TEST_SUITE(TowerAdapters, Models);

TYPED_TEST(TowerAdapters, AreMergedWithTheWholeModel) {
  this->run_well({"merge", "--model", "base/model", "--adapter", "adapter", "--out", "merged"});
  const double apart = this->loss("data.jsonl", this->kApart);
  EXPECT_NEAR(this->loss("data.jsonl", this->kMerged), apart, 1e-5);
  EXPECT_GT(std::abs(this->loss("data.jsonl", {"--model", "base/model"}) - apart), 1e-2);
  // The projector is the adapter's own, byte by byte.
  const auto merged = SafetensorsIndex::open_model(this->at("merged")),
             saved = SafetensorsIndex::open_adapter(this->at("adapter"));
  int same = 0;
  for (const SafetensorsEntry& entry : saved.entries()) {
    if (entry.name.find(".lora_") != entry.name.npos) continue;
    const SafetensorsEntry* const ours = merged.find(entry.name.substr(kPeftPrefix.size()));
    ASSERT_NE(ours, nullptr) << entry.name;
    EXPECT_EQ(bytes_of(merged, *ours), bytes_of(saved, entry)) << entry.name;
    same++;
  }
  EXPECT_GT(same, 4);
}

// What a text needs of them is used, and a note says what is not.
TYPED_TEST(TowerAdapters, AreUsedOnTextsForWhatTheyHoldOfTheTextModel) {
  this->run_well({"merge", "--model", "base/model", "--adapter", "adapter", "--out", "merged"});
  const double apart = this->loss("texts.jsonl", this->kApart);
  EXPECT_NEAR(this->loss("texts.jsonl", this->kMerged), apart, 1e-5);
  EXPECT_GT(std::abs(this->loss("texts.jsonl", {"--model", "base/model"}) - apart), 1e-2);
  const Outcome generated = this->run_well(
      {"generate", "--model", "base/model", "--adapter", "adapter", "--prompt", "What?", "--max-new-tokens", "2"});
  EXPECT_THAT(generated.err, HasSubstr("adapter: passed over, as there are no images: "));
  EXPECT_THAT(generated.err, ::testing::Not(HasSubstr("was trained on")));
  EXPECT_THAT(generated.err, ::testing::Not(HasSubstr("names none of")));
}

// An adapter that goes on holds what it held: on texts alone it would not, and on images it does, in checkpoints too.
TYPED_TEST(TowerAdapters, GoOnWithImagesAlone) {
  fs::rename(this->at("data.jsonl"), this->at("images.jsonl"));
  fs::rename(this->at("texts.jsonl"), this->at("data.jsonl"));
  const Outcome refused = this->run(this->continued({"--adapter", "adapter"}));
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("is of the tower or projector, expected data with images"));
  fs::rename(this->at("images.jsonl"), this->at("data.jsonl"));
  this->run_well(this->continued({"--adapter", "adapter"}));
  EXPECT_EQ(this->loss("data.jsonl", {"--adapter", "run", "--checkpoint", "step-4"}),
            this->loss("data.jsonl", {"--model", "base/model", "--adapter", "run/adapter"}));
  this->run_well({"train", "run/job.yaml", "--resume", "--max-steps", "6"});
}

// PEFT's tensors of what is trained whole have the shapes that the model's files give them: of patches three or more.
TYPED_TEST(TowerAdapters, PatchEmbeddingsThatAreSavedWholeHaveTheShapesOfTheModelsFiles) {
  const auto base = SafetensorsIndex::open_model(this->at("base/model"));
  const auto found = std::ranges::find_if(base.entries(), [](const SafetensorsEntry& entry) {
    return entry.shape.size() > 2 && entry.name.ends_with(".weight");
  });
  ASSERT_NE(found, base.entries().end());
  const std::string module = found->name.substr(0, found->name.rfind('.'));
  this->run_well(this->continued({"--modules-to-save", module}));
  const auto adapter = SafetensorsIndex::open_adapter(this->at("run/adapter"));
  const SafetensorsEntry* const saved = adapter.find(std::string(kPeftPrefix) + found->name);
  ASSERT_NE(saved, nullptr);
  EXPECT_EQ(saved->shape, found->shape);
  EXPECT_EQ(this->loss("data.jsonl", {"--adapter", "run", "--checkpoint", "step-4"}),
            this->loss("data.jsonl", {"--model", "base/model", "--adapter", "run/adapter"}));
}

TYPED_TEST(TowerAdapters, SettleWhatIsTrainedWhereTheyGoOn) {
  for (const char* option : {"--freeze-vision-tower", "--freeze-projector"}) {
    const Outcome refused = this->run(this->continued({"--adapter", "adapter", option, "true"}));
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("found true, expected false: adapter trains it, and what an adapter trains is "
                                       "settled when it begins"));
  }
}

TEST_F(Images, PatternsOfATowerGoOnWithItsAdapter) {
  make_base();
  const Words job = train({"--model", "base/model", "--init", "pretrained", "--method", "lora", "--max-steps", "2",
                           "--lora-alpha-pattern", "attn.qkv=50", "--lora-rank-pattern", "attn.proj=3",
                           "--freeze-vision-tower", "false"});
  run_well(job);
  run_well(train({"--model", "base/model", "--init", "pretrained", "--method", "lora", "--max-steps", "1", "--adapter",
                  "run/adapter", "--learning-rate", "0", "--out", "again"}));
  const auto config = [&](const char* file) { return nlohmann::json::parse(text_of(at(file))); };
  EXPECT_EQ(config("again/adapter/adapter_config.json"), config("run/adapter/adapter_config.json"));
  EXPECT_FALSE(config("again/adapter/adapter_config.json")["alpha_pattern"].empty());
  EXPECT_EQ(adapter("again"), adapter("run"));
}

// The adapter holds the grown embedding, and the files of the model the smaller one.
TEST_F(Images, TokensAddedOnTextsAloneAreMergedWithTheWholeModel) {
  make_base();
  put(at("data.jsonl"), record("", "Nothing."));
  run_well(train({"--model", "base/model", "--init", "pretrained", "--method", "lora", "--max-steps", "2",
                  "--add-tokens", "<zz>"}));
  run_well({"merge", "--model", "base/model", "--adapter", "run/adapter", "--out", "merged"});
  put(at("data.jsonl"), record("444.jpg", "One."));
  const Words eval{"eval", "--data", "data.jsonl", "--image-dir", kImages, "--compute", "fp32", "--json"};
  const auto loss = [&](const Words& more) { return nlohmann::json::parse(run_well(with(eval, more)).out)["loss"]; };
  EXPECT_NEAR(loss({"--model", "merged"}).get<double>(),
              loss({"--model", "base/model", "--adapter", "run/adapter"}).get<double>(), 1e-5);
}

// One that holds nothing for a text leaves the base as it is.
TEST_F(Images, AnAdapterOfATowerAloneLeavesTextsToTheBase) {
  make_base();
  put(at("texts.jsonl"), record("", "Nothing."));
  run_well(train({"--model", "base/model", "--init", "pretrained", "--method", "lora", "--freeze-vision-tower", "false",
                  "--lora-targets", "attn.qkv", "--max-steps", "2"}));
  const auto on_texts = [&](const Words& more) {
    return nlohmann::json::parse(run_well(with({"eval", "--data", "texts.jsonl", "--json"}, more)).out)["loss"];
  };
  EXPECT_EQ(on_texts({"--model", "base/model", "--adapter", "run/adapter"}), on_texts({"--model", "base/model"}));
}

}  // namespace
}  // namespace snug
