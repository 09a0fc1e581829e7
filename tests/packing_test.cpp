#include "data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/error.h"
#include "base/limits.h"
#include "count_allocations.h"
#include "data/batcher.h"
#include "expect_error.h"

namespace snug {
namespace {

using testing::ElementsAre;

// Samples of given lengths; token i of sample s is 100 s + i, all but the first have labels.
Dataset dataset_of(const std::vector<int>& lengths) {
  Dataset dataset;
  for (size_t s = 0; s < lengths.size(); ++s) {
    Sample sample;
    for (int i = 0; i < lengths[s]; ++i) sample.ids.push_back(100 * static_cast<int>(s) + i);
    sample.labels = sample.ids;
    dataset.add(sample);
  }
  return dataset;
}

Dataset random_dataset(int64_t samples, uint64_t longest, uint32_t stream) {
  const Random random(7, RandomPurpose::Sampling, stream);
  std::vector<int> lengths;
  for (int64_t i = 0; i < samples; ++i)
    lengths.push_back(2 + static_cast<int>(random.below(static_cast<uint64_t>(i), longest)));
  return dataset_of(lengths);
}

std::vector<std::vector<DocumentSpan>> blocks_of(Packer& packer, int64_t epoch) {
  EpochBlocks blocks = packer.reserve();
  packer.build(epoch, blocks);
  std::vector<std::vector<DocumentSpan>> out;
  for (int64_t i = 0; i < blocks.count(); ++i) {
    out.emplace_back(blocks.block(i).begin(), blocks.block(i).end());
  }
  return out;
}

std::vector<std::vector<DocumentSpan>> blocks_of(const Dataset& dataset, const PackingOptions& options) {
  Packer packer(dataset, all_samples(dataset.samples()), options);
  return blocks_of(packer, 0);
}

using Block = std::vector<DocumentSpan>;

// ---- Blocks ---------------------------------------------------------------------------------------------------------

//   lengths 5 3 6 2 2 6, blocks of 8:   0 0 0 0 0 1 1 1 | 2 2 2 2 2 2 3 3 | 4 4 5 5 5 5 5 5
TEST(Packing, ADocumentGoesIntoTheFirstOpenBlockWithRoom) {
  const Dataset dataset = dataset_of({5, 3, 6, 2, 2, 6});
  EXPECT_THAT(blocks_of(dataset, {.sequence_length = 8, .shuffle = false}),
              ElementsAre(Block{{0, 0, 5}, {1, 0, 3}}, Block{{2, 0, 6}, {3, 0, 2}}, Block{{4, 0, 2}, {5, 0, 6}}));
}

TEST(Packing, WithoutItEverySampleIsABlock) {
  const Dataset dataset = dataset_of({4, 3, 2});
  EXPECT_THAT(blocks_of(dataset, {.sequence_length = 8, .packing = false, .shuffle = false}),
              ElementsAre(Block{{0, 0, 4}}, Block{{1, 0, 3}}, Block{{2, 0, 2}}));
}

TEST(Packing, LongSamplesAreCutSplitOrDropped) {
  const Dataset dataset = dataset_of({9, 2, 4});
  const auto packed = [&](LongSamples mode, PackingReport& report) {
    Packer packer(dataset, all_samples(3), {.sequence_length = 4, .long_samples = mode, .shuffle = false});
    report = packer.report();
    return blocks_of(packer, 0);
  };
  PackingReport report;
  EXPECT_THAT(packed(LongSamples::Cut, report), ElementsAre(Block{{0, 0, 4}}, Block{{1, 0, 2}}, Block{{2, 0, 4}}));
  EXPECT_EQ(report.long_samples, 1);
  EXPECT_EQ(report.lost_tokens, 5);
  EXPECT_EQ(report.loss_tokens, 3 + 1 + 3);
  EXPECT_THAT(packed(LongSamples::Split, report),
              ElementsAre(Block{{0, 0, 4}}, Block{{0, 4, 4}}, Block{{1, 0, 2}}, Block{{2, 0, 4}}));
  EXPECT_EQ(report.lost_tokens, 0);
  EXPECT_EQ(report.documents, 4);  // the ninth token has nothing before it: no loss, no document
  EXPECT_EQ(report.loss_tokens, 3 + 3 + 1 + 3);
  EXPECT_THAT(packed(LongSamples::Drop, report), ElementsAre(Block{{1, 0, 2}}, Block{{2, 0, 4}}));
  EXPECT_EQ(report.lost_tokens, 9);
}

// Of a chat: a prompt of `prompt` tokens without loss, a reply of `reply` tokens with.
Sample chat_of(int prompt, int reply) {
  Sample sample;
  for (int i = 0; i < prompt + reply; ++i) {
    sample.ids.push_back(i);
    sample.labels.push_back(i < prompt ? kNoLabel : i);
  }
  return sample;
}

// Pairs of a prompt of unlabelled tokens and two replies: {prompt, chosen, rejected} in tokens.
Dataset pairs_of(const std::vector<std::array<int, 3>>& lengths) {
  Dataset dataset;
  for (const auto& [prompt, chosen, rejected] : lengths) {
    Sample pair;
    for (const auto& [reply, first] : {std::pair(chosen, 500), {rejected, 700}}) {
      if (first == 700) pair.second = static_cast<uint32_t>(pair.ids.size());
      for (int i = 0; i < prompt + reply; ++i) {
        pair.ids.push_back(i < prompt ? i : first + i);
        pair.labels.push_back(i < prompt ? kNoLabel : first + i);
      }
    }
    dataset.add(pair);
  }
  return dataset;
}

// The first pair takes 11 tokens, the second 7; 2 of the first's prompt go from each document if blocks hold 8.
TEST(Packing, BothDocumentsOfAPairLieInOneBlockAndLoseOneBeginningOfTheirPrompt) {
  const Dataset dataset = pairs_of({{4, 2, 1}, {2, 1, 2}, {1, 2, 1}});
  EXPECT_THAT(blocks_of(dataset, {.sequence_length = 16, .shuffle = false}),
              ElementsAre(Block{{0, 0, 6}, {0, 6, 5}, {2, 0, 3}, {2, 3, 2}}, Block{{1, 0, 3}, {1, 3, 4}}));
  const PackingOptions cut{.sequence_length = 8, .shuffle = false};
  EXPECT_THAT(blocks_of(dataset, cut),
              ElementsAre(Block{{0, 2, 4}, {0, 8, 3}}, Block{{1, 0, 3}, {1, 3, 4}}, Block{{2, 0, 3}, {2, 3, 2}}));
  BlockStream stream(dataset, all_samples(3), cut, {.passes = 1, .ranks = 3}, {.epochs = 1});
  EXPECT_EQ(stream.samples(), 3);
  EXPECT_EQ(stream.first_loss_tokens(), 2 + 1 + 2);
  EXPECT_EQ(stream.loss_tokens(), 5 + 1 + 2 + 1);
  PackingOptions dropping = cut;
  dropping.long_samples = LongSamples::Drop;
  Packer packer(dataset, all_samples(3), dropping);
  EXPECT_EQ(packer.count(0), 2);
  EXPECT_EQ(packer.report().lost_tokens, 11);
}

TEST(Packing, APairWhoseRepliesDoNotFitOrTeachNothingIsLeftOut) {
  Dataset dataset = pairs_of({{2, 4, 4}, {2, 1, 1}, {2, 0, 2}});
  Sample equal;
  equal.ids = {1, 2, 1, 2};
  equal.labels = {kNoLabel, 2, kNoLabel, 2};
  equal.second = 2;
  dataset.add(equal);
  const PackingOptions options{.sequence_length = 8, .packing = false, .shuffle = false};
  Packer packer(dataset, all_samples(4), options);
  EXPECT_THAT(blocks_of(packer, 0), ElementsAre(Block{{1, 0, 3}, {1, 3, 3}}));
  EXPECT_EQ(packer.report(), (PackingReport{.samples = 4,
                                            .long_samples = 1,
                                            .lost_tokens = 12,
                                            .documents = 2,
                                            .tokens = 6,
                                            .loss_tokens = 2,
                                            .without_loss = 1,
                                            .long_replies = 1,
                                            .equal_pairs = 1}));
  EXPECT_EQ(left_out_text(packer.report(), options),
            "1 of 4 samples are longer than sequence_length 8: cut, 12 tokens lost; 1 of 4 samples have no token that "
            "carries loss: left out; 1 of 4 samples have replies that leave no room for their prompt in "
            "sequence_length 8: left out; 1 of 4 samples are pairs of equal replies: left out (--sequence-length and "
            "--long-samples choose)");
}

// A step of nothing but such documents would be a mean of nothing, and still move weights by momentum and decay.
TEST(Packing, LeavesOutDocumentsWithoutALossToken) {
  Dataset dataset;
  for (const auto& [prompt, reply] : {std::pair(2, 2), {6, 2}, {3, 0}, {2, 9}}) dataset.add(chat_of(prompt, reply));
  const PackingOptions cut{.sequence_length = 5, .packing = false, .shuffle = false};
  Packer packer(dataset, all_samples(4), cut);
  EXPECT_THAT(blocks_of(packer, 0), ElementsAre(Block{{0, 0, 4}}, Block{{3, 0, 5}}));
  EXPECT_EQ(packer.report(), (PackingReport{.samples = 4,
                                            .long_samples = 2,
                                            .lost_tokens = 3 + 6,
                                            .documents = 2,
                                            .tokens = 4 + 5,
                                            .loss_tokens = 2 + 3,
                                            .without_loss = 1,
                                            .cut_off_loss = 1}));
  EXPECT_EQ(left_out_text(packer.report(), cut),
            "2 of 4 samples are longer than sequence_length 5: cut, 9 tokens lost; 1 of 4 samples are cut before their "
            "first token that carries loss: left out; 1 of 4 samples have no token that carries loss: left out "
            "(--sequence-length and --long-samples choose)");
  PackingOptions split = cut;
  split.long_samples = LongSamples::Split;
  Packer pieces(dataset, all_samples(4), split);
  // Of the second sample the piece that holds the reply, of the last both with a reply and the one that is all reply.
  EXPECT_THAT(blocks_of(pieces, 0),
              ElementsAre(Block{{0, 0, 4}}, Block{{1, 5, 3}}, Block{{3, 0, 5}}, Block{{3, 5, 5}}));
  EXPECT_EQ(pieces.report().lost_tokens, 0);
  EXPECT_EQ(left_out_text(Packer(dataset, {0}, cut).report(), cut), "");
}

TEST(Packing, SaysWhyNothingIsLeft) {
  Dataset dataset;
  for (const auto& [prompt, reply] : {std::pair(6, 2), {7, 1}, {3, 0}}) dataset.add(chat_of(prompt, reply));
  const auto refuses = [&](std::vector<uint32_t> samples, const std::string& words) {
    return fails_with<UserError>([&] { Packer(dataset, samples, {.sequence_length = 5, .name = "validation"}); },
                                 "validation: no sample is left with a token that carries loss: " + words);
  };
  EXPECT_TRUE(refuses({0, 1},
                      "2 of 2 samples are longer than sequence_length 5: cut, 6 tokens lost; 2 of 2 samples are "
                      "cut before their first token that carries loss"));
  EXPECT_TRUE(refuses({2}, "1 of 1 samples have no token that carries loss"));
}

TEST(Packing, ABlockHoldsAtMostAThirtySecondOfItsTokensAsDocumentsAndNeverLessThan64) {
  EXPECT_EQ(max_documents(1, 512), 64);
  EXPECT_EQ(max_documents(2, 4096), 256);
  const Dataset dataset = dataset_of(std::vector<int>(130, 2));
  const auto blocks = blocks_of(dataset, {.sequence_length = 512});
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].size(), 64u);
  EXPECT_EQ(blocks[1].size(), 64u);
  EXPECT_EQ(blocks[2].size(), 2u);
}

