// Images of records: how they are named, what becomes of text and tokens, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "byte_encoder.h"
#include "data/image_rows.h"
#include "expect_error.h"
#include "image/decode.h"
#include "temp_directory.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path fixture(const char* name) { return std::filesystem::path(SNUG_FIXTURES) / name; }

constexpr std::string_view kSpecial[] = {"<|im_start|>", "<|im_end|>", "<s>",     "<image>",
                                         "</image>",     "<unk>",      "<slice>", "</slice>"};
constexpr int32_t kFirstSpecial = 256, kPad = 261;

std::vector<int32_t> encode_with_images(std::string_view text) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const auto found = std::ranges::find_if(kSpecial, [&](auto special) { return text.starts_with(special); });
    const bool known = found != std::end(kSpecial);
    ids.push_back(known ? kFirstSpecial + static_cast<int32_t>(found - std::begin(kSpecial))
                        : static_cast<unsigned char>(text[0]));
    text.remove_prefix(known ? found->size() : 1);
  }
  return ids;
}

// Returns tokens as text, runs of pad tokens by their number: "<unk*4>".
std::string decoded(std::span<const int32_t> ids) {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t begin = i;
    while (ids[i] == kPad && i + 1 < ids.size() && ids[i + 1] == kPad) ++i;
    if (ids[i] == kPad)
      text += fmt::format("<unk*{}>", i - begin + 1);
    else if (ids[i] >= kFirstSpecial)
      text += kSpecial[ids[i] - kFirstSpecial];
    else
      text += static_cast<char>(ids[i]);
  }
  return text;
}

// Views of about 28 x 28 pixels, in patches of 14, of 3 tokens each.
ImageInput sliced_input() {
  ImageInput input{.processor = minicpm_processor(9, 3), .markup = {}, .pad_token = kPad};
  input.processor.sizing = OverviewAndSlices{.resolution = 28, .max_slices = 9};
  input.markup.pad = "<unk>";
  input.markup.begin = "<image>";
  input.markup.end = "</image>";
  input.markup.slices_begin = "<slice>";
  input.markup.slices_end = "</slice>";
  input.markup.between_rows = input.markup.behind_unmarked = input.markup.between_parts = input.markup.around_named =
      "\n";
  return input;
}

// One view of 784 to 5000 pixels, of whose patches 2 x 2 are a token.
ImageInput plain_input() {
  ImageInput input{.processor = {.merge = 2}, .markup = {}, .pad_token = kPad};
  input.processor.sizing = BoundedPixels{.min_pixels = 784, .max_pixels = 5000};
  input.markup.pad = "<unk>";
  input.markup.begin = "<image>";
  input.markup.end = "</image>";
  input.markup.slices_begin = "<slice>";
  return input;
}

class ImageRecords : public ::testing::Test {
 protected:
  ImageRecords() {
    options_.files = {file()};
    options_.vocabulary = 300;
    options_.images = plain_input();
    options_.image_dir = fixture("image");
    options_.note = [this](const std::string& line) { notes_.push_back(line); };
    encoder_.encode = encode_with_images;
    options_.prompt_format.chat = ChatTemplate::choose("chatml", "", encoder_.special);
  }

  std::filesystem::path file() const { return directory_.path() / "data.jsonl"; }

