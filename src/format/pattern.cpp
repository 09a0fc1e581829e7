#include "format/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace snug {
namespace {

constexpr size_t kMaxExpression = 1 << 16;
// One name may take these steps and bytes: far more than names of modules take, far less than an expression can demand.
constexpr uint32_t kMaxSteps = 1 << 20, kMaxKibibytes = 1 << 14;

std::string words_of(int error) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(error, text, sizeof text) < 0 ? std::to_string(error)
                                                               : reinterpret_cast<const char*>(text);
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

}  // namespace

Pattern::Pattern(std::string_view expression, std::string place) : expression_(expression), place_(std::move(place)) {
  if (expression.size() > kMaxExpression)
    user_error("{}: found an expression of {} bytes, expected at most {}", place_, expression.size(), kMaxExpression);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                   PCRE2_NEVER_BACKSLASH_C | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &at, nullptr);
  if (!code)
    user_error("{}: found '{}', expected a regular expression: {} (at byte {})", place_, expression_, words_of(error),
               at);
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

bool Pattern::matches(std::string_view name) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const MatchContext context(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMaxSteps);
  pcre2_set_heap_limit(context.get(), kMaxKibibytes);
  const int found =
      pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, data.get(), context.get());
  if (found < 0 && found != PCRE2_ERROR_NOMATCH)
    user_error("{}: '{}' cannot be matched with '{}': {}", place_, expression_, name, words_of(found));
  return found >= 0;
}

}  // namespace snug