//   64 blocks are open, 1 and 3 with 2 free tokens, the others with 3. Sample 64, of 6 tokens, fits none: 1 is closed,
//   and of the samples of 2 tokens after it the second goes to 3
TEST(Packing, TheFullestOpenBlockIsClosedWhereAllAreTooFull) {
  std::vector<int> lengths(64, 5);
  lengths[1] = lengths[3] = 6;
  lengths.insert(lengths.end(), {6, 3, 2, 2});
  const auto blocks = blocks_of(dataset_of(lengths), {.sequence_length = 8, .shuffle = false});
  ASSERT_EQ(blocks.size(), 65u);
  EXPECT_EQ(blocks[0], (Block{{0, 0, 5}, {65, 0, 3}}));
  EXPECT_EQ(blocks[1], (Block{{1, 0, 6}}));
  EXPECT_EQ(blocks[2], (Block{{2, 0, 5}, {66, 0, 2}}));
  EXPECT_EQ(blocks[3], (Block{{3, 0, 6}, {67, 0, 2}}));
}

TEST(Packing, KeepsEveryTokenOnceAndSplitsNothingThatFits) {
  for (uint32_t round = 0; round < 20; ++round) {
    const int64_t length = 16 << (round % 5);
    const Dataset dataset = random_dataset(400, round % 2 ? 40 : 2 * static_cast<uint64_t>(length), round);
    const PackingOptions options = {.sequence_length = length, .long_samples = LongSamples::Split, .seed = round};
    Packer packer(dataset, all_samples(dataset.samples()), options);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::set<uint32_t>> seen(400);
      int64_t tokens = 0, blocks = 0;
      for (const Block& block : blocks_of(packer, epoch)) {
        int64_t in_block = 0;
        ASSERT_FALSE(block.empty());
        ASSERT_LE(static_cast<int64_t>(block.size()), max_documents(1, length));
        for (const DocumentSpan& d : block) {
          EXPECT_TRUE(d.length == dataset.length(d.sample) || dataset.length(d.sample) > length);
          EXPECT_TRUE(seen[d.sample].insert(d.begin).second);
          EXPECT_EQ(d.begin % static_cast<uint32_t>(length), 0u);
          EXPECT_LE(d.begin + d.length, dataset.length(d.sample));
          in_block += d.length;
        }
        ASSERT_LE(in_block, length);
        tokens += in_block;
        ++blocks;
      }
      int64_t lone = 0;  // ends of one token, which nothing predicts
      for (int64_t s = 0; s < dataset.samples(); ++s) lone += dataset.length(s) % length == 1;
      EXPECT_EQ(tokens, dataset.tokens() - lone);
      EXPECT_GE(blocks, packer.least_blocks());
    }
  }
}