  std::vector<Sample> read(const std::string& records) {
    std::ofstream(file()) << records << "\n";
    notes_.clear();
    std::vector<Sample> samples;
    for_each_sample(options_, &encoder_, [&](const Sample& sample, const std::string&) { samples.push_back(sample); });
    return samples;
  }
  // Returns the text of the only user's message.
  std::string asked(const std::string& record) {
    const std::vector<Sample> samples = read(record);
    EXPECT_EQ(samples.size(), 1u);
    const std::string text = decoded(samples.at(0).ids);
    const std::string_view begin = "<|im_start|>user\n";
    const size_t at = text.find(begin) + begin.size();
    return text.substr(at, text.find("<|im_end|>", at) - at);
  }
  testing::AssertionResult refused(const std::string& record, std::string_view part) {
    try {
      read(record);
    } catch (const UserError& error) {
      const std::string_view text = error.what();
      if (text.find('\n') != text.npos) return testing::AssertionFailure() << "several lines: " << text;
      const size_t place = text.find("data.jsonl, line 1");
      if (place == text.npos || text.find("data.jsonl, line 1", place + 1) != text.npos)
        return testing::AssertionFailure() << "without file and line, once: " << text;
      if (text.find(part) == text.npos) return testing::AssertionFailure() << "without '" << part << "': " << text;
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "nothing was thrown, expected '" << part << "'";
  }

  // Returns a conversation of a question and a reply, with more keys of the record.
  static std::string talk(const std::string& question, const std::string& keys) {
    return fmt::format(
        R"({{"messages": [{{"role": "user", "content": {}}}, {{"role": "assistant", "content": "b"}}]{}}})", question,
        keys);
  }

  TempDirectory directory_;
  DataOptions options_;
  TextEncoder encoder_ = byte_encoder();
  std::vector<std::string> notes_;
};

// One pixel, as Pillow writes it.
constexpr std::string_view kPixel =
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

// ---- How images are named -------------------------------------------------------------------------------------------

TEST_F(ImageRecords, MarkersStandForTheImagesOfAList) {
  EXPECT_EQ(asked(talk(R"("a <image> b")", R"(, "images": ["rgb8.png"])")), "a <image><unk*2></image> b");
  EXPECT_EQ(asked(talk(R"("<image>b<image>")", R"(, "images": ["rgb8.png", "noise.png"])")),
            "<image><unk*2></image>b<image><unk*6></image>");
  EXPECT_EQ(asked(talk(R"("a <image>")", R"(, "image": "rgb8.png")")), "a <image><unk*2></image>");
  EXPECT_EQ(asked(talk(R"("a <image>")", R"(, "image": ["rgb8.png"])")), "a <image><unk*2></image>");
  // As tables hold lists.
  EXPECT_EQ(asked(talk(R"("a <image>")", R"(, "images": "[\"rgb8.png\"]")")), "a <image><unk*2></image>");
}

TEST_F(ImageRecords, ASingleImageWithoutAMarkerStandsBeforeTheFirstUsersText) {
  const std::string record = R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
    "image": "rgb8.png"})";
  std::string text = record;
  std::erase(text, '\n');
  EXPECT_EQ(asked(text), "<image><unk*2></image>a");
  options_.images = sliced_input();
  options_.images->processor.sizing = OverviewAndSlices{.resolution = 448, .max_slices = 9};
  EXPECT_EQ(asked(text), "<image><unk*3></image>\na");
}

TEST_F(ImageRecords, PartsOfAMessageAreImages) {
  const std::string image = R"({"type": "image", "image": "rgb8.png"})";
  EXPECT_EQ(asked(talk(R"([{"type": "text", "text": "a "}, )" + image + R"(, {"type": "text", "text": " b"}])", "")),
            "a <image><unk*2></image> b");
  EXPECT_EQ(
      asked(talk(R"([{"type": "image_url", "image_url": {"url": "rgb8.png"}}, {"type": "text", "text": "b"}])", "")),
      "<image><unk*2></image>b");
  EXPECT_EQ(asked(talk(R"([{"type": "image_url", "image_url": "rgb8.png"}])", "")), "<image><unk*2></image>");
  // A part that names no image is the next of the list.
  EXPECT_EQ(asked(talk(R"([{"type": "image"}, {"type": "text", "text": "b", "index": null}])",
                       R"(, "images": ["noise.png"])")),
            "<image><unk*6></image>b");
  EXPECT_THAT(notes_, ElementsAre());
  EXPECT_EQ(asked(talk(R"([{"type": "image_url", "image_url": {"url": "rgb8.png", "detail": "low"}}])", "")),
            "<image><unk*2></image>");
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("image_url.detail")));
  options_.images = sliced_input();
  EXPECT_EQ(asked(talk("[" + image + R"(, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}])", "")),
            "<image><unk*3></image>\na\nb");
}

TEST_F(ImageRecords, KeysOfAMapAreMarkers) {
  const std::string map = R"(, "image": {"<image_00>": "rgb8.png", "<image_01>": "noise.png"})";
  EXPECT_EQ(asked(talk(R"("a<image_01>b<image_00>")", map)), "a<image><unk*6></image>b<image><unk*2></image>");
  options_.images = sliced_input();
  options_.images->processor.sizing = OverviewAndSlices{.resolution = 448, .max_slices = 9};
  EXPECT_EQ(asked(talk(R"("a<image_01>b<image_00>")", map)), "a\n<image><unk*3></image>\nb\n<image><unk*3></image>\n");
}

