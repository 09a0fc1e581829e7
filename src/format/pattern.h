// Regular expressions as other programs' files hold them, in the syntax of Python's `re`, read by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace snug {

class Pattern {
 public:
  // `place` names file and key for messages. UserError for an expression that is too long or is none.
  Pattern(std::string_view expression, std::string place);

  // Whether all of a name fits, as by Python's re.fullmatch(); UserError where finding out takes too long.
  bool matches(std::string_view name) const;
  const std::string& expression() const { return expression_; }

 private:
  std::shared_ptr<const void> code_;  // pcre2_code
  std::string expression_, place_;
};

}  // namespace snug