TEST(Packing, FillsBlocksWell) {
  const Dataset dataset = random_dataset(20000, 600, 1);
  const auto blocks = blocks_of(dataset, {.sequence_length = 1024});
  const double filled = static_cast<double>(dataset.tokens()) / (1024.0 * static_cast<double>(blocks.size()));
  EXPECT_GT(filled, 0.985);
}

TEST(Packing, EpochsHaveOrdersOfTheirOwn) {
  const Dataset dataset = random_dataset(50, 8, 1);
  Packer packer(dataset, all_samples(50), {.sequence_length = 8}),
      again(dataset, all_samples(50), {.sequence_length = 8});
  EXPECT_NE(blocks_of(packer, 0), blocks_of(packer, 1));
  EXPECT_EQ(blocks_of(packer, 1), blocks_of(again, 1));
  Packer other(dataset, all_samples(50), {.sequence_length = 8, .seed = 43});
  EXPECT_NE(blocks_of(packer, 0), blocks_of(other, 0));
}

TEST(Packing, TakesPartOfTheSamples) {
  const Dataset dataset = dataset_of({3, 3, 3, 3});
  Packer packer(dataset, {1, 3}, {.sequence_length = 8});
  EXPECT_EQ(packer.report().tokens, 6);
  for (const Block& block : blocks_of(packer, 0)) {
    for (const DocumentSpan& d : block) EXPECT_EQ(d.sample % 2, 1u);
  }
}

