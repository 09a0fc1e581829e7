// What becomes of files around a run with images: those beside the model, damaged ones, and places for kept rows.
#include "image_models.h"

namespace snug {
namespace {

class ImageFiles : public Images {
 protected:
  void SetUp() override {
    Images::SetUp();
    fs::create_directory(at("own"));
    for (const auto& [image, answer] : kAnswers) fs::copy_file(kImages / image, at("own") / image);
    put(at("held_out.jsonl"), record("rgb8.png", "Two."));
  }

  void damage(const std::string& image) const {
    std::string bytes = text_of(at("own") / image);
    bytes[bytes.size() / 2] ^= '\xff';
    put(at("own") / image, bytes);
  }
};

TEST_F(ImageFiles, AWrittenModelHasTheFilesOfItsProcessorsAndItsCode) {
  put(at("model/video_preprocessor_config.json"), R"({"min_pixels": 784, "max_pixels": 15680})");
  auto config = nlohmann::json::parse(text_of(at("model/config.json")));
  config["auto_map"] = {{"AutoModel", "modeling_own.Model"}, {"AutoConfig", "configuration_own.Config"}};
  put(at("model/config.json"), config.dump());
  put(at("model/modeling_own.py"), "import helper\n");
  put(at("model/helper.py"), "# helps\n");
  EXPECT_THAT(run_well(train({"--max-steps", "1"})).err,
              HasSubstr("note: model: auto_map names configuration_own.py, found no file"));
  for (const char* name : {"video_preprocessor_config.json", "modeling_own.py", "helper.py"}) {
    EXPECT_EQ(text_of(at("run/model") / name), text_of(at("model") / name)) << name;
    EXPECT_NE(text_of(at("run/model") / name), "") << name;
  }
  EXPECT_FALSE(fs::exists(at("run/model/configuration_own.py")));
}

TEST_F(ImageFiles, ADamagedImageThatIsHeldOutIsRefusedBeforeTheRun) {
  put(at("data.jsonl"), record("444.jpg", "One."));
  damage("rgb8.png");
  for (const char* ranks : {"1", "2"}) {
    const Outcome refused = run(train({"--image-dir", "own", "--validation", "held_out.jsonl", "--max-steps", "2",
                                       "--batch-size", "2", "--ranks", ranks}));
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("held_out.jsonl, line 1, key 'images[0]' (\"rgb8.png\"): cannot decode"));
    EXPECT_FALSE(fs::exists(at("run")));
  }
}

// What ends the evaluation behind the last step takes nothing of what was trained.
TEST_F(ImageFiles, TheLastStepIsSavedBeforeItsEvaluation) {
  put(at("data.jsonl"), record("444.jpg", "One."));
  const Words words = train({"--image-dir", "own", "--validation", "held_out.jsonl", "--max-steps", "400",
                             "--batch-size", "1", "--save-every", "0"});
  const pid_t child = start(words);
  wait_for_steps(1);
  damage("rgb8.png");
  const Outcome failed = finish(child);
  EXPECT_EQ(failed.code, 2) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("cannot decode"));
  EXPECT_TRUE(fs::exists(at("run/checkpoints/step-400/state.json")));
  run_well({"generate", "--model", "run", "--checkpoint", "last", "--prompt", "What?", "--max-new-tokens", "1"});
}

// A damaged image ends the run in its step. Mended it has other bytes, with which the run goes on.
TEST_F(ImageFiles, ARunGoesOnOnceADamagedImageIsMended) {
  put(at("data.jsonl"), record("444.jpg", "One.") + record("rgb8.png", "Two."));
  const std::string whole = text_of(at("own/rgb8.png"));
  damage("rgb8.png");
  const Outcome failed = run(train(
      {"--image-dir", "own", "--max-steps", "2", "--batch-size", "1", "--shuffle", "false", "--save-every", "1"}));
  EXPECT_EQ(failed.code, 2) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("line 2, key 'images[0]' (\"rgb8.png\"): cannot decode this PNG file"));
  put(at("own/rgb8.png"), whole);
  const Outcome resumed = run_well({"train", "run/job.yaml", "--resume"});
  EXPECT_THAT(resumed.err, HasSubstr("the run ended at an image that could not be decoded"));
  EXPECT_THAT(resumed.err, HasSubstr("goes on after step 1"));
}