// As the library `datasets` writes an image: bytes, or else a path.
TEST_F(ImageRecords, BytesBesideAPathAreAnImage) {
  const std::string by_path = R"({"bytes": null, "path": "rgb8.png"})";
  EXPECT_EQ(asked(talk(R"("a <image>")", R"(, "images": [)" + by_path + "]")), "a <image><unk*2></image>");
  EXPECT_EQ(asked(talk(R"("a <image>")", R"(, "image": {"path": "rgb8.png"})")), "a <image><unk*2></image>");
  EXPECT_EQ(asked(talk(R"("a<image_00>")", R"(, "image": {"<image_00>": )" + by_path + "}")),
            "a<image><unk*2></image>");
  EXPECT_EQ(asked(talk(R"([{"type": "image", "image": )" + by_path + "}]", "")), "<image><unk*2></image>");
  // A PNG of a pixel, which other bytes than those of a path's file tell apart.
  for (const std::string_view bytes : {kPixel, kPixel.substr(kPixel.find(',') + 1)})
    EXPECT_EQ(
        asked(talk(R"("a <image>")", fmt::format(R"(, "images": [{{"bytes": "{}", "path": "noise.png"}}])", bytes))),
        "a <image><unk*1></image>");
  EXPECT_TRUE(refused(talk(R"("<image>")", R"(, "images": [{"bytes": "@", "path": "rgb8.png"}])"),
                      "key 'images[0]', key 'bytes': found byte 0x40 at place 0 of the base64"));
  EXPECT_TRUE(refused(talk(R"("<image>")", R"(, "images": [{"bytes": [137, 80], "path": "rgb8.png"}])"),
                      "key 'images[0]', key 'bytes': found [137,80], expected null, or the image's bytes in base64"));
  EXPECT_TRUE(refused(talk(R"("<image>")", R"(, "images": [{"bytes": null, "path": 3}])"),
                      "key 'images[0]', key 'path': found 3, expected a path"));
  EXPECT_TRUE(refused(talk(R"("<image>")", R"(, "images": [{"byte": null, "path": "rgb8.png"}])"),
                      "key 'images[0]': found an object of 2 keys, expected a path"));
}

TEST_F(ImageRecords, EveryShapeOfConversationHasThem) {
  EXPECT_EQ(asked(R"({"instruction": "q <image>", "input": "i", "output": "b", "images": ["rgb8.png"]})"),
            "q <image><unk*2></image>\ni");
  EXPECT_EQ(asked(R"({"conversations": [{"from": "human", "value": "<image>q"}, {"from": "gpt", "value": "b"}],
 "images": ["rgb8.png"]})"),
            "<image><unk*2></image>q");
  EXPECT_EQ(
      asked(
          R"({"prompt": [{"role": "user", "content": "<image>q"}], "completion": [{"role": "assistant", "content": "b"}],
 "images": ["rgb8.png"]})"),
      "<image><unk*2></image>q");
  options_.shape.columns = {{"images", "photos"}};
  EXPECT_EQ(asked(talk(R"("a <image>")", R"(, "photos": ["rgb8.png"])")), "a <image><unk*2></image>");
  options_.shape.columns.clear();
  options_.shape.prompt = "Look: <image>\n{question}";
  EXPECT_EQ(asked(R"({"question": "q", "output": "b", "images": ["rgb8.png"]})"), "Look: <image><unk*2></image>\nq");
}

TEST_F(ImageRecords, TablesHaveThemAsTexts) {
  options_.files = {directory_.path() / "data.csv"};
  std::ofstream(options_.files[0]) << "instruction,output,images\n<image>q,b,\"[\"\"rgb8.png\"\"]\"\n"
                                   << "<image>q,b,rgb8.png\nq,b,\nq,b,[]\n";
  std::vector<size_t> images;
  for_each_sample(options_, &encoder_,
                  [&](const Sample& sample, const std::string&) { images.push_back(sample.images.size()); });
  EXPECT_THAT(images, ElementsAre(1, 1, 0, 0));
}