TEST(Packing, RefusesWhatCannotBeTrained) {
  const Dataset dataset = dataset_of({9, 9});
  EXPECT_TRUE(fails_with<UserError>(
      [&] { Packer(dataset, all_samples(2), {.sequence_length = 4, .long_samples = LongSamples::Drop}); },
      "data: no sample is left with a token that carries loss: 2 of 2 samples are longer than sequence_length 4: "
      "dropped, 18 tokens "
      "lost"));
  EXPECT_TRUE(fails_with<UserError>([&] { Packer(dataset, all_samples(2), {.sequence_length = 1}); },
                                    "sequence_length: found 1, expected 2"));
  EXPECT_TRUE(fails_with<UserError>([] { long_samples_from_name("trim"); }, "expected cut, split or drop"));
  EXPECT_TRUE(fails_with<UserError>([&] { Batcher(dataset, 1 << 20, 1 << 20); }, "less than 2^31 tokens a pass"));
}

// ---- Steps ----------------------------------------------------------------------------------------------------------

const PackingOptions kFileOrder = {.sequence_length = 8, .packing = false, .shuffle = false};

uint32_t sample_of(const BlockStream& stream, int64_t pass, int64_t rank, int64_t i) {
  const auto block = stream.block(pass, rank, i);
  return block.empty() ? UINT32_MAX : block[0].sample;
}

