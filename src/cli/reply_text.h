// Replies, as generate and chat are asked for them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "api/text.h"
#include "cli/commands.h"
#include "train/generate.h"

namespace snug {

// Returns how tokens are chosen and where replies end. UserError for options that need another one, and for texts that
// are empty or not UTF-8.
GenerateOptions generate_options(const JobConfig& options, const CommandFlags& flags, const PromptEncoder& encoder);

// The text of a reply as its tokens come, up to the first of some stop texts.
class ReplyText {
 public:
  // `stops` are not empty, and outlive this.
  ReplyText(TokenStream stream, std::span<const std::string> stops) : stream_(std::move(stream)), stops_(stops) {}

  // Takes the next token; returns whether the text goes on, which it does until it holds a stop text. It ends before
  // that.
  bool add(int32_t token);
  // Returns what of the text may be shown and was not returned before. What may be the beginning of a stop text is held
  // back until more has come, or until the reply is `over`.
  std::string_view next(bool over);
  const std::string& text() const { return text_; }

 private:
  size_t held_back() const;

  TokenStream stream_;
  std::span<const std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
};

}  // namespace snug