TEST_F(ImageRecords, RelativePathsBeginAtTheDataOrAtImageDir) {
  std::filesystem::create_directory(directory_.path() / "photos");
  std::filesystem::copy_file(fixture("image/noise.png"), directory_.path() / "photos/a.jpg");
  options_.image_dir.clear();
  EXPECT_EQ(asked(talk(R"("<image>")", R"(, "images": ["photos/a.jpg"])")), "<image><unk*6></image>");
  EXPECT_EQ(
      asked(talk(R"("<image>")", fmt::format(R"(, "images": ["{}"])", (directory_.path() / "photos/a.jpg").string()))),
      "<image><unk*6></image>");
  EXPECT_EQ(
      asked(talk(R"("<image>")", fmt::format(R"(, "images": ["file://{}/photos/a.jpg"])", directory_.path().string()))),
      "<image><unk*6></image>");
  options_.image_dir = directory_.path() / "photos";
  EXPECT_EQ(asked(talk(R"("<image>")", R"(, "images": ["a.jpg"])")), "<image><unk*6></image>");
}

TEST_F(ImageRecords, ADataUrlIsAnImage) {
  const std::vector<Sample> samples =
      read(talk(fmt::format(R"([{{"type": "image_url", "image_url": {{"url": "{}"}}}}])", kPixel), ""));
  ASSERT_EQ(samples.at(0).images.size(), 1u);
  const SampleImage& image = samples[0].images[0];
  // Where it stands in the file as it is it is not held.
  EXPECT_EQ(image.path, file().string());
  EXPECT_EQ(image.bytes, "");
  EXPECT_EQ(read_text(file(), 1 << 20).substr(image.place, image.place_bytes), kPixel);
  EXPECT_EQ(std::pair(image.width, image.height), std::pair(1u, 1u));
  EXPECT_THAT(image.source, HasSubstr("data.jsonl, line 1, key 'messages[0]', key 'content[0].image_url'"));
}

// ---- What becomes of them -------------------------------------------------------------------------------------------

TEST_F(ImageRecords, TokensOfAViewHaveNoLabelAndTheirPlacesAreKnown) {
  options_.train_on = TrainOn::All;
  const std::vector<Sample> samples = read(talk(R"("a<image>b<image>")", R"(, "images": ["noise.png", "exif6.jpg"])"));
  const Sample& sample = samples.at(0);
  ASSERT_EQ(sample.images.size(), 2u);
  ASSERT_EQ(sample.views.size(), 2u);
  const SampleImage& turned = sample.images[1];
  EXPECT_EQ(std::pair(turned.width, turned.height), std::pair(17u, 24u));  // as shown
  EXPECT_THAT(turned.source, HasSubstr("data.jsonl, line 1, key 'images[1]' (\"exif6.jpg\")"));
  EXPECT_EQ(turned.path, fixture("image/exif6.jpg").string());
  for (size_t i = 0; i < 2; ++i) {
    const DatasetView& view = sample.views[i];
    EXPECT_EQ(view.image, i);
    EXPECT_EQ(view.begin, sample.images[i].begin + 1);
    EXPECT_EQ(view.begin + view.tokens + 1, sample.images[i].end);
    EXPECT_EQ(view.tokens, view.rows * view.columns / 4);
    EXPECT_EQ(decoded(std::span(sample.ids).subspan(sample.images[i].begin, 1)), "<image>");
    EXPECT_EQ(decoded(std::span(sample.ids).subspan(sample.images[i].end - 1, 1)), "</image>");
  }
  for (size_t i = 1; i < sample.ids.size(); ++i)
    EXPECT_EQ(sample.labels[i], sample.ids[i] == kPad ? kNoLabel : sample.ids[i]) << i;
}

TEST_F(ImageRecords, SlicesStandInRowsBehindTheOverview) {
  options_.images = sliced_input();
  const std::vector<Sample> samples = read(talk(R"("<image>?")", R"(, "images": ["420.jpg"])"));  // 53 x 41
  const Sample& sample = samples.at(0);
  EXPECT_THAT(decoded(sample.ids),
              HasSubstr("user\n<image><unk*3></image><slice><image><unk*3></image><image><unk*3></image>\n"
                        "<image><unk*3></image><image><unk*3></image></slice>?<|im_end|>"));
  ASSERT_EQ(sample.images.size(), 1u);
  ASSERT_EQ(sample.views.size(), 5u);
  EXPECT_EQ(decoded(std::span(sample.ids).subspan(sample.images[0].end - 1, 2)), "</slice>?");
  for (const DatasetView& view : sample.views) {
    EXPECT_EQ(view.tokens, 3u);
    EXPECT_THAT(std::vector(sample.ids.begin() + view.begin, sample.ids.begin() + view.begin + 3), testing::Each(kPad));
  }
}

TEST_F(ImageRecords, TextsStandBesideImages) {
  const std::vector<Sample> samples =
      read(talk(R"("a")", "") + "\n" + talk(R"("<image>")", R"(, "images": ["rgb8.png"])") + "\n" +
           talk(R"("c")", R"(, "images": [])") + "\n" + talk(R"("d")", R"(, "image": null)"));
  ASSERT_EQ(samples.size(), 4u);
  for (const size_t i : {0u, 2u, 3u}) EXPECT_TRUE(samples[i].images.empty());
  EXPECT_EQ(samples[1].images.size(), 1u);
}

TEST_F(ImageRecords, TurnsThatBecomeSamplesHaveTheImagesUpToThem) {
  constexpr const char* kTemplate =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  options_.prompt_format.chat = ChatTemplate::choose("auto", kTemplate, encoder_.special);
  options_.thinking = Thinking::Last;
  const std::vector<Sample> samples = read(
      R"({"messages": [{"role": "user", "content": "<image>a"}, {"role": "assistant", "content": "<think>t</think>b"}, )"
      R"({"role": "user", "content": "<image>c"}, {"role": "assistant", "content": "d"}], "images": ["rgb8.png", "noise.png"]})");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].images.size(), 1u);
  EXPECT_EQ(samples[1].images.size(), 2u);
  EXPECT_EQ(samples[1].views[1].tokens, 6u);
}

// ---- What is refused ------------------------------------------------------------------------------------------------

TEST_F(ImageRecords, WhatIsAmissIsSaidWithFileLineAndImage) {
  const std::string q = R"("a <image>")";
  const auto images = [](const std::string& value) { return R"(, "images": )" + value; };
  const struct {
    std::string record;
    std::string_view part;
  } cases[] = {
      {talk(q, ""), "found 1 marker <image> in its messages and 0 images ('images' names them)"},
      {talk(q, images("[]")), "found 1 marker <image> in its messages and 0 images"},
      {talk(q, images(R"(["rgb8.png", "noise.png"])")),
       "found 1 marker <image> in its messages and 2 images ('images')"},
      {talk(R"("a")", images(R"(["rgb8.png", "noise.png"])")), "found 0 markers <image>"},
      {talk(R"("<image><image>")", images(R"(["rgb8.png"])")), "found 2 markers <image> in its messages and 1 image ("},
      {talk(q, images(R"(["missing.png"])")), "key 'images[0]' (\"missing.png\"): found nothing at "},
      {talk(q, images(R"(["."])")), "key 'images[0]' (\".\"): found a directory at "},
      {talk(q, images(R"(["/dev/null"])")), "found no regular file at /dev/null"},
      {talk(q, images(R"(["bad_gif"])")), "(\"bad_gif\"): "},
      {talk(q, images(R"(["bad_png_bomb"])")), "(\"bad_png_bomb\"): "},
      {talk(q, images(R"(["bad_empty"])")), "(\"bad_empty\"): "},
      {talk(q, images(R"(["https://a.b/c.png"])")), "images are not fetched"},
      {talk(q, images(R"(["s3://a/c.png"])")), "images are not fetched"},
      {talk(q, images(R"(["data:image/png,abc"])")), "key 'images[0]': found 'data:image/png,abc'"},
      {talk(q, images(R"(["data:image/png;base64,AAAA"])")), "key 'images[0]': "},
      {talk(q, images(R"(["data:image/png;base64,A!"])")), "byte 0x21"},
      {talk(q, images("3")), "key 'images': found 3, expected a path, a list of paths"},
      {talk(q, images("[3]")), "key 'images[0]': found 3, expected a path"},
      {talk(q, images(R"([{"file": "rgb8.png"}])")), "key 'images[0]': found an object"},
      {talk(q, images(R"(["a\u0000b"])")), "expected a path"},
      {talk(q, images(R"(["a.png"], "image": "b.png")")), "expected none beside "},
      {talk(q, images(R"({"image_00": "rgb8.png"})")), "a map from markers"},
      {talk(R"("a")", images(R"({"<image_00>": "rgb8.png", "<image_01>": "noise.png"})")),
       "found no marker <image_00>"},
      {talk(R"("<image_00><image_00><image_01>")", images(R"({"<image_00>": "rgb8.png", "<image_01>": "noise.png"})")),
       "found the marker <image_00> twice"},
      {talk(R"("<image_00><image_07>")", images(R"({"<image_00>": "rgb8.png"})")), "expected one that 'images' has"},
      {talk(R"("<image_00><image>")", images(R"({"<image_00>": "rgb8.png"})")), "found 1 marker <image>"},
      {talk(R"("a</image>")", ""), "found '</image>' in a text"},
      {talk(R"("a<unk>")", ""), "found '<unk>' in a text"},
      {talk(R"("a<slice>")", ""), "found '<slice>' in a text"},
      {talk(R"("a", "image": "rgb8.png")", ""), "images are 'images' of the record, or parts"},
      {talk(R"([{"type": "image", "image": "missing.png"}])", ""),
       "key 'content[0].image' (\"missing.png\"): found nothing"},
      {talk(R"([{"type": "image", "image": 3}])", ""), "key 'content[0].image': found 3"},
      {talk(R"([{"type": "image_url", "image_url": {"uri": "a"}}])", ""),
       "key 'content[0].image_url': found an object"},
      {talk(R"([{"type": "image_url", "image_url": {"detail": "low"}}])", ""),
       "key 'content[0].image_url': found an object"},
      {talk(R"([{"type": "image", "image": "rgb8.png", "min_pixels": 3}])", ""),
       "key 'content[0].min_pixels': found 3, expected none: --image-min-pixels and --image-max-pixels are for all"},
      {talk(R"([{"type": "input_image", "image_url": "rgb8.png"}])", ""), "\"image\" or \"image_url\" for an image"},
      {talk(R"([{"type": "image", "image": "rgb8.png", "text": "a"}])", ""), "key 'content[0].text'"},
      {talk(R"([{"type": "image"}])", ""), "found 1 marker <image>"},
      {talk(R"([{"type": "video", "video": "a.mp4"}])", ""), "the model takes no videos"},
      {talk(R"([{"type": "audio", "audio": "a.wav"}])", ""), "sound is not supported yet"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<image>"}], "images": ["rgb8.png"]})",
       "found an image in a reply"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "image", "image": "rgb8.png"}]}]})",
       "found an image in a reply"},
      {R"({"messages": [{"role": "assistant", "content": "a"}], "images": ["rgb8.png"]})", "no message of a user"},
      {R"({"text": "a", "images": ["rgb8.png"]})", "expected none beside 'text'"},
      {R"({"input_ids": [1, 2], "images": ["rgb8.png"]})", "expected none beside 'input_ids'"},
      {R"({"text": "a<unk>"})", "found 1 token '<unk>' in it, expected 0"},
      {R"({"input_ids": [1, 261]})", "found 1 token '<unk>' in it, expected 0"},
      {talk(R"("a")", R"(, "image_path": "rgb8.png")"), "a record's images are 'images' or 'image'"},
  };
  for (const auto& [record, part] : cases) EXPECT_TRUE(refused(record, part)) << record;
}

TEST_F(ImageRecords, AModelWithoutATowerTakesNone) {
  options_.images.reset();
  EXPECT_TRUE(refused(talk(R"("a <image>")", R"(, "images": ["rgb8.png"])"), "the model takes no images"));
  EXPECT_TRUE(refused(talk(R"([{"type": "image", "image": "rgb8.png"}])", ""), "the model takes no images"));
  EXPECT_EQ(asked(talk(R"("a < b <unk> <image_00>")", "")), "a < b <unk*1> <image_00>");  // text like any other
}

TEST_F(ImageRecords, PreferencesHaveNoneYet) {
  options_.shape.samples = Samples::Pairs;
  EXPECT_TRUE(refused(R"({"prompt": "q", "chosen": "a", "rejected": "b", "images": ["rgb8.png"]})",
                      "images in preferences are not supported yet"));
  EXPECT_TRUE(refused(
      R"({"prompt": [{"role": "user", "content": [{"type": "image", "image": "rgb8.png"}]}], )"
      R"("chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]})",
      "images in preferences are not supported yet"));
  const auto pair = [](const std::string& prompt, const std::string& chosen) {
    return R"({"prompt": ")" + prompt + R"(", "chosen": ")" + chosen + R"(", "rejected": "b"})";
  };
  for (const char* const text : {"<image>q", "q </image>", "q <unk>"}) {
    EXPECT_TRUE(refused(pair(text, "a"), "images in preferences are not supported yet")) << text;
    EXPECT_TRUE(refused(pair("q", text), "images in preferences are not supported yet")) << text;
    EXPECT_TRUE(
        refused(R"({"chosen": [{"role": "user", "content": ")" + std::string(text) +
                    R"("}, {"role": "assistant", "content": "a"}], "rejected": [{"role": "user", "content": "q"}, )"
                    R"({"role": "assistant", "content": "b"}]})",
                "images in preferences are not supported yet"))
        << text;
  }
}

