// Runs Jinja as chat templates use it: the language of jinja2 3.1 with the environment of transformers (a sandbox in
// which values are immutable, trim_blocks and lstrip_blocks, loop controls, tojson without escapes, generation blocks),
// without inheritance, imports and recursive loops. Results are byte for byte those of jinja2; bytes remember where
// they came from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/jinja_value.h"

namespace snug {
namespace jinja {
struct Program;
}

// Reports a rendering that took more than its limits; one that is given the same again would take as long.
struct JinjaLimitError : UserError {
  using UserError::UserError;
};

// Limits a rendering: steps are evaluations of about 30 ns, or bytes that take as long; memory is that of all values
// and the output at a time. The defaults grow with what is rendered, so that time and memory stay linear in it.
struct JinjaLimits {
  uint64_t steps = 0, memory = 0;

  static JinjaLimits for_input(uint64_t bytes) {
    return {.steps = 20'000'000 + 400 * bytes, .memory = (uint64_t{256} << 20) + 64 * bytes};
  }
  // Limits one of many short conversations that only show what a template does; published ones take some thousand
  // steps.
  static constexpr JinjaLimits for_probe() { return {.steps = 1'000'000, .memory = uint64_t{16} << 20}; }
};

class JinjaTemplate {
 public:
  // Parses a template. Throws UserError that names `source` ("the chat template"), the line, what was found and what
  // was expected.
  static JinjaTemplate parse(std::string_view text, std::string source);

  using Variables = std::vector<std::pair<std::string, jinja::Value>>;

  // Returns the text with its marks. `date` is what strftime_now() tells, "2024-07-26". Throws UserError with the line
  // if the template fails or refuses by raise_exception(), JinjaLimitError if it exceeds the limits. Threads may share
  // a template, but no values.
  jinja::Text render(const Variables& variables, const JinjaLimits& limits, std::string_view date = "2024-07-26") const;

  // Returns, in no order, the names that it reads from its variables or that are global.
  std::span<const std::string> names() const;

 private:
  std::shared_ptr<const jinja::Program> program_;
  std::string source_;
};

}  // namespace snug
