#include "image/orientation.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "image/image_bytes.h"

namespace snug {

namespace {

constexpr uint64_t kOrientationTag = 274, kEntryBytes = 12;
constexpr std::string_view kExifPrefix("Exif\0\0", 6);

// Reads numbers of a TIFF file in its byte order.
class Tiff {
 public:
  explicit Tiff(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool has(uint64_t offset, uint64_t count) const { return offset <= bytes_.size() && count <= bytes_.size() - offset; }
  // Returns whether it begins as a TIFF file of 32 bits does. Readers take 42 in either byte order.
  bool begins() {
    if (!has(0, 8)) return false;
    little_ = bytes_[0] == 'I' && bytes_[1] == 'I';
    if (!little_ && !(bytes_[0] == 'M' && bytes_[1] == 'M')) return false;
    const uint64_t magic = number(2, 2);
    return magic == 42 || magic == 42 << 8;
  }
  uint64_t number(uint64_t offset, uint64_t count) const {
    return little_ ? little_endian(bytes_, offset, count) : big_endian(bytes_, offset, count);
  }

 private:
  std::span<const uint8_t> bytes_;
  bool little_ = true;
};

// Returns the value of an entry that holds whole numbers of two or four bytes; its first, if it holds several.
std::optional<uint64_t> first_number(const Tiff& tiff, uint64_t entry) {
  const uint64_t type = tiff.number(entry + 2, 2), count = tiff.number(entry + 4, 4);
  const bool is_short = type == 3 || type == 8;
  const bool is_long = type == 4 || type == 9;
  if ((!is_short && !is_long) || count == 0) return {};
  const uint64_t unit = is_short ? 2 : 4;
  if (count * unit <= 4) return tiff.number(entry + 8, unit);
  const uint64_t offset = tiff.number(entry + 8, 4);
  if (!tiff.has(offset, count * unit)) return {};
  return tiff.number(offset, unit);
}

std::optional<uint64_t> exif_orientation(std::span<const uint8_t> exif) {
  const std::string_view text(reinterpret_cast<const char*>(exif.data()), exif.size());
  size_t skip = 0;
  while (text.substr(skip).starts_with(kExifPrefix)) skip += kExifPrefix.size();
  Tiff tiff(exif.subspan(skip));
  if (!tiff.begins()) return {};
  const uint64_t directory = tiff.number(4, 4);
  if (!tiff.has(directory, 2)) return {};
  std::optional<uint64_t> found;
  const uint64_t entries = tiff.number(directory, 2);
  for (uint64_t i = 0; i < entries; i++) {
    const uint64_t entry = directory + 2 + i * kEntryBytes;
    if (!tiff.has(entry, kEntryBytes)) break;
    if (tiff.number(entry, 2) != kOrientationTag) continue;
    if (const auto value = first_number(tiff, entry)) found = value;
  }
  return found;
}

std::optional<uint64_t> xmp_orientation(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = xmp.find(kName); at != xmp.npos; at = xmp.find(kName, at + 1)) {
    std::string_view rest = xmp.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return {};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

int OrientationTags::orientation() const {
  std::optional<uint64_t> value = exif_orientation(exif);
  if (!value) value = xmp_orientation(xmp);
  return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
}

std::vector<uint8_t> raw_profile_bytes(std::string_view text) {
  for (int line = 0; line < 3; line++) {
    const size_t end = text.find('\n');
    if (end == text.npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<uint8_t> bytes;
  int high = -1;
  for (const char c : text) {
    if (c == '\n' || c == ' ') continue;
    const int digit = hex_digit(c);
    if (digit < 0) return {};
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<uint8_t>(high * 16 + digit));
      high = -1;
    }
  }
  return bytes;
}

Image upright(Image image, int orientation) {
  check(orientation >= 1 && orientation <= 8, "orientation {} is none of 1 to 8", orientation);
  if (orientation == 1) return image;
  // The picture's place (x, y) lies in the file at (x, y) or, with rows and columns swapped, at (y, x), counted from
  // the far side where a direction is mirrored.
  const bool swapped = orientation >= 5;
  const bool mirrored_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirrored_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image turned{
      .width = swapped ? image.height : image.width, .height = swapped ? image.width : image.height, .rgb = {}};
  turned.rgb.resize(image.rgb.size());
  const auto offset = [&](int64_t x, int64_t y) {
    if (swapped) std::swap(x, y);
    if (mirrored_x) x = image.width - 1 - x;
    if (mirrored_y) y = image.height - 1 - y;
    return (y * image.width + x) * 3;
  };
  uint8_t* to = turned.rgb.data();
  for (int64_t y = 0; y < turned.height; y++) {
    const int64_t begin = offset(0, y), step = turned.width > 1 ? offset(1, y) - begin : 0;
    const uint8_t* from = image.rgb.data() + begin;
    for (int64_t x = 0; x < turned.width; x++, to += 3) {
      const uint8_t* pixel = from + x * step;
      to[0] = pixel[0], to[1] = pixel[1], to[2] = pixel[2];
    }
  }
  return turned;
}

}  // namespace snug