TEST_F(ImageRecords, ATemplateThatChangesTheTextOfImagesIsRefused) {
  const auto choose = [&](const std::string& content) {
    options_.prompt_format.chat =
        ChatTemplate::choose("auto",
                             "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + content +
                                 " }}<|im_end|>\n{% endfor %}"
                                 "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
                             encoder_.special);
  };
  const std::string record = talk(R"("a <image>")", R"(, "images": ["rgb8.png"])");
  choose("m.content");
  EXPECT_EQ(asked(record), "a <image><unk*2></image>");
  choose("m.content | replace('<image>', '')");
  EXPECT_TRUE(refused(record, "the template changes the text of images"));
  choose("m.content | replace('</image>', ' ')");
  EXPECT_TRUE(refused(record, "the template changes the text of images"));
  choose("m.content | replace('<unk>', '')");
  EXPECT_TRUE(refused(record, "found 0 tokens '<unk>' in the rendered text, expected 1"));
}

TEST_F(ImageRecords, AMarkOfTheModelsThatIsNoTokenIsRefused) {
  options_.images->markup.end = "</picture>";
  EXPECT_TRUE(
      fails_with<UserError>([&] { read(talk(R"("a")", "")); }, "makes 10 tokens of '</picture>', expected one"));
  options_.images = plain_input();
  options_.images->pad_token = 7;
  EXPECT_TRUE(fails_with<UserError>([&] { read(talk(R"("a")", "")); }, "makes token 261 of '<unk>', expected 7"));
}

