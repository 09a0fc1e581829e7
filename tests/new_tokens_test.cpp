// Tokens that are added to a tokenizer, against the tokenizers library.
#include "format/new_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

const fs::path kTokenizers = fs::path(SNUG_FIXTURES) / "tokenizer";

nlohmann::json expected() { return nlohmann::json::parse(read_text(kTokenizers / "new_tokens.json", 1 << 20)); }

std::vector<AddedToken> wanted() {
  std::vector<AddedToken> tokens;
  const auto json = expected();
  for (const auto& text : json["tokens"]) tokens.push_back({.content = text});
  for (const auto& text : json["special"]) tokens.push_back({.content = text, .special = true});
  return tokens;
}

TEST(NewTokens, AreFoundAndDecodedAsByTheTokenizersLibrary) {
  const auto families = expected()["families"];
  EXPECT_EQ(families.size(), 3u);
  for (const auto& [family, theirs] : families.items()) {
    SCOPED_TRACE(family);
    const std::vector<AddedToken> added = number_tokens(Tokenizer::load(kTokenizers / family), wanted());
    ASSERT_EQ(added.size(), theirs["ids"].size());
    for (size_t i = 0; i < added.size(); i++) EXPECT_EQ(added[i].id, theirs["ids"][i]);
    const Tokenizer grown = Tokenizer::parse(with_new_tokens(Tokenizer::read(kTokenizers / family), added, ""));
    for (const auto& one : theirs["cases"]) {
      const std::vector<int32_t> ids = grown.encode(one["text"].get<std::string>());
      EXPECT_EQ(ids, one["ids"].get<std::vector<int32_t>>()) << one["text"];
      EXPECT_EQ(grown.decode(ids, false), one["all"].get<std::string>());
      EXPECT_EQ(grown.decode(ids, true), one["skipped"].get<std::string>());
    }
  }
}

TEST(NewTokens, WhatIsATokenAlreadyKeepsItsId) {
  const Tokenizer before = Tokenizer::load(kTokenizers / "smollm");
  const std::vector<AddedToken> added = number_tokens(
      before, std::vector<AddedToken>{{.content = "<|im_start|>"}, {.content = "<a>"}, {.content = "<a>"}});
  ASSERT_EQ(added.size(), 1u);
  EXPECT_EQ(added[0].content, "<a>");
  EXPECT_EQ(added[0].id, before.next_id());
}

TEST(NewTokens, WrittenFilesLoadAsTheSameTokenizer) {
  TempDirectory directory;
  const fs::path json = directory.path() / "json", pieces = directory.path() / "pieces";
  fs::copy(kTokenizers / "smollm", json);
  fs::create_directory(pieces);
  fs::copy(kTokenizers.parent_path() / "sentencepiece" / "llama.model", pieces / "tokenizer.model");
  for (const fs::path& copy : {json, pieces}) {
    SCOPED_TRACE(copy);
    const std::vector<AddedToken> added = number_tokens(Tokenizer::load(copy), wanted());
    ASSERT_EQ(added.size(), wanted().size());
    write_new_tokens(copy, added);
    const Tokenizer grown = Tokenizer::load(copy);
    for (const AddedToken& token : added) {
      const std::vector<int32_t> ids = grown.encode("a" + token.content + "b");
      EXPECT_EQ(std::ranges::count(ids, token.id), 1) << token.content;
      EXPECT_EQ(grown.decode(std::vector{token.id}, true).empty(), token.special);
    }
    EXPECT_TRUE(number_tokens(grown, wanted()).empty());
  }
}

TEST(NewTokens, BrokenFilesAreNamed) {
  Tokenizer::Files files{.tokenizer = R"({"added_tokens": 3})"};
  EXPECT_TRUE(
      fails_with<UserError>([&] { with_new_tokens(files, wanted(), "m/"); }, "m/tokenizer.json, key 'added_tokens'"));
  files = {.tokenizer = "{}", .config = R"({"added_tokens_decoder": []})"};
  EXPECT_TRUE(fails_with<UserError>([&] { with_new_tokens(files, wanted(), "m/"); },
                                    "m/tokenizer_config.json, key 'added_tokens_dec"));
  files = {.tokenizer = "["};
  EXPECT_TRUE(fails_with<UserError>([&] { with_new_tokens(files, wanted(), "m/"); }, "m/tokenizer.json"));
}

}  // namespace
}  // namespace snug