TEST(Steps, TakeBlocksPassAfterPassRankAfterRank) {
  const Dataset dataset = dataset_of(std::vector<int>(12, 2));
  BlockStream stream(dataset, all_samples(12), kFileOrder, {.passes = 2, .ranks = 3, .micro_batch = 1}, {.epochs = 1});
  EXPECT_EQ(stream.steps(), 2);
  EXPECT_EQ(stream.steps_per_epoch(), 2);
  stream.seek(1);
  for (int64_t pass = 0; pass < 2; ++pass) {
    for (int64_t rank = 0; rank < 3; ++rank) EXPECT_EQ(sample_of(stream, pass, rank, 0), 6 + 3 * pass + rank);
  }
}

TEST(Steps, RunAcrossEpochsAndOnlyTheLastIsShort) {
  const Dataset dataset = dataset_of({2, 3, 4});
  BlockStream stream(dataset, all_samples(3), kFileOrder, {.micro_batch = 2}, {.epochs = 3});
  EXPECT_EQ(stream.steps(), 5);
  std::vector<uint32_t> samples;
  std::vector<int64_t> tokens, loss_tokens;
  std::vector<bool> ends;
  for (int64_t step = 0; step < stream.steps(); ++step) {
    stream.seek(step);
    for (int64_t i = 0; i < 2; ++i) samples.push_back(sample_of(stream, 0, 0, i));
    tokens.push_back(stream.tokens());
    loss_tokens.push_back(stream.loss_tokens());
    ends.push_back(stream.ends_epoch());
  }
  EXPECT_THAT(samples, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2, UINT32_MAX));
  EXPECT_THAT(tokens, ElementsAre(5, 6, 7, 5, 4));
  EXPECT_THAT(loss_tokens, ElementsAre(3, 4, 5, 3, 3));
  EXPECT_THAT(ends, ElementsAre(false, true, true, false, true));
}

