// Replies end before a stop text, of which nothing is shown too soon.
#include <gtest/gtest.h>

#include "base/file.h"
#include "cli/reply_text.h"

namespace snug {
namespace {

// A token a byte: the vocabulary without its merges.
Tokenizer bytes() {
  Json json = Json::parse(read_text(std::filesystem::path(SNUG_FIXTURES) / "tokenizer_kinds/bases.json", 10'000'000));
  json = json.at("bytes");
  json["model"]["merges"] = Json::array();
  return Tokenizer::parse({.tokenizer = json.dump()});
}

TEST(ReplyText, ShowsAllThatIsNoBeginningOfAStopTextAndEndsBeforeTheFirst) {
  const Tokenizer tokenizer = bytes();
  const std::vector<std::string> stops{"###", "\nUser:", "#x"};
  for (const auto& [said, expected] : {std::pair("a # b ## c\nUse it", "a # b ## c\nUse it"),
                                       std::pair("one ### two", "one "), std::pair("one\nUser: two", "one"),
                                       std::pair("##x", "#"), std::pair("####", ""), std::pair("tail ##", "tail ##")}) {
    ReplyText text({tokenizer, true}, stops);
    std::string shown;
    for (const int32_t token : tokenizer.encode(said)) {
      const bool goes_on = text.add(token);
      shown += text.next(!goes_on);
      EXPECT_TRUE(std::string_view(expected).starts_with(shown)) << said << ": " << shown;
      if (!goes_on) break;
    }
    shown += text.next(true);
    EXPECT_EQ(shown, expected);
    EXPECT_EQ(text.text(), expected);
  }
}

TEST(ReplyText, WithoutStopTextsEverythingIsShownAtOnce) {
  const Tokenizer tokenizer = bytes();
  ReplyText text({tokenizer, true}, {});
  for (const int32_t token : tokenizer.encode("ab")) {
    EXPECT_TRUE(text.add(token));
    EXPECT_EQ(text.next(false).size(), 1u);
  }
}

}  // namespace
}  // namespace snug
