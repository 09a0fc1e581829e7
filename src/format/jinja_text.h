// Text that remembers which of its bytes came from where: what a chat template is given, computes with and writes.
// Marks stand beside the bytes, not in them, so that no comparison or search in a template sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug::jinja {

// Where bytes came from: 0 is the template itself, other numbers are the caller's, below kGenerated. Bytes that a
// generation block wrote have kGenerated set besides.
using Mark = uint32_t;
constexpr Mark kGenerated = Mark{1} << 31;

// Bytes of one mark, up to byte `end` of their text.
struct Run {
  Mark mark = 0;
  size_t end = 0;
  bool operator==(const Run&) const = default;
};

// Copies keep marks; appending is amortised linear.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, Mark mark = 0) : bytes_(std::move(bytes)), mark_(mark) {}

  const std::string& bytes() const { return bytes_; }
  std::string_view view(size_t begin, size_t end) const { return std::string_view(bytes_).substr(begin, end - begin); }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Runs that cover all bytes in order, neighbours of different marks; empty for an empty text.
  std::vector<Run> runs() const;
  Mark mark_at(size_t byte) const;
  // Bytes that the object holds beside itself.
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
  Mark mark_ = 0;          // of all bytes, as long as runs_ is empty
  std::vector<Run> runs_;  // where there are several marks
};

// Code points, counted and found leniently: bytes that are not UTF-8 count one by one or with the lead before them, and
// no function reads beyond the text.
size_t count_code_points(std::string_view text);
// The byte behind the code point that begins at `byte`, which lies within the text.
size_t next_code_point(std::string_view text, size_t byte);
// The byte at which the code point begins that ends at `byte`, which is above 0.
size_t previous_code_point(std::string_view text, size_t byte);
// The code point between two bytes; its first byte as a number where that is not UTF-8.
char32_t code_point_between(std::string_view text, size_t begin, size_t end);

// White space as Python's str.isspace() sees it.
bool is_python_space(char32_t code_point);
// As Python's str.isprintable().
bool is_python_printable(char32_t code_point);

enum class Sides { Both, Left, Right };
// What str.strip(), lstrip() and rstrip() keep: from which byte to which. `characters`: those to take away; white space
// without.
struct Range {
  size_t begin = 0, end = 0;
};
Range strip(std::string_view text, std::optional<std::string_view> characters, Sides sides);

// Letters in another case, as Python's methods of these names for all but rare special casings.
enum class Case { Upper, Lower, Capitalize, Title, Swap };
Text in_case(const Text& text, Case which);

// `replacement` for `found`, `limit` times at most (all of them below 0), from the left.
Text replaced(const Text& text, std::string_view found, const Text& replacement, int64_t limit);
// How long replaced() would make it; SIZE_MAX for more than that holds.
size_t replaced_size(std::string_view text, std::string_view found, size_t replacement, int64_t limit);

// &, <, >, ", ' as HTML writes them.
Text html_escaped(const Text& text);

}  // namespace snug::jinja
