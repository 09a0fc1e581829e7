// Matches regular expressions from other programs' files, in the syntax of Python's `re`, by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace snug {

class Pattern {
 public:
  // `place` names file and key for messages. Throws UserError for an expression that is too long or is none.
  Pattern(std::string_view expression, std::string place);

  // Returns whether all of a name fits, as Python's re.fullmatch() does; throws UserError if finding out takes too
  // long.
  bool matches(std::string_view name) const;
  const std::string& expression() const { return expression_; }
  bool operator==(const Pattern& other) const { return expression_ == other.expression_; }

 private:
  std::shared_ptr<const void> code_;  // pcre2_code
  std::string expression_, place_;
};

}  // namespace snug
