// Videos as lists of frames: rows, texts and times beside transformers', and what is refused of them.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "api/images.h"
#include "base/file.h"
#include "data/dataset_file.h"
#include "data/image_embeddings.h"
#include "data/image_rows.h"
#include "expect_error.h"
#include "format/prompt_format.h"
#include "image_fixture.h"
#include "temp_directory.h"

namespace snug {
namespace {

using Json = nlohmann::json;

std::filesystem::path fixture(const std::string& name) { return std::filesystem::path(SNUG_FIXTURES) / name; }

std::string frame(int64_t i) { return fmt::format("frame{}.png", i); }

Json frames(int64_t count) {
  Json list = Json::array();
  for (int64_t i = 0; i < count; i++) list.push_back(frame(i));
  return list;
}

// A task for each step of a video of the first frames.
std::vector<ImageTask> steps_of(int64_t count) {
  const ImageHeader header = read_image_header(fixture("video/frame0.png"), "x");
  std::vector<ImageTask> tasks;
  for (int64_t i = 0; i < count; i += 2) {
    tasks.push_back({.source = "v",
                     .pictures = {{fixture("video/" + frame(i)), {}}},
                     .width = header.shown_width(),
                     .height = header.shown_height(),
                     .video = true});
    if (i + 1 < count) tasks.back().pictures.push_back({fixture("video/" + frame(i + 1)), {}});
  }
  return tasks;
}

ImageProcessor small_frames(const Json& bounds = {3136, 15680}) {
  ImageProcessor processor = parse_image_processor(stored_json("image_processor/qwen2_vl.json").dump(), "p.json", 0);
  processor.video_pixels = {.min_pixels = bounds[0], .max_pixels = bounds[1]};
  return processor;
}

TEST(VideoRows, AreTheReferences) {
  int cases = 0;
  for (const Json& expected : stored_json("video/rows.json")) {
    SCOPED_TRACE(expected.dump());
    const ImageProcessor processor = small_frames(expected["bounds"]);
    size_t next = 0;
    const std::vector<ImageTask> tasks = steps_of(expected["frames"]);
    ImageQueue queue(
        processor, [&] { return next < tasks.size() ? std::optional(tasks[next++]) : std::nullopt; }, 2, 1 << 30);
    std::vector<float> rows;
    for (const ImageTask& task : tasks) {
      const ImageRows step = queue.next().value();
      ASSERT_EQ(step.plan.views.size(), 1u);
      EXPECT_EQ(step.plan.views[0].rows, expected["grid"][1]);
      EXPECT_EQ(step.plan.views[0].columns, expected["grid"][2]);
      EXPECT_LE(queue.peak_bytes(),
                std::ssize(tasks) *
                    (processing_bytes(frame_processor(processor), task.width, task.height, "x", true) + (64 << 10)));
      rows.insert(rows.end(), step.rows.begin(), step.rows.end());
    }
    EXPECT_EQ(std::ssize(tasks), expected["grid"][0].get<int64_t>());
    for (size_t i = 0; i < 4; i++) EXPECT_EQ(rows.at(i), expected["begin"][i].get<float>());
    EXPECT_EQ(checksum(std::as_bytes(std::span(rows))), expected["rows"]);
    cases++;
  }
  EXPECT_EQ(cases, 15);
}

TEST(VideoRows, AFrameThatChangedInSizeIsNoticed) {
  std::vector<ImageTask> tasks = steps_of(2);
  tasks[0].pictures[1].path = fixture("video/small.png");
  bool given = false;
  ImageQueue queue(
      small_frames(), [&] { return std::exchange(given, true) ? std::nullopt : std::optional(tasks[0]); }, 1, 1 << 30);
  EXPECT_TRUE(fails_with<UserError>([&] { queue.next(); }, "found 30 x 40 pixels, expected 90 x 62"));
}

// Rows that are kept are of the frames, in their order, and of no image.
TEST(VideoRows, AreKeptByTheContentOfTheirFrames) {
  std::vector<ImageTask> tasks = steps_of(3);
  const auto hash = [](const std::string& first, const std::string& later, bool video) {
    ImageTask task{.source = "v", .pictures = {{{}, first}}, .video = video};
    if (!later.empty()) task.pictures.push_back({{}, later});
    return content_hash(task);
  };
  const std::set<uint64_t> hashes{hash("a", "", false), hash("a", "", true), hash("a", "b", true), hash("b", "a", true),
                                  hash("ab", "", true)};
  EXPECT_EQ(hashes.size(), 5u);
}

TEST(VideoPixels, AreThoseOfTheVideosFile) {
  const ImageProcessor images = small_frames();
  const auto bounds = [&](const Json& json) {
    const BoundedPixels found = parse_video_pixels(json.dump(), "v.json", images);
    return std::pair(found.min_pixels, found.max_pixels);
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(bounds({{"video_processor_type", "Qwen2VLVideoProcessor"}}), Pair(128 * 28 * 28, 768 * 28 * 28));
  EXPECT_EQ(bounds({{"size", {{"shortest_edge", 784}, {"longest_edge", 2000}}}, {"fps", 2}, {"min_frames", 4}}),
            Pair(784, 2000));
  EXPECT_EQ(bounds({{"video_processor", {{"min_pixels", 800}, {"max_pixels", 900}}}, {"other", 1}}), Pair(800, 900));
  EXPECT_EQ(bounds(stored_json("image_processor/qwen2_vl.json")), Pair(3136, 12845056));  // the file of images
  const auto refused = [&](const Json& json, std::string_view part) {
    return fails_with<UserError>([&] { bounds(json); }, part);
  };
  EXPECT_TRUE(refused({{"video_processor_type", "Qwen3VLVideoProcessor"}}, "expected \"Qwen2VLVideoProcessor\""));
  EXPECT_TRUE(refused({{"cap_pixels_per_frame", true}}, "cap_pixels_per_frame"));
  EXPECT_TRUE(refused({{"crop", 3}}, "no such key"));
  EXPECT_TRUE(refused({{"image_mean", {0.5, 0.5, 0.5}}}, "expected the same numbers but for the least and the most"));
  EXPECT_TRUE(refused({{"temporal_patch_size", 1}}, "expected the same numbers"));
  EXPECT_TRUE(refused({{"min_pixels", 1 << 20}}, "expected the least not above the most"));
}

// A model's directory, and data whose images are the fixture's frames.
class Videos : public ::testing::Test {
 protected:
  Videos() {
    for (const char* name : {"config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(fixture("image_text/qwen2_vl") / name, directory_.path() / name);
    options_.model = directory_.path().string();
    write("video_preprocessor_config.json", {{"min_pixels", 3136}, {"max_pixels", 15680}});
  }

  void write(const char* file, const Json& json) const { std::ofstream(directory_.path() / file) << json; }
  void make_qwen2_5() const {
    Json config = stored_json("image_text/qwen2_vl/config.json");
    config["model_type"] = "qwen2_5_vl";
    config["vision_config"]["tokens_per_second"] = 2;
    write("config.json", config);
  }
  static Json talk(const Json& content) {
    return {{"messages", {{{"role", "user"}, {"content", content}}, {{"role", "assistant"}, {"content", "Yes."}}}}};
  }
  static Json part(const Json& video, const Json& more = Json::object()) {
    Json part{{"type", "video"}, {"video", video}};
    part.update(more);
    return talk(Json::array({part}));
  }
  DataOptions data() const {
    DataOptions data;
    data.files = {directory_.path() / "data.jsonl"};
    data.vocabulary = 263;
    data.prompt_format = decide_prompt_format("auto", {263, {}}, &tokenizer_, nullptr);
    data.images = image_input(options_, tokenizer_);
    data.image_dir = fixture("video");
    return data;
  }
  Dataset load(const std::string& line) const {
    const TextEncoder encoder = encoder_of(tokenizer_);
    const DataOptions options = data();
    std::ofstream(options.files[0]) << line << "\n";
    return load_dataset(options, &encoder);
  }
  testing::AssertionResult refused(const Json& record, std::string_view part) const {
    return fails_with<UserError>([&] { load(record.dump()); }, part);
  }
  std::vector<uint32_t> times(const Json& record) const {
    std::vector<uint32_t> times;
    const Dataset dataset = load(record.dump());
    for (const DatasetImage& image : dataset.images(0)) times.push_back(image.time);
    return times;
  }

  TempDirectory directory_;
  JobConfig options_;
  Tokenizer tokenizer_ = Tokenizer::load(fixture("image_text/qwen2_vl"));
};

TEST_F(Videos, TheIdsOfEveryFormAreThoseOfTransformers) {
  const Json expected = stored_json("video/expected.json");
  std::ifstream records(fixture("video/records.jsonl"));
  size_t i = 0;
  for (std::string line; std::getline(records, line); i++) {
    SCOPED_TRACE(line);
    const Dataset dataset = load(line);
    const std::span<const int32_t> ids = dataset.ids(0);
    EXPECT_EQ(std::vector(ids.begin(), ids.end()), expected.at(i)["ids"].get<std::vector<int32_t>>());
  }
  EXPECT_EQ(i, expected.size());
  EXPECT_EQ(i, 6u);
}

// Seconds by transformers' rule: 2 frames a step, and the model's 2 positions a second.
TEST_F(Videos, StepsHaveTimesByTheFramesOfASecond) {
  EXPECT_EQ(times(part(frames(5))), (std::vector<uint32_t>{0, 1, 2}));  // Qwen2-VL counts
  EXPECT_EQ(times(part(frames(5), {{"fps", 0.25}})), (std::vector<uint32_t>{0, 1, 2}));
  make_qwen2_5();
  EXPECT_EQ(times(part(frames(5))), (std::vector<uint32_t>{0, 2, 4}));
  EXPECT_EQ(times(part(frames(5), {{"sample_fps", 3}})), (std::vector<uint32_t>{0, 1, 2}));  // 1.33, 2.67
  EXPECT_EQ(times(part(frames(5), {{"fps", 8}})), (std::vector<uint32_t>{0, 0, 1}));
  Json listed = talk("<video>?");
  listed["videos"] = Json::array({frames(3)});
  EXPECT_EQ(times(listed), (std::vector<uint32_t>{0, 2}));
  EXPECT_TRUE(
      refused(part(frames(5), {{"fps", 0.01}}), "found 0.01 frames a second, at which step 1 has the position"));
}

TEST_F(Videos, AnUnevenLastFrameIsAlone) {
  const Dataset dataset = load(part(frames(5)).dump());
  ASSERT_EQ(dataset.images(0).size(), 3u);
  const ImageTask first = dataset.all_images().task(dataset.images(0)[0]),
                  last = dataset.all_images().task(dataset.images(0)[2]);
  ASSERT_EQ(first.pictures.size(), 2u);
  EXPECT_EQ(first.pictures[0].path.filename(), frame(0));
  EXPECT_EQ(first.pictures[1].path.filename(), frame(1));
  ASSERT_EQ(last.pictures.size(), 1u);
  EXPECT_EQ(last.pictures[0].path.filename(), frame(4));
  EXPECT_TRUE(last.video);
}

TEST_F(Videos, AVideoIsNeverCut) {
  const Dataset dataset = load(part(frames(5)).dump());
  const uint32_t begin = dataset.images(0)[0].begin, end = dataset.images(0)[2].end;
  for (uint32_t token = 0; token <= dataset.length(0); token++)
    EXPECT_EQ(dataset.end_before_image(0, token), begin < token && token < end ? begin : token);
}

TEST_F(Videos, KeptTokensHaveTheirVideos) {
  const Dataset made = load(part(frames(5)).dump());
  const std::filesystem::path path = directory_.path() / "entry";
  {
    File file = File::create(path, IoMode::Buffered);
    DatasetFile::write(made, {}, "key", file, {});
  }
  EXPECT_EQ(DatasetFile::read(path, "key", data()).value().dataset, made);
  DataOptions other = data();
  other.images->processor.video_pixels.max_pixels = 0;
  EXPECT_TRUE(fails_with<UserError>([&] { DatasetFile::read(path, "key", other); }, "a video that is none"));
}

TEST_F(Videos, WhatIsNoListOfFramesIsRefused) {
  EXPECT_TRUE(refused(part("clip.mp4"), "'ffmpeg -i \"clip.mp4\" -vf fps=2 frames/%05d.jpg' makes such files"));
  EXPECT_TRUE(refused(part(Json::array({"clip.MP4"})),
                      "found the file of a video, \"clip.MP4\", expected a list of the paths"));
  EXPECT_TRUE(refused(part(Json::array()), "found [], expected a list of the paths of its frames"));
  EXPECT_TRUE(refused(part(Json::array({1})), "expected a path"));
  EXPECT_TRUE(refused(part(Json::array({"data:image/png;base64,AAAA"})), "frames of videos are files"));
  EXPECT_TRUE(refused(part(Json::array({"http://a/b.png"})), "not fetched"));
  EXPECT_TRUE(refused(part(Json::array({"frame0.png", "none.png"})), "none.png"));
  EXPECT_TRUE(
      refused(part(Json::array({"frame0.png", "small.png"})), "expected 90 x 62 as the video's first frame has"));
  EXPECT_TRUE(refused(part(Json::array({"frame0.png", "frame1.png", "small.png"})), "expected 90 x 62 as"));
  EXPECT_TRUE(refused(part(Json(std::vector<std::string>(4097, "frame0.png"))), "found 4097 frames, expected at most"));
  EXPECT_TRUE(refused(part(frames(2), {{"fps", 0}}), "fps"));
  EXPECT_TRUE(refused(part(frames(2), {{"fps", 1}, {"sample_fps", 2}}), "as 'sample_fps' says"));
  EXPECT_TRUE(refused(part(frames(2), {{"max_pixels", 100}}), "resized as the model's files say"));
  EXPECT_TRUE(refused(part(frames(2), {{"video_start", 1}}), "frames are all taken"));
}

TEST_F(Videos, MarkersAreAsManyAsVideos) {
  const auto listed = [](const Json& content, const Json& videos) {
    Json record = talk(content);
    record["videos"] = videos;
    return record;
  };
  EXPECT_TRUE(refused(listed("?", Json::array({frames(2)})),
                      "found 0 markers <video> in its messages and 1 video in 'videos'"));
  EXPECT_TRUE(refused(listed("<video><video>?", Json::array({frames(2)})),
                      "found 2 markers <video> in its messages and 1 video"));
  EXPECT_TRUE(refused(talk("<video>?"), "found 1 marker <video> in its messages and 0 videos"));
  EXPECT_TRUE(refused(listed("<video>?", Json::array({"clip.mp4"})), "ffmpeg"));
  EXPECT_TRUE(refused(listed("<video>?", frames(2)), "videos[0]': found \"frame0.png\", expected a list of the paths"));
  EXPECT_TRUE(refused(listed("<video>?", "clip.mp4"), "expected a list of videos"));
  EXPECT_TRUE(refused(talk("<|video_pad|>"), "found '<|video_pad|>' in a text"));
  Json reply = listed("?", Json::array({frames(2)}));
  reply["messages"][1]["content"] = "<video>";
  EXPECT_TRUE(refused(reply, "found an image in a reply, or its marker <video>"));
  EXPECT_EQ(load(listed("<video>?", Json("[" + frames(2).dump() + "]")).dump()).images(0).size(),
            1u);  // as JSON, from a table
}

TEST_F(Videos, AModelWithoutVideosTakesNone) {
  DataOptions options = data();
  options.images->markup.video_pad.clear();
  const TextEncoder encoder = encoder_of(tokenizer_);
  const auto refuses = [&](const Json& record, std::string_view part) {
    std::ofstream(options.files[0]) << record << "\n";
    return fails_with<UserError>([&] { load_dataset(options, &encoder); }, part);
  };
  Json listed = talk("<video>?");
  listed["videos"] = Json::array({frames(2)});
  EXPECT_TRUE(refuses(listed, "none: the model takes no videos"));
  EXPECT_TRUE(refuses(part(frames(2)), "the model takes no videos"));
}

}  // namespace
}  // namespace snug