// ---- Rows -----------------------------------------------------------------------------------------------------------

class PassRowsOf : public ImageRecords {
 protected:
  Dataset load(const std::string& records) {
    std::ofstream(file()) << records << "\n";
    return load_dataset(options_, &encoder_);
  }
  static std::vector<DocumentSpan> documents(const Dataset& dataset) {
    PackingOptions packing;
    packing.sequence_length = 512;
    return Packer(dataset, all_samples(dataset.samples()), packing).documents();
  }
};

TEST_F(PassRowsOf, TheRowsOfAllViewsFollowEachOther) {
  for (const ImageInput& input : {plain_input(), sliced_input()}) {
    options_.images = input;
    const Dataset dataset = load(talk(R"("<image>b<image>")", R"(, "images": ["noise.png", "exif6.jpg"])") + "\n" +
                                 talk(R"("c")", "") + "\n" + talk(R"("<image>")", R"(, "images": ["lossy.webp"])"));
    std::vector<float> expected;
    for (const char* name : {"noise.png", "exif6.jpg", "lossy.webp"}) {
      const Image image = decode_image(fixture("image") / name, name).image;
      const ImagePlan plan = plan_image(input.processor, image.width, image.height, name);
      std::vector<float> rows(static_cast<size_t>(plan.patches * input.processor.row_size()));
      write_patches(input.processor, image, rows);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    for (const int threads : {1, 3}) {
      std::vector<float> out(expected.size() + 5, -7.0f);
      PassRows rows(dataset, input.processor, {.threads = threads});
      const int64_t patches = rows.fill(documents(dataset), out);
      EXPECT_EQ(patches * input.processor.row_size(), static_cast<int64_t>(expected.size()));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin()));
      EXPECT_THAT(std::span(out).last(5), testing::Each(-7.0f));
      EXPECT_THROW(rows.fill(documents(dataset), std::span(out).first(expected.size() - 1)), InternalError);
    }
  }
}

