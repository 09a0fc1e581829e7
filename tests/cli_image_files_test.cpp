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

}  // namespace
}  // namespace snug
