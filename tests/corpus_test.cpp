#include "cli/corpus.h"

#include <gtest/gtest.h>

#include "train/checkpoint.h"

namespace snug {
namespace {

uint64_t hash_of_labels(std::vector<int32_t> labels) {
  Corpus corpus;
  corpus.training.add({{1, 2, 3, 4}, std::move(labels)});
  corpus.training_samples = all_samples(1);
  return hash_of_fields(data_fields(corpus, Options(), {}), {kContentFields});
}

// A checkpoint is not resumed with other labels, however many there are.
TEST(Corpus, TheHashOfTheDataIsOfEachLabel) {
  const uint64_t plain = hash_of_labels({kNoLabel, kNoLabel, 3, 4});
  EXPECT_EQ(hash_of_labels({1, kNoLabel, 3, 4}), plain);  // nothing predicts a first token
  EXPECT_NE(hash_of_labels({kNoLabel, 2, 3, kNoLabel}), plain);
  EXPECT_NE(hash_of_labels({kNoLabel, kNoLabel, 3, 5}), plain);
  EXPECT_NE(hash_of_labels({kNoLabel, kNoLabel, kNoLabel, 4}), plain);
}

// Nor with other thinking, even where the labels happen to be the same.
TEST(Corpus, WhatBecomesOfThinkingIsAFieldOfTheData) {
  Corpus corpus;
  Options options;
  const auto hash = [&] { return hash_of_fields(data_fields(corpus, options, {}), {kDataOptionFields}); };
  const uint64_t plain = hash();
  options.thinking = "last";
  EXPECT_NE(hash(), plain);
}

}  // namespace
}  // namespace snug