// Whatever is expected, and whether it is what is asked for, the rows are those of what is asked for.
TEST_F(PassRowsOf, WhatIsExpectedIsDecodedAheadAndChangesNothing) {
  const std::string one = talk(R"("<image>b<image>")", R"(, "images": ["420.jpg", "exif6.jpg"])");
  const std::string other = talk(R"("<image>")", R"(, "images": ["lossy.webp"])");
  const Dataset dataset = load(one + "\n" + talk(R"("c")", "") + "\n" + other + "\n" + one);
  const std::vector<DocumentSpan> all = documents(dataset);
  ASSERT_EQ(all.size(), 4u);
  const ImageProcessor& processor = options_.images->processor;
  std::vector<float> expected(1 << 18), out(1 << 18);
  const auto rows_of = [&](std::span<const DocumentSpan> lot, std::vector<float>& to) {
    return PassRows(dataset, processor, {}).fill(lot, to);
  };
  PassRows rows(dataset, processor, {.threads = 2, .most_bytes = 1});
  const auto expect_rows = [&](std::span<const DocumentSpan> lot) {
    std::ranges::fill(expected, 0.0f);
    std::ranges::fill(out, 0.0f);
    EXPECT_EQ(rows.fill(lot, out), rows_of(lot, expected));
    EXPECT_EQ(out, expected);
  };
  const std::span<const DocumentSpan> documents = all;
  rows.expect(documents);
  expect_rows(documents.first(2));
  rows.expect(documents.subspan(1));  // goes on
  expect_rows(documents.subspan(2, 1));
  rows.expect(documents.first(2));  // begins anew
  expect_rows(documents.first(1));
  expect_rows(documents.subspan(2));  // nothing is expected
  rows.expect(documents);
  expect_rows(documents.subspan(2, 1));  // another one is
  expect_rows(documents.subspan(1, 1));
  rows.expect(documents);  // and never asked for
  PassRows moved = std::move(rows);
  EXPECT_EQ(moved.fill(documents.first(1), out), rows_of(documents.first(1), expected));
}

