// Images of a data set: how they are kept, and how documents end and blocks are filled with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/hash.h"
#include "data/dataset_file.h"
#include "data/packing.h"
#include "data/packing_fields.h"
#include "expect_error.h"
#include "image/image_queue.h"
#include "temp_directory.h"

namespace snug {
namespace {

using testing::ElementsAre;

struct At {
  uint32_t begin, end, rows = 2, columns = 2;
};

// Returns a sample whose tokens but the first have labels, without those of images, each of which is one view between
// two marks.
Sample sample_of(uint32_t length, const std::vector<At>& images, const std::string& path = "a.png") {
  Sample sample;
  for (uint32_t i = 0; i < length; ++i) sample.ids.push_back(static_cast<int32_t>(i));
  sample.labels = sample.ids;
  sample.labels[0] = kNoLabel;
  for (const At& at : images) {
    std::fill(sample.labels.begin() + at.begin, sample.labels.begin() + at.end, kNoLabel);
    sample.views.push_back(
        {static_cast<uint32_t>(sample.images.size()), at.begin + 1, at.end - at.begin - 2, at.rows, at.columns});
    SampleImage image;
    image.source = "data.jsonl, line 1";
    image.path = path;
    image.width = 28;
    image.height = 14;
    image.begin = at.begin;
    image.end = at.end;
    sample.images.push_back(image);
  }
  return sample;
}

Dataset dataset_of(const std::vector<Sample>& samples) {
  Dataset dataset;
  for (const Sample& sample : samples) dataset.add(sample);
  return dataset;
}

std::vector<DocumentSpan> documents_of(const Dataset& dataset, int64_t length, LongSamples long_samples) {
  PackingOptions options;
  options.sequence_length = length;
  options.long_samples = long_samples;
  return Packer(dataset, all_samples(dataset.samples()), options).documents();
}

// ---- Documents ------------------------------------------------------------------------------------------------------

TEST(ImagePacking, ACutIsBeforeTheImageThatWouldCrossIt) {
  const Dataset dataset = dataset_of({sample_of(30, {{5, 10}, {14, 22}})});
  const auto cut_to = [&](int64_t length) { return documents_of(dataset, length, LongSamples::Cut).at(0).length; };
  EXPECT_EQ(cut_to(30), 30u);
  EXPECT_EQ(cut_to(22), 22u);
  for (const int64_t within : {15, 18, 21}) EXPECT_EQ(cut_to(within), 14u) << within;
  EXPECT_EQ(cut_to(14), 14u);
  EXPECT_EQ(cut_to(10), 10u);
  for (const int64_t within : {6, 9}) EXPECT_EQ(cut_to(within), 5u) << within;
}

TEST(ImagePacking, APieceOfASplitSampleEndsBeforeAnImageToo) {
  const Dataset dataset = dataset_of({sample_of(40, {{5, 10}, {14, 22}})});
  EXPECT_THAT(documents_of(dataset, 16, LongSamples::Split),
              ElementsAre(DocumentSpan{0, 0, 14}, DocumentSpan{0, 14, 16}, DocumentSpan{0, 30, 10}));
  // An image that no block has room for: what stands before it is left.
  EXPECT_THAT(documents_of(dataset, 7, LongSamples::Split),
              ElementsAre(DocumentSpan{0, 0, 5}, DocumentSpan{0, 5, 7}, DocumentSpan{0, 12, 2}));
}

TEST(ImagePacking, ASampleOfWhichNoLossIsLeftIsDroppedAndCounted) {
  Sample asked = sample_of(20, {{1, 12}});
  const Dataset dataset = dataset_of({asked, sample_of(8, {})});
  for (const LongSamples long_samples : {LongSamples::Cut, LongSamples::Split}) {
    PackingOptions options;
    options.sequence_length = 10;
    options.long_samples = long_samples;
    const PackingReport report = Packer(dataset, all_samples(2), options).report();
    EXPECT_EQ(report.documents, 1);
    EXPECT_EQ(report.cut_off_loss, 1);
    EXPECT_EQ(report.long_samples, 1);
    EXPECT_EQ(report.lost_tokens, 19);
    EXPECT_THAT(left_out_text(report, options),
                testing::EndsWith("; images take fewer tokens by --image-max-pixels, or by --max-slices where they are "
                                  "sliced)"));
  }
  EXPECT_TRUE(documents_of(dataset, 10, LongSamples::Drop).at(0).sample == 1);
}

TEST(ImagePacking, PatchesAreThoseOfViewsWithinADocument) {
  const Dataset dataset = dataset_of({sample_of(4, {}), sample_of(30, {{5, 10, 4, 6}, {14, 22, 2, 2}})});
  EXPECT_TRUE(dataset.images(0).empty());
  EXPECT_EQ(dataset.patches(0, 0, 4), 0);
  EXPECT_EQ(dataset.patches(1, 0, 30), 28);
  EXPECT_EQ(dataset.patches(1, 0, 14), 24);
  EXPECT_EQ(dataset.patches(1, 10, 22), 4);
  EXPECT_EQ(dataset.patches(1, 6, 9), 24);
  EXPECT_EQ(dataset.patches(1, 7, 30), 4);
}

// ---- Blocks ---------------------------------------------------------------------------------------------------------

TEST(ImagePacking, ABlockHasRoomForItsPatches) {
  const Dataset dataset = dataset_of(
      {sample_of(10, {{2, 6, 4, 4}}), sample_of(10, {{2, 6, 4, 4}}), sample_of(10, {}), sample_of(10, {{2, 6, 2, 2}})});
  PackingOptions options;
  options.sequence_length = 64;
  options.shuffle = false;
  const auto blocks = [&] {
    Packer packer(dataset, all_samples(4), options);
    EpochBlocks out = packer.reserve();
    packer.build(0, out);
    EXPECT_EQ(packer.count(0), out.count());
    std::vector<std::vector<uint32_t>> samples;
    for (int64_t i = 0; i < out.count(); ++i) {
      samples.emplace_back();
      for (const DocumentSpan& document : out.block(i)) samples.back().push_back(document.sample);
    }
    return samples;
  };
  EXPECT_THAT(blocks(), ElementsAre(ElementsAre(0, 1, 2, 3)));
  options.patches = 36;
  EXPECT_THAT(blocks(), ElementsAre(ElementsAre(0, 1, 2, 3)));
  options.patches = 35;
  EXPECT_THAT(blocks(), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
  options.patches = 20;
  EXPECT_THAT(blocks(), ElementsAre(ElementsAre(0, 2, 3), ElementsAre(1)));
  options.patches = 16;
  EXPECT_THAT(blocks(), ElementsAre(ElementsAre(0, 2), ElementsAre(1), ElementsAre(3)));
  options.patches = 15;
  EXPECT_THROW(blocks(), InternalError);
}

// So that images alone do not decide how many samples a block has.
TEST(ImagePacking, BlocksNeedRoomForWhatTheyHaveByTheirTokens) {
  const Dataset dataset = dataset_of(
      {sample_of(10, {{2, 6, 4, 4}}), sample_of(10, {{2, 6, 4, 4}}), sample_of(10, {}), sample_of(10, {{2, 6, 2, 2}})});
  PackingOptions options;
  options.shuffle = false;
  const auto most = [&](int64_t length) {
    options.sequence_length = length;
    return Packer(dataset, all_samples(4), options).most_patches();
  };
  EXPECT_EQ(most(64), 36);
  EXPECT_EQ(most(30), 32);
  EXPECT_EQ(most(10), 16);
  options.packing = false;
  EXPECT_EQ(most(64), 16);
  EXPECT_EQ(Packer(dataset_of({sample_of(10, {})}), all_samples(1), options).most_patches(), 0);
}

TEST(ImagePacking, APassHasThePatchesOfTheRankWithTheMost) {
  const Dataset dataset = dataset_of({sample_of(10, {{2, 6, 4, 4}}), sample_of(10, {}),
                                      sample_of(10, {{2, 6, 2, 2}, {6, 9, 2, 6}}), sample_of(10, {{2, 6, 2, 2}})});
  PackingOptions options;
  options.sequence_length = 10;
  options.shuffle = false;
  BlockStream stream(dataset, all_samples(4), options, {2, 2, 1}, {std::nullopt, 1});
  EXPECT_EQ(stream.pass_patches(0), 16);  // of blocks of 16, 0, 16 and 4 in this order
  EXPECT_EQ(stream.pass_patches(1), 4);
  EXPECT_EQ(stream.block(0, 1, 0)[0].sample, 2u);
  EXPECT_EQ(stream.block(1, 1, 0)[0].sample, 1u);
  BlockStream wide(dataset, all_samples(4), options, {1, 2, 2}, {std::nullopt, 1});
  EXPECT_EQ(wide.pass_patches(0), 20);
}

// By hand: passes take blocks in falling order of patches and tokens, ranks those of a pass so that the one with the
// most has as little as may be.
TEST(ImagePacking, BlocksOfAStepAreDealtOutByPatchesAndTokens) {
  const std::vector<Sample> samples{sample_of(10, {{2, 6, 2, 2}}),
                                    sample_of(30, {}),
                                    sample_of(10, {{2, 6, 4, 4}}),
                                    sample_of(20, {}),
                                    sample_of(12, {{2, 6, 4, 4}}),
                                    sample_of(11, {{2, 6, 2, 6}}),
                                    sample_of(25, {}),
                                    sample_of(10, {{2, 6, 2, 2}})};
  std::vector<Sample> texts = samples;
  for (Sample& text : texts) text.images.clear(), text.views.clear();
  using Passes = std::vector<std::vector<std::vector<uint32_t>>>;  // the blocks of each rank in each pass
  struct Dealt {
    Passes passes;
    std::vector<std::pair<int64_t, int64_t>> most;  // patches and tokens
  };
  const auto dealt = [](const std::vector<Sample>& all, const StepShape& shape) {
    const Dataset dataset = dataset_of(all);
    const PackingOptions options{.sequence_length = 64, .packing = false, .shuffle = false};
    BlockStream stream(dataset, all_samples(dataset.samples()), options, shape, {std::nullopt, 1});
    Dealt out;
    for (int64_t pass = 0; pass < shape.passes; ++pass) {
      out.passes.emplace_back();
      for (int64_t rank = 0; rank < shape.ranks; ++rank) {
        out.passes.back().emplace_back();
        for (int64_t i = 0; i < shape.micro_batch; ++i)
          for (const DocumentSpan& document : stream.block(pass, rank, i))
            out.passes.back().back().push_back(document.sample);
      }
      out.most.emplace_back(stream.pass_patches(pass), stream.pass_tokens(pass));
    }
    return out;
  };
  const auto expect = [&](const std::vector<Sample>& all, const StepShape& shape, const Passes& passes,
                          const std::vector<std::pair<int64_t, int64_t>>& most) {
    const Dealt found = dealt(all, shape);
    EXPECT_EQ(found.passes, passes);
    EXPECT_EQ(found.most, most);
  };
  expect(samples, {2, 2, 2}, {{{4, 0}, {2, 5}}, {{7, 6}, {1, 3}}}, {{28, 22}, {4, 50}});
  expect(samples, {2, 1, 4}, {{{4, 2, 5, 0}}, {{7, 1, 6, 3}}}, {{48, 43}, {4, 85}});
  expect(samples, {1, 4, 2}, {{{4, 3}, {2, 1}, {5, 6}, {0, 7}}}, {{16, 40}});
  expect(samples, {4, 2, 1}, {{{4}, {2}}, {{5}, {0}}, {{7}, {1}}, {{6}, {3}}}, {{16, 12}, {12, 11}, {4, 30}, {0, 25}});
  // Missing blocks come last, also among those of a pass.
  const std::vector<Sample> few(samples.begin(), samples.begin() + 3);
  expect(few, {2, 2, 2}, {{{2, 1}, {0}}, {{}, {}}}, {{16, 40}, {0, 0}});
  // Texts keep the order of the data.
  expect(texts, {2, 2, 2}, {{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}}, {{0, 40}, {0, 35}});
}

// Steps of eight blocks over epochs of five: a step's blocks are those that the one before it saw behind itself.
TEST(ImagePacking, TheStepBehindIsKnownWhereThereAreImages) {
  for (const auto& variant : {std::pair(true, StepShape{2, 2, 2}), std::pair(true, StepShape{2, 4, 1}),
                              std::pair(false, StepShape{2, 2, 2})}) {
    const bool images = variant.first;
    const StepShape shape = variant.second;
    std::vector<Sample> samples;
    for (int i = 0; i < 5; ++i)
      samples.push_back(sample_of(10, images && i == 2 ? std::vector{At{2, 6}} : std::vector<At>{}));
    const Dataset dataset = dataset_of(samples);
    PackingOptions options;
    options.sequence_length = 10;
    BlockStream stream(dataset, all_samples(5), options, shape, {std::nullopt, 7});
    ASSERT_EQ(stream.steps(), 5);
    const auto blocks = [&](bool next) {
      std::vector<DocumentSpan> all;
      for (int64_t pass = 0; pass < 2; ++pass)
        for (int64_t rank = 0; rank < shape.ranks; ++rank)
          for (int64_t i = 0; i < shape.micro_batch; ++i) {
            const auto block = next ? stream.next_block(pass, rank, i) : stream.block(pass, rank, i);
            all.insert(all.end(), block.begin(), block.end());
          }
      return all;
    };
    std::vector<DocumentSpan> seen;
    int64_t last = -1;
    for (const int64_t step : {0, 1, 2, 3, 4, 2, 3}) {
      stream.seek(step);
      EXPECT_EQ(blocks(false).size(), step == 4 ? 3u : 8u);
      if (images && step > 0 && step == last + 1) {
        EXPECT_EQ(blocks(false), seen) << step;
      }
      last = step;
      seen = blocks(true);
      EXPECT_EQ(seen.size(), !images || step == 4 ? 0u : step == 3 ? 3u : 8u);
    }
  }
}

TEST(ImagePacking, OtherRoomForPatchesIsAnotherFingerprint) {
  PackingOptions a, b;
  b.patches = 3;
  Fields fields_a, fields_b;
  add_fields(fields_a, "blocks", a);
  add_fields(fields_b, "blocks", b);
  EXPECT_NE(hash_of_fields(fields_a), hash_of_fields(fields_b));
}

// ---- Data sets ------------------------------------------------------------------------------------------------------

TEST(ImageDataset, WhatIsAddedIsFound) {
  Sample held = sample_of(9, {{2, 6}});
  held.images[0].path.clear();
  held.images[0].bytes = std::string("\0\1\2", 3);
  const Dataset dataset = dataset_of({sample_of(4, {}), sample_of(30, {{5, 10}, {14, 22}}), sample_of(5, {}), held});
  EXPECT_TRUE(dataset.has_images());
  EXPECT_FALSE(dataset_of({sample_of(4, {})}).has_images());
  EXPECT_TRUE(dataset.images(0).empty());
  EXPECT_TRUE(dataset.views(2).empty());
  ASSERT_EQ(dataset.images(1).size(), 2u);
  EXPECT_EQ(dataset.images(1)[1].begin, 14u);
  EXPECT_EQ(dataset.views(1)[1], (DatasetView{1, 15, 6, 2, 2}));
  const ImageTask task = dataset.all_images().task(dataset.images(3)[0]);
  EXPECT_EQ(task.source, "data.jsonl, line 1");
  EXPECT_EQ(task.pictures.at(0).path, "");
  EXPECT_EQ(task.pictures.at(0).bytes, std::string("\0\1\2", 3));
  EXPECT_EQ(std::pair(task.width, task.height), std::pair(int64_t{28}, int64_t{14}));
  EXPECT_EQ(dataset.all_images().task(dataset.images(1)[0]).pictures.at(0).path, "a.png");
}

// So that what reading images takes and the data's hash go by one look at the files.
TEST(ImageDataset, SizesOfFilesAreThoseOfWhenTheyWereLookedUp) {
  const TempDirectory directory;
  const std::string path = (directory.path() / "a.png").string();
  std::ofstream(path) << "a file";
  Sample held = sample_of(9, {{2, 6}});
  held.images[0].path.clear();
  held.images[0].bytes = std::string("\0\1\2", 3);
  Sample video = sample_of(9, {{2, 6}}, path);
  video.images[0].later = {path};
  Dataset dataset = dataset_of({sample_of(9, {{2, 6}}, path), held, video, sample_of(9, {{2, 6}}, path + ".gone")});
  const auto sizes = [&] {
    std::vector<uint64_t> found;
    for (int64_t sample = 0; sample < dataset.samples(); ++sample)
      found.push_back(dataset.all_images().stored_bytes(dataset.images(sample)[0]));
    return found;
  };
  EXPECT_THROW(sizes(), InternalError);
  dataset.look_up_image_sizes();
  EXPECT_THAT(sizes(), ElementsAre(6, 3, 12, 0));
  std::ofstream(path, std::ios::app) << "more";
  EXPECT_THAT(sizes(), ElementsAre(6, 3, 12, 0));
  dataset.look_up_image_sizes();
  EXPECT_THAT(sizes(), ElementsAre(10, 3, 20, 0));
}

TEST(ImageDataset, WhatImagesTakeIsAskedForBefore) {
  Dataset dataset;
  Sample held = sample_of(3, {{0, 3}});
  held.images[0].bytes.assign(1 << 20, 'x');
  held.images[0].path.clear();
  const Sample text = sample_of(3, {});
  EXPECT_GE(dataset.growth(held), uint64_t{1} << 20);
  EXPECT_LT(dataset.growth(text), uint64_t{1} << 10);
  dataset.add(held);
  uint64_t asked = 0;
  for (int i = 0; i < 100; ++i) {
    asked += dataset.growth(held);
    dataset.add(held);
  }
  EXPECT_GE(asked, uint64_t{100} << 20);
}

class ImageDatasetFile : public ::testing::Test {
 protected:
  ImageDatasetFile() {
    options_.files = {"a"};
    options_.vocabulary = 300;
    std::ofstream(image()) << "a file";
  }
  std::string image() const { return (directory_.path() / "a.png").string(); }
  std::filesystem::path path() const { return directory_.path() / "entry"; }
  std::string written(const Dataset& dataset) const {
    {
      File file = File::create(path(), IoMode::Buffered);
      DatasetFile::write(dataset, {}, "key", file, {});
    }
    return read_text(path(), uint64_t{1} << 30);
  }
  std::optional<DatasetFile::Content> read() const { return DatasetFile::read(path(), "key", options_); }
  void put_summed(std::string bytes) const {
    const uint64_t sum = hash_of(std::string_view(bytes).substr(0, bytes.size() - sizeof(uint64_t)));
    std::memcpy(bytes.data() + bytes.size() - sizeof(sum), &sum, sizeof(sum));
    std::ofstream(path(), std::ios::binary) << bytes;
  }
  Dataset dataset() const {
    return dataset_of({sample_of(4, {}), sample_of(30, {{5, 10}, {14, 22}}, image()), sample_of(9, {{2, 6}}, image())});
  }

  TempDirectory directory_;
  DataOptions options_;
};

TEST_F(ImageDatasetFile, ImagesAreReadBack) {
  const std::string bytes = written(dataset());
  EXPECT_EQ(bytes.size(), DatasetFile::bytes(dataset(), {}, "key"));
  const auto found = read();
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->dataset == dataset());
}

TEST_F(ImageDatasetFile, AnImageThatWasWrittenSinceMakesItAnother) {
  written(dataset());
  std::ofstream(image(), std::ios::app) << "more";
  EXPECT_FALSE(read());
  written(dataset());
  EXPECT_TRUE(read());
  std::filesystem::last_write_time(image(), std::filesystem::last_write_time(image()) + std::chrono::seconds(2));
  EXPECT_FALSE(read());
  written(dataset());
  std::filesystem::remove(image());
  EXPECT_FALSE(read());
}

// Every number of the images, whatever it is instead: it is damage, or a data set that holds together.
TEST_F(ImageDatasetFile, ImagesThatDoNotHoldTogetherAreDamage) {
  const std::string bytes = written(dataset());
  const uint64_t text = 3 * (18 + image().size()),
                 numbers = 2 * 32 + 3 * sizeof(DatasetImage) + 3 * sizeof(DatasetView);
  const size_t begin = bytes.size() - sizeof(uint64_t) - text - numbers;
  int refused = 0, all = 0;
  for (size_t at = begin; at < begin + numbers; at += sizeof(uint32_t))
    for (const uint32_t value : {0u, 1u, 3u, 1000u, 0x7fffffffu, 0xffffffffu}) {
      std::string other = bytes;
      std::memcpy(other.data() + at, &value, sizeof(value));
      if (other == bytes) continue;
      put_summed(other);
      ++all;
      try {
        const auto found = read();
        if (!found) continue;
        for (int64_t s = 0; s < found->dataset.samples(); ++s) {
          for (const DatasetImage& image : found->dataset.images(s)) {
            EXPECT_LE(image.end, found->dataset.length(s));
            try {
              found->dataset.all_images().task(image);
            } catch (const UserError& error) {  // of a place in a file that has no data URL there
              EXPECT_THAT(error.what(), testing::HasSubstr("data.jsonl, line 1: "));
            }
          }
          for (const DatasetView& view : found->dataset.views(s))
            EXPECT_LT(view.image, found->dataset.images(s).size());
        }
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr("it is damaged"));
        ++refused;
      }
    }
  EXPECT_GT(refused, all / 2);
}

}  // namespace
}  // namespace snug