TEST(Steps, EndWhereTheFirstLimitIs) {
  const Dataset dataset = dataset_of({2, 3, 4});
  const auto steps = [&](RunLength length) {
    return BlockStream(dataset, all_samples(3), kFileOrder, {.micro_batch = 2}, length).steps();
  };
  EXPECT_EQ(steps({.max_steps = 2, .epochs = 3}), 2);
  EXPECT_EQ(steps({.max_steps = 9, .epochs = 3}), 5);
  EXPECT_EQ(steps({.max_steps = 1000}), 1000);
  EXPECT_EQ(steps({.max_steps = INT64_MAX, .epochs = 1}), 2);
  EXPECT_TRUE(fails_with<UserError>([&] { steps({.max_steps = 0}); }, "expected 1 or more"));
}

// Packing them one by one would take hours; what is packed counts as it is built.
TEST(Steps, AreCountedWithoutPackingEveryEpoch) {
  const Dataset dataset = dataset_of({2, 3, 4});
  const auto steps = [&](PackingOptions options, RunLength length) {
    return BlockStream(dataset, all_samples(3), options, {}, length).steps();
  };
  constexpr int64_t kEpochs = int64_t{1} << 30;
  EXPECT_EQ(steps(kFileOrder, {.epochs = kEpochs}), 3 * kEpochs);
  EXPECT_EQ(steps({.sequence_length = 8, .packing = false}, {.epochs = kEpochs}), 3 * kEpochs);
  EXPECT_EQ(steps({.sequence_length = 8, .shuffle = false}, {.epochs = kEpochs}), 2 * kEpochs);
  EXPECT_EQ(steps(kFileOrder, {.epochs = INT64_MAX}), INT64_MAX);
  EXPECT_EQ(steps({.sequence_length = 8}, {.max_steps = 7, .epochs = kEpochs}), 7);
}

TEST(Steps, OfShuffledEpochsAreAsManyAsTheirBlocks) {
  const Dataset dataset = random_dataset(100, 30, 3);
  const PackingOptions options = {.sequence_length = 32};
  Packer packer(dataset, all_samples(100), options);
  std::set<size_t> counts;
  int64_t blocks = 0;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const size_t count = blocks_of(packer, epoch).size();
    EXPECT_EQ(packer.count(epoch), static_cast<int64_t>(count));
    counts.insert(count);
    blocks += static_cast<int64_t>(count);
  }
  EXPECT_GT(counts.size(), 1u);
  EXPECT_EQ(BlockStream(dataset, all_samples(100), options, {}, {.epochs = 20}).steps(), blocks);
}

TEST(Steps, MayHoldManyEpochs) {
  const Dataset dataset = dataset_of({2, 3});
  BlockStream stream(dataset, all_samples(2), kFileOrder, {.passes = 7}, {.max_steps = 5});
  stream.seek(4);
  for (int64_t pass = 0; pass < 7; ++pass) EXPECT_EQ(sample_of(stream, pass, 0, 0), pass % 2);
}

using Step = std::vector<Block>;

Step step_of(BlockStream& stream, int64_t step) {
  stream.seek(step);
  Step out;
  const StepShape& shape = stream.shape();
  for (int64_t p = 0; p < shape.passes; ++p) {
    for (int64_t r = 0; r < shape.ranks; ++r) {
      for (int64_t i = 0; i < shape.micro_batch; ++i) {
        const auto block = stream.block(p, r, i);
        out.emplace_back(block.begin(), block.end());
      }
    }
  }
  return out;
}