TEST_F(PassRowsOf, AnImageThatHasAnotherSizeSinceIsNamed) {
  options_.image_dir.clear();
  std::filesystem::copy_file(fixture("image/noise.png"), directory_.path() / "a.jpg");
  const Dataset dataset = load(talk(R"("<image>")", R"(, "images": ["a.jpg"])"));
  std::filesystem::copy_file(fixture("image/exif6.jpg"), directory_.path() / "a.jpg",
                             std::filesystem::copy_options::overwrite_existing);
  std::vector<float> out(1 << 16);
  PassRows rows(dataset, options_.images->processor, {});
  EXPECT_TRUE(
      fails_with<UserError>([&] { rows.fill(documents(dataset), out); },
                            "data.jsonl, line 1, key 'images[0]' (\"a.jpg\"): found 17 x 24 pixels, expected 97 x 61"));
  std::filesystem::remove(directory_.path() / "a.jpg");
  EXPECT_TRUE(fails_with<UserError>([&] { rows.fill(documents(dataset), out); }, "key 'images[0]' (\"a.jpg\"): "));
}

// Where a data URL stands in the file as it is it is read there; else its bytes are held.
TEST_F(PassRowsOf, TheBytesOfARecordAreDecodedToo) {
  const std::string record = talk(fmt::format(R"([{{"type": "image", "image": "{}"}}])", kPixel), "");
  std::string escaped = record;
  for (size_t at = 0; (at = escaped.find('/', at)) != escaped.npos; at += 2) escaped.insert(at, 1, '\\');
  const struct {
    const char* name;
    std::string text;
    bool held;
  } cases[] = {{"a.jsonl", "\n" + talk(R"("a")", "") + "\r\n  " + record, false},
               {"b.jsonl", "\xef\xbb\xbf" + record, false},
               {"c.json", "[\n" + record + ",\n " + record + "]", false},
               {"d.json", R"({"version": 1, "data": [)" + record + "]}", false},
               {"e.jsonl", escaped, true}};
  for (const auto& [name, text, held] : cases) {
    SCOPED_TRACE(name);
    options_.files = {directory_.path() / name};
    std::ofstream(options_.files[0]) << text;
    const Dataset dataset = load_dataset(options_, &encoder_);
    const int64_t last = dataset.samples() - 1;
    EXPECT_EQ(dataset.images(last)[0].held_bytes > 0, held);
    std::vector<float> out(static_cast<size_t>(8 * options_.images->processor.row_size()));
    PassRows rows(dataset, options_.images->processor, {});
    EXPECT_GE(rows.fill(documents(dataset), out), 4);
    std::filesystem::resize_file(options_.files[0], 20);
    const auto fill = [&] { rows.fill(documents(dataset), out); };
    if (held)
      fill();
    else
      EXPECT_TRUE(fails_with<UserError>(fill, "key 'content[0].image': the file ends before it"));
  }
}

}  // namespace
}  // namespace snug
