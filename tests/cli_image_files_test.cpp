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

}  // namespace
}  // namespace snug
