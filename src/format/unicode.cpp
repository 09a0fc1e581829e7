#include "format/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "base/error.h"
#include "format/unicode_ranges.h"

namespace snug {
namespace {

constexpr size_t kPageSize = 256, kPages = 0x110000 / kPageSize;

// Holds the properties of all code points, in pages of which equal ones are stored once.
class PropertyTable {
 public:
  PropertyTable() {
    std::map<Page, uint16_t> known;
    Page page{};
    char32_t next = 0;
    const auto fill_up_to = [&](char32_t end, uint8_t properties) {
      for (; next < end; ++next) {
        page[next % kPageSize] = properties;
        if ((next + 1) % kPageSize != 0) continue;
        const auto [found, fresh] = known.emplace(page, static_cast<uint16_t>(pages_.size()));
        if (fresh) pages_.push_back(page);
        page_of_[next / kPageSize] = found->second;
      }
    };
    uint8_t properties = 0;
    char32_t start = 0;
    for (const uint32_t step : kUnicodeRangeSteps) {
      start += step >> 8;
      fill_up_to(start, properties);
      properties = static_cast<uint8_t>(step & 0xff);
    }
    fill_up_to(0x110000, properties);
  }
  uint8_t operator[](char32_t code_point) const {
    return pages_[page_of_[code_point / kPageSize]][code_point % kPageSize];
  }

 private:
  using Page = std::array<uint8_t, kPageSize>;
  std::array<uint16_t, kPages> page_of_{};
  std::vector<Page> pages_;
};

uint8_t look_up(char32_t code_point) {
  static const PropertyTable table;
  return table[code_point];
}

constexpr std::array<uint8_t, 0x80> kAsciiProperties = [] {
  std::array<uint8_t, 0x80> properties{};
  size_t range = 0, next_start = kUnicodeRangeSteps[1] >> 8;
  for (size_t c = 0; c < properties.size(); ++c) {
    for (; c >= next_start; next_start += kUnicodeRangeSteps[range + 1] >> 8) ++range;
    properties[c] = static_cast<uint8_t>(kUnicodeRangeSteps[range] & 0xff);
  }
  return properties;
}();

// Returns the bytes of the sequence that `lead` begins, 0 if it begins none.
constexpr uint8_t sequence_bytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;  // a continuation, or overlong
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0;
}

// Returns the values that may follow `lead`; later bytes are 0x80 to 0xbf.
constexpr std::pair<unsigned char, unsigned char> second_byte(unsigned char lead) {
  if (lead == 0xe0) return {0xa0, 0xbf};
  if (lead == 0xed) return {0x80, 0x9f};
  if (lead == 0xf0) return {0x90, 0xbf};
  if (lead == 0xf4) return {0x80, 0x8f};
  return {0x80, 0xbf};
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

int combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Composes one run of code points that normalise. utf8proc_map() would take quadratic time over long runs of combining
// marks, so its steps are taken one by one, with a sort of our own: decompose, order, compose.
void append_composed(std::string_view run, std::string& out) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  constexpr size_t kLongest = 32;  // no canonical decomposition is longer; room to spare
  std::vector<utf8proc_int32_t> points;
  for (size_t at = 0; at < run.size();) {
    const CodePoint point = decode_utf8(run, at);
    const size_t filled = points.size();
    points.resize(filled + kLongest);
    const auto written = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value), &points[filled], kLongest,
                                                 kOptions, nullptr);
    check(written >= 0 && written <= utf8proc_ssize_t{kLongest}, "U+{:04X} decomposes into {} code points",
          static_cast<uint32_t>(point.value), written);
    points.resize(filled + static_cast<size_t>(written));
    at += point.bytes;
  }

  const auto starts = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto mark = points.begin(); mark != points.end();) {
    mark = std::find_if_not(mark, points.end(), starts);
    const auto end = std::find_if(mark, points.end(), starts);
    std::stable_sort(mark, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    mark = end;
  }

  const auto composed = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  check(composed >= 0, "utf8proc cannot compose {} code points: error {}", points.size(), composed);
  for (utf8proc_ssize_t i = 0; i < composed; ++i) {
    append_utf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
  }
}

}  // namespace

uint8_t code_point_properties(char32_t code_point) {
  return code_point < kAsciiProperties.size() ? kAsciiProperties[code_point] : look_up(code_point);
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const size_t bytes = sequence_bytes(lead);
    if (bytes == 1) {
      ++at;
      continue;
    }
    if (bytes == 0 || bytes > text.size() - at) return at;
    const auto [low, high] = second_byte(lead);
    const auto second = static_cast<unsigned char>(text[at + 1]);
    if (second < low || second > high) return at;
    for (size_t i = 2; i < bytes; ++i) {
      if (!is_continuation(text[at + i])) return at;
    }
    at += bytes;
  }
  return {};
}

CodePoint decode_utf8(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1};
  const uint8_t bytes = sequence_bytes(lead);
  char32_t value = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) value = value << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3fu);
  return {value, bytes};
}

Character character_at(std::string_view text, size_t at) {
  const CodePoint point = decode_utf8(text, at);
  return {code_point_properties(point.value), point.bytes};
}

size_t start_of_last(std::string_view text, size_t end) {
  do --end;
  while (is_continuation(text[end]));
  return end;
}

void append_utf8(char32_t code_point, std::string& out) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  out.append(bytes.begin(), bytes.begin() + count);
}

std::string compose_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    // Finds a run of code points that can affect each other. ASCII alone changes nothing, but may begin a composition.
    size_t end = at;
    bool ascii = true;
    while (end < text.size()) {
      const Character character = character_at(text, end);
      if (!(character.properties & kNormalizes)) break;
      ascii = ascii && character.bytes == 1;
      end += character.bytes;
    }
    if (ascii) {
      out.append(text.substr(at, end - at));
    } else {
      append_composed(text.substr(at, end - at), out);
    }
    if (end < text.size()) {
      const size_t bytes = character_at(text, end).bytes;
      out.append(text.substr(end, bytes));
      end += bytes;
    }
    at = end;
  }
  return out;
}

}  // namespace snug
