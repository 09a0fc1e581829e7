// Holds text that remembers where each of its bytes came from: what a chat template is given, computes with and writes.
// Marks stand beside the bytes, not in them, so that no comparison or search in a template sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug::jinja {

// Says where bytes came from: 0 is the template itself, other numbers are the caller's, below kGenerated. Bytes that a
// generation block wrote also have kGenerated set.
using Mark = uint32_t;
constexpr Mark kGenerated = Mark{1} << 31;

// Holds bytes of one mark, up to byte `end` of their text.
struct Run {
  Mark mark = 0;
  size_t end = 0;
  bool operator==(const Run&) const = default;
};

// Holds bytes with marks. Copies keep marks; appending is amortised linear.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, Mark mark = 0) : bytes_(std::move(bytes)), mark_(mark) {}

  const std::string& bytes() const { return bytes_; }
  std::string_view view(size_t begin, size_t end) const { return std::string_view(bytes_).substr(begin, end - begin); }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Returns runs that cover all bytes in order, neighbours of different marks; empty for an empty text.
  std::vector<Run> runs() const;
  Mark mark_at(size_t byte) const;
  // Returns the bytes that the object holds besides itself.
  size_t footprint() const { return bytes_.capacity() + runs_.capacity() * sizeof(Run); }

  void reserve(size_t bytes) { bytes_.reserve(bytes); }
  void append(std::string_view bytes, Mark mark);
  void append(const Text& text) { append(text, 0, text.size()); }
  void append(const Text& text, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;
  // Sets `bits` in the marks of all bytes from `begin` on.
  void mark_from(size_t begin, Mark bits);
  void clear();

 private:
  size_t run_of(size_t byte) const;
  void append_run(Mark mark, size_t end);

  std::string bytes_;
  Mark mark_ = 0;          // of all bytes, while runs_ is empty
  std::vector<Run> runs_;  // if there are several marks
};

// Returns the number of code points, counted leniently here and below: bytes that are not UTF-8 count one by one or
// with the lead before them, and no function reads beyond the text.
size_t count_code_points(std::string_view text);
// Returns the byte behind the code point that begins at `byte`, which lies within the text.
size_t next_code_point(std::string_view text, size_t byte);
// Returns the byte at which the code point begins that ends at `byte`, which is above 0.
size_t previous_code_point(std::string_view text, size_t byte);
// Returns the code point between two bytes; its first byte as a number if that is not UTF-8.
char32_t code_point_between(std::string_view text, size_t begin, size_t end);

// Returns whether Python's str.isspace() takes it for white space.
bool is_python_space(char32_t code_point);
// Returns what Python's str.isprintable() does.
bool is_python_printable(char32_t code_point);
// Returns whether a character is a decimal digit of some script, and the value of one that is.
bool is_decimal(char32_t code_point);
int decimal_value(char32_t code_point);

// Finds a text in another from a byte on; npos for none. It takes time in proportion to what it passes, whatever the
// texts are.
size_t find_text(std::string_view text, std::string_view found, size_t from = 0);

// Finds a text in another from the right, in time as above. It refers to both.
class SearchFromRight {
 public:
  SearchFromRight(std::string_view text, std::string_view found);
  // Returns where the last hit begins that ends by byte `end`; npos for none.
  size_t before(size_t end) const;

 private:
  std::string_view text_, found_;
  std::string reversed_text_, reversed_found_;  // of a text that is long
};

enum class Sides { Both, Left, Right };
// Says which bytes str.strip(), lstrip() and rstrip() keep. `characters` are those to take away; without them it is
// white space.
struct Range {
  size_t begin = 0, end = 0;
};
Range strip(std::string_view text, std::optional<std::string_view> characters, Sides sides);

// Changes letters to another case, as Python's methods of these names do, except rare special casings.
enum class Case { Upper, Lower, Capitalize, Title, Swap };
Text in_case(const Text& text, Case which);

// Replaces `found` by `replacement`, at most `limit` times (all if below 0), from the left.
Text replaced(const Text& text, std::string_view found, const Text& replacement, int64_t limit);
// Returns the length that replaced() would give; SIZE_MAX if it holds no such number.
size_t replaced_size(std::string_view text, std::string_view found, size_t replacement, int64_t limit);

// Returns the text with &, <, >, ", ' as HTML writes them.
Text html_escaped(const Text& text);

}  // namespace snug::jinja