// The state that is saved behind the evaluation is whole: the best step is the last, beside which one is kept.
TEST_F(ImageFiles, TheLastStepsStateKnowsItsEvaluation) {
  run_well(train({"--image-dir", "own", "--validation", "held_out.jsonl", "--max-steps", "4", "--save-every", "1",
                  "--eval-every", "1", "--keep", "1"}));
  const auto state = nlohmann::json::parse(text_of(at("run/checkpoints/step-4/state.json")));
  EXPECT_EQ(state["best_step"], 4) << state.dump();
  EXPECT_TRUE(fs::exists(at("run/checkpoints/step-3")));
  EXPECT_FALSE(fs::exists(at("run/checkpoints/step-2")));
}

// Rows are kept to save time: where there is no place for them, a run goes on without.
TEST_F(ImageFiles, ARunGoesOnWithoutAPlaceForRows) {
  make_base();
  const std::string passes = "; passes make the rows of their images themselves";
  const auto expect = [&](const Words& more, const std::string& why) {
    Words words = adapt(with({"--overwrite"}, more));
    const auto homeless = [] { return unsetenv("HOME") == 0 && unsetenv("XDG_CACHE_HOME") == 0; };
    const Outcome outcome = finish(start(words, SNUG_BINARY, homeless));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("image cache: " + why));
    EXPECT_THAT(outcome.err, HasSubstr(passes));
    words[0] = "plan";
    EXPECT_EQ(finish(start(words, SNUG_BINARY, homeless)).code, 0);
    words[0] = "train";
    const Outcome refused = finish(start(with(words, {"--image-cache", "on"}), SNUG_BINARY, homeless));
    EXPECT_EQ(refused.code, 2) << refused.err;
  };
  expect({"--cache-dir", ""}, "the rows of images are made once, and there is no home directory");
  expect({"--cache-dir", "data.jsonl"}, "data.jsonl/images: cannot be made (Not a directory)");
  fs::create_directory(at("cache"));
  put(at("cache/images"), "");
  expect({}, "cache/images: cannot be made (Not a directory)");
  const Words once = adapt({"--overwrite", "--epochs", "1", "--cache-dir", "data.jsonl"});
  EXPECT_THAT(run_well(once).err, HasSubstr("image cache: the data is gone through once"));
}

// What was trained on images of a size is asked with images of that size.
TEST_F(ImageFiles, AnAdapterKnowsTheSizesOfItsImages) {
  make_base();
  run_well(adapt({"--image-cache", "off", "--image-min-pixels", "7840"}));
  const auto facts = nlohmann::json::parse(text_of(at("run/adapter/snug.json")));
  EXPECT_EQ(facts["images"]["min_pixels"], 7840);
  const Words eval{"eval",        "--model", "base/model", "--adapter", "run/adapter",       "--data", "data.jsonl",
                   "--image-dir", kImages,   "--compute",  "fp32",      "--sequence-length", "128",    "--json"};
  const Outcome own = run_well(eval);
  EXPECT_THAT(own.err, HasSubstr("images are sized by --image-min-pixels 7840, with which run/adapter was trained; the "
                                 "model has "));
  const Outcome same = run_well(with(eval, {"--image-min-pixels", "7840"}));
  EXPECT_EQ(same.out, own.out);
  EXPECT_THAT(same.err, ::testing::Not(HasSubstr("was trained with")));
  const Outcome other = run_well(with(eval, {"--image-min-pixels", "9408"}));
  EXPECT_NE(other.out, own.out);
  EXPECT_THAT(other.err, HasSubstr("--image-min-pixels 9408: run/adapter was trained with 7840"));
  EXPECT_THAT(run_well({"generate", "--model", "base/model", "--adapter", "run/adapter", "--prompt", "What?", "--image",
                        kImages / "rgb8.png", "--max-new-tokens", "1"})
                  .err,
              HasSubstr("images are sized by --image-min-pixels 7840"));
  run_well({"merge", "--model", "base/model", "--adapter", "run/adapter", "--out", "merged"});
  const auto merged = nlohmann::json::parse(text_of(at("merged/preprocessor_config.json")));
  EXPECT_TRUE(merged.value("min_pixels", 0) == 7840 || merged["size"].value("shortest_edge", 0) == 7840) << merged;
  EXPECT_EQ(text_of(at("merged/video_preprocessor_config.json")).empty(), false);  // videos are as they were
}

