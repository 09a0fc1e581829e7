#include "image/header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace snug {

namespace {

constexpr std::string_view kConvert = "convert it to PNG or JPEG";

struct Signature {
  size_t offset;
  std::string_view bytes, name, advice;
};

// Kinds of file that lie where images are expected.
constexpr Signature kForeign[] = {
    {0, "GIF8", "a GIF file", kConvert},
    {0, "BM", "a BMP file", kConvert},
    {0, std::string_view("II*\0", 4), "a TIFF file", kConvert},
    {0, std::string_view("MM\0*", 4), "a TIFF file", kConvert},
    {4, "ftypavif", "an AVIF file", kConvert},
    {4, "ftypavis", "an AVIF file", kConvert},
    {4, "ftyphei", "a HEIC file", kConvert},
    {4, "ftyphevc", "a HEIC file", kConvert},
    {4, "ftypmif1", "a HEIF file", kConvert},
    {4, "ftypmsf1", "a HEIF file", kConvert},
    {4, "ftyp", "a video or another file of the MP4 family", "give frames as images"},
    {0, std::string_view("\xff\x0a", 2), "a JPEG XL file", kConvert},
    {4, "JXL ", "a JPEG XL file", kConvert},
    {4, "jP  ", "a JPEG 2000 file", kConvert},
    {0, "\xff\x4f\xff\x51", "a JPEG 2000 file", kConvert},
    {0, "8BPS", "a Photoshop file", kConvert},
    {0, std::string_view("\0\0\1\0", 4), "an icon (ICO)", kConvert},
    {0, "%PDF", "a PDF file", "draw its pages as PNG"},
    {0, "version https://git-lfs", "a Git LFS pointer", "fetch what it points to (git lfs pull)"},
    {0, "PK\3\4", "a ZIP archive", "unpack it"},
    {0, "\x1f\x8b", "a gzip file", "unpack it"},
    {0, "\x28\xb5\x2f\xfd", "a Zstandard file", "unpack it"},
    {0, "\x93NUMPY", "a NumPy array", "save it as PNG"},
};

bool holds_no_case(std::string_view text, std::string_view lower) {
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b; };
  return std::search(text.begin(), text.end(), lower.begin(), lower.end(), same) != text.end();
}

// Throws UserError that names what the bytes are instead of an image.
[[noreturn]] void refuse_foreign(const std::string& source, std::string_view begin, uint64_t size) {
  constexpr std::string_view kExpected = "expected a JPEG, PNG or WebP image";
  if (size == 0) user_error("{}: the file is empty, {}: copy or fetch it again", source, kExpected);
  for (const Signature& kind : kForeign)
    if (begin.size() >= kind.offset && begin.substr(kind.offset).starts_with(kind.bytes))
      user_error("{}: found {}, {}: {}", source, kind.name, kExpected, kind.advice);
  if (holds_no_case(begin, "<svg")) user_error("{}: found an SVG drawing, {}: draw it as PNG", source, kExpected);
  if (holds_no_case(begin, "<!doctype html") || holds_no_case(begin, "<html"))
    user_error("{}: found an HTML page, {}: the download of it failed, fetch it again", source, kExpected);
  const auto is_text = [](char c) { return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t'; };
  if (std::all_of(begin.begin(), begin.end(), is_text))
    user_error("{}: found text that begins with '{}', {}", source,
               begin.substr(0, std::min<size_t>(begin.find('\n'), 40)), kExpected);
  const auto* first = reinterpret_cast<const uint8_t*>(begin.data());
  user_error("{}: found bytes that begin with {:02x}, {}: {}", source,
             fmt::join(first, first + std::min<size_t>(begin.size(), 8), " "), kExpected, kConvert);
}

using ReadHeader = ImageHeader (*)(ImageBytes&);

ReadHeader reader_of(std::string_view begin) {
  if (begin.starts_with("\xff\xd8\xff")) return read_jpeg_header;
  if (begin.starts_with("\x89PNG\r\n\x1a\n")) return read_png_header;
  if (begin.starts_with("RIFF") && begin.size() >= 12 && begin.substr(8, 4) == "WEBP") return read_webp_header;
  return nullptr;
}

ImageHeader read_by_signature(ImageBytes& bytes) {
  const std::span<const uint8_t> first = bytes.up_to(0, 512);
  const std::string_view begin(reinterpret_cast<const char*>(first.data()), first.size());
  const ReadHeader read = reader_of(begin);
  if (!read) refuse_foreign(bytes.source(), begin, bytes.size());
  if (bytes.size() > kMostImageBytes)
    user_error("{}: found {} bytes, expected at most {} in an image", bytes.source(), bytes.size(), kMostImageBytes);
  return read(bytes);
}

}  // namespace

ImageHeader read_image_header(ImageBytes& bytes, int64_t max_pixels) {
  const ImageHeader header = read_by_signature(bytes);
  if (header.width < 1 || header.height < 1)
    user_error("{}: found {} x {} pixels, expected at least 1 x 1", bytes.source(), header.width, header.height);
  if (header.width > max_pixels / header.height)
    user_error("{}: found {} x {} pixels, expected at most {} in all: make it smaller", bytes.source(), header.width,
               header.height, max_pixels);
  return header;
}

File open_image(const std::filesystem::path& path, std::string_view source) {
  try {
    return File::open_read(path, IoMode::Buffered);
  } catch (const UserError& error) {
    if (source == path.string()) throw;
    user_error("{}: {}", source, error.what());
  }
}

ImageHeader read_image_header(const std::filesystem::path& path, std::string_view source, int64_t max_pixels) {
  const File file = open_image(path, source);
  ImageBytes bytes(file, source);
  return read_image_header(bytes, max_pixels);
}

}  // namespace snug