TEST(Steps, AreTheSameWhereverTheRunResumes) {
  const Dataset dataset = random_dataset(100, 30, 3);
  for (const PackingOptions& options : {PackingOptions{.sequence_length = 64}, PackingOptions{.sequence_length = 32},
                                        PackingOptions{.sequence_length = 32, .packing = false}}) {
    const StepShape shape = {.passes = 2, .ranks = 2, .micro_batch = 2};
    BlockStream whole(dataset, all_samples(100), options, shape, {.epochs = 7});
    std::vector<Step> steps;
    for (int64_t k = 0; k < whole.steps(); ++k) steps.push_back(step_of(whole, k));
    for (int64_t from = 0; from < whole.steps(); from += 3) {
      BlockStream resumed(dataset, all_samples(100), options, shape, {.epochs = 7});
      for (int64_t k = from; k < whole.steps(); ++k) ASSERT_EQ(step_of(resumed, k), steps[static_cast<size_t>(k)]);
      ASSERT_EQ(step_of(resumed, from), steps[static_cast<size_t>(from)]);  // and back again
    }
  }
}

TEST(Steps, HaveTheSameBlocksHoweverTheyAreCut) {
  const Dataset dataset = random_dataset(100, 30, 3);
  const auto steps = [&](StepShape shape) {
    BlockStream stream(dataset, all_samples(100), {.sequence_length = 64}, shape, {.epochs = 2});
    std::vector<Step> out;
    for (int64_t k = 0; k < stream.steps(); ++k) out.push_back(step_of(stream, k));
    return out;
  };
  const auto expected = steps({.passes = 8});
  EXPECT_EQ(steps({.micro_batch = 8}), expected);
  EXPECT_EQ(steps({.passes = 2, .ranks = 2, .micro_batch = 2}), expected);
}

// ---- Batches --------------------------------------------------------------------------------------------------------

struct Batch {
  explicit Batch(const Batcher& batcher)
      : ids(room(batcher.tokens())),
        positions(ids),
        documents(room(batcher.documents() + 1)),
        loss_rows(ids),
        loss_targets(ids),
        loss_weights(ids.size(), 12345),
        token_order(ids),
        segment_starts(room(batcher.tokens() + 1)),
        segment_ids(ids) {}
  BatchViews views() {
    return {ids, positions, documents, loss_rows, loss_targets, loss_weights, token_order, segment_starts, segment_ids};
  }
  static std::vector<int32_t> room(int64_t size) { return std::vector<int32_t>(static_cast<size_t>(size), 12345); }

  std::vector<int32_t> ids, positions, documents, loss_rows, loss_targets;
  std::vector<float> loss_weights;
  std::vector<int32_t> token_order, segment_starts, segment_ids;
};