TEST_F(ImageFiles, AModelThatIsTrainedWholeHasTheSizesOfItsImages) {
  auto config = nlohmann::json::parse(text_of(at("model/preprocessor_config.json")));
  config.erase("min_pixels");
  config.erase("max_pixels");
  config["size"] = {{"shortest_edge", 784}, {"longest_edge", 15680}};
  put(at("model/preprocessor_config.json"), config.dump());
  run_well(train({"--max-steps", "1", "--image-max-pixels", "1568"}));
  const auto written = nlohmann::json::parse(text_of(at("run/model/preprocessor_config.json")));
  EXPECT_EQ(written["size"]["longest_edge"], 1568);
  EXPECT_EQ(written["size"]["shortest_edge"], 784);
  EXPECT_EQ(nlohmann::json::parse(text_of(at("run/model/video_preprocessor_config.json")))["size"], config["size"]);
  run_well(train({"--max-steps", "1", "--overwrite"}));
  EXPECT_EQ(text_of(at("run/model/preprocessor_config.json")), text_of(at("model/preprocessor_config.json")));
  EXPECT_FALSE(fs::exists(at("run/model/video_preprocessor_config.json")));
}

class SliceFiles : public Slices {};

TEST_F(SliceFiles, AModelAndAnAdapterKnowHowManySlicesTheyHad) {
  run_well(train({"--max-steps", "1", "--max-slices", "2"}));
  EXPECT_EQ(nlohmann::json::parse(text_of(at("run/model/config.json")))["slice_config"]["max_slice_nums"], 2);
  run_well(train({"--max-steps", "1", "--method", "lora", "--max-slices", "2", "--overwrite"}));
  EXPECT_EQ(nlohmann::json::parse(text_of(at("run/adapter/snug.json")))["images"],
            nlohmann::json::parse(R"({"max_slices": 2})"));
}

// Whatever stands in place of a path, the message is short and says it once.
TEST_F(ImageFiles, WhatIsNoPathIsNamedInShort) {
  make_base();
  const auto refused = [&](const std::string& image) {
    put(at("data.jsonl"), record(image, "One."));
    const Outcome outcome = run(train({"--max-steps", "1"}));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_LT(outcome.err.size(), 400u) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refused("iVBORw0KGgo" + std::string(5000, 'A')),
              HasSubstr("found base64 of 5011 characters, expected a path, or a data URL: is 'data:image/png;base64,' "
                        "missing before it?"));
  EXPECT_THAT(refused(std::string(3000, 'x') + "."), HasSubstr("found a text of 3001 characters that names no file"));
  const Words generate{"generate", "--model", "base/model", "--prompt", "What?", "--max-new-tokens", "1", "--image"};
  run_well(with(generate, {"file://" + (kImages / "rgb8.png").string()}));
  const Outcome video = run(with(generate, {"a.mp4"}));
  EXPECT_EQ(video.code, 2) << video.err;
  EXPECT_THAT(video.err, HasSubstr("--image: found the file of a video, a.mp4, expected images: 'ffmpeg -i a.mp4"));
}

// What only images need is not asked for where there are none, and what only videos need not of images.
TEST_F(ImageFiles, TextsNeedNoProcessor) {
  make_base();
  fs::remove(at("base/model/preprocessor_config.json"));
  const Words words = adapt({"--max-steps", "1", "--overwrite"});
  const Outcome refused = run(words);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err,
              HasSubstr("data.jsonl, line 1, key 'images[0]': base/model: found no preprocessor_config.json"));
  put(at("data.jsonl"), record("", "Nothing."));
  run_well(words);
  put(at("data.jsonl"), record("rgb8.png", "Two."));
  const auto processor = nlohmann::json::parse(text_of(at("model/preprocessor_config.json")));
  put(at("base/model/processor_config.json"), nlohmann::json{{"image_processor", processor}}.dump());
  run_well(words);
}

// A program that writes a line reads one.
TEST_F(ImageFiles, AChatAnswersALineThatDoesNotFit) {
  make_base();
  put(at("typed"), std::string(400, 'a') + "\nWhat?\n");
  const Outcome outcome =
      finish(start({"chat", "--model", "base/model", "--json", "--max-new-tokens", "1", "--sequence-length", "64"},
                   SNUG_BINARY, [&] {
                     const int input = open(at("typed").c_str(), O_RDONLY | O_CLOEXEC);
                     return dup2(input, STDIN_FILENO) == STDIN_FILENO;
                   }));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  const auto error = nlohmann::json::parse(first);
  EXPECT_EQ(error["text"], nullptr);
  EXPECT_THAT(error["error"].get<std::string>(), HasSubstr("expected at most 63 before a reply"));
  EXPECT_EQ(nlohmann::json::parse(second)["prompt"], "What?");
}

}  // namespace
}  // namespace snug
