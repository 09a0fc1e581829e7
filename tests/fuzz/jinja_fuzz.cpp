// A chat template: anything but a UserError, or a text whose marks do not cover its bytes, is a fault. So is a
// rendering that hangs though its steps are few.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "format/jinja.h"
#include "format/jinja_json.h"

namespace {

using snug::jinja::make_string;
using snug::jinja::Text;

// What templates are given, under the names that the fixtures use too.
snug::JinjaTemplate::Variables variables() {
  const auto json = nlohmann::ordered_json::parse(R"({
    "s": "Hello, World", "u": "Gr\u00fc\u00dfe \u4f60\u597d \ud83e\udd86", "n": 7, "f": 2.5, "t": true, "no": null, "empty": "",
    "l": [3, 1, 2], "d": {"b": 1, "a": "x", "c": [1, {"k": null}]}, "words": ["foo", "Bar", "baz", "bar"],
    "q": "it's", "pad": "  \t two words \n", "html": "<b>&'\"</b>",
    "people": [{"name": "Ann", "age": 31, "city": "Ulm"}, {"name": "bob", "age": 25}],
    "messages": [{"role": "user", "content": " U "}, {"role": "assistant", "content": "<think>t</think>\n\nA"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]})");
  snug::JinjaTemplate::Variables out;
  snug::jinja::Mark mark = 0;
  for (const auto& [name, value] : json.items())
    out.emplace_back(name, snug::jinja::marked(snug::jinja::value_of_json(value.dump()), ++mark));
  Text mixed("\xc3\xa9 ab", 7);
  mixed.append("\xff\x80\xf0", 8);  // not UTF-8
  mixed.append(" cd\n", 9);
  out.emplace_back("mixed", make_string(std::move(mixed)));
  // What takes time by its length and no steps shows with texts that are long; they are equal, but not the same.
  for (const char* const name : {"long", "other"}) out.emplace_back(name, make_string(Text(std::string(300'000, 'a'))));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const snug::JinjaTemplate::Variables kVariables = variables();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto chat = snug::JinjaTemplate::parse(text, "the template");
    const Text made = chat.render(kVariables, {.steps = 300'000, .memory = uint64_t{8} << 20});
    size_t end = 0;
    for (const snug::jinja::Run& run : made.runs()) {
      if (run.end <= end) std::abort();
      end = run.end;
    }
    if (end != made.size()) std::abort();
  } catch (const snug::UserError&) {
  }
  return 0;
}