//   block 0: A = 7 5 7, B = 5 9; block 1: C = 7 5, padded.   T = 10
//   token      0 1 2 | 3 4 | 5 6 | 7 8 9
//   id         7 5 7 | 5 9 | 7 5 | padding
TEST(Batches, HoldDocumentsEndToEnd) {
  Dataset dataset;
  dataset.add({{7, 5, 7}, {7, kNoLabel, 7}});
  dataset.add({{5, 9}, {5, 3}});  // a label that is not its token
  dataset.add({{7, 5}, {7, 5}});
  BlockStream stream(dataset, all_samples(3), {.sequence_length = 5, .shuffle = false}, {.micro_batch = 2},
                     {.epochs = 1});
  Batcher batcher(dataset, 2, 5);
  EXPECT_EQ(batcher.tokens(), 10);
  EXPECT_EQ(batcher.documents(), 128);
  Batch b(batcher);
  const BatchCounts counts = batcher.fill(stream, 0, 0, b.views());
  EXPECT_EQ(counts, (BatchCounts{.documents = 3, .loss_rows = 3, .segments = 3, .tokens = 7}));
  EXPECT_THAT(b.ids, ElementsAre(7, 5, 7, 5, 9, 7, 5, 0, 0, 0));
  EXPECT_THAT(b.positions, ElementsAre(0, 1, 2, 0, 1, 0, 1, 0, 0, 0));
  EXPECT_THAT(std::vector<int32_t>(b.documents.begin(), b.documents.begin() + 5), ElementsAre(0, 3, 5, 7, 7));
  EXPECT_EQ(b.documents.back(), 7);
  EXPECT_THAT(b.loss_rows, ElementsAre(1, 3, 5, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(b.loss_targets, ElementsAre(7, 3, 5, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(b.loss_weights, ElementsAre(1, 1, 1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(b.token_order, ElementsAre(1, 3, 6, 0, 2, 5, 4, 0, 0, 0));
  EXPECT_THAT(b.segment_starts, ElementsAre(0, 3, 6, 7, 7, 7, 7, 7, 7, 7, 7));
  EXPECT_THAT(b.segment_ids, ElementsAre(5, 7, 9, 0, 0, 0, 0, 0, 0, 0));
}

TEST(Batches, OfMissingBlocksAreAllPadding) {
  const Dataset dataset = dataset_of({2, 2});
  BlockStream stream(dataset, all_samples(2), kFileOrder, {.passes = 3}, {.epochs = 1});
  Batcher batcher(dataset, 1, 8);
  Batch b(batcher);
  EXPECT_EQ(batcher.fill(stream, 2, 0, b.views()), BatchCounts{});
  for (const auto& view : {b.ids, b.positions, b.documents, b.loss_targets, b.token_order, b.segment_starts}) {
    EXPECT_THAT(view, testing::Each(0));
  }
  EXPECT_THAT(b.loss_rows, testing::Each(-1));
}

TEST(Batches, OfAStepHaveItsTokensAndLossTokens) {
  Dataset dataset;
  const Random random(3, RandomPurpose::Sampling);
  for (uint64_t s = 0, n = 0; s < 200; ++s) {
    Sample sample;
    for (uint64_t i = 0; i <= s % 37; ++i) {
      sample.ids.push_back(static_cast<int32_t>(random.below(n++, 50)));
      sample.labels.push_back(random.below(n++, 2) ? sample.ids.back() : kNoLabel);
    }
    dataset.add(sample);
  }
  const StepShape shape = {.passes = 2, .ranks = 3, .micro_batch = 2};
  BlockStream stream(dataset, all_samples(200), {.sequence_length = 32, .long_samples = LongSamples::Split}, shape,
                     {.epochs = 2});
  Batcher batcher(dataset, 2, 32);
  Batch b(batcher);
  for (int64_t step = 0; step < stream.steps(); ++step) {
    stream.seek(step);
    BatchCounts sum;
    for (int64_t pass = 0; pass < 2; ++pass) {
      for (int64_t rank = 0; rank < 3; ++rank) {
        const BatchCounts counts = batcher.fill(stream, pass, rank, b.views());
        sum.tokens += counts.tokens;
        sum.loss_rows += counts.loss_rows;
        for (int64_t i = 0; i + 1 < counts.tokens; ++i) {
          const auto k = static_cast<size_t>(i);
          const int32_t a = b.token_order[k], c = b.token_order[k + 1];
          const int32_t id_a = b.ids[static_cast<size_t>(a)], id_c = b.ids[static_cast<size_t>(c)];
          EXPECT_TRUE(id_a < id_c || (id_a == id_c && a < c));
        }
      }
    }
    EXPECT_EQ(sum.tokens, stream.tokens());
    EXPECT_EQ(sum.loss_rows, stream.loss_tokens());
  }
}

TEST(Batches, TakeNoMemoryAfterTheStart) {
  const Dataset dataset = random_dataset(300, 40, 5);
  BlockStream stream(dataset, all_samples(300), {.sequence_length = 64}, {.passes = 2, .micro_batch = 3},
                     {.epochs = 9});
  Batcher batcher(dataset, 3, 64);
  Batch b(batcher);
  const BatchViews views = b.views();
  const int64_t before = allocations();
  for (int64_t step = 0; step < stream.steps(); ++step) {
    stream.seek(step);
    for (int64_t pass = 0; pass < 2; ++pass) batcher.fill(stream, pass, 0, views);
  }
  EXPECT_EQ(allocations() - before, 0);
}

}  // namespace
}  // namespace snug
