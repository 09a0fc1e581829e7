// Reads objects of .json and .jsonl files: one after another, in an array, or in a list within one object.
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/record_format.h"
#include "data/text_cursor.h"

namespace snug {
namespace {

// Follows JSON text byte by byte: it knows which brackets are open, and whether a string is.
class Brackets {
 public:
  void see(int byte) {
    const char c = static_cast<char>(byte);
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      open_ += c;
    } else if ((c == '}' || c == ']') && !open_.empty()) {
      open_.pop_back();
    }
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') last_ = c;
  }
  size_t depth() const { return open_.size(); }
  bool in_string() const { return in_string_; }
  // Returns whether a line that begins with a brace can go on with what is open.
  bool may_hold_object_next() const {
    if (in_string_) return false;
    return open_.back() == '{' ? last_ == ':' : last_ == '[' || last_ == ',';
  }

 private:
  std::string open_;
  char last_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// Holds a file's only object, without the contents of its lists and objects.
struct OnlyObject {
  Json keys;                       // each list of objects is [{}, its number]
  std::vector<uint64_t> lists;     // offset of each such list, by number
  std::vector<std::string> names;  // their keys, by number
};

// Reads a file that begins with an object. Returns nothing if there is more in it, or if it is no JSON.
std::optional<OnlyObject> read_only_object(TextCursor& cursor, uint64_t max_bytes) {
  OnlyObject out;
  std::string text;
  Brackets brackets;
  do {
    const int c = cursor.peek();
    if (c < 0 || text.size() >= max_bytes) return std::nullopt;
    const size_t before = brackets.depth();
    const uint64_t offset = cursor.offset();
    brackets.see(c);
    cursor.take();
    if (std::min(before, brackets.depth()) > 1) continue;
    text += static_cast<char>(c);
    if (c != '[' || brackets.depth() != 2 || before != 1) continue;
    cursor.skip_white_space();
    if (cursor.peek() != '{') continue;
    text += fmt::format("{{}},{}", out.lists.size());
    out.lists.push_back(offset);
  } while (brackets.depth() > 0);
  cursor.skip_white_space();
  if (cursor.peek() >= 0) return std::nullopt;
  try {
    out.keys = parse_json(text, cursor.name());
  } catch (const UserError&) {
    return std::nullopt;  // reported with its place when the object is read
  }
  out.names.resize(out.lists.size());
  for (const auto& [key, value] : out.keys.items()) {
    if (value.is_array() && value.size() == 2) out.names[value[1].get<size_t>()] = key;
  }
  return out;
}

class JsonRecords : public RecordFormat {
 public:
  JsonRecords(const std::filesystem::path& path, DataFileType type, RecordOptions options)
      : cursor_(path, type, options.heartbeat),
        options_(std::move(options)),
        in_place_(type.compression == Compression::None && is_file(path)) {
    cursor_.skip_white_space();
    if (type.kind == FileKind::Json && cursor_.peek() == '{' && options_.is_sample) find_list(path, type);
    in_array_ = in_array_ || cursor_.peek() == '[';
  }

  bool next(Record& record) override {
    if (in_array_) return next_element(record);
    cursor_.skip_white_space();
    if (cursor_.peek() < 0) return false;
    record.line = cursor_.line();
    record.place = fmt::format("{}, line {}", cursor_.name(), record.line);
    if (cursor_.peek() != '{') {
      user_error("{}: found {}, expected an object: one sample", record.place, shown_byte(cursor_.peek()));
    }
    read_object(record);
    return true;
  }

 private:
  // Goes to the list of samples, if they are in one that a lone object holds.
  void find_list(const std::filesystem::path& path, DataFileType type) {
    TextCursor ahead(path, type, options_.heartbeat);
    ahead.skip_white_space();
    const auto only = read_only_object(ahead, options_.max_record_bytes);
    if (!only || only->lists.empty() || options_.is_sample(only->keys)) return;
    if (only->lists.size() > 1) {
      user_error("{}: found one object with several lists of objects: {}; expected one list, so write each to its file",
                 cursor_.name(), fmt::join(only->names, ", "));
    }
    while (cursor_.offset() < only->lists[0]) {
      check(cursor_.peek() >= 0, "a list of objects lies behind the end of its file");
      cursor_.take();
    }
    in_array_ = true;
    key_ = only->names[0];
    note_ = fmt::format("{}: the samples are the list '{}' of its one object", cursor_.name(), key_);
    std::vector<std::string> others;
    for (const auto& [key, value] : only->keys.items()) {
      if (key != key_) others.push_back(key);
    }
    if (!others.empty()) note_ += fmt::format("; passed over: {}", fmt::join(others, ", "));
  }

  bool next_element(Record& record) {
    if (finished_) return false;
    const bool first = elements_ == 0;
    if (first) cursor_.take();  // the bracket
    cursor_.skip_white_space();
    int c = cursor_.peek();
    if (c == ']') {
      end_array();
      return false;
    }
    if (!first) {
      if (c != ',') {
        user_error("{}, line {}: found {} after element {}, expected ',' or ']'", cursor_.name(), cursor_.line(),
                   shown_byte(c), elements_);
      }
      cursor_.take();
      cursor_.skip_white_space();
      c = cursor_.peek();
    }
    record.line = cursor_.line();
    const std::string of_key = key_.empty() ? "" : fmt::format(" of '{}'", key_);
    record.place = fmt::format("{}, element {}{} (line {})", cursor_.name(), ++elements_, of_key, record.line);
    if (c != '{') user_error("{}: found {}, expected an object: one sample", record.place, shown_byte(c));
    read_object(record);
    return true;
  }

  void end_array() {
    cursor_.take();
    finished_ = true;
    if (!key_.empty()) return;  // what follows was examined with the list
    cursor_.skip_white_space();
    if (cursor_.peek() >= 0) {
      user_error("{}, line {}: found {}, expected nothing after the array", cursor_.name(), cursor_.line(),
                 shown_byte(cursor_.peek()));
    }
  }

  // Reads from a brace to the one that closes it; the JSON parser judges what lies between. Outside an array a line
  // that is cut short is a record too, so that it is refused with its own place.
  void read_object(Record& record) {
    if (in_place_) record.offset = cursor_.offset();
    Brackets brackets;
    do {
      const int c = cursor_.peek();
      if (c < 0) user_error("{}: the file ends inside it", record.place);
      cursor_.take();
      brackets.see(c);
      const char byte = static_cast<char>(c);
      append_within(record.text, {&byte, 1}, options_.max_record_bytes, cursor_.name(), cursor_.line());
      if (c != '\n' || in_array_) continue;
      if (brackets.in_string() || (cursor_.peek() == '{' && !brackets.may_hold_object_next())) {
        record.text.pop_back();
        return;
      }
    } while (brackets.depth() > 0);
  }

  TextCursor cursor_;
  RecordOptions options_;
  bool in_place_;         // the file's bytes are the text's
  int64_t elements_ = 0;  // read so far
  bool in_array_ = false, finished_ = false;
  std::string key_;  // name of the list, if an object holds it
};

}  // namespace

std::unique_ptr<RecordFormat> json_records(const std::filesystem::path& path, DataFileType type,
                                           RecordOptions options) {
  return std::make_unique<JsonRecords>(path, type, std::move(options));
}

}  // namespace snug
